// Pages that become codes: when, which values are kept, and the state after a failure.
#include <set>

#include "cache/kv_cache_testing.h"

namespace vlcache {
namespace {

class PageCodes : public KvCacheFixture {
 protected:
  PageCodes() {
    for (KvLayerShape& layer : shape_.layers) layer.coded = KvCodec::kInt8;
    pools_ = std::make_unique<PagePools>(*backend_, shape_, int64_t{48} << 20);
  }
  KvCache make() { return {*pools_, *backend_, shape_}; }
  int64_t value_bytes() const { return backend_->kv_page_bytes(KvCodec::kF32, kDim); }
  int64_t code_bytes() const { return backend_->kv_page_bytes(KvCodec::kInt8, kDim); }

  // Tokens [begin, end) in steps of n.
  void compute(KvCache& cache, int32_t begin, int32_t end, int32_t n, float salt = 0) {
    for (int32_t at = begin; at < end; at += n) {
      step(cache, at, std::min(at + n, end), salt);
      cache.end_step();
    }
  }
  void step(KvCache& cache, int32_t begin, int32_t end, float salt = 0) {
    cache.begin_step();
    const std::vector<int32_t> tokens = range(begin, end);
    for (int32_t l = 0; l < kLayers; ++l) {
      write(cache.append(l, tokens), l, tokens, salt);
      cache.encode(l);
    }
  }

  // Pages of head 0 of layer 0, by their forms: v values, c codes, b both, a codes ahead of their use.
  static std::string forms(const KvCache& cache) {
    const KvView view = cache.view(0);
    std::vector<PageForms> pages(static_cast<size_t>(cache.n_columns()));
    std::string text;
    for (int32_t i = 0; i < pages_for(cache.n_slots(0, 0)); ++i) {
      cache.list_pages(i, pages);
      const bool both = pages[0].born >= 0 && pages[0].coded >= 0, coded = is_coded(view.page_codec(0, i));
      text += both ? (coded ? 'b' : 'a') : (coded ? 'c' : 'v');
    }
    return text;
  }
  // The pages that the newest rows see as codes.
  static std::string shown(const KvCache& cache) {
    std::string text;
    for (int32_t i = 0; i < pages_for(cache.n_slots(0, 0)); ++i) {
      text += is_coded(cache.view(0).page_codec(0, i)) ? 'c' : 'v';
    }
    return text;
  }
  void expect_equal(const KvCache& a, const KvCache& b) {
    ASSERT_EQ(shown(a), shown(b));
    for (int32_t l = 0; l < kLayers; ++l) {
      for (int32_t h = 0; h < kHeads; ++h) {
        const Rows left = read(a.view(l), h), right = read(b.view(l), h);
        ASSERT_EQ(left.k, right.k);
        ASSERT_EQ(left.v, right.v);
      }
    }
  }

