// Random histories of a cache against the simplest model of one: a vector of slots per head, and whether the newest row
// sees them as codes. On every backend, in every codec.
#include <algorithm>
#include <cmath>
#include <optional>
#include <random>
#include <utility>

#include "base/numeric/kv_codec.h"
#include "cache/kv_cache_testing.h"

namespace vlcache {
namespace {

struct Slot {
  int32_t token = 0;
  int32_t place = 0;
  float bias = 0;
  float sum = 0;                      // the plane
  std::vector<float> k, v;            // as the newest row sees them
  std::vector<float> born_k, born_v;  // as they were written, while the page of values is there
};

struct Page {
  bool held = true;  // a windowed layer frees pages; their slots then read as zeros
  bool coded = false;
  enum class Values : uint8_t { kGone, kThisStep, kKept } values = Values::kGone;  // whether a coded page has them
};

struct Head {
  std::vector<Slot> slots;
  std::vector<Page> pages;
};

using Heads = std::vector<Head>;  // [layer * kHeads + head]

struct Kind {
  std::string_view backend;
  KvCodec codec;
  std::optional<KvCodec> coded = {};
  int64_t capacity = 0;
  bool windowed = false;  // the last layer is
};

constexpr int32_t kWindow = 40;

class KvCacheModel : public KvCacheFixture, public testing::WithParamInterface<Kind> {
 protected:
  KvCacheModel() : KvCacheFixture(GetParam().backend, GetParam().codec) {
    for (KvLayerShape& layer : shape_.layers) layer.coded = GetParam().coded;
    if (GetParam().windowed) shape_.layers.back().window = kWindow;
    pools_ = std::make_unique<PagePools>(*backend_, shape_, int64_t{64} << 20);
  }

  int32_t random(int32_t n) { return static_cast<int32_t>(random_() % static_cast<uint32_t>(n)); }
  float stored(float x) const { return shape_.codec == KvCodec::kBF16 ? to_float(to_bf16(x)) : x; }
  void code(std::vector<float>& x) const {
    std::vector<std::byte> row(static_cast<size_t>(coded_bytes(*GetParam().coded, kDim)));
    encode_head(*GetParam().coded, x, row.data());
    decode_head(*GetParam().coded, row.data(), x);
  }
  static Head& head_of(Heads& heads, int32_t layer, int32_t head) {
    return heads[static_cast<size_t>(layer * kHeads + head)];
  }

  void append(KvCache& cache, Heads& heads, int32_t n, bool in_step = false) {
    const std::vector<int32_t> tokens = range(next_, next_ + n);
    salt_ += 1;  // tokens after a truncation differ from the earlier ones
    for (int32_t l = 0; l < kLayers; ++l) {
      const KvView view = cache.append(l, tokens);
      write(view, l, tokens, salt_);
      cache.encode(l);
      for (int32_t h = 0; h < kHeads; ++h) {
        Head& head = head_of(heads, l, h);
        const auto first = static_cast<int32_t>(head.slots.size());
        for (int32_t t : tokens) append_slot(head, l, h, t);
        encode(head, in_step ? first : -1, cache.complete(0));
        const std::span<float> sums = cache.plane(l, h, 0);
        for (size_t i = 0; i < sums.size(); ++i) {
          sums[i] += static_cast<float>(i % 7);
          head.slots[i].sum += static_cast<float>(i % 7);
        }
      }
    }
    next_ += n;
  }

  void append_slot(Head& head, int32_t layer, int32_t h, int32_t token) const {
    Slot slot{.token = token, .place = token};
    for (int64_t c = 0; c < kDim; ++c) {
      slot.k.push_back(value(layer, h, token, c));
      slot.v.push_back(salt_ - value(layer, h, token, c));
    }
    if (head.slots.size() % kPageSlots == 0) head.pages.emplace_back();
    if (head.pages.back().coded) code(slot.k), code(slot.v);
    slot.born_k = slot.k, slot.born_v = slot.v;
    head.slots.push_back(slot);
  }

