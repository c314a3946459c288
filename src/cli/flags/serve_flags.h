// Registers the flags of `serve` about access, limits and logs.
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
  int port = 8080, max_body_mib = 64, grace_s = 30, request_timeout_s = 0, drain_delay_s = 0;
  int ops_port = -1;  // -1: none
  bool quiet = false;
  std::vector<std::string> allowed_hosts, origins;
  std::string keys_file, access_log, tls_cert, tls_key;
  std::vector<std::string> image_urls, image_folders;  // prefixes
  int image_timeout_s = 10, named_images_mib = 256;
  int files_mib = 256, max_file_mib = 0, files_ttl_s = 86400;  // of /v1/files
};

void add_server_flags(const Command& command, ServerFlags& flags);

// Whether other machines may reach the server.
bool is_public(const ServerFlags& flags);
// Warns on stderr about a file of keys that other users may read, and of a public server without keys.
AccessOptions access_options(const ServerFlags& flags);
ImageSourceOptions image_options(const ServerFlags& flags);
HttpOptions http_options(const ServerFlags& flags);

// hung_up() returns true once after every SIGHUP that arrives after watch_hangups().
void watch_hangups();
bool hung_up();
// Raises the limit of open files to the system's maximum for this process: each connection is one.
void raise_file_limit();

}  // namespace vlcache
