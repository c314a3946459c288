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
  add_flag(
      command, "--cache-salt", options.salt,
      "secret that names and checksums of what is kept are keyed by: who has another one finds nothing, and cannot "
      "change an answer")
      .value_name("TEXT");
  add_flag(command, "--cache-redis-password-file", options.redis_password_file,
           "the first line of this file is Redis' password, which then stands in no list of processes")
      .value_name("FILE");
  add_flag(command, "--cache-redis-ca", options.redis_tls.ca,
           "certificates that sign those of rediss:// servers (default: those that the system trusts)")
      .value_name("FILE");
  add_flag(command, "--cache-redis-cert", options.redis_tls.cert,
           "this client's certificate for rediss://, if the server asks for one")
      .value_name("FILE");
  add_flag(command, "--cache-redis-key", options.redis_tls.key, "its private key").value_name("FILE");
  add_flag(command, "--cache-redis-allow", options.redis_allow,
           "further hosts that a Redis cluster may name for its nodes, beside those of --cache-redis: 10.0.0.7, "
           "10.0.0.0/8, node-1, *.example.com; other nodes are not connected to, nor given the password")
      .value_name("HOSTS");
}

void add_cache_flags(const Command& command, CacheOptions& options) {
  const auto add = [&](const char* name, auto& value, const char* help) {
    return add_flag(command, name, value, help);
  };
  add("--cache-disk", options.disk,
      "keep embeddings and KV of pictures in this folder, of so many bytes (default 20GiB), for later runs and other "
      "processes")
      .value_name("DIR[,BYTES]");
  add("--cache-redis", options.redis,
      "keep them in this Redis or Valkey server, too, for other machines: redis://[user:password@]host[:port][/db], "
      "rediss:// with TLS, redis+cluster:// and rediss+cluster:// with host:port,host:port of a cluster; searched "
      "after "
      "the folder; skipped while it is down")
      .value_name("URL");
  add_cache_secrets(command, options);
  add("--cache-ttl", options.ttl, "entries older than this are recomputed: 90s, 15m, 12h, 30d (default: never)")
      .value_name("TIME");
  add("--cache-admit", options.admit, "keep a picture beyond the process from its N-th use on")
      .value_name("N")
      .range(1, 1 << 20)
      .show_default();
  add("--cache-prefixes", options.prefixes,
      "keep the KV of prompts there, too, for the same beginning in later runs: auto (from a prompt's second use on, "
      "before memory evicts it, and at the end of the process), always (as soon as it is computed), off")
      .one_of({"auto", "always", "off"})
      .show_default();
  add("--cache-codec", options.codec,
      "how the KV of pictures is kept, in memory and beyond: exact, int8 (half the bytes), int4 (less than a third); "
      "what was kept in another way is not found")
      .value_name("CODEC")
      .show_default();
  add("--cache-keep", options.keep,
      "keep this share of a picture's tokens only, chosen by key_diff, knorm or kvzip before any question is known, "
      "such as "
      "0.2:key_diff; needs a chooser of --reuse that is named")
      .value_name("SHARE:SCORER");
}

}  // namespace vlcache
