// Flags of what outlives the process, shared by every command with a model and by `vlcache cache`.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cli/flags.h"
#include "reuse/image_kv_form.h"
#include "store/disk_tier.h"
#include "store/redis_tier.h"

namespace vlcache {

struct CacheFlags {
  std::string disk;                 // DIR or DIR,BYTES; empty: none
  std::string redis;                // a URL; empty: none
  std::string redis_password_file;  // empty: the URL has it, or there is none
  std::string salt;
  std::string ttl;  // 90s, 15m, 12h, 30d; empty: for ever
  int admit = 1;
  std::string codec = "exact";  // of pictures' KV: exact, int8, int4
  std::string keep;             // SHARE:SCORER; empty: all of it
};

// --cache-salt and --cache-redis-password-file, which whoever opens a tier needs, whatever says where it is.
void add_cache_secrets(const Command& command, CacheFlags& flags);
void add_cache_flags(const Command& command, CacheFlags& flags);

// In which form pictures' KV is kept. Throws Error(kInput).
ImageKvForm image_form(const CacheFlags& flags);
// What the flags name, in the order in which it is asked. Throws Error(kInput).
std::vector<std::shared_ptr<KvTier>> open_tiers(const CacheFlags& flags);
// Of "DIR" or "DIR,BYTES".
std::shared_ptr<DiskTier> open_disk_tier(const CacheFlags& flags);
// Of a URL. That the server cannot be reached is no error.
std::shared_ptr<RedisTier> open_redis_tier(const CacheFlags& flags);

// The directory of --cache-disk, and that of sessions in it.
std::filesystem::path disk_folder(const CacheFlags& flags);
std::filesystem::path sessions_folder(const CacheFlags& flags);

// "90s", "15m", "12h", "30d". Throws Error(kInput).
int64_t parse_duration_ms(std::string_view text);

}  // namespace vlcache
