// PrefixSaver decides when exact prefixes of this process are stored beyond it: at their second use, or at its end.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "reuse/prefix_cache.h"
#include "reuse/prefix_store.h"

namespace vlcache {

enum class PrefixSaving : uint8_t {
  kOff,     // prefixes are neither written to tiers nor read from them
  kAuto,    // written at the second use, and what memory still has when the process ends
  kAlways,  // written as soon as they are computed
};

// Called by the thread that drives the engine.
class PrefixSaver {
 public:
  // All must outlive it. `empty`: makes an empty cache of the model's shape.
  PrefixSaver(PrefixStore& store, PrefixCache& cache, PrefixSaving when, std::function<KvCache()> empty)
      : store_(store), cache_(cache), when_(when), empty_(std::move(empty)) {}

  PrefixSaving when() const { return when_; }
  // A request has used this prefix: `cache` has its KV, computed as in a prompt by itself. `key`: its name in the
  // prefix cache. `ms_per_token`: what computing it took.
  void used(std::vector<Element> key, std::vector<PrefixStore::Piece> pieces, const KvCache& cache,
            double ms_per_token);
  // Stores what is in the prefix cache and was not stored yet, the most time saved first, until the deadline.
  void save_all(Deadline deadline);

 private:
  struct Prefix {
    std::vector<Element> key;
    std::vector<PrefixStore::Piece> pieces;
    double ms_per_token = 0;
    int64_t n_uses = 0, used_at = 0;
  };
  void forget_oldest();
  int64_t save(std::span<const PrefixStore::Piece> pieces, KvCache cache, double ms_per_token);

  PrefixStore& store_;
  PrefixCache& cache_;
  PrefixSaving when_;
  std::function<KvCache()> empty_;
  std::map<Sha256Digest, Prefix> prefixes_;      // by the content of the last piece
  std::map<Sha256Digest, int32_t> piece_uses_;   // by the content of a piece
  std::map<int64_t, Sha256Digest> by_last_use_;  // of prefixes_
  int64_t n_uses_ = 0;
};

}  // namespace vlcache