  // [begin, end) of the slots of a page.
  static std::span<Slot> slots_of(Head& head, size_t page) {
    const size_t begin = page * kPageSlots;
    return std::span(head.slots).subspan(begin, std::min<size_t>(kPageSlots, head.slots.size() - begin));
  }

  // `first`: the slot of the step's first row; -1: of none, all values are kept until the step ends.
  void encode(Head& head, int32_t first, bool complete) const {
    if (!GetParam().coded.has_value() || head.slots.empty()) return;
    const auto end = static_cast<size_t>(coded_end(std::ssize(head.slots) - 1));
    for (size_t i = end; i-- > 1 && !head.pages[i].coded;) {
      if (!head.pages[i].held) continue;
      for (Slot& slot : slots_of(head, i)) code(slot.k), code(slot.v);
      const bool needed = first < 0 || static_cast<int32_t>(i) >= coded_end(first) || (complete && is_kept(i));
      head.pages[i] = {.coded = true, .values = needed ? Page::Values::kThisStep : Page::Values::kGone};
    }
  }

  bool is_kept(size_t page) const {
    return std::ranges::any_of(places_, [&](int32_t place) {
      return static_cast<size_t>(coded_end(place)) <= page && page * kPageSlots < static_cast<size_t>(place);
    });
  }

  void end_step(KvCache& cache, Heads& heads) const {
    cache.end_step();
    const bool complete = cache.complete(0);
    for (Head& head : heads) {
      for (size_t i = 0; i < head.pages.size(); ++i) {
        Page& page = head.pages[i];
        if (page.values != Page::Values::kThisStep) continue;
        const bool kept =
            complete && std::ranges::any_of(places_, [&](int32_t place) {
              return static_cast<size_t>(coded_end(place)) <= i && i * kPageSlots < static_cast<size_t>(place);
            });
        page.values = kept ? Page::Values::kKept : Page::Values::kGone;
      }
    }
    for (int32_t h = 0; h < kHeads && GetParam().windowed; ++h) free_passed(head_of(heads, kLayers - 1, h), complete);
  }

  void free_passed(Head& head, bool complete) const {
    size_t n_passed = 0;  // slots that the next row does not see
    while (n_passed < head.slots.size() && head.slots[n_passed].place <= head.slots.back().place + 1 - kWindow) {
      ++n_passed;
    }
    for (size_t i = 0; i + kPagesBeforeWindow < n_passed / kPageSlots; ++i) {
      const bool kept =
          complete && std::ranges::any_of(places_, [&](int32_t place) {
            const auto first_seen = static_cast<size_t>(std::max(0, place - kWindow + 1));
            return first_seen / kPageSlots <= i + kPagesBeforeWindow && i * kPageSlots < static_cast<size_t>(place);
          });
      if (kept || !head.pages[i].held) continue;
      head.pages[i] = {.held = false};
      for (Slot& slot : slots_of(head, i)) {
        for (std::vector<float>* x : {&slot.k, &slot.v, &slot.born_k, &slot.born_v}) std::ranges::fill(*x, 0.0f);
      }
    }
  }

  // Slots were dropped: the next row sees pages as values again where these are still there.
  static void shorten(Head& head, size_t n) {
    head.slots.resize(n);
    head.pages.resize((n + kPageSlots - 1) / kPageSlots);
    for (size_t i = std::min<size_t>(static_cast<size_t>(coded_end(static_cast<int64_t>(n))), n / kPageSlots);
         i < head.pages.size(); ++i) {
      if (head.pages[i].values == Page::Values::kGone) continue;
      for (Slot& slot : slots_of(head, i)) slot.k = slot.born_k, slot.v = slot.born_v;
      head.pages[i] = {};
    }
  }

