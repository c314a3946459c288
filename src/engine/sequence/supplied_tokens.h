// SuppliedTokens: the tokens of a sequence whose K and V a SlotSource supplies, layer by layer, and the source.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/contracts/layer_hooks.h"
#include "cache/kv_cache.h"
#include "engine/sequence/sequence_tokens.h"

namespace vlcache {

// Supplies K and V of tokens that are not computed, such as those of reused images.
class SlotSource {
 public:
  virtual ~SlotSource() = default;
  // Removes from `tokens`, ascending, those without a slot in this layer. May throw as load() does.
  virtual void leave_out_missing(int32_t layer, std::vector<int32_t>& tokens) {
    static_cast<void>(layer), static_cast<void>(tokens);
  }
  // Writes K (rotated to their positions) and V of `tokens` into the last tokens.size() slots of every head of `view`.
  // May throw Error: the step then fails, with only this sequence to blame.
  virtual void load(int32_t layer, std::span<const int32_t> tokens, const KvView& view) = 0;
};

// Supplies the pages of a sequence's first tokens, which count as computed already, layer by layer.
class PageSource {
 public:
  virtual ~PageSource() = default;
  // Called before a step's rows are appended to the layer, whose pages must then have their bytes. May throw Error, as
  // SlotSource::load() may.
  virtual void fill(int32_t layer) = 0;
};

class SuppliedTokens {
 public:
  bool any() const { return source_ != nullptr; }
  // `source` supplies these pending tokens; those of `entering`, among them, are computed in the first layers.
  void add(std::span<const TokenRun> tokens, SlotSource& source, std::span<const TokenRun> entering,
           SequenceTokens& of);
  // The source is gone; states are the caller's.
  void clear();
  // Those that enter do so again, after `of` was rewound.
  void enter_again(SequenceTokens& of) const;
  void truncate(int32_t n);
  // Appends the supplied ones of tokens [begin, end) to a layer of the cache.
  void append(const SequenceTokens& of, int32_t layer, int32_t begin, int32_t end, KvCache& cache);

 private:
  SlotSource* source_ = nullptr;
  std::vector<TokenRun> entering_;
  std::vector<int32_t> tokens_, lengths_;  // of an append
  std::vector<float> biases_;              // likewise
};

}  // namespace vlcache
