#include "engine/sequence/supplied_tokens.h"

#include <algorithm>

#include "base/error.h"

namespace vlcache {

void SuppliedTokens::add(std::span<const TokenRun> tokens, SlotSource& source, std::span<const TokenRun> entering,
                         SequenceTokens& of) {
  CHECK(source_ == nullptr || source_ == &source);
  source_ = &source;
  for (const TokenRun& run : tokens) {
    CHECK(0 <= run.begin && run.begin <= run.end && run.end < of.size());
    for (int32_t t = run.begin; t < run.end; ++t) CHECK(of.state(t) == TokenState::kPending);
  }
  of.set(tokens, TokenState::kLoaded);
  entering_.assign(entering.begin(), entering.end());
  enter_again(of);
}

void SuppliedTokens::clear() {
  source_ = nullptr;
  entering_.clear();
}

void SuppliedTokens::enter_again(SequenceTokens& of) const {
  for (const TokenRun& run : entering_) {
    for (int32_t t = run.begin; t < run.end; ++t) CHECK(is_supplied(of.state(t)));
  }
  of.set(entering_, TokenState::kEntering);
}

void SuppliedTokens::truncate(int32_t n) {
  for (TokenRun& run : entering_) run.end = std::min(run.end, n);
  std::erase_if(entering_, [](const TokenRun& run) { return run.begin >= run.end; });
}

void SuppliedTokens::append(const SequenceTokens& of, int32_t layer, int32_t begin, int32_t end, KvCache& cache) {
  tokens_.clear();
  for (int32_t t = begin; t < end; ++t) {
    if (is_supplied(of.state(t))) tokens_.push_back(t);
  }
  if (!tokens_.empty()) source_->leave_out_missing(layer, tokens_);
  if (tokens_.empty()) return;
  lengths_.resize(static_cast<size_t>(cache.shape().layers[static_cast<size_t>(layer)].n_kv_heads));
  source_->load(layer, tokens_, cache.append(layer, tokens_, lengths_.data(), of.biases(tokens_, biases_)));
}

}  // namespace vlcache
