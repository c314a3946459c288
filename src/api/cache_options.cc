#include "api/cache_options.h"

#include <sys/stat.h>

#include <charconv>

#include "base/byte_size.h"
#include "base/error.h"
#include "base/file.h"

namespace vlcache {
namespace {

constexpr int64_t kDefaultDiskBytes = int64_t{20} << 30;

// DIR or DIR,BYTES.
DiskTierOptions read_disk(const std::string& disk) {
  const FolderLimit limit = parse_folder_limit("--cache-disk", disk);
  return {.dir = limit.folder, .max_bytes = limit.bytes.value_or(kDefaultDiskBytes), .ttl_ms = 0, .salt = ""};
}

}  // namespace

FolderLimit parse_folder_limit(std::string_view flag, const std::string& text) {
  const size_t comma = text.rfind(',');
  if (comma == std::string::npos) return {text, std::nullopt};
  const std::optional<int64_t> bytes = parse_bytes(std::string_view(text).substr(comma + 1), int64_t{1} << 30);
  if (!bytes || *bytes == 0) {
    throw Error(ErrorCode::kInput,
                std::string(flag) + ": expected DIR or DIR,BYTES such as cache,100GB, found '" + text + "'");
  }
  return {text.substr(0, comma), bytes};
}

ImageKvForm image_form(const CacheOptions& options) {
  ImageKvForm form{.codec = parse_image_codec(options.codec)};
  if (!options.keep.empty()) parse_image_keep(options.keep, form);
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

std::filesystem::path disk_folder(const CacheOptions& options) {
  return options.disk.empty() ? std::filesystem::path() : read_disk(options.disk).dir;
}
std::filesystem::path sessions_folder(const CacheOptions& options) { return disk_folder(options) / "sessions"; }

std::string disk_folder_warning(const CacheOptions& options) {
  const std::filesystem::path folder = disk_folder(options);
  struct stat status {};
  if (folder.empty() || !options.salt.empty() || stat(folder.c_str(), &status) != 0) return "";
  const std::string why = foreign_reason(status);
  if (why.empty()) return "";
  return "--cache-disk " + folder.string() + ": " + why +
         "; without --cache-salt, only records are used that belong to this user or root and that no other user may "
         "write to";
}

std::shared_ptr<DiskTier> open_disk_tier(const CacheOptions& options) {
  DiskTierOptions tier = read_disk(options.disk);
  tier.salt = options.salt;
  if (!options.ttl.empty()) tier.ttl_ms = parse_duration_ms(options.ttl);
  return std::make_shared<DiskTier>(tier);
}

std::shared_ptr<RedisTier> open_redis_tier(const CacheOptions& options) {
  RedisTierOptions tier;
  tier.address = parse_redis_url(options.redis, options.redis_password_file);
  tier.tls = options.redis_tls;
  if (tier.tls.any() && !tier.address.tls) {
    throw Error(ErrorCode::kInput,
                "--cache-redis-ca, -cert and -key: expected rediss:// or rediss+cluster:// in --cache-redis, found " +
                    tier.address.shown());
  }
  try {
    tier.allowed = parse_host_patterns(options.redis_allow);
  } catch (const Error& error) {
    throw Error(error.code(), std::string("--cache-redis-allow: ") + error.what());
  }
  if (!tier.allowed.empty() && !tier.address.cluster) {
    throw Error(ErrorCode::kInput,
                "--cache-redis-allow: expected redis+cluster:// or rediss+cluster:// in --cache-redis, found " +
                    tier.address.shown());
  }
  tier.salt = options.salt;
  if (!options.ttl.empty()) tier.ttl_ms = parse_duration_ms(options.ttl);
  return std::make_shared<RedisTier>(tier);
}

PrefixSaving prefix_saving(const CacheOptions& options) {
  if (options.disk.empty() && options.redis.empty()) return PrefixSaving::kOff;
  if (options.prefixes == "off") return PrefixSaving::kOff;
  if (options.prefixes == "always") return PrefixSaving::kAlways;
  if (options.prefixes == "auto") return PrefixSaving::kAuto;
  throw Error(ErrorCode::kInput, "--cache-prefixes: expected auto, always or off, found '" + options.prefixes + "'");
}

std::vector<std::shared_ptr<KvTier>> open_tiers(const CacheOptions& options) {
  std::vector<std::shared_ptr<KvTier>> tiers;
  if (!options.disk.empty()) tiers.push_back(open_disk_tier(options));
  if (!options.redis.empty()) tiers.push_back(open_redis_tier(options));
  return tiers;
}

}  // namespace vlcache
