#include "reuse/prefix_saver.h"

#include <algorithm>

#include "base/error.h"

namespace vlcache {
namespace {

constexpr size_t kMaxPrefixes = 1 << 12;  // that are remembered to be stored at the end
constexpr size_t kMaxPieces = 1 << 17;    // whose uses are counted
// At the end, this much is queued before the queue is waited for: a queue without room refuses.
constexpr int64_t kFlushBytes = 64 << 20;

}  // namespace

// Saves pieces, up to the last of which the cache has the tokens.
int64_t PrefixSaver::save(std::span<const PrefixStore::Piece> pieces, KvCache cache, double ms_per_token) {
  cache.truncate(pieces.back().end);
  try {
    cache.clear_tails();
  } catch (const Error&) {  // no page is free for a copy of the last one
    if (pieces.back().end % kPageSlots != 0) pieces = pieces.first(pieces.size() - 1);
  }
  int64_t n_queued = 0;
  for (const PrefixStore::Piece& piece : pieces) n_queued += store_.save(piece, cache, ms_per_token);
  return n_queued;
}

void PrefixSaver::used(std::vector<Element> key, std::vector<PrefixStore::Piece> pieces, const KvCache& cache,
                       double ms_per_token) {
  if (when_ == PrefixSaving::kOff || pieces.empty()) return;
  if (piece_uses_.size() > kMaxPieces) piece_uses_.clear();
  std::vector<PrefixStore::Piece> to_save;
  for (const PrefixStore::Piece& piece : pieces) {
    const int32_t n = ++piece_uses_[piece.key.content];
    const bool wanted = when_ == PrefixSaving::kAlways ? n == 1 : n == 2;
    if (wanted && !store_.is_near(piece)) to_save.push_back(piece);
  }
  if (!to_save.empty()) save(to_save, cache.fork(), ms_per_token);
  const Sha256Digest id = pieces.back().key.content;
  const auto [at, is_new] = prefixes_.try_emplace(id);
  Prefix& prefix = at->second;
  if (is_new) {
    prefix.key = std::move(key);
    prefix.pieces = std::move(pieces);
    prefix.ms_per_token = ms_per_token;
  } else {
    by_last_use_.erase(prefix.used_at);
  }
  ++prefix.n_uses;
  prefix.used_at = ++n_uses_;
  by_last_use_[prefix.used_at] = id;
  if (prefixes_.size() > kMaxPrefixes) forget_oldest();
}

void PrefixSaver::forget_oldest() {
  prefixes_.erase(by_last_use_.begin()->second);
  by_last_use_.erase(by_last_use_.begin());
}

void PrefixSaver::save_all(Deadline deadline) {
  std::vector<Prefix*> order;
  for (auto& [id, prefix] : prefixes_) order.push_back(&prefix);
  const auto saving = [](const Prefix* p) { return static_cast<double>(p->n_uses) * p->ms_per_token; };
  std::ranges::stable_sort(order, [&](const Prefix* a, const Prefix* b) { return saving(a) > saving(b); });
  if (!store_.flush(deadline)) return;
  int64_t n_queued = 0;
  for (const Prefix* prefix : order) {
    const int32_t n_there = cache_.n_known(prefix->key);
    std::vector<PrefixStore::Piece> to_save = prefix->pieces;
    std::erase_if(to_save, [&](const PrefixStore::Piece& p) { return p.end > n_there || store_.is_near(p); });
    if (to_save.empty()) continue;
    if (Clock::now() >= deadline) return;
    KvCache cache = empty_();
    const auto pin = cache_.share(std::span(prefix->key).first(static_cast<size_t>(to_save.back().end)), cache);
    n_queued += save(to_save, std::move(cache), prefix->ms_per_token);
    if (n_queued < kFlushBytes) continue;
    if (!store_.flush(deadline)) return;
    n_queued = 0;
  }
  store_.flush(deadline);
}

}  // namespace vlcache
