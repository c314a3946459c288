// Flags of `serve` about who may ask, how much, and what is said of it.
#pragma once

#include <string>
#include <vector>

#include "cli/flags/flags.h"
#include "server/http/http_server.h"
#include "server/image_source.h"
#include "server/operations/access.h"

namespace vlcache {

struct ServerFlags {
  std::string host = "127.0.0.1";
  int port = 8080, max_body_mib = 64, grace_s = 30, request_timeout_s = 0;
  std::vector<std::string> allowed_hosts, origins;
  std::string keys_file, access_log, tls_cert, tls_key;
  std::vector<std::string> image_urls, image_folders;  // prefixes
  int image_timeout_s = 10, named_images_mib = 256;
};

void add_server_flags(const Command& command, ServerFlags& flags);

// Tells on stderr of a file of keys that others may read.
AccessOptions access_options(const ServerFlags& flags);
ImageSourceOptions image_options(const ServerFlags& flags);
HttpOptions http_options(const ServerFlags& flags);

// True once behind every SIGHUP, after watch_hangups().
void watch_hangups();
bool hung_up();
// As many open files as the system lets this process have: each connection is one.
void raise_file_limit();

}  // namespace vlcache
