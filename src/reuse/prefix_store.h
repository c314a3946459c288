// PrefixStore: the KV of a conversation, beyond this process: pages as they are, in records of a thousand tokens each.
// A record is known by everything from the conversation's first token to its own last, so that one that goes on finds,
// and stores, only what is new.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "cache/kv_cache.h"
#include "store/tier_chain.h"

namespace vlcache {

class PrefixStore {
 public:
  static constexpr int32_t kRecordPages = 16;  // of every head: 1024 tokens

  // Of the model with this fingerprint. The chain must outlive it.
  PrefixStore(TierChain& chain, const ModelFingerprint& model, const KvShape& shape);

  // `elements`: per token, what its KV follows from besides those before it. `cache` is complete and has these tokens.
  // Copies what this machine has not stored yet; it is stored soon. Throws Error(kMemory) where a shared page must be
  // copied first. Of `before`, the elements of the same conversation when it was saved last, the record at its end goes
  // unless it is whole or still of use; who else began the same way computes that end again.
  void save(std::span<const Sha256Digest> elements, KvCache& cache, std::span<const Sha256Digest> before = {});
  // Fills an empty cache with the longest beginning that is stored in whole records or ends where `elements` end.
  // Returns its tokens; waits for them. Throws Error(kMemory) where pages run out.
  int32_t load(std::span<const Sha256Digest> elements, KvCache& cache, Deadline deadline);

 private:
  struct Piece {
    int32_t begin_page, end_page;
    RecordKey key;
  };
  std::vector<Piece> pieces_of(std::span<const Sha256Digest> elements) const;
  static int64_t bytes_of(const KvCache& cache, const Piece& piece);

  TierChain& chain_;
  ModelFingerprint model_;
  std::string layout_;
};

}  // namespace vlcache
