#include "engine/reuse/prefix_load.h"

#include <algorithm>

#include "engine/engine.h"

namespace vlcache {

PrefixLoad::PrefixLoad(Engine& engine, const KnownPrompt& prompt) : engine_(&engine) {
  ExactPrefix prefix = exact_prefix(engine, prompt);
  key_ = std::move(prefix.key);
  pieces_ = std::move(prefix.pieces);
  search_ = engine.kv().prefix_store()->search(pieces_, Clock::now() + engine.kv().image_store()->patience());
}

bool PrefixLoad::pending(Deadline until) {
  if (engine_ == nullptr) return false;
  if (by_ == kNoDeadline) by_ = Clock::now() + engine_->kv().image_store()->patience();
  const Deadline limit = std::min(until, by_);
  if (!started_) {
    for (size_t i = 0; i < pieces_.size(); ++i) {
      if (!search_.wait(i, limit) && Clock::now() < by_) return true;
    }
    start_loads();
  }
  for (const PrefixStore::Load& load : loads_) {
    const RecordLoad::State state = load.wait(limit);
    if (state == RecordLoad::State::kPending && Clock::now() < by_) return true;
    if (state != RecordLoad::State::kReady) break;  // what follows is of no use
  }
  take();
  return false;
}

// Of the pieces after those that memory has, up to the first that no tier has.
void PrefixLoad::start_loads() {
  started_ = true;
  const int32_t n_known = engine_->kv().prefixes().n_known(key_);
  for (size_t i = 0; i < pieces_.size(); ++i) {
    if (pieces_[i].end <= n_known) continue;
    ChainedTier* const from = search_.tier(i);
    if (from == nullptr) break;
    loads_.push_back(engine_->kv().prefix_store()->load(pieces_[i], *from, by_));
  }
}

void PrefixLoad::take() {
  std::vector<PrefixStore::Load> loads = std::move(loads_);
  loads_.clear();
  Engine& engine = *engine_;
  PrefixCache& cache = engine.kv().prefixes();
  const auto missed = std::ranges::find_if(
      loads, [](const PrefixStore::Load& load) { return load.wait(Deadline::min()) != RecordLoad::State::kReady; });
  loads.erase(missed, loads.end());
  if (loads.empty()) return;
  const auto first = static_cast<size_t>(loads.front().piece.begin);
  if (cache.n_known(key_) < loads.front().piece.begin) return;  // evicted meanwhile
  double ms_per_token = 0;
  try {
    KvCache kv(engine.pools(), engine.backend(), engine.kv_shape());
    PrefixTree::Pin pin;
    if (first > 0) pin = cache.share(std::span(key_).first(first), kv);
    for (const PrefixStore::Load& load : loads) {
      engine.kv().prefix_store()->append(load, kv);
      ms_per_token = std::max(ms_per_token, load.ms_per_token());
    }
    const int32_t end = loads.back().piece.end;
    cache.keep(std::span(key_).first(static_cast<size_t>(end)), kv, ms_per_token);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kMemory) throw;  // no pages are free: the prompt is computed
    return;
  }
  for (const PrefixStore::Load& load : loads) {
    taken_.push_back({load.piece.begin, load.piece.end, std::string(load.from->tier->name())});
  }
}

std::map<std::string, int32_t> PrefixLoad::sources(int32_t n) const {
  std::map<std::string, int32_t> sources;
  for (const Taken& taken : taken_) {
    const int32_t end = std::min(taken.end, n);
    if (end > taken.begin) sources[taken.tier] += end - taken.begin;
  }
  return sources;
}

}  // namespace vlcache
