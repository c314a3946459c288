// KvCache, continued: compaction and sweeping.
#include <algorithm>
#include <limits>

#include "base/error.h"
#include "cache/kv_cache.h"

namespace vlcache {
namespace {

// One slot of the result of a compaction: a kept slot, or a merge in the place of its first source.
struct Placed {
  int32_t from = 0;
  int32_t keep = -1;   // index into KeepPlan::Head::keep
  int32_t merge = -1;  // index into KeepPlan::Head::merges
};

std::vector<Placed> place(const KeepPlan::Head& plan, int32_t n_slots) {
  std::vector<Placed> placed;
  placed.reserve(plan.keep.size() + plan.merges.size());
  for (size_t k = 0; k < plan.keep.size(); ++k) {
    placed.push_back({.from = plan.keep[k], .keep = static_cast<int32_t>(k)});
  }
  for (size_t m = 0; m < plan.merges.size(); ++m) {
    const KeepPlan::Merge& merge = plan.merges[m];
    CHECK(!merge.sources.empty() && merge.sources.size() == merge.weights.size());
    CHECK(std::ranges::all_of(merge.sources, [&](int32_t s) { return 0 <= s && s < n_slots; }));
    placed.push_back({.from = std::ranges::min(merge.sources), .merge = static_cast<int32_t>(m)});
  }
  if (!plan.merges.empty()) std::ranges::sort(placed, {}, &Placed::from);
  for (size_t i = 0; i < placed.size(); ++i) {
    CHECK(0 <= placed[i].from && placed[i].from < n_slots && (i == 0 || placed[i].from > placed[i - 1].from));
  }
  return placed;
}

// Whether the plan gives the kept slot a new value.
bool has_value(const KeepPlan::Head& plan, int64_t head_dim, const Placed& placed) {
  return placed.keep >= 0 && placed.keep * head_dim < std::ssize(plan.values);
}

// Lays out a head's result under a plan, page by page.
void lay_out(const KeepPlan::Head& plan, int64_t head_dim, std::span<const Placed> placed, SlotMoves& moves) {
  const auto overwritten = [&](const Placed& p) { return p.merge >= 0 || has_value(plan, head_dim, p); };
  moves.kept.clear();
  for (const Placed& p : placed) moves.kept.push_back(p.from);
  moves.link_pages(static_cast<int32_t>(std::ranges::find_if(placed, overwritten) - placed.begin()));
  for (size_t i = static_cast<size_t>(moves.first_page) * kPageSlots; i < placed.size(); ++i) {
    if (!overwritten(placed[i])) continue;
    moves.links[i / kPageSlots - static_cast<size_t>(moves.first_page)].write = true;
  }
}

// Before slots leave a head: no sequence continues among those that are left, and rows of fewer slots see the codes of
// pages that are codes already, whether values were kept for a place or not.
void drop_values(PageTable& pages, int32_t head) {
  for (int32_t i = 0; i < pages.n_pages(head) && pages.any_coded(); ++i) pages.drop_born(head, i);
}

// K and V of every merge, [merges, 2, head_dim] f32: weighted sums of the sources.
std::vector<float> read_merges(Backend& backend, const KvView& view, int32_t head,
                               std::span<const KeepPlan::Merge> merges) {
  const int64_t d = view.head_dim;
  std::vector<float> sums(merges.size() * static_cast<size_t>(2 * d), 0.0f), sources;
  float* sum = sums.data();
  for (const KeepPlan::Merge& merge : merges) {
    const int64_t n = static_cast<int64_t>(merge.sources.size());
    sources.resize(static_cast<size_t>(2 * n * d));
    const Tensor k(sources.data(), DType::kF32, {n, d}), v(sources.data() + n * d, DType::kF32, {n, d});
    backend.kv_read(view, head, merge.sources, k, v);
    for (const Tensor& part : {k, v}) {
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t c = 0; c < d; ++c) sum[c] += merge.weights[static_cast<size_t>(i)] * part.row<float>(i)[c];
      }
      sum += d;
    }
  }
  return sums;
}

}  // namespace

// Marks the links of a head, laid out in moves_, that need a fresh page: a page has codes if any of its slots has.
// Returns their number.
int32_t KvCache::mark_copies(const Layer& layer, int32_t head) {
  for (size_t i = 0; i < moves_.links.size() && layer.pages.any_coded(); ++i) {
    const size_t begin = (at(moves_.first_page) + i) * kPageSlots;
    const auto slots = std::span(moves_.kept).subspan(begin, std::min<size_t>(kPageSlots, moves_.kept.size() - begin));
    moves_.links[i].coded =
        std::ranges::any_of(slots, [&](int32_t slot) { return layer.pages.is_coded(head, slot / kPageSlots); });
  }
  return layer.pages.mark_copies(head, moves_.links);
}

// A page for each link that mark_copies marked.
void KvCache::take_copies(const Layer& layer) {
  for (const PageLink& link : moves_.links) {
    if (link.copy) fresh_.take(layer.pages.pool_of(link), 1);
  }
}

