// PrefixStore keeps the KV of conversations beyond this process: pages as they are, in records of 1024 tokens each. A
// record's key covers everything from the conversation's first token to its own last, so that a continued conversation
// finds the old records, and stores only the new ones.
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
  static constexpr int32_t kRecordPages = 16;  // per head: 1024 tokens

  // For the model with this fingerprint. The chain must outlive it.
  PrefixStore(TierChain& chain, const ModelFingerprint& model, const KvShape& shape);

  // `elements`: per token, all that its KV depends on besides the tokens before it. `cache` is complete and has these
  // tokens. Copies the records that this machine has not stored yet, and queues them. Throws Error(kMemory) if a shared
  // page must be copied first and cannot be. `before`: the elements of the same conversation when it was last saved;
  // its last record is erased unless it is whole or part of `elements`; other conversations with the same beginning
  // recompute that end.
  void save(std::span<const Sha256Digest> elements, KvCache& cache, std::span<const Sha256Digest> before = {});
  // Fills an empty cache with the longest beginning that is stored in whole records or ends where `elements` end.
  // Blocks until it is loaded; returns the number of its tokens. Throws Error(kMemory) if no pages are free.
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
