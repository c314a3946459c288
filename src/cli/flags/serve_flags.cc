#include "cli/flags/serve_flags.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <atomic>
#include <csignal>
#include <cstdio>

#include "base/os/signals.h"
#include "io/document/pdf.h"
#include "io/video/video.h"

namespace vlcache {
namespace {

constexpr int kPatient = 16;  // workers, if they wait for other hosts or programs

std::atomic<bool> g_hung_up{false};

void on_hangup(int) { g_hung_up = true; }

// One value per use, or several separated by commas, as in environment variables.
void add_list(const Command& command, const char* name, std::vector<std::string>& list, const char* type,
              const char* help) {
  command.add(name, list, help).value_name(type).delimiter(',').one_per_use();
}

void add_access_flags(const Command& command, ServerFlags& flags) {
  command.add("--host", flags.host, "Address to listen on; 0.0.0.0: all interfaces").show_default();
  command.add("--port", flags.port, "Port to listen on; 0: any free port").range(0, 65535).show_default();
  command
      .add("--ops-port", flags.ops_port,
           "Additional port for /health, /metrics and /version alone, without TLS and keys; 0: any free port (default: "
           "none)")
      .range(0, 65535);
  command
      .add("--api-keys", flags.keys_file,
           "File of API keys, one of which each request must send (Authorization: Bearer KEY), in lines KEY [NAME] "
           "[admin]; callers of different names share no cache; SIGHUP reloads it (default: no key is needed, and "
           "every caller is an administrator)")
      .value_name("FILE");
  add_list(
      command, "--allowed-host", flags.allowed_hosts, "NAME",
      "Additional host name that requests may use in the Host header, which guards against DNS rebinding (one per "
      "use; *: any). Allowed by default: localhost, --host and addresses; unless --host is a loopback address also "
      "names without a dot, *.internal, *.local and names of clusters");
  add_list(command, "--cors", flags.origins, "ORIGIN",
           "Web site, extension or app whose pages may send requests from a browser, such as https://chat.example, "
           "https://*.chat.example, http://localhost:* or chrome-extension://ID (one per use; *: all; default: none)");
  const Flag cert =
      command.add("--tls-cert", flags.tls_cert, "PEM file of the certificate chain; turns HTTPS on (default: HTTP)");
  const Flag key = command.add("--tls-key", flags.tls_key, "PEM file of the private key of --tls-cert (default: none)");
  cert.value_name("FILE").needs(key);
  key.value_name("FILE").needs(cert);
}

void add_image_flags(const Command& command, ServerFlags& flags) {
  add_list(command, "--image-url-prefix", flags.image_urls, "URL",
           "Prefix of image and PDF URLs that the server may fetch, such as https://images.example/public/ (one per "
           "use; default: none are fetched); redirects are not followed, and private addresses must be listed here");
  add_list(
      command, "--image-path-prefix", flags.image_folders, "DIR",
      "Folder below which the server may read images and PDFs of file:// URLs (one per use; default: none are read)");
  command
      .add("--named-images", flags.named_images_mib,
           "Memory limit in MiB for images that requests have given a uuid; later requests may send the uuid alone. 0: "
           "none are kept")
      .range(0, 1 << 20)
      .show_default();
  command
      .add(
          "--files-memory", flags.files_mib,
          "Memory limit in MiB for files that clients upload to /v1/files; where they fill it, the least recently used "
          "are evicted first. 0: none are accepted")
      .range(0, 1 << 20)
      .show_default();
  command
      .add("--max-file", flags.max_file_mib,
           "Largest uploaded file in MiB; 0: what --max-body and --files-memory allow")
      .range(0, 1 << 20)
      .show_default();
  command.add("--files-ttl", flags.files_ttl_s, "Seconds after which an uploaded file is deleted")
      .range(1, 366 * 86400)
      .show_default();
  command.add("--image-timeout", flags.image_timeout_s, "Seconds after which fetching an image fails")
      .range(1, 3600)
      .show_default();
}

}  // namespace

void add_server_flags(const Command& command, ServerFlags& flags) {
  add_access_flags(command, flags);
  add_image_flags(command, flags);
  command.add("--max-body", flags.max_body_mib, "Largest request body in MiB").range(1, 4096).show_default();
  command
      .add("--request-timeout", flags.request_timeout_s,
           "Seconds after which a request ends with an error, queueing included; 0: no limit")
      .range(0, 86400)
      .show_default();
  command
      .add("--access-log", flags.access_log,
           "File to which a JSON line is appended for every request, without its text; -: standard output. SIGHUP "
           "reopens it (default: none)")
      .value_name("FILE");
  command.add("--quiet", flags.quiet, "Print no line on the terminal for every request");
  command
      .add("--drain-delay", flags.drain_delay_s,
           "Seconds after Ctrl-C or SIGTERM in which new requests are still accepted while /health/ready returns 503")
      .range(0, 86400)
      .show_default();
  command
      .add("--grace", flags.grace_s,
           "Seconds that running requests have to finish after Ctrl-C or SIGTERM; the process ends at most half a "
           "second later")
      .range(0, 86400)
      .show_default();
}

bool is_public(const ServerFlags& flags) {
  const std::string name = host_name(flags.host.find(':') == std::string::npos ? flags.host : "[" + flags.host + "]");
  return !(name == "localhost" || name == "::1" || (is_address(name) && name.starts_with("127.")));
}

AccessOptions access_options(const ServerFlags& flags) {
  AccessOptions options{.hosts = flags.allowed_hosts,
                        .private_hosts = is_public(flags),
                        .origins = flags.origins,
                        .keys_file = flags.keys_file};
  if (options.private_hosts && flags.keys_file.empty()) {
    std::fprintf(stderr,
                 "vlcache: warning: other machines can reach this server, and without --api-keys every caller has an "
                 "administrator's rights\n");
  }
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
  const bool pdfs = can_read_pdfs(), clips = can_decode_clips();  // both choose their programs' sandboxes now
  if (!flags.image_urls.empty() || pdfs || clips) http.n_workers = kPatient;
  http.tls_cert = flags.tls_cert;
  http.tls_key = flags.tls_key;
  return http;
}

void watch_hangups() { handle_signal(SIGHUP, on_hangup, /*restarts=*/true); }

bool hung_up() { return g_hung_up.exchange(false); }

void raise_file_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace vlcache
