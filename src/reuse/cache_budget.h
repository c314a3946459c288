// CacheBudget: one budget of bytes for all caches beyond running requests. Across the caches, the entry that saves
// least for its bytes is evicted first (GreedyDual-Size-Frequency, Cherkasova 1998).
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/function_ref.h"
#include "base/sha256.h"

namespace vlcache {

class CacheBudget {
 public:
  // A cache under the budget.
  class Member {
   public:
    virtual ~Member() = default;
    virtual int64_t bytes() const = 0;
    // Priority of the next entry to be evicted; infinity if none can be.
    virtual double least_priority() const = 0;
    virtual void evict_least() = 0;
  };

  explicit CacheBudget(int64_t max_bytes) : max_bytes_(max_bytes) {}
  CacheBudget(const CacheBudget&) = delete;

  void join(Member& member) { members_.push_back(&member); }
  void leave(Member& member) { std::erase(members_, &member); }
  // Evicts the entries that save least until this many bytes more fit. False: they never can; nothing was evicted.
  bool make_room(int64_t bytes);
  // Reports an eviction of this priority that make_room() did not ask for, so that the GDSF clock advances.
  void went(double priority) { age_ = std::max(age_, priority); }
  // Priority of an entry requested n times that takes `cost` ms to recompute: older entries age as others are evicted.
  double priority(double n_uses, double cost, int64_t bytes) const;

  int64_t max_bytes() const { return max_bytes_; }
  int64_t used_bytes() const;

 private:
  int64_t max_bytes_;
  std::vector<Member*> members_;
  double age_ = 0;  // priority of the last evicted entry
};

// Protects entries that a request will need from eviction, as far as possible, for this object's lifetime. The cache
// must outlive it.
class CacheHold {
 public:
  CacheHold() = default;
  explicit CacheHold(std::function<void()> release) : release_(std::move(release)) {}
  CacheHold(CacheHold&& other) noexcept : release_(std::exchange(other.release_, nullptr)) {}
  CacheHold& operator=(CacheHold&& other) noexcept {
    std::swap(release_, other.release_);
    return *this;
  }
  ~CacheHold() {
    if (release_) release_();
  }

 private:
  std::function<void()> release_;
};

// Counters of a cache; misses and their reasons are counted per request (CacheTotals).
struct CacheStats {
  int64_t n_evictions = 0;
  int64_t bytes = 0;  // held now
};

// Values by digest, shared with their users: an evicted value lives until its users are done.
class DigestCache final : public CacheBudget::Member {
 public:
  explicit DigestCache(CacheBudget& budget) : budget_(budget) { budget.join(*this); }
  ~DigestCache() override { budget_.leave(*this); }

  // Null: a miss. T is the type that was put.
  template <typename T>
  std::shared_ptr<const T> find(const Sha256Digest& key) {
    return std::static_pointer_cast<const T>(find_any(key));
  }
  // Whether the key is cached; does not count as a use.
  bool contains(const Sha256Digest& key) const { return entries_.contains(key); }
  // Stores the value unless it is larger than the whole budget. `cost`: ms to recompute it.
  void put(const Sha256Digest& key, std::shared_ptr<const void> value, int64_t bytes, double cost);
  void drop(const Sha256Digest& key);
  void clear();
  // n_uses: how often it was put or found.
  void for_each(FunctionRef<void(const Sha256Digest& key, int64_t bytes, int64_t n_uses)> visit) const;
  // The entry of this key, present or future, is not evicted.
  CacheHold hold(const Sha256Digest& key);
  CacheStats stats() const { return {.n_evictions = n_evictions_, .bytes = bytes_}; }
  // Version counter; changes with the contents.
  int64_t version() const { return version_; }

  int64_t bytes() const override { return bytes_; }
  double least_priority() const override;
  void evict_least() override;

 private:
  struct Entry {
    std::shared_ptr<const void> value;
    int64_t bytes = 0;
    double cost = 0, n_uses = 0;
    std::pair<double, int64_t> order;  // priority, and when it was last requested
  };
  using Entries = std::map<Sha256Digest, Entry>;

  std::shared_ptr<const void> find_any(const Sha256Digest& key);
  void touch(Entries::iterator at);
  void release(const Sha256Digest& key);
  void erase(Entries::iterator at);

  CacheBudget& budget_;
  Entries entries_;
  std::map<Sha256Digest, int32_t> holds_;                          // number of holds per key
  std::map<std::pair<double, int64_t>, Entries::iterator> queue_;  // entries that can be evicted, the next one first
  int64_t n_touched_ = 0, version_ = 0;
  int64_t bytes_ = 0;
  int64_t n_evictions_ = 0;
};

}  // namespace vlcache