  // The slots have moved: old[i] is slot i's page before. From the page of the first slot that moved or is
  // `overwritten` on, a page has codes if any of its slots has.
  void regroup(Head& head, std::span<const int32_t> kept, size_t overwritten) const {
    const std::vector<Page> before = std::exchange(head.pages, {});
    size_t same = 0;
    while (same < kept.size() && kept[same] == static_cast<int32_t>(same)) ++same;
    same = std::min(same, overwritten);
    const size_t n_pages = (kept.size() + kPageSlots - 1) / kPageSlots;
    const size_t first = same >= kept.size() ? n_pages : same / kPageSlots;
    const auto was_coded = [&](size_t i) { return before[static_cast<size_t>(kept[i] / kPageSlots)].coded; };
    for (size_t page = 0; page < n_pages; ++page) {
      if (page < first) {
        head.pages.push_back(before[page]);
        continue;
      }
      bool coded = false;
      const size_t begin = page * kPageSlots, end = std::min(begin + kPageSlots, kept.size());
      for (size_t i = begin; i < end; ++i) coded = coded || was_coded(i);
      for (size_t i = begin; i < end; ++i) {
        Slot& slot = head.slots[i];
        if (coded && !was_coded(i)) code(slot.k), code(slot.v);
        slot.born_k = slot.k, slot.born_v = slot.v;
      }
      head.pages.push_back({.coded = coded});
    }
  }

  void hide(KvCache& cache, Heads& heads) {
    for (int32_t l = 0; l < kLayers; ++l) {
      for (int32_t h = 0; h < kHeads; ++h) {
        std::vector<Slot>& slots = head_of(heads, l, h).slots;
        if (slots.empty()) continue;
        const bool in_a_row = random(2) == 0;  // as a window slides, or here and there
        const int32_t n = random(40), first = random(static_cast<int32_t>(slots.size()));
        for (int32_t i = 0; i < n; ++i) {
          const int32_t slot = in_a_row ? first + i : random(static_cast<int32_t>(slots.size()));
          if (slot >= static_cast<int32_t>(slots.size())) break;
          cache.hide(l, h, slot);
          slots[static_cast<size_t>(slot)].bias = -INFINITY;
        }
      }
    }
  }

  void sweep(KvCache& cache, Heads& heads) {
    cache.sweep();
    for (Head& head : heads) {
      const auto hidden = [](const Slot& s) { return std::isinf(s.bias); };
      if (std::ranges::count_if(head.slots, hidden) < kPageSlots) continue;
      std::vector<int32_t> kept;
      std::vector<Slot> left;
      for (size_t i = 0; i < head.slots.size(); ++i) {
        if (hidden(head.slots[i]) || !head.pages[i / kPageSlots].held) continue;
        kept.push_back(static_cast<int32_t>(i));
        left.push_back(head.slots[i]);
      }
      head.slots = left;
      regroup(head, kept, head.slots.size());
    }
  }

