// One budget of bytes for all that is kept beyond running requests: caches that give way to each other, what saves
// least for its bytes first (GreedyDual-Size-Frequency, Cherkasova 1998).
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

class CacheLedger {
 public:
  // A cache under the budget.
  class Member {
   public:
    virtual ~Member() = default;
    virtual int64_t bytes() const = 0;
    // Of what would go first; infinity where nothing can.
    virtual double least_priority() const = 0;
    virtual void evict_least() = 0;
  };

  explicit CacheLedger(int64_t max_bytes) : max_bytes_(max_bytes) {}
  CacheLedger(const CacheLedger&) = delete;

  void join(Member& member) { members_.push_back(&member); }
  void leave(Member& member) { std::erase(members_, &member); }
  // Lets go what saves least until so many bytes more fit. False: they never will, and nothing has gone.
  bool make_room(int64_t bytes);
  // Something of this priority has gone without being asked for room.
  void went(double priority) { age_ = std::max(age_, priority); }
  // Of something asked for n times that takes `cost` (ms) to make anew: old things fall behind as others go.
  double priority(double n_uses, double cost, int64_t bytes) const;

  int64_t max_bytes() const { return max_bytes_; }
  int64_t used_bytes() const;

 private:
  int64_t max_bytes_;
  std::vector<Member*> members_;
  double age_ = 0;  // priority of what went last
};

// What somebody is going to ask for stays, as far as it can, while this lives. Its cache must outlive it.
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

// What a cache has done; who asked it in vain, and why, requests know better (CacheTotals).
struct CacheStats {
  int64_t n_evictions = 0;
  int64_t bytes = 0;  // held now
};

// Values by digest, shared with whoever uses them: what goes from here lives on until they are done.
class DigestCache final : public CacheLedger::Member {
 public:
  explicit DigestCache(CacheLedger& ledger) : ledger_(ledger) { ledger.join(*this); }
  ~DigestCache() override { ledger_.leave(*this); }

  // Null: it is not there. The type is whoever put it's.
  template <typename T>
  std::shared_ptr<const T> find(const Sha256Digest& key) {
    return std::static_pointer_cast<const T>(find_any(key));
  }
  // Whether it is there, without asking for it.
  bool contains(const Sha256Digest& key) const { return entries_.contains(key); }
  // Kept unless it is larger than the whole budget. `cost`: ms to make it anew.
  void put(const Sha256Digest& key, std::shared_ptr<const void> value, int64_t bytes, double cost);
  void drop(const Sha256Digest& key);
  void clear();
  // n_uses: how often it was put or found.
  void for_each(FunctionRef<void(const Sha256Digest& key, int64_t bytes, int64_t n_uses)> visit) const;
  // What has this key, now or later, is not evicted.
  CacheHold hold(const Sha256Digest& key);
  CacheStats stats() const { return {.n_evictions = n_evictions_, .bytes = bytes_}; }
  // Another one whenever what is there has changed.
  int64_t version() const { return version_; }

  int64_t bytes() const override { return bytes_; }
  double least_priority() const override;
  void evict_least() override;

 private:
  struct Entry {
    std::shared_ptr<const void> value;
    int64_t bytes = 0;
    double cost = 0, n_uses = 0;
    std::pair<double, int64_t> order;  // priority, and when it was last asked for
  };
  using Entries = std::map<Sha256Digest, Entry>;

  std::shared_ptr<const void> find_any(const Sha256Digest& key);
  void touch(Entries::iterator at);
  void release(const Sha256Digest& key);
  void erase(Entries::iterator at);

  CacheLedger& ledger_;
  Entries entries_;
  std::map<Sha256Digest, int32_t> holds_;                          // how many of each
  std::map<std::pair<double, int64_t>, Entries::iterator> queue_;  // of what may go: what goes first, first
  int64_t n_touched_ = 0, version_ = 0;
  int64_t bytes_ = 0;
  int64_t n_evictions_ = 0;
};

}  // namespace vlcache