// Allocates all pages that heads will need to write shared pages, or codes where values were, before anything moves.
// Taking pages evicts cached prefixes, so that fewer pages may be shared than before: it is tried again as long as that
// is so.
void KvCache::take_fresh_pages(LayOut lay_out) {
  // body is called with the links of a head in moves_.
  const auto for_each_copying_head = [&](FunctionRef<void(const Layer& layer, int32_t n_copies)> body) {
    for (Layer& layer : layers_) {
      if (!layer.pages.any_coded() && !layer.pages.any_shared()) continue;
      for (int32_t h = 0; h < layer.slots.n_heads(); ++h) {
        if (lay_out(layer, h)) body(layer, mark_copies(layer, h));
      }
    }
  };
  for (int64_t n_needed = INT64_MAX;;) {
    fresh_.give_back();
    try {
      return for_each_copying_head([&](const Layer& layer, int32_t) { take_copies(layer); });
    } catch (const Error&) {
      fresh_.give_back();
      int64_t n_left = 0;
      for_each_copying_head([&](const Layer&, int32_t n_copies) { n_left += n_copies; });
      if (n_left >= n_needed) throw;
      n_needed = n_left;
    }
  }
}

// Moves the pages, K and V of a head as moves_ describes.
void KvCache::move_slots(Layer& layer, int32_t head) {
  PageTable& pages = layer.pages;
  layer.passed[at(head)] = std::min(layer.passed[at(head)], moves_.first_page);
  pages.relink(head, {.first = moves_.first_page, .links = moves_.links, .keep_rest = capacity_ > 0}, fresh_);
  moves_.list_copies();
  if (!moves_.from.empty()) {
    const KvView before = head_view(layer, head, {pages.old_row(), pages.old_codecs()});
    backend_->kv_move(before, head_view(layer, head, {pages.row(head), pages.row_codecs(head)}), 0, moves_.from,
                      moves_.to);
  }
  pages.release_old();
}

void KvCache::sweep() {
  const auto lay_out = [&](Layer& layer, int32_t head) {
    if (layer.slots.n_hidden(head) < kPageSlots) return false;
    layer.slots.list_visible(head, moves_.kept);
    std::erase_if(moves_.kept, [&](int32_t slot) { return !layer.pages.is_held(head, slot / kPageSlots); });
    moves_.link_pages(layer.slots.n_slots(head));
    return true;
  };
  take_fresh_pages(lay_out);
  for_each_head([&](Layer& layer, int32_t head) {
    if (!lay_out(layer, head)) return;
    in_step_ = false;
    drop_values(layer.pages, head);
    mark_copies(layer, head);
    move_slots(layer, head);
    layer.slots.gather(head, moves_.kept);
  });
  fresh_.give_back();  // pages taken for pages no longer shared: taking pages may have evicted the other holders
}

void KvCache::compact(const KeepPlan& plan) {
  CHECK(plan.layers.size() == layers_.size());
  const auto plan_of = [&](const Layer& layer, int32_t head) -> const KeepPlan::Head& {
    return plan.layers[static_cast<size_t>(&layer - layers_.data())][at(head)];
  };
  for (const Layer& layer : layers_) {
    CHECK(plan.layers[static_cast<size_t>(&layer - layers_.data())].size() == at(layer.slots.n_heads()));
  }
  take_fresh_pages([&](Layer& layer, int32_t head) {
    const KeepPlan::Head& own = plan_of(layer, head);
    lay_out(own, layer.shape.head_dim, place(own, layer.slots.n_slots(head)), moves_);
    return true;
  });
  in_step_ = false;
  for_each_head([&](Layer& layer, int32_t head) { compact_head(layer, head, plan_of(layer, head)); });
  fresh_.give_back();
  for (Layer& layer : layers_) {
    layer.slots.refresh();
    shrink(layer);
  }
}

void KvCache::compact_head(Layer& layer, int32_t head, const KeepPlan::Head& plan) {
  const std::vector<Placed> placed = place(plan, layer.slots.n_slots(head));
  CHECK(std::ranges::all_of(plan.keep, [&](int32_t slot) { return layer.pages.is_held(head, slot / kPageSlots); }));
  const int64_t d = layer.shape.head_dim;
  CHECK(plan.slot_bias.empty() || plan.slot_bias.size() == placed.size());
  CHECK(plan.values.size() % static_cast<size_t>(d) == 0 &&
        plan.values.size() <= plan.keep.size() * static_cast<size_t>(d));
  std::vector<float> merged = read_merges(*backend_, view_of(layer), head, plan.merges);  // before anything moves
  std::vector<const KeepPlan::Merge*> merges;
  for (const Placed& p : placed) merges.push_back(p.merge < 0 ? nullptr : &plan.merges[at(p.merge)]);

  lay_out(plan, d, placed, moves_);
  if (std::ssize(placed) < layer.slots.n_slots(head)) drop_values(layer.pages, head);
  mark_copies(layer, head);
  move_slots(layer, head);
  layer.slots.gather(head, moves_.kept, merges);

  for (size_t i = 0; i * placed.size() < plan.planes.size(); ++i) {
    std::copy_n(plan.planes.begin() + static_cast<int64_t>(i * placed.size()), placed.size(),
                layer.slots.plane(head, static_cast<int32_t>(i)).begin());
  }
  const KvView view = view_of(layer);
  for (int32_t i = 0; i < static_cast<int32_t>(placed.size()); ++i) {
    const Placed& p = placed[at(i)];
    if (!plan.slot_bias.empty()) layer.slots.set_bias(head, i, plan.slot_bias[at(i)]);
    if (p.merge >= 0) {
      float* kv = merged.data() + p.merge * 2 * d;
      backend_->kv_set(view, head, i, Tensor(kv, DType::kF32, {d}), Tensor(kv + d, DType::kF32, {d}));
    } else if (has_value(plan, d, p)) {
      std::vector<float> value(plan.values.begin() + p.keep * d, plan.values.begin() + (p.keep + 1) * d);
      backend_->kv_set(view, head, i, Tensor(), Tensor(value.data(), DType::kF32, {d}));
    }
  }
}

}  // namespace vlcache
