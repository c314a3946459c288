// Page tables, copy on write and compaction of one sequence.
#include "cache/kv_cache.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>

#include "base/error.h"

namespace vlcache {
namespace {

// Pages a growing head takes at once: half of what it has, so that short sequences do not hoard, and at most 16, beyond
// which neighbours read no faster.
constexpr int32_t kMaxRun = 16;

int32_t pages_for(int64_t n_slots) { return static_cast<int32_t>((n_slots + kPageSlots - 1) / kPageSlots); }

// One slot of the result of a compaction: a kept slot, or a merge that stands where its first source stood.
struct Placed {
  int32_t from;
  int32_t merge;  // index into KeepPlan::Head::merges, -1 for a kept slot
};

std::vector<Placed> place(const KeepPlan::Head& plan, int32_t n_slots) {
  std::vector<Placed> placed;
  placed.reserve(plan.keep.size() + plan.merges.size());
  for (int32_t slot : plan.keep) placed.push_back({slot, -1});
  for (size_t m = 0; m < plan.merges.size(); ++m) {
    CHECK(!plan.merges[m].sources.empty() && plan.merges[m].sources.size() == plan.merges[m].weights.size());
    placed.push_back({std::ranges::min(plan.merges[m].sources), static_cast<int32_t>(m)});
  }
  std::ranges::sort(placed, {}, &Placed::from);
  for (size_t i = 0; i < placed.size(); ++i) {
    CHECK(0 <= placed[i].from && placed[i].from < n_slots && (i == 0 || placed[i].from > placed[i - 1].from));
  }
  return placed;
}

}  // namespace

KvCache::KvCache(PagePool& pool, Backend& backend, const KvShape& shape, int64_t capacity)
    : pool_(&pool), backend_(&backend), shape_(shape), capacity_(capacity), layers_(at(shape.n_layers)) {
  CHECK(pool.page_bytes() == backend.kv_page_bytes(shape.codec, shape.head_dim));
  for (Layer& layer : layers_) {
    layer.n_pages.assign(at(shape.n_kv_heads), 0);
    layer.spare.resize(at(shape.n_kv_heads));
    layer.n_slots.assign(at(shape.n_kv_heads), 0);
    grow(layer, std::max(1, pages_for(capacity)));
  }
  if (capacity == 0) return;
  try {
    for (Layer& layer : layers_) {
      for (int32_t h = 0; h < shape.n_kv_heads; ++h) {
        while (layer.n_pages[at(h)] < pages_for(capacity))
          page_row(layer, h)[layer.n_pages[at(h)]++] = pool_->allocate();
      }
    }
  } catch (...) {
    clear();
    throw;
  }
}

KvCache::KvCache(KvCache&& other) noexcept
    : pool_(other.pool_),
      backend_(other.backend_),
      shape_(other.shape_),
      capacity_(other.capacity_),
      layers_(std::move(other.layers_)),
      tokens_(std::move(other.tokens_)) {
  other.layers_.clear();
}

KvCache KvCache::fork() const {
  KvCache copy(*pool_, *backend_, shape_);
  copy.capacity_ = capacity_;
  copy.tokens_ = tokens_;
  copy.layers_ = layers_;
  for (Layer& layer : copy.layers_) {
    std::ranges::fill(layer.spare, PageRun());
    for (int32_t h = 0; h < shape_.n_kv_heads; ++h) {
      for (int32_t i = 0; i < layer.n_pages[at(h)]; ++i) pool_->retain(copy.page_row(layer, h)[i]);
    }
  }
  return copy;
}

void KvCache::clear() {
  truncate(0);
  for (Layer& layer : layers_) {
    for (int32_t h = 0; h < shape_.n_kv_heads; ++h) drop_pages(layer, h, 0);
  }
}

void KvCache::add_tokens(std::span<const SlotMeta> tokens) {
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
}

void KvCache::reserve(int64_t n_slots) {
  for (Layer& layer : layers_) grow(layer, pages_for(n_slots));
  tokens_.reserve(static_cast<size_t>(n_slots));
}

// Widens the tables of a layer to at least page_stride pages per head.
void KvCache::grow(Layer& layer, int32_t page_stride) {
  if (page_stride <= layer.page_stride) return;
  const auto widen = [&](auto& table, int64_t unit) {
    std::remove_reference_t<decltype(table)> wide(static_cast<size_t>(shape_.n_kv_heads * page_stride * unit));
    for (int64_t h = 0; h < shape_.n_kv_heads && layer.page_stride > 0; ++h) {
      std::copy_n(table.begin() + h * layer.page_stride * unit, layer.page_stride * unit,
                  wide.begin() + h * page_stride * unit);
    }
    table = std::move(wide);
  };
  widen(layer.pages, 1);
  widen(layer.slot_token, kPageSlots);
  widen(layer.slot_pos, kPageSlots);
  if (!layer.slot_bias.empty()) widen(layer.slot_bias, kPageSlots);
  layer.page_stride = page_stride;
}

KvView KvCache::view_of(const Layer& layer) const {
  KvView v;
  v.pools[static_cast<size_t>(shape_.codec)] = pool_->view();
  v.pages = layer.pages.data();
  v.n_slots = layer.n_slots.data();
  v.slot_bias = layer.slot_bias.empty() ? nullptr : layer.slot_bias.data();
  v.slot_pos = layer.sparse ? layer.slot_pos.data() : nullptr;
  v.page_stride = layer.page_stride;
  v.slot_stride = layer.slot_stride();
  v.n_kv_heads = shape_.n_kv_heads;
  v.head_dim = shape_.head_dim;
  v.codec = shape_.codec;
  return v;
}

KvView KvCache::view(int32_t layer) const { return view_of(layers_[at(layer)]); }

std::span<const int32_t> KvCache::slot_tokens(int32_t layer, int32_t head) const {
  const Layer& l = layers_[at(layer)];
  return {l.slot_token.data() + int64_t{head} * l.slot_stride(), at(l.n_slots[at(head)])};
}

KvView KvCache::append(int32_t layer_index, std::span<const int32_t> tokens) {
  Layer& layer = layers_[at(layer_index)];
  const int64_t longest = std::ranges::max(layer.n_slots) + static_cast<int64_t>(tokens.size());
  if (capacity_ > 0 && longest > capacity_) {
    throw Error(ErrorCode::kMemory, "static KV cache: " + std::to_string(longest) + " tokens exceed its capacity of " +
                                        std::to_string(capacity_) +
                                        " slots; raise static:capacity or shorten the prompt");
  }
  // Doubling, so that a long generation without reserve() still grows in O(log n) steps.
  if (pages_for(longest) > layer.page_stride) grow(layer, std::max(pages_for(longest), 2 * layer.page_stride));
  // All pages first: running out of them leaves every length as it was.
  for (int32_t h = 0; h < shape_.n_kv_heads; ++h) {
    take_pages(layer, h, layer.n_slots[at(h)] + static_cast<int32_t>(tokens.size()));
  }
  for (int32_t h = 0; h < shape_.n_kv_heads; ++h) append_head(layer, h, tokens);
  return view_of(layer);
}

// A page for the end of a head's list, next to the one before it if that can be had. `needed`: pages it will ask for
// now.
int32_t KvCache::next_page(Layer& layer, int32_t head, int32_t needed) {
  PageRun& spare = layer.spare[at(head)];
  if (spare.size() == 0) spare = pool_->allocate_run(std::max(needed, std::min(kMaxRun, layer.n_pages[at(head)] / 2)));
  return spare.begin++;
}

// Pages for the slots from n_slots to `end`, ours alone.
void KvCache::take_pages(Layer& layer, int32_t head, int32_t end) {
  for (int32_t p = layer.n_slots[at(head)] / kPageSlots; p < pages_for(end); ++p) {
    if (p < layer.n_pages[at(head)]) {
      own_page(layer, head, p);
    } else {
      page_row(layer, head)[p] = next_page(layer, head, pages_for(end) - p);
      ++layer.n_pages[at(head)];
    }
  }
}

void KvCache::append_head(Layer& layer, int32_t head, std::span<const int32_t> tokens) {
  int32_t& n = layer.n_slots[at(head)];
  const int64_t row = int64_t{head} * layer.slot_stride();
  for (int32_t token : tokens) {
    CHECK(0 <= token && at(token) < tokens_.size());
    layer.slot_token[static_cast<size_t>(row + n)] = token;
    layer.slot_pos[static_cast<size_t>(row + n)] = tokens_[at(token)].t;
    if (!layer.slot_bias.empty()) layer.slot_bias[static_cast<size_t>(row + n)] = 0.0f;
    layer.sparse |= tokens_[at(token)].t != n;
    ++n;
  }
}

// Makes page `index` of a head ours alone before it is written.
void KvCache::own_page(Layer& layer, int32_t head, int32_t index) {
  int32_t* row = page_row(layer, head);
  if (pool_->references(row[index]) == 1) return;
  const int32_t first = index * kPageSlots;
  std::vector<int32_t> slots(at(std::clamp(layer.n_slots[at(head)] - first, 0, kPageSlots)));
  std::iota(slots.begin(), slots.end(), first);
  const std::vector<int32_t> old_pages = layer.pages;
  KvView source = view_of(layer);
  source.pages = old_pages.data();
  const int32_t shared = row[index];
  row[index] = pool_->allocate();
  backend_->kv_move(source, view_of(layer), head, slots, slots);
  pool_->release(shared);
}

void KvCache::drop_pages(Layer& layer, int32_t head, int32_t keep_pages) {
  int32_t& n = layer.n_pages[at(head)];
  if (n <= keep_pages && keep_pages > 0) return;
  PageRun& spare = layer.spare[at(head)];
  while (spare.size() > 0) pool_->release(spare.begin++);
  while (n > keep_pages) pool_->release(page_row(layer, head)[--n]);
}

void KvCache::compact(const KeepPlan& plan) {
  CHECK(plan.layers.size() == layers_.size());
  for (int32_t l = 0; l < shape_.n_layers; ++l) {
    CHECK(plan.layers[at(l)].size() == at(shape_.n_kv_heads));
    for (int32_t h = 0; h < shape_.n_kv_heads; ++h) compact_head(layers_[at(l)], h, plan.layers[at(l)][at(h)]);
  }
}

// K and V of every merge, [n_merges, 2, d] f32: the weighted sums of their sources.
std::vector<float> KvCache::read_merges(const KvView& view, int32_t head, const std::vector<KeepPlan::Merge>& merges) {
  const int64_t d = shape_.head_dim;
  std::vector<float> sums(merges.size() * static_cast<size_t>(2 * d), 0.0f);
  std::vector<float> sources;
  float* sum = sums.data();
  for (const KeepPlan::Merge& merge : merges) {
    const int64_t n = static_cast<int64_t>(merge.sources.size());
    sources.resize(static_cast<size_t>(2 * n * d));
    Tensor k(sources.data(), DType::kF32, {n, d}), v(sources.data() + n * d, DType::kF32, {n, d});
    backend_->kv_read(view, head, merge.sources, k, v);
    for (const Tensor& part : {k, v}) {
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t c = 0; c < d; ++c) sum[c] += merge.weights[static_cast<size_t>(i)] * part.row<float>(i)[c];
      }
      sum += d;
    }
  }
  return sums;
}

