// KvCache, continued: pages that become codes.
#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/os/threads.h"
#include "cache/kv_cache.h"

namespace vlcache {
namespace {

constexpr int32_t kBlockSlots = kCodedBlockPages * kPageSlots;
constexpr int32_t kPlacePages = kPlaceTokens / kPageSlots;
static_assert(kPlaceTokens % kBlockSlots == 0);

constexpr std::array<int32_t, kPageSlots> all_slots() {
  std::array<int32_t, kPageSlots> slots{};
  std::iota(slots.begin(), slots.end(), 0);
  return slots;
}
constexpr std::array<int32_t, kPageSlots> kAllSlots = all_slots();
constexpr int32_t kFullPage = kPageSlots;

}  // namespace

// A view of one page that is full.
KvView KvCache::page_view(const Layer& layer, const int32_t& page, KvCodec codec) const {
  KvView v = view_of(layer);
  v.pages = &page;
  v.codecs = nullptr;
  v.born = nullptr;
  v.n_slots = &kFullPage;
  v.slot_bias = nullptr;
  v.slot_pos = nullptr;
  v.page_stride = 1;
  v.n_kv_heads = 1;
  v.codec = codec;
  return v;
}

// Lists the pages of a head to encode now: the ones that the newest row sees as codes, and one ahead. The four pages
// that the next block of rows will see as codes are made in the four quarters of the rows before it, each head's in
// another of the 64 steps of a quarter.
void KvCache::list_encodings(const Layer& layer, int32_t head) {
  const int32_t n = layer.slots.n_slots(head);
  if (n == 0) return;
  const int32_t end = coded_end(n - 1);
  for (int32_t i = end; i-- > 1 && !layer.pages.is_coded(head, i);) {
    if (layer.pages.is_held(head, i)) encodings_.push_back({head, i, true});
  }
  const int32_t row = (n - 1) % kBlockSlots, next_end = coded_end(n - 1 - row + kBlockSlots);
  const int32_t page = next_end - kCodedBlockPages + row / kPageSlots;
  const int32_t turn = (layer.first_column + head) * kPageSlots / n_columns_;
  if (page < end || page < 1 || page >= n / kPageSlots || row % kPageSlots < turn) return;
  if (layer.pages.is_held(head, page) && layer.pages.forms(head, page).coded < 0) {
    encodings_.push_back({head, page, false});
  }
}

void KvCache::encode(int32_t layer_index) {
  Layer& layer = layers_[at(layer_index)];
  if (layer.pages.pools().codes != nullptr) {
    drop_attended(layer_index);
    encodings_.clear();
    for (int32_t h = 0; h < layer.slots.n_heads(); ++h) list_encodings(layer, h);
    make_codes(layer);
  }
  layer.coded_bytes_seen = coded_bytes_seen(layer_index);
}

// The layer before is attended to: no row needs the values of pages that this step began and that have become codes.
// What rolling back needs stays, and what a layer needs that shares another's KV.
void KvCache::drop_attended(int32_t layer_index) {
  const int32_t before = std::exchange(last_encoded_, layer_index);
  const auto shares = [](const KvLayerShape& layer) { return layer.shares >= 0; };
  if (before < 0 || before == layer_index || !in_step_ || holds_values_) return;
  if (std::ranges::any_of(shape_.layers, shares)) return;
  Layer& layer = layers_[at(before)];
  std::erase_if(layer.switched, [&](const Layer::Switched& s) {
    if (s.page < pages_for(layer.slots.noted(s.head)) || (is_kept(s.page) && complete(0))) return false;
    layer.pages.drop_born(s.head, s.page);
    return true;
  });
}

// Counts the pages that the newest row of a layer sees as codes, within its window.
int64_t KvCache::coded_bytes_seen(int32_t layer_index) const {
  const Layer& layer = owner(layer_index);
  const int32_t window = shape_.layers[at(layer_index)].window;
  const int64_t all = layer.pages.seen_coded_bytes();
  if (all == 0 || window == 0) return all;
  int64_t n_pages = 0;
  for (int32_t h = 0; h < layer.slots.n_heads(); ++h) {
    const int32_t n = layer.slots.n_slots(h), first = std::max(1, (n - window) / kPageSlots);
    n_pages += n > 0 ? std::max(0, coded_end(n - 1) - first) : 0;
  }
  return std::min(all, n_pages * layer.pages.pools().codes->page_bytes());
}

// Of the pages in encodings_.
void KvCache::make_codes(Layer& layer) {
  const TablePools& pools = layer.pages.pools();
  const auto made = std::partition(encodings_.begin(), encodings_.end(),
                                   [&](const Encoding& e) { return layer.pages.forms(e.head, e.page).coded < 0; });
  const std::span<const Encoding> to_make(encodings_.begin(), made);
  try {
    for (const Encoding& e : to_make) layer.pages.add_codes(e.head, e.page);
  } catch (...) {
    for (const Encoding& e : to_make) layer.pages.drop_codes(e.head, e.page);
    throw;
  }
  parallel_for(std::ssize(to_make), [&](int64_t i, int) {
    const Encoding& e = to_make[static_cast<size_t>(i)];
    const PageForms page = layer.pages.forms(e.head, e.page);
    backend_->kv_move(page_view(layer, page.born, shape_.codec), page_view(layer, page.coded, pools.code_codec), 0,
                      kAllSlots, kAllSlots);
  });
  for (const Encoding& e : encodings_) {
    if (!e.shown) continue;
    layer.pages.show_codes(e.head, e.page);
    // Where the step's first row sees codes, too, the values make room for the codes of other heads.
    const bool needed = !in_step_ || holds_values_ || e.page >= coded_end(layer.slots.noted(e.head));
    if (!needed && !(is_kept(e.page) && complete(0))) {
      layer.pages.drop_born(e.head, e.page);
    } else {
      layer.switched.push_back({e.head, e.page});
    }
  }
}

void KvCache::append_coming(int32_t layer_index, int32_t n_tokens, int32_t n_codes) {
  if (shape_.owner(layer_index) != layer_index) return;
  Layer& layer = layers_[at(layer_index)];
  if (!layer.has_slots()) return;
  const int32_t begin = layer.slots.longest();
  std::vector<int32_t> tokens(at(n_tokens - begin));
  std::iota(tokens.begin(), tokens.end(), begin);
  const bool has_codes = layer.pages.pools().codes != nullptr;
  if (!has_codes && !layer.windowed) return static_cast<void>(append(layer_index, tokens));
  CHECK(begin % kPageSlots == 0 && n_codes <= coded_end(n_tokens));
  encodings_.clear();
  for (int32_t h = 0; h < layer.slots.n_heads() && has_codes; ++h) {
    for (int32_t i = std::min(n_codes, begin / kPageSlots); i-- > 1 && !layer.pages.is_coded(h, i);) {
      if (layer.pages.is_held(h, i)) encodings_.push_back({h, i, true});
    }
  }
  make_codes(layer);
  grow(layer, pages_for(n_tokens));
  const int32_t first = layer.windowed ? whole_window_begin(n_tokens, window_) : 0;
  for (int32_t h = 0; h < layer.slots.n_heads(); ++h) {
    for (int32_t i = begin / kPageSlots; i < pages_for(n_tokens); ++i) {
      if (i < first) {
        layer.pages.skip(h);
        continue;
      }
      layer.pages.extend(h, i + 1);
      if (!has_codes || i == 0 || i >= n_codes) continue;
      layer.pages.add_codes(h, i);
      layer.pages.show_codes(h, i);
      layer.pages.drop_born(h, i);
    }
    layer.slots.append(h, tokens);
  }
}

bool KvCache::is_kept(int32_t page) const {
  const auto needs = [page](int32_t place) { return coded_end(place) <= page && page < pages_for(place); };
  const int32_t next_place = (page / kPlacePages + 1) * kPlaceTokens;
  return (keeps_regular_places_ && needs(next_place)) || std::ranges::any_of(places_, needs);
}

void KvCache::end_step() {
  for (Layer& layer : layers_) coded_bytes_read_ += std::exchange(layer.coded_bytes_seen, 0);
  if (holds_values_) return;
  for (Layer& layer : layers_) {
    for (const auto& [head, page] : layer.switched) {
      if (page < layer.pages.n_pages(head) && !(is_kept(page) && complete(0))) layer.pages.drop_born(head, page);
    }
    layer.switched.clear();
  }
  free_passed();
}

// A regular place of windowed layers, the first after a page: every eight windows. A place keeps four pages beside its
// window, so that short windows have fewer places: at most a quarter of the pages stay. A place is where a record ends
// and, with codes, where values are kept.
int32_t KvCache::regular_place_after(int32_t page) const {
  constexpr int32_t kWindows = 8, kKeptShare = 4;
  const int32_t step = shape_.has_codes() ? kPlaceTokens : kCodedBlockPages * kPageSlots;
  const int32_t most_kept = window_ + kPagesBeforeWindow * kPageSlots;
  const int32_t tokens = (std::max(kWindows * window_, kKeptShare * most_kept) + step - 1) / step * step;
  return (page * kPageSlots / tokens + 1) * tokens;
}

// Whether a windowed layer keeps the page for a place, or because it has sinks.
bool KvCache::is_kept_before_window(int32_t page) const {
  if (page < pages_for(n_sinks_)) return true;
  const auto needs = [&](int32_t place) { return held_begin(place, window_) <= page && page < pages_for(place); };
  if (page < n_elsewhere_ / kPageSlots) return false;
  return (keeps_regular_places_ && needs(regular_place_after(page))) || std::ranges::any_of(window_places_, needs);
}

// Pages of a head before it are seen by no later row.
int32_t KvCache::passed_end(const Layer& layer, int32_t head) const {
  const std::span<const int32_t> places = layer.slots.places(head);
  if (places.empty()) return 0;
  const int32_t last = places.back();
  if (last + 1 == std::ssize(places)) return held_begin(last + 1, window_);  // each token has its slot
  const auto first_seen = std::ranges::upper_bound(places, last + 1 - window_) - places.begin();
  return std::max(0, static_cast<int32_t>(first_seen) / kPageSlots - kPagesBeforeWindow);
}

void KvCache::free_passed() {
  if (window_ == 0 || capacity_ > 0) return;
  const bool continues = complete(0);  // from places
  const bool again = std::exchange(was_complete_, continues) != continues;
  for (Layer& layer : layers_) {
    if (again) std::ranges::fill(layer.passed, 0);
    for (int32_t h = 0; h < layer.slots.n_heads() && layer.windowed; ++h) {
      int32_t& passed = layer.passed[at(h)];
      for (const int32_t end = passed_end(layer, h); passed < end; ++passed) {
        const bool stays = continues ? is_kept_before_window(passed) : passed < pages_for(n_sinks_);
        if (!stays) layer.pages.drop(h, passed);
      }
    }
  }
}

void KvCache::forget_window_places(int32_t n_tokens) {
  n_elsewhere_ = std::max(n_elsewhere_, n_tokens);
  for (Layer& layer : layers_) std::ranges::fill(layer.passed, 0);
  if (!holds_values_) free_passed();
}

void KvCache::forget_places() {
  places_.clear();
  if (holds_values_) return;
  int32_t n_tokens = 0;
  for (const Layer& layer : layers_) n_tokens = std::max(n_tokens, layer.slots.longest());
  forget_window_places(n_tokens);
  for (Layer& layer : layers_) {
    if (!layer.pages.any_coded()) continue;
    for (int32_t h = 0; h < layer.slots.n_heads(); ++h) {
      for (int32_t i = 0; i < layer.pages.n_pages(h); ++i) layer.pages.drop_born(h, i);
    }
  }
}

int32_t KvCache::place_before(int32_t n_tokens) const {
  if (!shape_.has_codes() && window_ == 0) return n_tokens;
  // What the next row sees as codes, the newest row does, too.
  const auto forms = [&](int32_t page) {
    CachedForms forms{.values = true, .codes = true, .window_values = true, .window_codes = true};
    for (const Layer& layer : layers_) {
      for (int32_t h = 0; h < layer.slots.n_heads() && (layer.windowed || layer.pages.any_coded()); ++h) {
        if (page >= layer.pages.n_pages(h)) continue;
        const bool values = layer.pages.forms(h, page).born >= 0;
        (layer.windowed ? forms.window_values : forms.values) &= values;
        forms.window_codes &= !layer.windowed || layer.pages.is_held(h, page);
      }
    }
    return forms;
  };
  return continuation_place(n_tokens, window_, forms).n;
}

int64_t KvCache::kept_bytes(int32_t layer_index, int32_t head, int32_t n) const {
  const Layer& layer = owner(layer_index);
  const TablePools& pools = layer.pages.pools();
  if (pools.codes == nullptr) return pages_for(n) * pools.values->page_bytes();
  int32_t n_values = 0;
  for (int32_t i = 0; i < layer.pages.n_pages(head); ++i) {
    n_values += layer.pages.is_held(head, i) && !layer.pages.is_coded(head, i) ? 1 : 0;
  }
  n_values = std::min(n_values, pages_for(n));
  return n_values * pools.values->page_bytes() + (pages_for(n) - n_values) * pools.codes->page_bytes();
}

CachedForms KvCache::forms_to_come(int32_t page, int32_t n_total) const {
  const bool coded = shape_.has_codes() && 0 < page && page < coded_end(n_total);
  const bool values = !coded || is_kept(page);
  const bool held = page >= held_begin(n_total, window_) || is_kept_before_window(page);
  return {.values = values, .codes = coded, .window_values = held && values, .window_codes = held && coded};
}

int32_t KvCache::place_to_come(int32_t n_tokens, int32_t n_total) const {
  if (!shape_.has_codes() && window_ == 0) return n_tokens;
  return continuation_place(n_tokens, window_, [&](int32_t page) { return forms_to_come(page, n_total); }).n;
}

// After slots were dropped: shows values again where the next row sees them, and frees codes of pages that will change.
void KvCache::show_forms(Layer& layer, int32_t head) noexcept {
  if (layer.pages.pools().codes == nullptr) return;
  const int32_t n = layer.slots.n_slots(head);
  for (int32_t i = std::min(coded_end(n), n / kPageSlots); i < layer.pages.n_pages(head); ++i) {
    layer.pages.show_born(head, i);
    if ((i + 1) * kPageSlots > n) layer.pages.drop_codes(head, i);
  }
}

// Frees the codes that a failed step made and that are not seen any more.
void KvCache::drop_switched_codes(Layer& layer) noexcept {
  for (const auto& [head, page] : layer.switched) {
    if (page < layer.pages.n_pages(head)) layer.pages.drop_codes(head, page);
  }
}

}  // namespace vlcache
