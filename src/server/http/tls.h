// Sets up TLS with the certificate and key that a server shows its clients.
#pragma once

#include <boost/asio/ssl/context.hpp>
#include <memory>
#include <string>

namespace vlcache {

// TLS 1.2 and later, with the certificate chain and the key of PEM files. Throws Error(kInput) that names the file.
std::unique_ptr<boost::asio::ssl::context> server_tls(const std::string& cert_file, const std::string& key_file);

}  // namespace vlcache
