#include "engine/reuse/prefix_load.h"

#include <algorithm>

#include "base/format.h"
#include "engine/engine.h"
#include "engine/engine_caches.h"

namespace vlcache {
namespace {

// A step waits this long for a layer; slower loads are waited for outside of steps.
constexpr std::chrono::milliseconds kLongestPrefixStall{50};

}  // namespace

PrefixLoad::PrefixLoad(Engine& engine, const KnownPrompt& prompt)
    : engine_(&engine),
      kv_(&engine.caches().of(prompt.codec)),
      prefix_(exact_prefix(engine, prompt)),
      beginning_(prompt, kv_->shape()) {
  search_ = kv_->prefix_store()->search(prefix_.pieces, Clock::now() + kv_->image_store()->patience());
}

bool PrefixLoad::pending(Deadline until) {
  if (engine_ == nullptr) return false;
  if (by_ == kNoDeadline) by_ = Clock::now() + kv_->image_store()->patience();
  if (!started_) {
    for (size_t i = 0; i < prefix_.pieces.size(); ++i) {
      if (!search_.wait(i, std::min(until, by_)) && Clock::now() < by_) return true;
    }
    start_loads();
  }
  for (size_t i = 0; i < loads_.size();) {
    const RecordLoad::State state = loads_[i].wait_layer(0, std::min(until, by_));
    if (state == RecordLoad::State::kReady) {
      ++i;
      continue;
    }
    if (state == RecordLoad::State::kPending && Clock::now() < by_) return true;
    drop(i);
    i = 0;
  }
  return false;
}

// Without a missed record, others give fewer tokens, or the same: records after it are of no use, but a sequence may
// continue at an earlier place, whose window has records that were not asked for yet.
void PrefixLoad::drop(size_t load) {
  const int32_t begin = begin_of_loads();
  const auto missed = std::ranges::find(prefix_.pieces, loads_[load].piece.key, &PrefixStore::Piece::key);
  missed_.insert(static_cast<size_t>(missed - prefix_.pieces.begin()));
  // Windows of earlier places were not asked for in time: they get the time limit once more.
  const bool more_time = Clock::now() >= by_ && kv_->shape().largest_window() > 0;
  if (more_time && !std::exchange(has_more_time_, true)) by_ = Clock::now() + kv_->image_store()->patience();
  const PrefixStore::Plan left = plan(begin, n_known_);
  n_known_ = left.pieces.empty() ? std::min(n_known_, begin) : left.to.n;
  load_planned(left);
}

std::vector<PrefixStore::Load>::iterator PrefixLoad::load_of(size_t piece) {
  const RecordKey& key = prefix_.pieces[piece].key;
  return std::ranges::find_if(loads_, [&](const PrefixStore::Load& load) { return load.piece.key == key; });
}

// Of the records in loads_, and of others that tiers have and that were not missed, as long as there is time.
PrefixStore::Plan PrefixLoad::plan(int32_t n_begin, int32_t n_most) {
  const bool in_time = Clock::now() < by_;
  const auto there = [&](size_t i) {
    return search_.tier(i) != nullptr && !missed_.contains(i) && (in_time || load_of(i) != loads_.end());
  };
  return kv_->prefix_store()->plan(prefix_.pieces, there, n_begin, n_most);
}

// Loads the planned records, and only these.
void PrefixLoad::load_planned(const PrefixStore::Plan& plan) {
  std::vector<PrefixStore::Load> loads;
  for (const size_t i : plan.pieces) {
    const auto old = load_of(i);
    loads.push_back(old != loads_.end() ? std::move(*old)
                                        : kv_->prefix_store()->load(prefix_.pieces[i], *search_.tier(i), by_));
  }
  loads_ = std::move(loads);
}

// How many tokens a sequence has when loads_ are added.
int32_t PrefixLoad::begin_of_loads() const { return kv_->shape().has_places() ? n_begin_ : loads_.front().piece.begin; }

// How many tokens a sequence gets from memory at most, so that records join them. Where a shape has
// places, a record begins there, and the sequence can continue.
int32_t PrefixLoad::joins_at(int32_t n_memory) const {
  if (!kv_->shape().has_places()) return n_memory;
  for (auto piece = prefix_.pieces.rbegin(); piece != prefix_.pieces.rend(); ++piece) {
    if (piece->begin > n_memory) continue;
    const auto begin = std::span(prefix_.key).first(static_cast<size_t>(piece->begin));
    if (kv_->prefixes().n_known(begin) == piece->begin) return piece->begin;
  }
  return 0;
}

// Of the pieces that give more than memory has.
void PrefixLoad::start_loads() {
  started_ = true;
  PrefixStore& store = *kv_->prefix_store();
  n_known_ = kv_->prefixes().n_known(prefix_.key);
  // All of the prompt comes only where a sequence can continue before its last token, too.
  const auto n_most = static_cast<int32_t>(prefix_.key.size()) - (store.has_places() ? 1 : 0);
  n_begin_ = joins_at(n_known_);
  const PrefixStore::Plan plan = this->plan(n_begin_, n_most);
  if (plan.to.n <= n_known_) {
    if (n_known_ == 0) obstacle_ = beginning_.other_codes(store, kv_shapes(engine_->model()));
    return;
  }
  std::vector<Found> found;
  for (const size_t i : plan.pieces) found.push_back({&prefix_.pieces[i], search_.tier(i)});
  obstacle_ = slower_than_computing(found);
  if (!obstacle_.empty()) return;
  load_planned(plan);
  n_known_ = plan.to.n;
}

// A tier that was not measured yet counts as faster.
std::string PrefixLoad::slower_than_computing(std::span<const Found> found) const {
  if (kv_->prefix_saver()->when() == PrefixSaving::kAlways) return "";
  std::map<ChainedTier*, double> load_ms;
  const int32_t begin = kv_->shape().has_places() ? n_begin_ : found.front().piece->begin;
  const int32_t n_tokens = found.back().piece->end - begin;
  for (const Found& f : found) {
    const double speed = f.from->worker->load_speed();
    if (speed > 0) load_ms[f.from] += static_cast<double>(kv_->prefix_store()->piece_bytes(*f.piece)) / speed;
  }
  const double compute_ms = n_tokens * engine_->caches().ms_per_token();
  for (const auto& [tier, ms] : load_ms) {
    if (compute_ms == 0 || ms <= compute_ms) continue;
    return format("%s has %d more tokens, but loading them takes longer than computing them: about %.0f ms, %.0f ms",
                  std::string(tier->tier->name()).c_str(), n_tokens, ms, compute_ms);
  }
  return "";
}

int32_t PrefixLoad::begins_at() {
  if (loads_.empty()) return INT32_MAX;
  const int32_t n = kv_->prefixes().n_known(prefix_.key);  // another request may have cached more
  const bool all_together = kv_->shape().has_places();
  std::erase_if(loads_, [&](const PrefixStore::Load& load) { return (all_together ? n_known_ : load.piece.end) <= n; });
  return loads_.empty() ? INT32_MAX : begin_of_loads();
}

void PrefixLoad::begin(Sequence& sequence, int32_t n_allowed) {
  if (loads_.empty() || begin_of_loads() != sequence.n_done()) return loads_.clear();
  const PrefixStore::Plan allowed = plan(sequence.n_done(), std::min(n_allowed, n_known_));
  load_planned(allowed);
  if (loads_.empty()) return;
  n_given_ = allowed.to.n;
  try {
    sequence.assume_coming(n_given_, allowed.to.n_codes, *this);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kOutOfPages) throw;  // no pages are free: the prompt is computed
    return loads_.clear();
  }
  sequence_ = &sequence;
  filled_.assign(static_cast<size_t>(kv_->shape().n_layers()), false);
  taken_.clear();
  int32_t n_taken = begin_of_loads();  // a token may come in several pieces
  for (const PrefixStore::Load& load : loads_) {
    ms_per_token_ = std::max(ms_per_token_, load.ms_per_token());
    if (load.piece.end <= n_taken) continue;
    taken_.push_back({n_taken, load.piece.end, std::string(load.from->tier->name())});
    n_taken = load.piece.end;
  }
}

