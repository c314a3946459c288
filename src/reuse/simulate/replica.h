// Replica: the caches of one process of a replay, and the tiers that it reads and writes.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/sha256.h"
#include "reuse/cache_budget.h"
#include "reuse/prefix/prefix_saver.h"
#include "reuse/simulate/replay.h"

namespace vlcache {

// Sizes of a replay, in parts of the KV of a token.
inline constexpr int64_t kTokenBytes = 1000;
inline constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max() / 4;

inline int64_t replay_bytes(int64_t n_blocks, int64_t block_tokens) {
  const int64_t block = block_tokens * kTokenBytes;
  return n_blocks == 0 || n_blocks > kNoLimit / block ? kNoLimit : n_blocks * block;
}

// How a record is stored: Record::yields and first_use.
enum class RecordRank : uint8_t { kUsual, kYields, kFirstUse };

// The records of a tier: the least recently written or read one is evicted first, as a folder and Redis do; in a
// folder, records that were used once before all others.
class ReplayTier {
 public:
  // evicts_to: the share that an eviction leaves in use; 0.9 of a folder (DiskSpace), 1 of a server.
  ReplayTier(int64_t max_bytes, double evicts_to);
  bool has(const Sha256Digest& key) const { return records_.contains(key); }
  // A read of the record.
  bool read(const Sha256Digest& key);
  // yields: a full folder does not evict for it. DiskSpace stores it if no record that it would evict was read or saves
  // more, which one in a tenth of a folder nearly always does. At its first use, a folder evicts those alone that were
  // used once, and a server stores the record where it has room.
  void write(const Sha256Digest& key, int64_t bytes, RecordRank rank);

 private:
  using Order = std::pair<bool, int64_t>;  // the order of eviction: whether it was used again, when it was used
  struct Entry {
    int64_t bytes;
    Order order;
  };
  bool is_folder() const { return slack_ > 0; }
  void evict_down_to(int64_t bytes, bool used_again);

  int64_t max_bytes_, slack_, used_bytes_ = 0, once_bytes_ = 0, n_uses_ = 0;
  std::map<Sha256Digest, Entry> records_;
  std::map<Order, Sha256Digest> queue_;
};

// A replica's way to a tier: writes are queued, as StoreWorker does.
class TierLink {
 public:
  // `delay` and `rate`, in bytes: as in ReplayOptions. The tier outlives it.
  TierLink(ReplayTier& tier, int64_t delay, int64_t rate) : tier_(tier), delay_(delay), rate_(rate) {}
  ReplayTier& tier() const { return tier_; }
  void write(const Sha256Digest& key, int64_t bytes, RecordRank rank);
  // A request arrives at some replica.
  void advance();

 private:
  struct Queued {
    int64_t due;  // a number of requests
    Sha256Digest key;
    int64_t bytes;
    RecordRank rank;
  };
  ReplayTier& tier_;
  int64_t delay_, rate_;
  int64_t n_requests_ = 0, n_written_ = 0;  // bytes of the record at the queue's front
  std::deque<Queued> queue_;
};

// The tiers of a replica.
struct ReplayTiers {
  std::optional<TierLink> disk, shared;

  bool any() const { return disk || shared; }
  bool on_disk(const Sha256Digest& key) const { return disk && disk->tier().has(key); }
  bool has(const Sha256Digest& key) const { return on_disk(key) || (shared && shared->tier().has(key)); }
  // The nearest tier that has the record.
  HitSource read(const Sha256Digest& key) const;
  // A record was used in memory.
  void used(const Sha256Digest& key) const { static_cast<void>(read(key)); }
  // The same; what only the shared tier has is copied to the disk.
  HitSource read_and_copy(const Sha256Digest& key, int64_t bytes);
  void write(const Sha256Digest& key, int64_t bytes, RecordRank rank = RecordRank::kUsual);
  // Of what this replica has claimed in the shared tier: others that need it wait until it is written.
  void write_claimed(const Sha256Digest& key, int64_t bytes);
  void advance();
};

// The pages of a replica's tree.
struct ReplayPages {
  int32_t n_elements = 1;  // of a page
  int64_t bytes = kTokenBytes;
  int64_t bytes_of(int64_t elements) const { return (elements + n_elements - 1) / n_elements * bytes; }
};

// The PrefixSaver of a replica: prefixes of its tree, in which pages have no contents, are stored in its tiers.
class ReplicaSaver {
 public:
  // Tiers and tree outlive it.
  ReplicaSaver(ReplayTiers& tiers, PrefixTree& tree, const ReplayPages& pages, PrefixSaving when);
  ReplicaSaver(const ReplicaSaver&) = delete;
  bool off() const { return !saver_; }
  // A prompt has used a prefix: its name in the tree, and the pieces of it, in elements. `cost`: of computing an
  // element. Not if off().
  void used(std::vector<Element> key, std::vector<PrefixStore::Piece> pieces, double cost);
  // Nothing is computed until the next request.
  void idle();

 private:
  ReplayTiers& tiers_;
  ReplayPages pages_;
  HourlyBytes first_uses_;
  std::optional<PrefixSaver> saver_;
};

class Replica {
 public:
  virtual ~Replica() = default;
  // Number of blocks of the request's beginning that memory has; does not count as a use.
  virtual int64_t n_known(const TraceRequest& request) = 0;
  // What the request finds; then its KV is stored. ReplayedRequest::replica is not set.
  virtual ReplayedRequest serve(const TraceRequest& request) = 0;
};

// A process that stores whole blocks. All outlive it.
std::unique_ptr<Replica> make_block_replica(const ReplayOptions& options, ReplayTiers& tiers);
// A vlcache server; each draws times of its own by its number.
std::unique_ptr<Replica> make_image_replica(const ReplayOptions& options, ReplayTiers& tiers, int32_t number);

// A digest of what a record holds, after `before`.
Sha256Digest replay_key(const Sha256Digest& before, std::span<const Element> elements);

// An owner of pages without contents, all of which are one.
class NoPages final : public PageGroupOwner {
 public:
  static constexpr PageGroup kPage = 0;

 private:
  void retain(PageGroup) override {}
  void release(PageGroup) override {}
};

}  // namespace vlcache
