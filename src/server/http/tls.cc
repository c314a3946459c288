#include "server/http/tls.h"

#include <openssl/ssl.h>

#include "base/error.h"

namespace vlcache {

namespace ssl = boost::asio::ssl;

std::unique_ptr<ssl::context> server_tls(const std::string& cert_file, const std::string& key_file) {
  auto context = std::make_unique<ssl::context>(ssl::context::tls_server);
  context->set_options(ssl::context::default_workarounds | ssl::context::no_sslv2 | ssl::context::no_sslv3 |
                       ssl::context::no_tlsv1 | ssl::context::no_tlsv1_1 | SSL_OP_NO_RENEGOTIATION |
                       SSL_OP_IGNORE_UNEXPECTED_EOF);
  context->set_password_callback([](size_t, ssl::context::password_purpose) { return std::string(); });
  const auto check = [](const boost::system::error_code& e, const std::string& flag, const std::string& file) {
    if (e) throw Error(ErrorCode::kInput, flag + ": " + file + ": cannot be used: " + e.message());
  };
  boost::system::error_code e;
  context->use_certificate_chain_file(cert_file, e);
  check(e, "--tls-cert", cert_file);
  context->use_private_key_file(key_file, ssl::context::pem, e);
  check(e, "--tls-key", key_file);
  if (SSL_CTX_check_private_key(context->native_handle()) != 1) {
    throw Error(ErrorCode::kInput, "--tls-key: " + key_file + ": expected the key of the certificate " + cert_file);
  }
  return context;
}

}  // namespace vlcache