  std::unique_ptr<PagePools> pools_;
};

TEST_F(PageCodes, TheSlotDecidesNotTheSteps) {
  for (const int32_t n : {1, 7, 64, 300, 1000}) {
    KvCache cache = make(), whole = make();
    compute(cache, 0, 700, n);
    compute(whole, 0, 700, 700);
    EXPECT_EQ(shown(cache), "vcccccvvvvv");
    expect_equal(cache, whole);
  }
}

// One step at a time, each makes a few of the codes that the next block needs; none makes the codes of a whole block.
TEST_F(PageCodes, DecodingMakesCodesAhead) {
  KvCache cache = make();
  compute(cache, 0, 300, 300);
  int64_t most = 0;
  for (int32_t t = 300; t < 1300; ++t) {
    const int64_t before = pools_->of(kDim, KvCodec::kInt8).n_used();
    compute(cache, t, t + 1, 1);
    most = std::max(most, pools_->of(kDim, KvCodec::kInt8).n_used() - before);
    if (t == 510) EXPECT_EQ(forms(cache), "vcaaaavv");
    if (t == 512) EXPECT_EQ(forms(cache), "vcccccavv");
  }
  // Pages come in runs, and every head's turn is another; a block's codes at once would be 24 pages.
  EXPECT_LE(most, 10);
}

TEST_F(PageCodes, CodesOfChangedPagesAreDropped) {
  KvCache cache = make(), again = make();
  compute(cache, 0, 250, 1);
  ASSERT_EQ(forms(cache), "vavv");
  cache.truncate(100);
  EXPECT_EQ(forms(cache), "vv");
  compute(cache, 100, 600, 1, 9);
  compute(again, 0, 100, 100);
  compute(again, 100, 600, 500, 9);
  expect_equal(cache, again);
}

TEST_F(PageCodes, PlacesAreKept) {
  KvCache cache = make();
  cache.keep_place(700);
  cache.keep_regular_places();
  compute(cache, 0, 4200, 512);
  EXPECT_EQ(forms(cache).substr(0, 12), "vcccccbbbbbc");
  EXPECT_EQ(forms(cache).substr(28), "ccbbccccccccccccccccccccccccccccccvavv");
  EXPECT_EQ(cache.place_before(4200), 4200);
  EXPECT_EQ(cache.place_before(4000), 2048 + 0);
  EXPECT_EQ(cache.place_before(2047), 704);
  EXPECT_EQ(cache.place_before(700), 700);
  EXPECT_EQ(cache.place_before(600), 600);
  EXPECT_EQ(cache.place_before(500), 64);
  EXPECT_EQ(cache.place_before(5), 5);
  cache.truncate(700);
  KvCache whole = make();
  compute(whole, 0, 700, 700);
  expect_equal(cache, whole);
  EXPECT_EQ(forms(cache), "vcccccaaaav");  // the codes are still right
  compute(cache, 700, 1100, 400);
  EXPECT_EQ(forms(cache).substr(0, 12), "vcccccbbbbbc");
  cache.forget_places();
  EXPECT_EQ(forms(cache).substr(0, 12), "vccccccccccc");
}

// After an eviction rows see what they would see without places: a page that has become codes is codes to all of them.
TEST_F(PageCodes, EvictionsEndPlaces) {
  for (const bool by_sweep : {false, true}) {
    KvCache cache = make(), without = make();
    cache.keep_place(700);
    for (KvCache* c : {&cache, &without}) compute(*c, 0, 800, 800);
    EXPECT_EQ(forms(cache), "vcccccbbbbavv");
    for (KvCache* c : {&cache, &without}) {
      KeepPlan plan;
      plan.layers.resize(kLayers, std::vector<KeepPlan::Head>(kHeads));
      for (int32_t l = 0; l < kLayers; ++l) {
        for (int32_t h = 0; h < kHeads; ++h) {
          plan.layers[static_cast<size_t>(l)][static_cast<size_t>(h)].keep = range(0, 720);
          for (int32_t slot = 720; slot < 800 && by_sweep; ++slot) c->hide(l, h, slot);
        }
      }
      if (by_sweep) {
        c->sweep();
      } else {
        c->compact(plan);
      }
    }
    EXPECT_EQ(forms(cache), forms(without));
    expect_equal(cache, without);
  }
}

// A cache that begins with another's pages sees the same; only the forms that it sees are shared.
TEST_F(PageCodes, SharesPagesInTheFormsThatItSees) {
  KvCache cache = make();
  cache.keep_regular_places();
  compute(cache, 0, 3000, 512);
  for (const int32_t n : {3000, 2048}) {
    std::vector<std::vector<PageForms>> groups;
    std::vector<std::span<const PageForms>> spans;
    for (int32_t i = 0; i < pages_for(n); ++i) {
      groups.emplace_back(static_cast<size_t>(cache.n_columns()));
      cache.list_pages(i, groups.back());
      spans.emplace_back(groups.back());
    }
    KvCache shared = make(), whole = make();
    shared.share(spans, n);
    compute(whole, 0, n, n);
    EXPECT_EQ(shown(shared), n == 2048 ? "v" + std::string(29, 'c') + "vv" : shown(whole));
    compute(shared, n, n + 600, 1, 3);
    compute(whole, n, n + 600, 600, 3);
    expect_equal(shared, whole);
  }
}

// Running out of pages in the middle of a layer, anywhere, leaves the cache as it was.
TEST_F(PageCodes, AFailedEncodingCostsNothing) {
  KvCache cache = make(), whole = make();
  compute(cache, 0, 600, 600);
  std::vector<int32_t> taken;
  PagePool& pool = pools_->of(kDim, KvCodec::kF32);
  bool failed = false, fits = false;
  while (pools_->max_bytes() - pools_->used_bytes() >= value_bytes()) taken.push_back(pool.allocate());
  for (; !fits; taken.pop_back()) {
    const std::string before = shown(cache);
    const int64_t bytes = cache.bytes();
    try {
      step(cache, 600, 800);
      fits = true;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kOutOfPages);
      failed = true;
      cache.rollback_step();
      ASSERT_EQ(shown(cache), before);
      ASSERT_LE(cache.bytes(), bytes + cache.n_columns() * code_bytes());  // made ahead
    }
    ASSERT_FALSE(taken.empty());
    pool.release(taken.back());
    ASSERT_LE(pools_->used_bytes(), pools_->max_bytes());
  }
  EXPECT_TRUE(failed);
  for (const int32_t page : taken) pool.release(page);
  KvCache other = make();
  compute(other, 0, 800, 800);
  EXPECT_EQ(shown(cache), shown(other));
  const Rows left = read(cache.view(1), 2), right = read(other.view(1), 2);
  EXPECT_EQ(left.k, right.k);
}

// As H2O evicts: one of the oldest slots for each new one. Rows that are codes keep their codes.
TEST_F(PageCodes, SurvivingCodesStayAsTheyAre) {
  KvCache cache = make();
  compute(cache, 0, 1000, 1000);
  std::vector<std::vector<float>> first(4000);  // K of layer 1, head 2 by token, since it is coded
  std::mt19937 random(3);
  for (int32_t t = 1000; t < 2000; ++t) {
    compute(cache, t, t + 1, 1);
    for (int32_t l = 0; l < kLayers; ++l) {
      for (int32_t h = 0; h < kHeads; ++h) {
        cache.hide(l, h, static_cast<int32_t>(random() % static_cast<uint32_t>(cache.n_slots(l, h))));
      }
    }
    cache.sweep();
    if (t % 50 != 0) continue;
    const KvView view = cache.view(1);
    const Rows rows = read(view, 2);
    for (int32_t i = 0; i < cache.n_slots(1, 2); ++i) {
      if (!is_coded(view.page_codec(2, i / kPageSlots))) continue;
      const std::vector<float> row(rows.k.begin() + i * kDim, rows.k.begin() + (i + 1) * kDim);
      std::vector<float>& seen = first[static_cast<size_t>(cache.slot_tokens(1, 2)[static_cast<size_t>(i)])];
      if (seen.empty()) seen = row;
      ASSERT_EQ(seen, row) << "slot " << i << " after token " << t;
    }
  }
}

// A long step holds both forms of its pages in one layer at a time.
TEST_F(PageCodes, ALongStepFreesValuesLayerByLayer) {
  KvCache cache = make(), failed = make();
  compute(cache, 0, 300, 300), compute(failed, 0, 300, 300);
  const int64_t n_coded = coded_end(1299) - 1, n_pages = pages_for(1300);
  step(cache, 300, 1300);
  const int64_t most = kHeads * (n_pages * value_bytes() + (n_coded + 1) * code_bytes());  // of a layer, one page ahead
  EXPECT_LE(cache.bytes(), most + kHeads * ((n_pages - n_coded + 5) * value_bytes() + (n_coded + 1) * code_bytes()));
  cache.end_step();
  KvCache whole = make();
  compute(whole, 0, 1300, 100);
  expect_equal(cache, whole);
  step(failed, 300, 1300, 7);
  failed.rollback_step();
  compute(failed, 300, 1300, 1000);
  expect_equal(failed, whole);
}

TEST_F(PageCodes, HoldsTheBytesOfItsForms) {
  KvCache cache = make();
  compute(cache, 0, 32 * 64, 256);
  const int64_t heads = kLayers * kHeads;
  // Pages 0 and 26 to 31 are values; the codes of none are made ahead but where a head's turn has come.
  EXPECT_EQ(shown(cache), "v" + std::string(25, 'c') + "vvvvvv");
  int64_t n_ahead = 0;
  std::vector<PageForms> pages(static_cast<size_t>(cache.n_columns()));
  for (int32_t i = 26; i < 32; ++i) {
    cache.list_pages(i, pages);
    for (const PageForms& page : pages) n_ahead += page.coded >= 0 ? 1 : 0;
  }
  EXPECT_EQ(cache.bytes(), heads * 7 * value_bytes() + (heads * 25 + n_ahead) * code_bytes());
  EXPECT_EQ(cache.n_pages(), heads * 32);
  std::set<std::pair<const PagePool*, int32_t>> visited;
  int64_t bytes = 0;
  cache.for_each_page([&](const PagePool& pool, int32_t page) {
    EXPECT_TRUE(visited.emplace(&pool, page).second);
    bytes += pool.page_bytes();
  });
  EXPECT_EQ(bytes, pools_->used_bytes());
}

}  // namespace
}  // namespace vlcache
