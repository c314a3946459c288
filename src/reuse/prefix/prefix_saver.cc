#include "reuse/prefix/prefix_saver.h"

#include <algorithm>

namespace vlcache {
namespace {

constexpr size_t kMaxPrefixes = 1 << 12;  // that are remembered until memory evicts them, or the process ends
constexpr size_t kMaxPieces = 1 << 17;    // whose uses are counted
// At the end, this much is queued before the queue is waited for: a queue without room refuses.
constexpr int64_t kFlushBytes = 64 << 20;
constexpr size_t kMaxFirstUses = 64;  // prompts that wait for an idle moment; the older are likely to be evicted

// The number of leading pieces that are stored at the first use: to the end of the last image, and nine tenths of the
// prompt, so that another server that is asked the same computes a tenth.
size_t n_at_first_use(std::span<const PrefixStore::Piece> pieces) {
  if (pieces.back().images.empty()) return 0;
  const int32_t least = std::max(pieces.back().images_end, (pieces.back().end * 9 + 9) / 10);
  size_t n = 1;
  while (n < pieces.size() && (pieces[n - 1].end < least || pieces[n].end == pieces[n - 1].end)) ++n;
  return n;
}

}  // namespace

PrefixSaver::PrefixSaver(std::unique_ptr<PrefixPlaces> places, PrefixSaving when, HourlyBytes& first_uses)
    : places_(std::move(places)), when_(when), hour_(first_uses) {
  if (when_ == PrefixSaving::kOff) return;
  places_->on_evict([this](auto key, auto groups, int64_t n_left) { evicting(key, groups, n_left); });
}

PrefixSaver::~PrefixSaver() { places_->on_evict(nullptr); }

PrefixStore::Worth PrefixSaver::PieceState::worth(double ms_per_token, Saving how) const {
  const int32_t n_more = std::max(0, n_uses - 1);
  return {.ms_per_token = ms_per_token,
          .n_uses = n_more,
          .yields = how != Saving::kUsual && n_more == 0,
          .first_use = how == Saving::kFirstUse && n_more == 0};
}

// Saves pieces, up to the last of which `kv` has the tokens.
int64_t PrefixSaver::save(std::span<const PrefixStore::Piece> pieces, PrefixKv& kv, double ms_per_token, Saving how) {
  const int32_t end = kv.end_at(pieces.back().end);
  int64_t n_queued = 0;
  for (const PrefixStore::Piece& piece : pieces) {
    PieceState& state = pieces_[piece.key.content];
    if (piece.end > end || !kv.holds(piece) || !places_->takes(piece)) continue;
    const PrefixStore::Worth worth = state.worth(ms_per_token, how);
    state.queued = true;
    state.once = worth.yields;
    n_queued += kv.save(piece, worth);
  }
  return n_queued;
}

void PrefixSaver::used(std::vector<Element> key, std::vector<PrefixStore::Piece> pieces, KvOf kv, const Use& use) {
  if (when_ == PrefixSaving::kOff || pieces.empty()) return;
  if (pieces_.size() > kMaxPieces) pieces_.clear();
  const bool at_first_use = when_ == PrefixSaving::kAlways || !use.stays;
  const size_t n_when_idle = at_first_use || use.salted || hour_.most() <= 0 ? 0 : n_at_first_use(pieces);
  Pieces to_save;
  std::deque<PrefixStore::Piece> when_idle;  // from the first on: a record needs the ones before it
  bool any_new = false;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const PrefixStore::Piece& piece = pieces[i];
    PieceState& state = pieces_[piece.key.content];
    ++state.n_uses;
    if (i < n_when_idle && !state.queued) when_idle.push_back(piece);
    any_new = any_new || (i < n_when_idle && state.n_uses == 1);
    if (!(state.n_uses == 1 && at_first_use) && state.n_uses != 2) continue;
    if (!places_->is_near(piece)) {
      to_save.push_back(piece);
    } else if (std::exchange(state.once, false)) {
      places_->used(piece);
    }
  }
  const Saving how = when_ == PrefixSaving::kAlways ? Saving::kUsual : Saving::kYielding;
  if (!to_save.empty()) save(to_save, *kv(), use.ms_per_token, how);
  if (any_new && !when_idle.empty()) wait_for_idle(key, std::move(when_idle), use.ms_per_token);
  if (use.stays) note(std::move(key), std::move(pieces), use.ms_per_token);
}

void PrefixSaver::found(const PrefixStore::Piece& piece) { pieces_[piece.key.content].queued = true; }

int64_t PrefixSaver::bytes_of(const std::deque<PrefixStore::Piece>& pieces) const {
  int64_t bytes = 0;
  for (const PrefixStore::Piece& piece : pieces) bytes += places_->bytes(piece);
  return bytes;
}

void PrefixSaver::wait_for_idle(const std::vector<Element>& key, std::deque<PrefixStore::Piece> pieces,
                                double ms_per_token) {
  first_uses_.push_back({key, std::move(pieces), ms_per_token});
  if (first_uses_.size() <= kMaxFirstUses) return;
  first_use_stats_.late += bytes_of(first_uses_.front().pieces);
  first_uses_.pop_front();
}

