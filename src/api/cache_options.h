// CacheOptions: storage that outlives the process, as a user names it: folders, Redis, time to live, the form of
// images' KV.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reuse/image/image_kv_form.h"
#include "reuse/prefix/prefix_saver.h"
#include "store/disk/tier.h"
#include "store/redis/tier.h"

namespace vlcache {

struct CacheOptions {
  std::string disk;                 // DIR or DIR,BYTES; empty: none
  std::string redis;                // a URL; empty: none
  std::string redis_password_file;  // empty: the URL has it, or there is none
  RedisTlsFiles redis_tls;          // for rediss://
  std::string redis_allow;          // hosts that a cluster may announce, separated by commas
  std::string salt;
  std::string ttl;  // 90s, 15m, 12h, 30d; empty: no limit
  int admit = 1;
  std::string codec = "exact";    // of images' KV: exact, int8, int4
  std::string keep;               // SHARE:SCORER; empty: all of it
  std::string prefixes = "auto";  // when the KV of prompts is stored: auto, always, off
  // Bytes an hour of prompts that were used once; a bare number counts GiB. By default 18 pages of 2,000 tokens of
  // Qwen3-VL-2B; at most 37 TB a year, where a disk of 1 TB is made for hundreds.
  std::string first_use = "4GiB";
};

// A folder and how many bytes it may hold, as --cache-disk and --packed-cache name them: DIR or DIR,BYTES. Throws
// Error(kInput) that names the flag.
struct FolderLimit {
  std::string folder;
  std::optional<int64_t> bytes;  // none: the default
};
FolderLimit parse_folder_limit(std::string_view flag, const std::string& text);

// The form in which images' KV is stored. Throws Error(kInput).
ImageKvForm image_form(const CacheOptions& options);
// When exact prefixes are stored in the tiers: kOff without tiers. Throws Error(kInput).
PrefixSaving prefix_saving(const CacheOptions& options);
// Opens the tiers that the options name, in the order of lookup. Throws Error(kInput).
std::vector<std::shared_ptr<KvTier>> open_tiers(const CacheOptions& options);
// Opens the tier of "DIR" or "DIR,BYTES".
std::shared_ptr<DiskTier> open_disk_tier(const CacheOptions& options);
// Opens the tier of a URL. An unreachable server is not an error.
std::shared_ptr<RedisTier> open_redis_tier(const CacheOptions& options);

// The directory of --cache-disk, empty without one, and the one of its sessions.
std::filesystem::path disk_folder(const CacheOptions& options);
std::filesystem::path sessions_folder(const CacheOptions& options);
// For the user: why other users may put records into that directory, and what follows. Empty: they may not, or a salt
// keeps them from changing anything.
std::string disk_folder_warning(const CacheOptions& options);

// "90s", "15m", "12h", "30d". Throws Error(kInput).
int64_t parse_duration_ms(std::string_view text);

}  // namespace vlcache
