// DiskTier stores records in a directory, one file each, DIR/ab/<hex id>.vlr, for any number of processes. A file
// appears whole (it is written under a temporary name, synced and renamed) and is verified whenever it is read; a
// corrupt one is removed, so that it will be written again. With a salt, a record's checksums are keyed by it. Without
// one a record is used only if no other user can have written it (foreign_reason); it is left to its user, and replaced
// when this process stores one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>

#include "store/disk/space.h"
#include "store/kv_tier.h"
#include "store/record_seal.h"
#include "store/tier_counter.h"

namespace vlcache {

struct DiskTierOptions {
  std::filesystem::path dir;
  int64_t max_bytes = 0;  // of all files; reaching it evicts to nine tenths
  int64_t ttl_ms = 0;     // older records are misses; 0: no limit
  std::string salt;       // RecordSeal
  int id_bits = 256;      // RecordSeal; fewer in tests
};

class DiskTier final : public KvTier {
 public:
  // Creates the directory and its parents if they are missing, and removes files that dead writers left in it. Throws
  // Error(kInput) if it is no directory and cannot be created, or if the limit is not positive.
  explicit DiskTier(const DiskTierOptions& options);

  std::string_view name() const override { return "disk"; }
  std::string place() const override { return dir_.string(); }
  RecordId id_of(const RecordKey& key) const override { return seal_.id(key); }
  bool answers_at_once() const override { return true; }
  std::vector<bool> exists(std::span<const RecordKey> keys, Deadline deadline) override;
  OpenedRecord open(const RecordKey& key, Deadline deadline) override;
  PutResult put(const Record& record, Deadline deadline) override;
  bool erase(const RecordId& id) override;
  // A file DIR/ab/<hex id>.claim.
  bool claim(const RecordKey& key, Clock::duration time, Deadline deadline) override;
  void release(const RecordKey& key) override;
  void used(const RecordKey& key) override;
  // In a file of the folder itself, as a record before it has its name.
  void probe() override;
  std::vector<ListedRecord> list() override;
  TierStats stats() const override { return counter_.stats(); }
  void set_model(const ModelFingerprint& model) override;

  std::filesystem::path path_of(const RecordKey& key) const { return record_path(dir_, id_of(key)); }
  int64_t used_bytes() const;  // as far as this process knows
  int64_t max_bytes() const { return max_bytes_; }

 private:
  class Reader;
  // nullopt: `header` is verified and of this key.
  std::optional<Miss> read_header(const OpenedFile& opened, const RecordKey* expected, Deadline deadline,
                                  RecordHeader& header) const;
  // Removes a corrupt record, if the reason is one that is_corrupt() names.
  void drop(const Miss& why, const std::filesystem::path& path, const OpenedFile& opened);
  PutResult store(const Record& record, const std::filesystem::path& path, Deadline deadline);
  PutResult write_or_evict(const Record& record, const RecordHeader& header, const std::filesystem::path& path,
                           Deadline deadline);
  PutResult write(const Record& record, const RecordHeader& header, const std::filesystem::path& path,
                  Deadline deadline);

  std::filesystem::path dir_;
  int64_t max_bytes_, ttl_ms_;
  RecordSeal seal_;
  const std::string claimant_;
  TierCounter counter_;
  mutable std::mutex space_mutex_;
  DiskSpace space_;
  int64_t writing_bytes_ = 0;  // of records that are being written
};

}  // namespace vlcache