bool PrefixSaver::save_first_use(Clock::time_point now) {
  while (!first_uses_.empty()) {
    FirstUse& prompt = first_uses_.front();
    if (prompt.pieces.empty()) {
      first_uses_.pop_front();
      continue;
    }
    const PrefixStore::Piece piece = prompt.pieces.front();
    const PieceState& state = pieces_[piece.key.content];
    if (state.queued || places_->is_near(piece)) {
      prompt.pieces.pop_front();
      continue;
    }
    if (!places_->calm()) return true;
    const bool fits = hour_.fits(places_->bytes(piece), now);
    if (!fits || places_->n_known(prompt.key) < piece.end) {  // later pieces are of no use without it
      (fits ? first_use_stats_.evicted : first_use_stats_.beyond_bound) += bytes_of(prompt.pieces);
      first_uses_.pop_front();
      continue;
    }
    const int64_t bytes = save_from_memory(prompt.key, {piece}, prompt.ms_per_token, Saving::kFirstUse);
    hour_.add(bytes, now);
    first_use_stats_.queued += bytes;
    prompt.pieces.pop_front();
    return true;
  }
  return false;
}

PrefixSaver::FirstUseStats PrefixSaver::first_use_stats(Clock::time_point now) {
  FirstUseStats stats = first_use_stats_;
  stats.hour = hour_.used(now);
  stats.most_an_hour = hour_.most();
  return stats;
}

void PrefixSaver::note(std::vector<Element> key, Pieces pieces, double ms_per_token) {
  const auto [at, is_new] = prefixes_.try_emplace(std::move(key));
  Prefix& prefix = at->second;
  if (is_new) {
    prefix.pieces = std::move(pieces);
    prefix.ms_per_token = ms_per_token;
  } else {
    by_last_use_.erase(prefix.used_at);
  }
  ++prefix.n_uses;
  prefix.used_at = ++n_uses_;
  by_last_use_[prefix.used_at] = at;
  if (prefixes_.size() > kMaxPrefixes) forget_oldest();
}

void PrefixSaver::forget_oldest() {
  prefixes_.erase(by_last_use_.begin()->second);
  by_last_use_.erase(by_last_use_.begin());
}

std::pair<PrefixSaver::Prefixes::const_iterator, int64_t> PrefixSaver::nearest(std::span<const Element> key) const {
  const auto less = [](const auto& prefix, std::span<const Element> wanted) {
    return std::ranges::lexicographical_compare(prefix.first, wanted);
  };
  const auto next = std::lower_bound(prefixes_.begin(), prefixes_.end(), key, less);
  std::pair<Prefixes::const_iterator, int64_t> best{prefixes_.end(), 0};
  const auto consider = [&](Prefixes::const_iterator at) {
    const int64_t n = std::ranges::mismatch(at->first, key).in1 - at->first.begin();
    if (n > best.second) best = {at, n};
  };
  if (next != prefixes_.end()) consider(next);
  if (next != prefixes_.begin()) consider(std::prev(next));
  return best;
}

// Saves the pieces whose last page goes. A piece that ends inside a page is left out: its page may hold more.
void PrefixSaver::evicting(std::span<const Element> key, std::span<const PageGroup> groups, int64_t n_left) {
  const auto [prefix, n_common] = nearest(key);
  if (prefix == prefixes_.end()) return;
  const std::unique_ptr<PrefixKv> pages = places_->pages(groups);
  const int32_t page_size = places_->page_size();
  for (const PrefixStore::Piece& piece : prefix->second.pieces) {
    if (piece.end > n_common || piece.end % page_size != 0) break;
    if (piece.end / page_size <= n_left) continue;
    PieceState& state = pieces_[piece.key.content];
    if (state.queued || !pages->holds(piece) || places_->is_near(piece) || !places_->takes(piece)) continue;
    const PrefixStore::Worth worth = state.worth(prefix->second.ms_per_token, Saving::kYielding);
    state.queued = true;
    state.once = worth.yields;
    pages->save(piece, worth);
  }
}

std::vector<std::pair<PrefixSaver::Prefixes::const_iterator, PrefixSaver::Pieces>> PrefixSaver::unsaved() const {
  std::vector<Prefixes::const_iterator> order;
  for (auto at = prefixes_.begin(); at != prefixes_.end(); ++at) order.push_back(at);
  const auto saving = [](auto at) { return static_cast<double>(at->second.n_uses) * at->second.ms_per_token; };
  std::ranges::stable_sort(order, [&](auto a, auto b) { return saving(a) > saving(b); });
  std::vector<std::pair<Prefixes::const_iterator, Pieces>> unsaved;
  for (const auto at : order) {
    const int32_t n_known = places_->n_known(at->first);
    Pieces pieces = at->second.pieces;
    std::erase_if(pieces, [&](const PrefixStore::Piece& p) { return p.end > n_known || places_->is_near(p); });
    if (!pieces.empty()) unsaved.emplace_back(at, std::move(pieces));
  }
  return unsaved;
}

int64_t PrefixSaver::save_from_memory(const std::vector<Element>& key, const Pieces& pieces, double ms_per_token,
                                      Saving how) {
  if (places_->n_known(key) < pieces.back().end) return 0;  // evicted for a copy of a page
  const std::unique_ptr<PrefixKv> kv = places_->copy(std::span(key).first(static_cast<size_t>(pieces.back().end)));
  return save(pieces, *kv, ms_per_token, how);
}

void PrefixSaver::save_all() {
  for (const auto& [prefix, pieces] : unsaved()) save_from_memory(prefix->first, pieces, prefix->second.ms_per_token);
}

void PrefixSaver::save_all(Deadline deadline) {
  if (!places_->flush(deadline)) return;
  int64_t n_queued = 0;
  for (const auto& [prefix, pieces] : unsaved()) {
    if (Clock::now() >= deadline) return;
    n_queued += save_from_memory(prefix->first, pieces, prefix->second.ms_per_token);
    if (n_queued < kFlushBytes) continue;
    if (!places_->flush(deadline)) return;
    n_queued = 0;
  }
  places_->flush(deadline);
}

}  // namespace vlcache