  // Keeps most slots, merges some of the others, gives values to the kept ones of some heads.
  KeepPlan::Head plan_head(Head& head) {
    KeepPlan::Head plan;
    struct Set {
      size_t slot;
      std::vector<float> k, v;  // empty: as it is
    };
    std::vector<Set> sets;
    std::vector<Slot> after;
    std::vector<int32_t> dropped, kept;
    const std::vector<Slot>& slots = head.slots;
    const int32_t drop_one_in = 2 + random(6);
    // Of the first kept slots: none as a rule, all, or some.
    const int32_t n_new_values = random(4) == 0 ? random(2 * static_cast<int32_t>(slots.size()) + 1) : 0;
    for (int32_t i = 0; i < static_cast<int32_t>(slots.size()); ++i) {
      const Slot& slot = slots[static_cast<size_t>(i)];
      if (!head.pages[static_cast<size_t>(i / kPageSlots)].held) continue;
      if (random(drop_one_in) == 0) {
        dropped.push_back(i);
        if (dropped.size() % 3 != 0) continue;
        const int32_t other = dropped[dropped.size() - 2];  // merged with the one before, at that one's place
        const Slot& a = slots[static_cast<size_t>(other)];
        if (!after.empty() && first_token(after.back().token) > first_token(a.token)) continue;
        plan.merges.push_back({.sources = {i, other}, .weights = {0.5f, 0.25f}});
        Set set{.slot = after.size(), .k = {}, .v = {}};
        for (size_t c = 0; c < kDim; ++c) {
          set.k.push_back(0.5f * slot.k[c] + 0.25f * a.k[c]);
          set.v.push_back(0.5f * slot.v[c] + 0.25f * a.v[c]);
        }
        sets.push_back(set);
        after.push_back(a);
        after.back().token = merged_token(first_token(a.token));
        after.back().sum += slot.sum;
        kept.push_back(other);
        continue;
      }
      plan.keep.push_back(i);
      kept.push_back(i);
      if (std::ssize(plan.keep) <= n_new_values) {
        Set set{.slot = after.size(), .k = {}, .v = {}};
        for (size_t c = 0; c < kDim; ++c) set.v.push_back(static_cast<float>(random(200)));
        plan.values.insert(plan.values.end(), set.v.begin(), set.v.end());
        sets.push_back(set);
      }
      after.push_back(slot);
    }
    if (random(3) == 0) {
      for (Slot& s : after) plan.slot_bias.push_back(s.bias = static_cast<float>(random(3)));
    }
    head.slots = after;
    size_t overwritten = after.size();
    for (const Set& set : sets) overwritten = std::min(overwritten, set.slot);
    regroup(head, kept, overwritten);
    for (const Set& set : sets) {
      Slot& slot = head.slots[set.slot];
      const bool coded = head.pages[set.slot / kPageSlots].coded;
      const auto assign = [&](const std::vector<float>& from, std::vector<float>& to) {
        if (from.empty()) return;
        to = from;
        for (float& x : to) x = coded ? x : stored(x);
        if (coded) code(to);
      };
      assign(set.k, slot.k), assign(set.v, slot.v);
      slot.born_k = slot.k, slot.born_v = slot.v;
    }
    return plan;
  }

  void compact(KvCache& cache, Heads& heads) {
    KeepPlan plan;
    for (int32_t l = 0; l < kLayers; ++l) {
      plan.layers.emplace_back();
      for (int32_t h = 0; h < kHeads; ++h) plan.layers.back().push_back(plan_head(head_of(heads, l, h)));
    }
    cache.compact(plan);
  }

  // As far as pages are held that new slots are written to.
  void truncate(KvCache& cache, Heads& heads, int32_t n) {
    for (const Head& head : heads) {
      const auto n_left = std::ranges::count_if(head.slots, [&](const Slot& s) { return first_token(s.token) < n; });
      const auto page = static_cast<size_t>(n_left / kPageSlots);
      if (n_left % kPageSlots != 0 && !head.pages[page].held) n = 0;
    }
    cache.truncate(n);
    for (Head& head : heads) {
      const auto stays = [&](const Slot& s) { return first_token(s.token) < n; };
      shorten(head, static_cast<size_t>(std::ranges::count_if(head.slots, stays)));
    }
    next_ = n;
  }

  void fail_a_step(KvCache& cache, Heads& heads) {
    const int32_t before = next_;
    std::vector<size_t> lengths;
    for (const Head& head : heads) lengths.push_back(head.slots.size());
    cache.begin_step();
    append(cache, heads, 1 + random(100), /*in_step=*/true);
    cache.rollback_step();
    next_ = before;
    for (size_t i = 0; i < heads.size(); ++i) shorten(heads[i], lengths[i]);
  }

  // Tokens are computed and discarded.
  void look_ahead(KvCache& cache, Heads& heads) {
    const int32_t before = next_;
    const Heads expected = heads;
    cache.hold_values(true);
    append(cache, heads, 1 + random(200));
    cache.end_step();
    truncate(cache, heads, before);
    cache.hold_values(false);
    for (size_t i = 0; i < heads.size(); ++i) {  // the sums apart, nothing shows
      for (size_t page = 0; page < heads[i].pages.size(); ++page) {
        const bool sees_codes = 0 < page && page < static_cast<size_t>(coded_end(std::ssize(heads[i].slots)));
        ASSERT_TRUE(sees_codes || heads[i].pages[page].coded == expected[i].pages[page].coded) << page;
      }
    }
  }

