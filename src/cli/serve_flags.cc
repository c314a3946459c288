// Reading them.
#include "cli/serve_flags.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <atomic>
#include <csignal>
#include <cstdio>

namespace vlcache {
namespace {

constexpr int kFetchers = 16;  // workers, where they wait for other hosts

std::atomic<bool> g_hung_up{false};

void on_hangup(int) { g_hung_up = true; }

// One each time it is given, or several with commas between, as environment variables have them.
void add_list(CLI::App& command, const char* name, std::vector<std::string>& list, const char* type, const char* help) {
  command.add_option(name, list, help)->type_name(type)->delimiter(',')->allow_extra_args(false);
}

void add_access_flags(CLI::App& command, ServerFlags& flags) {
  command.add_option("--host", flags.host, "address to listen on; 0.0.0.0: all")->capture_default_str();
  command.add_option("--port", flags.port, "port; 0: any that is free")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  command
      .add_option("--api-keys", flags.keys_file,
                  "file of keys, one of which requests must bring (Authorization: Bearer KEY): lines KEY [NAME] "
                  "[admin]; callers of different names share no cache; read anew at SIGHUP")
      ->type_name("FILE");
  add_list(command, "--allowed-host", flags.allowed_hosts, "NAME",
           "name that requests may call this server by (Host header), besides localhost, --host and addresses; *: any");
  add_list(command, "--cors", flags.origins, "ORIGIN",
           "web site whose pages may ask this server, such as https://chat.example; *: all");
  CLI::Option* cert = command.add_option("--tls-cert", flags.tls_cert, "PEM file of the certificate chain: HTTPS");
  CLI::Option* key = command.add_option("--tls-key", flags.tls_key, "PEM file of its key");
  cert->type_name("FILE")->needs(key);
  key->type_name("FILE")->needs(cert);
}

void add_image_flags(CLI::App& command, ServerFlags& flags) {
  add_list(command, "--image-url-prefix", flags.image_urls, "URL",
           "fetch pictures whose URLs begin like this, such as https://images.example/public/; no redirects, and no "
           "private addresses but such as stand here");
  add_list(command, "--image-path-prefix", flags.image_folders, "DIR",
           "read pictures of file:// URLs below this folder");
  command
      .add_option(
          "--named-images", flags.named_images_mib,
          "MiB of pictures that requests have given a uuid, for those that send the uuid alone; 0: none is kept")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  command.add_option("--image-timeout", flags.image_timeout_s, "seconds until a picture must have been fetched")
      ->check(CLI::Range(1, 3600))
      ->capture_default_str();
}

}  // namespace

void add_server_flags(CLI::App& command, ServerFlags& flags) {
  add_access_flags(command, flags);
  add_image_flags(command, flags);
  command.add_option("--max-body", flags.max_body_mib, "MiB of a request")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command
      .add_option("--request-timeout", flags.request_timeout_s,
                  "seconds a request may take, waiting included; then it ends with an error; 0: as long as it takes")
      ->check(CLI::Range(0, 86400))
      ->capture_default_str();
  command
      .add_option("--access-log", flags.access_log,
                  "append a line of JSON for every request, without its text, to this file; -: to standard output; "
                  "opened anew at SIGHUP")
      ->type_name("FILE");
  command.add_option("--grace", flags.grace_s, "seconds that running requests have behind Ctrl-C or SIGTERM")
      ->check(CLI::Range(0, 86400))
      ->capture_default_str();
}

AccessOptions access_options(const ServerFlags& flags) {
  AccessOptions options{.hosts = flags.allowed_hosts, .origins = flags.origins, .keys_file = flags.keys_file};
  if (!is_address(flags.host)) options.hosts.push_back(flags.host);
  struct stat file {};
  if (!flags.keys_file.empty() && stat(flags.keys_file.c_str(), &file) == 0 && (file.st_mode & 077) != 0) {
    std::fprintf(stderr, "vlcache: warning: others may read %s (chmod 600)\n", flags.keys_file.c_str());
  }
  return options;
}

ImageSourceOptions image_options(const ServerFlags& flags) {
  return {.url_prefixes = flags.image_urls,
          .path_prefixes = {flags.image_folders.begin(), flags.image_folders.end()},
          .limits = {.max_bytes = static_cast<uint64_t>(flags.max_body_mib) << 20,
                     .timeout = std::chrono::seconds(flags.image_timeout_s)}};
}

HttpOptions http_options(const ServerFlags& flags) {
  HttpOptions http;
  http.host = flags.host;
  http.port = static_cast<uint16_t>(flags.port);
  http.max_body_bytes = static_cast<uint64_t>(flags.max_body_mib) << 20;
  if (!flags.image_urls.empty()) http.n_workers = kFetchers;
  http.tls_cert = flags.tls_cert;
  http.tls_key = flags.tls_key;
  return http;
}

void watch_hangups() { std::signal(SIGHUP, on_hangup); }

bool hung_up() { return g_hung_up.exchange(false); }

void raise_file_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace vlcache
