#include "cache/kv_cache.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>

#include "base/error.h"

namespace vlcache {
namespace {

// Slots that tables keep free when they shrink: as many as are used, and at least an answer of 1024 tokens, so that
// decoding does not have to grow them at once.
constexpr int32_t kRoomPages = 16;

}  // namespace

KvCache::KvCache(PagePools& pools, Backend& backend, const KvShape& shape, int64_t capacity)
    : KvCache(backend, shape, capacity, [&](int32_t layer) { return pools.of(shape, layer); }) {}

KvCache::KvCache(PagePool& pool, Backend& backend, const KvShape& shape, int64_t capacity)
    : KvCache(backend, shape, capacity, [&](int32_t layer) {
        CHECK(!shape.layers[at(layer)].coded.has_value());
        return TablePools{.values = &pool, .value_codec = shape.codec};
      }) {}

KvCache::KvCache(Backend& backend, const KvShape& shape, int64_t capacity, FunctionRef<TablePools(int32_t)> pools_of)
    : backend_(&backend), shape_(shape), capacity_(capacity), window_(shape.largest_window()) {
  layers_.reserve(shape.layers.size());
  for (int32_t l = 0; l < shape.n_layers(); ++l) {
    const int32_t source = shape.owner(l);
    CHECK(0 <= source && source <= l && shape.layers[at(source)].shares < 0);
    const KvLayerShape& layer = shape.layers[at(source)];
    const TablePools pools = shape.n_own_heads(l) > 0 ? pools_of(l) : TablePools{};
    CHECK(pools.values == nullptr || pools.values->page_bytes() == backend.kv_page_bytes(shape.codec, layer.head_dim));
    CHECK(pools.codes == nullptr || capacity == 0);
    Layer& added = layers_.emplace_back(pools, shape.layers[at(l)], shape.n_own_heads(l));
    added.first_column = n_columns_;
    added.windowed = capacity == 0 && shape.is_windowed(l);
    n_columns_ += shape.n_own_heads(l);
  }
  for (Layer& layer : layers_) grow(layer, std::max(1, pages_for(capacity)));
  if (capacity == 0) return;
  for_each_head([&](Layer& layer, int32_t head) { layer.pages.extend(head, pages_for(capacity)); });
}

KvCache::KvCache(const KvCache& other)
    : backend_(other.backend_),
      shape_(other.shape_),
      capacity_(other.capacity_),
      layers_(other.layers_),
      holds_values_(other.holds_values_),
      keeps_regular_places_(other.keeps_regular_places_),
      places_(other.places_),
      window_places_(other.window_places_),
      window_(other.window_),
      n_sinks_(other.n_sinks_),
      n_elsewhere_(other.n_elsewhere_),
      was_complete_(other.was_complete_),
      n_columns_(other.n_columns_) {
  for (const Layer& layer : layers_) reserve_scratch(layer.pages.stride());
}

KvCache KvCache::fork() const { return *this; }

void KvCache::for_each_head(FunctionRef<void(Layer&, int32_t)> visit) {
  for (Layer& layer : layers_) {
    for (int32_t h = 0; h < layer.slots.n_heads(); ++h) visit(layer, h);
  }
}

void KvCache::clear() {
  truncate(0);
  for (Layer& layer : layers_) layer.pages.clear();
}

void KvCache::reserve(int64_t n_slots) {
  for (Layer& layer : layers_) grow(layer, pages_for(n_slots));
}

// Grows the tables of a layer to at least n_pages pages a row.
void KvCache::grow(Layer& layer, int32_t n_pages) {
  if (!layer.has_slots()) return;
  reserve_scratch(n_pages);
  if (n_pages > layer.pages.stride()) layer.pages.set_stride(n_pages);
  if (n_pages * kPageSlots > layer.slots.stride()) layer.slots.set_stride(n_pages * kPageSlots);
}

// Returns the memory of tables that are much wider than needed.
void KvCache::shrink(Layer& layer) {
  if (!layer.has_slots() || capacity_ > 0) return;
  const int32_t needed = pages_for(layer.slots.longest());
  const int32_t n_pages = needed + std::max(needed, kRoomPages);
  if (layer.pages.stride() <= 2 * n_pages) return;
  layer.pages.set_stride(n_pages);
  layer.slots.set_stride(n_pages * kPageSlots);
}

void KvCache::reserve_scratch(int32_t n_pages) {
  moves_.reserve(int64_t{n_pages} * kPageSlots);
  int64_t n_heads = 0;
  for (const Layer& layer : layers_) n_heads += layer.slots.n_heads();
  fresh_.reserve(n_heads * n_pages);
  for (Layer& layer : layers_) {  // as decoding makes codes: a block's and one page ahead
    if (layer.pages.pools().codes == nullptr) continue;
    layer.switched.reserve(at(layer.slots.n_heads() * kCodedBlockPages));
    encodings_.reserve(at(layer.slots.n_heads() * (kCodedBlockPages + 1)));
  }
}

KvView KvCache::view_of(const Layer& layer) const {
  KvView v;
  if (!layer.has_slots()) return v;
  const TablePools& pools = layer.pages.pools();
  v.pools[static_cast<size_t>(shape_.codec)] = pools.values->view();
  if (pools.codes != nullptr) v.pools[static_cast<size_t>(pools.code_codec)] = pools.codes->view();
  v.pages = layer.pages.pages();
  v.codecs = layer.pages.codecs();
  v.born = layer.pages.born();
  v.n_slots = layer.slots.lengths();
  v.slot_bias = layer.slots.view_biases();
  v.slot_pos = layer.slots.view_places();
  v.page_stride = layer.pages.stride();
  v.slot_stride = layer.slots.stride();
  v.n_kv_heads = layer.slots.n_heads();
  v.head_dim = layer.shape.head_dim;
  v.codec = shape_.codec;
  return v;
}

// A view of one head through a row of pages other than the table's, for moving slots.
KvView KvCache::head_view(const Layer& layer, int32_t head, const Row& row) const {
  KvView v = view_of(layer);
  v.pages = row.pages;
  v.codecs = row.codecs;
  v.born = nullptr;
  v.n_slots += head;
  v.slot_bias = nullptr;
  v.slot_pos = nullptr;
  v.n_kv_heads = 1;
  return v;
}

KvView KvCache::view(int32_t layer) const { return view_of(owner(layer)); }

KvView KvCache::append(int32_t layer_index, std::span<const int32_t> tokens, int32_t* lengths,
                       std::span<const float> biases) {
  Layer& layer = owner(layer_index);
  const int32_t n_heads = layer.slots.n_heads();
  const bool shares = shape_.owner(layer_index) != layer_index;
  if (!shares && n_heads > 0) make_room(layer, tokens.size());
  for (int32_t h = 0; h < n_heads; ++h) {
    if (!shares) layer.slots.append(h, tokens, biases);
    if (lengths == nullptr) continue;
    lengths[h] = shares && !tokens.empty() ? layer.slots.n_until(h, tokens.back()) : layer.slots.n_slots(h);
  }
  KvView view = view_of(layer);
  if (lengths != nullptr) view.n_slots = lengths;
  return view;
}

// Makes room in the tables, and pages of this cache's own, for n more slots in every head.
void KvCache::make_room(Layer& layer, size_t n) {
  const int64_t longest = layer.slots.longest() + static_cast<int64_t>(n);
  if (capacity_ > 0 && longest > capacity_) {
    throw Error(ErrorCode::kMemory, "static KV cache: " + std::to_string(longest) + " tokens exceed its capacity of " +
                                        std::to_string(capacity_) +
                                        " slots; raise static:capacity or shorten the prompt");
  }
  // Doubling, so that a long generation without reserve() still grows in O(log n) steps.
  if (longest > layer.slots.stride()) grow(layer, std::max(pages_for(longest), 2 * layer.pages.stride()));
  for (int32_t h = 0; h < layer.slots.n_heads(); ++h) {
    const int32_t end = pages_for(layer.slots.n_slots(h) + static_cast<int64_t>(n));
    own_pages(layer, h, end);
    layer.pages.extend(h, end);
  }
}

// Makes the pages that a head's new slots are written to, up to page `end`, unshared.
void KvCache::own_pages(Layer& layer, int32_t head, int32_t end) {
  const int32_t n_slots = layer.slots.n_slots(head), first = n_slots / kPageSlots;
  end = std::min(end, layer.pages.n_pages(head));
  if (!layer.pages.any_shared(head, first, end)) return;  // the usual case, and the slots may be many
  moves_.links.clear();
  for (int32_t p = first; p < end; ++p) moves_.links.push_back({.source = p, .write = true});
  moves_.first_page = first;
  moves_.kept.resize(at(n_slots));
  std::iota(moves_.kept.begin(), moves_.kept.end(), 0);
  int32_t n_copies = mark_copies(layer, head);
  for (bool taken = false; n_copies > 0 && !taken;) {
    try {
      take_copies(layer);
      taken = true;
    } catch (const Error&) {
      // Taking pages evicts cached prefixes, so that fewer pages may be shared than before.
      const int32_t n_left = mark_copies(layer, head);
      if (n_left == n_copies) throw;
      n_copies = n_left;
    }
  }
  if (n_copies > 0) move_slots(layer, head);
}

void KvCache::clear_tails() {
  std::vector<int32_t> lengths;
  for (Layer& layer : layers_) {
    lengths.clear();
    int32_t n_rows = 0;
    for (int32_t h = 0; h < layer.slots.n_heads(); ++h) {
      const int32_t n = layer.slots.n_slots(h), end = pages_for(n) * kPageSlots;
      CHECK(h == 0 || end - n == n_rows);
      n_rows = end - n;
      lengths.push_back(end);
      if (n_rows > 0) own_pages(layer, h, pages_for(n));
    }
    if (n_rows == 0) continue;
    const DType dtype = backend_->compute_dtype();
    const int64_t n_heads = layer.slots.n_heads(), d = layer.shape.head_dim;
    Buffer zeros(n_rows * n_heads * d * dtype_bytes(dtype));
    std::memset(zeros.data(), 0, static_cast<size_t>(zeros.bytes()));
    KvView view = view_of(layer);
    view.n_slots = lengths.data();
    const Tensor rows(zeros.data(), dtype, {n_rows, n_heads, d});
    backend_->kv_write(rows, rows, view);
  }
}

std::span<const std::byte> KvCache::page(int32_t column, int32_t i) const {
  for (const Layer& layer : layers_) {
    if (column >= layer.slots.n_heads()) {
      column -= layer.slots.n_heads();
      continue;
    }
    CHECK(layer.pages.is_held(column, i));
    const TablePools& pools = layer.pages.pools();
    const KvPool pool = (layer.pages.is_coded(column, i) ? pools.codes : pools.values)->view();
    return {pool.base + layer.pages.row(column)[i] * pool.page_bytes, static_cast<size_t>(pool.page_bytes)};
  }
  CHECK(false);
  return {};
}

std::span<std::byte> KvCache::page(int32_t column, int32_t i) {
  const std::span<const std::byte> bytes = std::as_const(*this).page(column, i);
  return {const_cast<std::byte*>(bytes.data()), bytes.size()};  // this cache's own memory
}

void KvCache::list_pages(int32_t i, std::span<PageForms> pages) const {
  CHECK(std::ssize(pages) == n_columns());
  auto to = pages.begin();
  for (const Layer& layer : layers_) {
    for (int32_t h = 0; h < layer.slots.n_heads(); ++h) *to++ = layer.pages.forms(h, i);
  }
}

void KvCache::share(std::span<const std::span<const PageForms>> groups, int32_t n_tokens) {
  CHECK(capacity_ == 0 && n_pages() == 0 && std::ssize(groups) == pages_for(n_tokens));
  reserve(n_tokens);
  std::vector<int32_t> tokens(at(n_tokens));
  std::iota(tokens.begin(), tokens.end(), 0);
  size_t column = 0;
  for_each_head([&](Layer& layer, int32_t head) {
    const int32_t end = layer.pages.pools().codes != nullptr ? coded_end(n_tokens) : 1;
    const int32_t first = layer.windowed ? held_begin(n_tokens, window_) : 0;
    bool coded = true;  // without gaps, as encode() needs it
    for (int32_t i = 0; i < std::ssize(groups); ++i) {
      PageForms page = groups[at(i)][column];
      if (layer.windowed && (i < first || (page.born < 0 && page.coded < 0))) {
        CHECK(i < window_begin(n_tokens, window_));
        layer.pages.skip(head);
        continue;
      }
      if (i > 0) coded = coded && i < end && page.coded >= 0;
      const bool full = (i + 1) * kPageSlots <= n_tokens;
      if (i > 0 && coded) page.born = -1;
      if (!full) page.coded = -1;  // the rest of the page will change
      layer.pages.share(head, page, i > 0 && coded);
    }
    layer.slots.append(head, tokens);
    ++column;
  });
}

void KvCache::begin_step() {
  for (Layer& layer : layers_) layer.slots.note();
  in_step_ = true;
  last_encoded_ = -1;
}

void KvCache::rollback_step() noexcept {
  for (Layer& layer : layers_) layer.coded_bytes_seen = 0;
  if (!std::exchange(in_step_, false)) return;
  for (Layer& layer : layers_) {
    layer.slots.forget();
    for (int32_t h = 0; h < layer.slots.n_heads() && capacity_ == 0; ++h) {
      layer.pages.shorten(h, pages_for(layer.slots.n_slots(h)));
      show_forms(layer, h);
    }
    drop_switched_codes(layer);
  }
}

void KvCache::hide(int32_t layer, int32_t head, int32_t slot) { owner(layer).slots.hide(head, slot); }

void KvCache::truncate(int32_t n_tokens) {
  CHECK(n_tokens >= 0);
  in_step_ = false;
  n_elsewhere_ = std::min(n_elsewhere_, n_tokens);
  for (Layer& layer : layers_) {
    for (int32_t h = 0; h < layer.slots.n_heads(); ++h) {
      layer.slots.shorten(h, layer.slots.n_until(h, n_tokens - 1));
      layer.passed[at(h)] = 0;
      if (capacity_ == 0) layer.pages.shorten(h, pages_for(layer.slots.n_slots(h)));
      show_forms(layer, h);
    }
    if (!layer.slots.complete() || layer.slots.view_places() != nullptr) layer.slots.refresh();
    shrink(layer);
  }
}

void KvCache::set_planes(int32_t n) {
  for (Layer& layer : layers_) layer.slots.set_planes(n);
}

std::span<float> KvCache::plane(int32_t layer, int32_t head, int32_t plane) {
  return owner(layer).slots.plane(head, plane);
}

void KvCache::for_each_page(FunctionRef<void(const PagePool& pool, int32_t page)> visit) const {
  for (const Layer& layer : layers_) {
    if (layer.has_slots()) layer.pages.for_each_page(visit);
  }
}

int64_t KvCache::n_pages() const {
  int64_t n = 0;
  for (const Layer& layer : layers_) n += layer.pages.n_pages();
  return n;
}

void KvCache::read(int32_t layer, int32_t head, const Tensor& k, const Tensor& v) const {
  const auto n = static_cast<int32_t>(k.empty() ? v.rows() : k.rows());
  CHECK(n <= n_slots(layer, head));
  std::vector<int32_t> slots;
  for (int32_t begin = 0, end = 0; begin < n; begin = end) {  // pages in a row that are held, or are not
    const bool held = holds(layer, head, begin);
    while (end < n && holds(layer, head, end) == held) end = std::min(n, end + kPageSlots);
    const auto rows = [&](const Tensor& t) { return t.empty() ? t : t.slice_rows(begin, end); };
    if (!held) {
      for (const Tensor& part : {rows(k), rows(v)}) {
        for (int64_t row = 0; !part.empty() && row < part.rows(); ++row) {
          std::fill_n(part.row<float>(row), part.row_size(), 0.0f);
        }
      }
      continue;
    }
    slots.resize(at(end - begin));
    std::iota(slots.begin(), slots.end(), begin);
    backend_->kv_read(view_of(owner(layer)), head, slots, rows(k), rows(v));
  }
}

int32_t KvCache::n_visible(int32_t layer_index, int32_t head) const {
  const SlotTable& table = slots(layer_index);
  const int32_t n = table.n_slots(head), window = shape_.layers[at(layer_index)].window;
  if (window == 0 || n == 0) return n - table.n_hidden(head);
  const std::span<const int32_t> places = table.places(head);
  const auto first = std::ranges::upper_bound(places, places.back() + 1 - window) - places.begin();
  if (table.n_hidden(head) == 0) return n - static_cast<int32_t>(first);
  const auto hidden = [](float bias) { return std::isinf(bias); };
  const std::span<const float> seen = table.biases(head).subspan(static_cast<size_t>(first));
  return static_cast<int32_t>(std::ssize(seen) - std::ranges::count_if(seen, hidden));
}

int64_t KvCache::page_bytes(int32_t layer) const { return owner(layer).pages.pools().values->page_bytes(); }

int64_t KvCache::bytes() const {
  int64_t n = 0;
  for (const Layer& layer : layers_) {
    if (layer.has_slots()) n += layer.pages.bytes();
  }
  return n;
}

int64_t KvCache::bytes(KvCodec codec) const {
  int64_t n = 0;
  for (const Layer& layer : layers_) {
    if (layer.has_slots()) n += layer.pages.bytes(codec);
  }
  return n;
}

int64_t KvCache::table_bytes() const {
  int64_t n = 0;
  for (const Layer& layer : layers_) n += layer.slots.bytes() + layer.pages.table_bytes();
  return n;
}

bool KvCache::complete(int32_t n_tokens) const {
  return std::ranges::all_of(layers_, [n_tokens](const Layer& layer) {
    const std::span<const int32_t> lengths(layer.slots.lengths(), at(layer.slots.n_heads()));
    return layer.slots.complete() && std::ranges::all_of(lengths, [&](int32_t n) { return n >= n_tokens; });
  });
}

}  // namespace vlcache
