#include "cli/flags/cache_flags.h"

#include "cli/flags/command.h"

namespace vlcache {
namespace {

template <typename Value>
Flag add_flag(const Command& command, const char* name, Value& value, const char* help) {
  const Flag option = command.add(name, value, help).group("Cache");
  return option.share_environment();
}

}  // namespace

void add_cache_secrets(const Command& command, CacheOptions& options) {
  add_flag(command, "--cache-salt", options.salt,
           "Secret key for record names and checksums: processes with another key get misses and cannot alter records "
           "(default: none; checksums without a key)")
      .value_name("TEXT");
  add_flag(command, "--cache-redis-password-file", options.redis_password_file,
           "File whose first line is the password of Redis, so that process lists do not show it (default: the "
           "password in the URL)")
      .value_name("FILE");
  add_flag(command, "--cache-redis-ca", options.redis_tls.ca,
           "CA certificates that must have signed the certificate of a rediss:// server (default: the system's)")
      .value_name("FILE");
  add_flag(command, "--cache-redis-cert", options.redis_tls.cert,
           "Client certificate for rediss:// servers that require one (default: none)")
      .value_name("FILE");
  add_flag(command, "--cache-redis-key", options.redis_tls.key, "Private key of --cache-redis-cert (default: none)")
      .value_name("FILE");
  add_flag(
      command, "--cache-redis-allow", options.redis_allow,
      "Additional hosts that a Redis cluster may announce as its nodes: 10.0.0.7, 10.0.0.0/8, node-1, *.example.com; "
      "other nodes get neither a connection nor the password (default: only the hosts of --cache-redis)")
      .value_name("HOSTS");
}

void add_cache_flags(const Command& command, CacheOptions& options) {
  const auto add = [&](const char* name, auto& value, const char* help) {
    return add_flag(command, name, value, help);
  };
  add("--cache-disk", options.disk,
      "Folder in which embeddings and KV are stored for later runs and other processes, and its size limit (default: "
      "no folder; BYTES: 20GiB)")
      .value_name("DIR[,BYTES]");
  add("--cache-redis", options.redis,
      "Redis or Valkey server that stores embeddings and KV for other machines: "
      "redis://[user:password@]host[:port][/db], rediss:// with TLS, unix:///path?db=N, redis+cluster:// and "
      "rediss+cluster:// with host:port,host:port of a cluster. It is searched after the folder and skipped while it "
      "is down (default: none)")
      .value_name("URL");
  add_cache_secrets(command, options);
  add("--cache-ttl", options.ttl,
      "Age after which stored records are ignored and recomputed: 90s, 15m, 12h, 30d (default: no limit)")
      .value_name("TIME");
  add("--cache-admit", options.admit, "Store an image in the folder or server from its N-th use on")
      .value_name("N")
      .range(1, 1 << 20)
      .show_default();
  add("--cache-prefixes", options.prefixes,
      "When the KV of prompts is stored in the folder or server, for later prompts that begin the same: auto (from a "
      "prompt's second use on, of prompts with images after the first while a server is idle, before memory evicts it, "
      "and when the process ends), always (as soon as it is computed), off (never)")
      .one_of({"auto", "always", "off"})
      .show_default();
  add("--cache-codec", options.codec,
      "Encoding of the cached KV of images, in memory and stored: exact, int8 (half the bytes), int4 (less than a "
      "third); records of another encoding are misses")
      .value_name("CODEC")
      .show_default();
  add("--cache-keep", options.keep,
      "Cache only this share of an image's tokens, chosen before any question by key_diff, knorm or kvzip: "
      "0.2:key_diff. Requires --reuse with a method by name (default: all tokens)")
      .value_name("SHARE:SCORER");
}

}  // namespace vlcache