  void expect_same(KvCache& cache, Heads& heads) {
    for (int32_t l = 0; l < kLayers; ++l) {
      const KvView view = cache.view(l);
      for (int32_t h = 0; h < kHeads; ++h) {
        Head& head = head_of(heads, l, h);
        const std::vector<Slot>& slots = head.slots;
        ASSERT_EQ(cache.n_slots(l, h), static_cast<int32_t>(slots.size()));
        ASSERT_EQ(cache.n_hidden(l, h), std::ranges::count_if(slots, [](const Slot& s) { return std::isinf(s.bias); }));
        Rows rows{.k = std::vector<float>(slots.size() * kDim), .v = std::vector<float>(slots.size() * kDim)};
        const auto tensor = [&](std::vector<float>& x) {
          return Tensor(x.data(), DType::kF32, {std::ssize(slots), kDim});
        };
        if (!slots.empty()) cache.read(l, h, tensor(rows.k), tensor(rows.v));
        int32_t n_visible = 0;
        for (size_t i = 0; i < slots.size(); ++i) {
          const bool passed =
              shape_.layers[static_cast<size_t>(l)].window > 0 && slots[i].place <= slots.back().place + 1 - kWindow;
          n_visible += std::isinf(slots[i].bias) || passed ? 0 : 1;
          ASSERT_EQ(cache.holds(l, h, static_cast<int32_t>(i)), head.pages[i / kPageSlots].held) << "slot " << i;
          const size_t at = static_cast<size_t>(h) * static_cast<size_t>(view.slot_stride) + i;
          ASSERT_EQ(cache.slot_tokens(l, h)[i], slots[i].token) << "slot " << i;
          ASSERT_EQ(view.slot_pos == nullptr ? static_cast<int32_t>(i) : view.slot_pos[at], slots[i].place);
          ASSERT_EQ(view.slot_bias == nullptr ? 0 : view.slot_bias[at], slots[i].bias);
          ASSERT_EQ(cache.plane(l, h, 0)[i], slots[i].sum);
          for (size_t c = 0; c < kDim; ++c) {
            ASSERT_EQ(rows.k[i * kDim + c], slots[i].k[c]) << "layer " << l << " head " << h << " slot " << i;
            ASSERT_EQ(rows.v[i * kDim + c], slots[i].v[c]) << "layer " << l << " head " << h << " slot " << i;
          }
        }
        ASSERT_EQ(cache.n_visible(l, h), n_visible);
        for (size_t i = 0; i < head.pages.size(); ++i) {
          n_freed_ += head.pages[i].held ? 0 : 1;
          ASSERT_NO_FATAL_FAILURE(expect_forms(view, h, head, i));
        }
      }
    }
  }

  void expect_forms(const KvView& view, int32_t h, Head& head, size_t i) {
    const Page& page = head.pages[i];
    const auto index = static_cast<int64_t>(i);
    ASSERT_EQ(is_coded(view.page_codec(h, index)), page.coded) << "page " << i;
    const KvView::Form old = view.form(h, index, 1);  // as a row of the first pages sees it
    ASSERT_EQ(is_coded(old.codec), page.coded && page.values == Page::Values::kGone) << "page " << i;
    if (is_coded(old.codec) || !page.coded) return;
    KvView alone = view;
    const int32_t id = 0, n = static_cast<int32_t>(slots_of(head, i).size());
    alone.pools[static_cast<size_t>(old.codec)].base = old.data;
    alone.pages = &id;
    alone.codecs = nullptr;
    alone.n_slots = &n;
    const Rows rows = read(alone, 0);
    for (int32_t s = 0; s < n; ++s) {
      for (size_t c = 0; c < kDim; ++c) {
        ASSERT_EQ(rows.k[static_cast<size_t>(s) * kDim + c], slots_of(head, i)[static_cast<size_t>(s)].born_k[c]);
        ASSERT_EQ(rows.v[static_cast<size_t>(s) * kDim + c], slots_of(head, i)[static_cast<size_t>(s)].born_v[c]);
      }
    }
  }

