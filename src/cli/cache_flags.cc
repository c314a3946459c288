// Reading them.
#include "cli/cache_flags.h"

#include <charconv>

#include "base/byte_size.h"
#include "base/error.h"
#include "cli/command.h"

namespace vlcache {
namespace {

constexpr int64_t kDefaultDiskBytes = int64_t{20} << 30;

// DIR or DIR,BYTES.
DiskTierOptions read_disk(const std::string& disk) {
  DiskTierOptions options{.dir = disk, .max_bytes = kDefaultDiskBytes, .ttl_ms = 0, .salt = ""};
  const size_t comma = disk.rfind(',');
  if (comma == std::string::npos) return options;
  const std::optional<int64_t> bytes = parse_bytes(std::string_view(disk).substr(comma + 1), int64_t{1} << 30);
  if (!bytes || *bytes == 0) {
    throw Error(ErrorCode::kInput, "--cache-disk: expected DIR or DIR,BYTES such as cache,100GB, found '" + disk + "'");
  }
  options.dir = disk.substr(0, comma);
  options.max_bytes = *bytes;
  return options;
}

template <typename Value>
Flag add_flag(const Command& command, const char* name, Value& value, const char* help) {
  const Flag option = command.add(name, value, help).group("Cache");
  return option.share_environment();
}

}  // namespace

void add_cache_secrets(const Command& command, CacheFlags& flags) {
  add_flag(
      command, "--cache-salt", flags.salt,
      "secret that names and checksums of what is kept are keyed by: who has another one finds nothing, and cannot "
      "change an answer")
      .value_name("TEXT");
  add_flag(command, "--cache-redis-password-file", flags.redis_password_file,
           "the first line of this file is Redis' password, which then stands in no list of processes")
      .value_name("FILE");
}

void add_cache_flags(const Command& command, CacheFlags& flags) {
  const auto add = [&](const char* name, auto& value, const char* help) {
    return add_flag(command, name, value, help);
  };
  add("--cache-disk", flags.disk,
      "keep embeddings and KV of pictures in this folder, of so many bytes (default 20GiB), for later runs and other "
      "processes")
      .value_name("DIR[,BYTES]");
  add("--cache-redis", flags.redis,
      "keep them in this Redis server, too, for other machines: redis://[user:password@]host[:port][/db]; asked behind "
      "the folder, done without while it is down")
      .value_name("URL");
  add_cache_secrets(command, flags);
  add("--cache-ttl", flags.ttl, "what was kept so long ago is computed anew: 90s, 15m, 12h, 30d (default: never)")
      .value_name("TIME");
  add("--cache-admit", flags.admit, "keep a picture beyond the process from its N-th use on")
      .value_name("N")
      .range(1, 1 << 20)
      .show_default();
  add("--cache-codec", flags.codec,
      "how the KV of pictures is kept, in memory and beyond: exact, int8 (half the bytes), int4 (less than a third); "
      "what was kept in another way is not found")
      .value_name("CODEC")
      .show_default();
  add("--cache-keep", flags.keep,
      "keep this share of a picture's tokens only, chosen by key_diff, knorm or kvzip before any question is known, "
      "such as "
      "0.2:key_diff; needs a chooser of --reuse that is named")
      .value_name("SHARE:SCORER");
}

ImageKvForm image_form(const CacheFlags& flags) {
  ImageKvForm form{.codec = parse_image_codec(flags.codec)};
  if (!flags.keep.empty()) parse_image_keep(flags.keep, form);
  return form;
}

int64_t parse_duration_ms(std::string_view text) {
  int64_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  const std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  const int64_t ms = unit == "s" ? 1000 : unit == "m" ? 60'000 : unit == "h" ? 3'600'000 : unit == "d" ? 86'400'000 : 0;
  if (error != std::errc() || n <= 0 || ms == 0 || n > INT64_MAX / ms / 2) {
    throw Error(ErrorCode::kInput,
                "--cache-ttl: expected a time such as 90s, 15m, 12h or 30d, found '" + std::string(text) + "'");
  }
  return n * ms;
}

std::filesystem::path disk_folder(const CacheFlags& flags) { return read_disk(flags.disk).dir; }
std::filesystem::path sessions_folder(const CacheFlags& flags) { return disk_folder(flags) / "sessions"; }

std::shared_ptr<DiskTier> open_disk_tier(const CacheFlags& flags) {
  DiskTierOptions options = read_disk(flags.disk);
  options.salt = flags.salt;
  if (!flags.ttl.empty()) options.ttl_ms = parse_duration_ms(flags.ttl);
  return std::make_shared<DiskTier>(options);
}

std::shared_ptr<RedisTier> open_redis_tier(const CacheFlags& flags) {
  RedisTierOptions options;
  options.address = parse_redis_url(flags.redis, flags.redis_password_file);
  options.salt = flags.salt;
  if (!flags.ttl.empty()) options.ttl_ms = parse_duration_ms(flags.ttl);
  return std::make_shared<RedisTier>(options);
}

std::vector<std::shared_ptr<KvTier>> open_tiers(const CacheFlags& flags) {
  std::vector<std::shared_ptr<KvTier>> tiers;
  if (!flags.disk.empty()) tiers.push_back(open_disk_tier(flags));
  if (!flags.redis.empty()) tiers.push_back(open_redis_tier(flags));
  return tiers;
}

}  // namespace vlcache
