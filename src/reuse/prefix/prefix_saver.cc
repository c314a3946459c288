#include "reuse/prefix/prefix_saver.h"

#include <algorithm>

namespace vlcache {
namespace {

constexpr size_t kMaxPrefixes = 1 << 12;  // that are remembered until memory evicts them, or the process ends
constexpr size_t kMaxPieces = 1 << 17;    // whose uses are counted
// At the end, this much is queued before the queue is waited for: a queue without room refuses.
constexpr int64_t kFlushBytes = 64 << 20;

}  // namespace

PrefixSaver::PrefixSaver(std::unique_ptr<PrefixPlaces> places, PrefixSaving when)
    : places_(std::move(places)), when_(when) {
  if (when_ == PrefixSaving::kOff) return;
  places_->on_evict([this](auto key, auto groups, int64_t n_left) { evicting(key, groups, n_left); });
}

PrefixSaver::~PrefixSaver() { places_->on_evict(nullptr); }

PrefixStore::Worth PrefixSaver::PieceState::worth(double ms_per_token, bool yields) const {
  const int32_t n_more = std::max(0, n_uses - 1);
  return {.ms_per_token = ms_per_token, .n_uses = n_more, .yields = yields && n_more == 0};
}

// Saves pieces, up to the last of which `kv` has the tokens.
int64_t PrefixSaver::save(std::span<const PrefixStore::Piece> pieces, PrefixKv& kv, double ms_per_token, bool yields) {
  if (kv.end_at(pieces.back().end) < pieces.back().end) pieces = pieces.first(pieces.size() - 1);
  int64_t n_queued = 0;
  for (const PrefixStore::Piece& piece : pieces) {
    PieceState& state = pieces_[piece.key.content];
    if (!places_->takes(piece)) continue;
    state.queued = true;
    n_queued += kv.save(piece, state.worth(ms_per_token, yields));
  }
  return n_queued;
}

void PrefixSaver::used(std::vector<Element> key, std::vector<PrefixStore::Piece> pieces, KvOf kv, double ms_per_token,
                       bool stays) {
  if (when_ == PrefixSaving::kOff || pieces.empty()) return;
  if (pieces_.size() > kMaxPieces) pieces_.clear();
  const bool at_first_use = when_ == PrefixSaving::kAlways || !stays;
  Pieces to_save;
  for (const PrefixStore::Piece& piece : pieces) {
    const int32_t n = ++pieces_[piece.key.content].n_uses;
    if (((n == 1 && at_first_use) || n == 2) && !places_->is_near(piece)) to_save.push_back(piece);
  }
  if (!to_save.empty()) save(to_save, *kv(), ms_per_token, /*yields=*/when_ != PrefixSaving::kAlways);
  if (stays) note(std::move(key), std::move(pieces), ms_per_token);
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
    if (state.queued || places_->is_near(piece) || !places_->takes(piece)) continue;
    state.queued = true;
    pages->save(piece, state.worth(prefix->second.ms_per_token, /*yields=*/true));
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

int64_t PrefixSaver::save_from_memory(const std::vector<Element>& key, const Pieces& pieces, double ms_per_token) {
  if (places_->n_known(key) < pieces.back().end) return 0;  // evicted for a copy of a page
  const std::unique_ptr<PrefixKv> kv = places_->copy(std::span(key).first(static_cast<size_t>(pieces.back().end)));
  return save(pieces, *kv, ms_per_token, /*yields=*/false);
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