void PrefixLoad::fill(int32_t layer) {
  if (sequence_ == nullptr || filled_[static_cast<size_t>(layer)]) return;
  const Deadline until = std::min(Clock::now() + kLongestPrefixStall, by_);
  for (size_t i = 0; i < loads_.size(); ++i) {
    const RecordLoad::State state = loads_[i].wait_layer(layer, until);
    if (state == RecordLoad::State::kReady) continue;
    const bool comes = state == RecordLoad::State::kPending && Clock::now() < by_;
    want_ = comes ? Want::kComes : Want::kMissed;
    has_stalled_ = true;
    const std::string why = "a prompt's stored beginning: " + describe(loads_[i].load.miss());
    if (!comes) drop(i);
    throw Error(ErrorCode::kIo, why);
  }
  for (const PrefixStore::Load& load : loads_) {
    kv_->prefix_store()->fill(load, layer, n_given_, sequence_->cache());
  }
  filled_[static_cast<size_t>(layer)] = true;
  if (std::ranges::find(filled_, false) == filled_.end()) all_filled();
}

void PrefixLoad::all_filled() {
  std::exchange(sequence_, nullptr)->forget_page_source();
  for (const PrefixStore::Load& load : loads_) {
    // A record's last bytes, which follow the layers, may still be missing: then it stays where it is.
    if (load.wait(Deadline::min()) == RecordLoad::State::kReady) kv_->prefix_store()->bring_nearer(load);
    kv_->prefix_saver()->found(load.piece);
  }
  loads_.clear();
}

bool PrefixLoad::loading(Deadline until) const {
  if (sequence_ == nullptr) return false;
  const auto last = static_cast<int32_t>(filled_.size()) - 1;
  const Deadline limit = std::min(until, by_);
  return std::ranges::any_of(loads_, [&](const PrefixStore::Load& load) {
    return load.wait_layer(last, limit) == RecordLoad::State::kPending && Clock::now() < by_;
  });
}

bool PrefixLoad::stop() {
  if (sequence_ == nullptr) return false;
  std::exchange(sequence_, nullptr)->forget_page_source();
  return true;
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