// Moves slots from[i] to slots first + i; pages that others hold are replaced before they are written.
void KvCache::move_slots(Layer& layer, int32_t head, int32_t first, std::span<const int32_t> from) {
  const int32_t n_after = first + static_cast<int32_t>(from.size());
  std::vector<int32_t> to(from.size());
  std::iota(to.begin(), to.end(), first);
  const std::vector<int32_t> old_pages = layer.pages;
  KvView source = view_of(layer);
  source.pages = old_pages.data();
  std::vector<int32_t> replaced;
  for (int32_t p = first / kPageSlots; p < pages_for(n_after); ++p) {
    int32_t& page = page_row(layer, head)[p];
    if (pool_->references(page) == 1) continue;
    const int32_t fresh = pool_->allocate();
    replaced.push_back(std::exchange(page, fresh));
  }
  backend_->kv_move(source, view_of(layer), head, from, to);
  for (int32_t page : replaced) pool_->release(page);
}

void KvCache::compact_head(Layer& layer, int32_t head, const KeepPlan::Head& plan) {
  const std::vector<Placed> placed = place(plan, layer.n_slots[at(head)]);
  const int32_t n_after = static_cast<int32_t>(placed.size());
  CHECK(plan.slot_bias.empty() || plan.slot_bias.size() == placed.size());
  std::vector<float> merged = read_merges(view_of(layer), head, plan.merges);  // before anything moves

  // Pages before the first slot that changes stay as they are, shared or not.
  int32_t same = 0;
  while (same < n_after && placed[at(same)].from == same && placed[at(same)].merge < 0) ++same;
  if (same < n_after) {
    const int32_t first = same / kPageSlots * kPageSlots;
    std::vector<int32_t> from;
    for (int32_t i = first; i < n_after; ++i) from.push_back(placed[at(i)].from);
    move_slots(layer, head, first, from);
  }

  const int64_t row = int64_t{head} * layer.slot_stride();
  int32_t* token = layer.slot_token.data() + row;
  int32_t* pos = layer.slot_pos.data() + row;
  float* bias = layer.slot_bias.empty() ? nullptr : layer.slot_bias.data() + row;
  for (int32_t i = 0; i < n_after; ++i) {
    const auto [from, merge] = placed[at(i)];
    token[i] = merge < 0 ? token[from] : -1;
    pos[i] = pos[from];
    if (bias != nullptr) bias[i] = bias[from];
    layer.sparse |= pos[i] != i;
    if (merge < 0) continue;
    float* kv = merged.data() + int64_t{merge} * 2 * shape_.head_dim;
    backend_->kv_set(view_of(layer), head, i, Tensor(kv, DType::kF32, {shape_.head_dim}),
                     Tensor(kv + shape_.head_dim, DType::kF32, {shape_.head_dim}));
  }
  if (!plan.slot_bias.empty()) {
    if (layer.slot_bias.empty()) layer.slot_bias.assign(layer.slot_pos.size(), 0.0f);
    std::ranges::copy(plan.slot_bias, layer.slot_bias.begin() + row);
  }
  layer.n_slots[at(head)] = n_after;
  if (capacity_ == 0) drop_pages(layer, head, pages_for(n_after));
}