  std::mt19937 random_{11};
  int32_t next_ = 0;             // the sequence's length
  float salt_ = 0;               // added to V
  int64_t n_freed_ = 0;          // pages, each as often as it was looked for
  std::vector<int32_t> places_;  // that are kept
  std::unique_ptr<PagePools> pools_;
};

TEST_P(KvCacheModel, RandomHistories) {
  {
    std::vector<KvCache> forks;  // they keep pages shared
    std::vector<Heads> forks_heads;
    Heads heads(kLayers * kHeads);
    KvCache cache(*pools_, *backend_, shape_, GetParam().capacity);
    cache.set_planes(1);
    for (const int32_t place : {190, 450}) {
      if (place == 190 && GetParam().windowed) continue;  // that all pages would be kept for
      cache.keep_place(place);
      places_.push_back(place);
    }
    for (int step = 0; step < (GetParam().windowed ? 90 : 150); ++step) {
      SCOPED_TRACE("step " + std::to_string(step));
      int32_t longest = 0;
      for (const Head& head : heads) longest = std::max(longest, static_cast<int32_t>(head.slots.size()));
      const int32_t what = random(14);
      if (longest > 500 && what < 12) {
        compact(cache, heads);
      } else if (what < 5) {
        append(cache, heads, 1 + random(what == 0 ? 130 : 10));
      } else if (what < 8) {
        hide(cache, heads);
        sweep(cache, heads);
      } else if (what == 8) {
        compact(cache, heads);
      } else if (what == 9) {
        truncate(cache, heads, std::max(0, next_ - random(200)));
      } else if (what == 10) {
        fail_a_step(cache, heads);
      } else if (what == 11) {
        if (forks.size() > 2) forks.clear(), forks_heads.clear();
        forks.push_back(cache.fork());
        forks_heads.push_back(heads);
      } else if (what == 12) {
        ASSERT_NO_FATAL_FAILURE(look_ahead(cache, heads));
      } else {
        truncate(cache, heads, 0);  // a new conversation, whose cache is complete
        append(cache, heads, 300 + random(300));
      }
      ASSERT_NO_FATAL_FAILURE(expect_same(cache, heads));
      if (random(3) > 0) end_step(cache, heads);
      ASSERT_NO_FATAL_FAILURE(expect_same(cache, heads));
      if (step % 10 == 9) {
        for (size_t i = 0; i < forks.size(); ++i) ASSERT_NO_FATAL_FAILURE(expect_same(forks[i], forks_heads[i]));
      }
    }
  }
  EXPECT_EQ(n_freed_ > 0, GetParam().windowed);
  EXPECT_EQ(pools_->used_bytes(), 0);
}

std::vector<Kind> kinds() {
  std::vector<Kind> kinds;
  for (const std::string_view backend : backend_names()) {
    for (const KvCodec codec : {KvCodec::kF32, KvCodec::kBF16}) {
      for (const int64_t capacity : {0, 1000})
        kinds.push_back({.backend = backend, .codec = codec, .capacity = capacity});
      kinds.push_back({.backend = backend, .codec = codec, .coded = KvCodec::kInt8});
      if (codec == KvCodec::kF32) {
        kinds.push_back({.backend = backend, .codec = codec, .windowed = true});
        kinds.push_back({.backend = backend, .codec = codec, .coded = KvCodec::kInt8, .windowed = true});
      }
    }
  }
  return kinds;
}

INSTANTIATE_TEST_SUITE_P(Backends, KvCacheModel, testing::ValuesIn(kinds()), [](const auto& info) {
  const Kind& kind = info.param;
  std::string name = std::string(kind.backend) + "_" + std::string(kv_codec_name(kind.codec));
  if (kind.coded.has_value()) name += "_" + std::string(kv_codec_name(*kind.coded));
  if (kind.windowed) name += "_windowed";
  return name + (kind.capacity > 0 ? "_static" : "");
});

}  // namespace
}  // namespace vlcache
