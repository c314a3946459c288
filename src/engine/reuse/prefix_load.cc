#include "engine/reuse/prefix_load.h"

#include <algorithm>

#include "base/format.h"
#include "engine/engine.h"

namespace vlcache {

PrefixLoad::PrefixLoad(Engine& engine, const KnownPrompt& prompt)
    : engine_(&engine), prefix_(exact_prefix(engine, prompt)) {
  search_ = engine.kv().prefix_store()->search(prefix_.pieces, Clock::now() + engine.kv().image_store()->patience());
}

bool PrefixLoad::pending(Deadline until) {
  if (engine_ == nullptr) return false;
  if (by_ == kNoDeadline) by_ = Clock::now() + engine_->kv().image_store()->patience();
  const Deadline limit = std::min(until, by_);
  if (!started_) {
    for (size_t i = 0; i < prefix_.pieces.size(); ++i) {
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
  n_known_ = engine_->kv().prefixes().n_known(prefix_.key);
  std::vector<Found> found;
  for (size_t i = 0; i < prefix_.pieces.size(); ++i) {
    if (prefix_.pieces[i].end <= n_known_) continue;
    ChainedTier* const from = search_.tier(i);
    if (from == nullptr) break;
    found.push_back({&prefix_.pieces[i], from});
  }
  obstacle_ = slower_than_computing(found);
  if (!obstacle_.empty()) return;
  for (const Found& f : found) loads_.push_back(engine_->kv().prefix_store()->load(*f.piece, *f.from, by_));
}

// A tier that was not measured yet counts as faster.
std::string PrefixLoad::slower_than_computing(std::span<const Found> found) const {
  if (engine_->kv().prefix_saver()->when() == PrefixSaving::kAlways) return "";
  std::map<ChainedTier*, double> load_ms;
  int32_t n_tokens = 0;
  for (const Found& f : found) {
    n_tokens += f.piece->end - f.piece->begin;
    const double speed = f.from->worker->load_speed();
    if (speed > 0) load_ms[f.from] += static_cast<double>(engine_->kv().prefix_store()->piece_bytes(*f.piece)) / speed;
  }
  const double compute_ms = n_tokens * engine_->kv().ms_per_token();
  for (const auto& [tier, ms] : load_ms) {
    if (compute_ms == 0 || ms <= compute_ms) continue;
    return format("%s has %d more tokens, but loading them takes longer than computing them: about %.0f ms, %.0f ms",
                  std::string(tier->tier->name()).c_str(), n_tokens, ms, compute_ms);
  }
  return "";
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
  if (cache.n_known(prefix_.key) < loads.front().piece.begin) return;  // evicted meanwhile
  try {
    KvCache kv(engine.pools(), engine.backend(), engine.kv_shape());
    PrefixTree::Pin pin;
    if (first > 0) pin = cache.share(std::span(prefix_.key).first(first), kv);
    for (const PrefixStore::Load& load : loads) {
      engine.kv().prefix_store()->append(load, kv);
      ms_per_token_ = std::max(ms_per_token_, load.ms_per_token());
    }
    const int32_t end = loads.back().piece.end;
    cache.keep(std::span(prefix_.key).first(static_cast<size_t>(end)), kv, ms_per_token_);
    n_known_ = end;
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