void KvCache::truncate(int64_t n_tokens) {
  CHECK(0 <= n_tokens && n_tokens <= static_cast<int64_t>(tokens_.size()));
  const int32_t limit =
      n_tokens < static_cast<int64_t>(tokens_.size()) ? tokens_[static_cast<size_t>(n_tokens)].t : INT32_MAX;
  for (Layer& layer : layers_) {
    for (int32_t h = 0; h < shape_.n_kv_heads; ++h) {
      const int64_t row = int64_t{h} * layer.slot_stride();
      int32_t& n = layer.n_slots[at(h)];
      while (n > 0 && layer.slot_pos[static_cast<size_t>(row + n - 1)] >= limit) --n;
      if (capacity_ == 0) drop_pages(layer, h, pages_for(n));
    }
    if (std::ranges::all_of(layer.n_slots, [](int32_t n) { return n == 0; })) {
      layer.slot_bias.clear();
      layer.sparse = false;
    }
  }
  tokens_.resize(static_cast<size_t>(n_tokens));
}

int64_t KvCache::n_pages() const {
  int64_t n = 0;
  for (const Layer& layer : layers_) n += std::accumulate(layer.n_pages.begin(), layer.n_pages.end(), int64_t{0});
  return n;
}

bool KvCache::exact() const {
  for (const Layer& layer : layers_) {
    if (layer.sparse || !layer.slot_bias.empty()) return false;
    if (std::ranges::any_of(layer.n_slots, [&](int32_t n) { return n != layers_[0].n_slots[0]; })) return false;
  }
  return true;
}

}  // namespace vlcache
