// Steps over any rows: any cut of the runs, any source of slots, any range of layers.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/engine_testing.h"

namespace vlcache {
namespace {

std::vector<float> step_runs(Engine& engine, Sequence& sequence, std::vector<TokenRun> runs,
                             LayerHooks* hooks = nullptr) {
  StepItem item;
  item.sequence = &sequence;
  item.runs = runs;
  item.hooks = hooks;
  const Tensor logits = engine.stepper().step({&item, 1})[0];
  return {logits.as<float>(), logits.as<float>() + logits.numel()};
}

// All rows computed: one run, runs side by side in one step, runs over several steps.
TEST(Steps, LogitsDoNotDependOnHowRunsAreSplit) {
  for (std::string_view backend : backend_names()) {
    for (const char* model_type : {"llama", "mistral"}) {  // mistral's layers see a window of 40
      SCOPED_TRACE(std::string(backend) + " " + model_type);
      const std::unique_ptr<Engine> engine = make_engine(3, backend, 64 << 20, model_type);
      const std::vector<int32_t> tokens = random_tokens(150);
      const auto whole = make_sequence(*engine, tokens);
      const std::vector<float> expected = step_runs(*engine, *whole, {{0, 150}});
      const std::vector<std::vector<std::vector<TokenRun>>> cuts{
          {{{0, 1}, {1, 64}, {64, 65}, {65, 149}, {149, 150}}},
          {{{0, 70}, {70, 71}}, {{71, 72}, {72, 130}}, {{130, 150}}},
          {{{0, 149}}, {{149, 150}}}};
      for (const auto& steps : cuts) {
        const auto cut = make_sequence(*engine, tokens);
        std::vector<float> found;
        for (const auto& runs : steps) found = step_runs(*engine, *cut, runs);
        if (backend == "ref") {
          EXPECT_EQ(found, expected);  // bit for bit
        } else {
          expect_close(found, expected);
        }
        EXPECT_EQ(cut->n_pending(), 0);
      }
    }
  }
}

// The first layers' recomputation of a reuse plan: of the loaded tokens that go through the model themselves, those
// from `first` on leave after layer `layer`.
class LeaveAt final : public LayerHooks {
 public:
  LeaveAt(int layer, int32_t first, int32_t end) : layer_(layer), first_(first), end_(end) {}
  bool after_attention(int layer, const Observed& o, std::vector<int32_t>& keep) override {
    for (size_t i = 0; i < o.tokens.size(); ++i) {
      if (o.tokens[i] < first_ || o.tokens[i] >= end_) keep.push_back(static_cast<int32_t>(i));
    }
    return layer == layer_;
  }

 private:
  int layer_;
  int32_t first_, end_;
};

// Loaded slots with the values that computing gives: everything must be as if it had been computed.
TEST(Steps, LoadedSlotsKeepThePositionOfTheirTokens) {
  for (std::string_view backend : backend_names()) {
    SCOPED_TRACE(backend);
    const std::unique_ptr<Engine> engine = make_engine(3, backend);
    const std::vector<int32_t> tokens = random_tokens(150);
    const auto whole = make_sequence(*engine, tokens);
    const std::vector<float> expected = step_runs(*engine, *whole, {{0, 150}});
    for (const int32_t chunk : {512, 40, 1}) {
      CopySource source(*engine, *whole, 1.0f);
      const auto s = make_sequence(*engine, tokens);
      const std::vector<TokenRun> loaded{{0, 3}, {20, 90}, {100, 101}, {130, 149}};
      s->supply(loaded, source);
      EXPECT_EQ(s->n_pending(), 150 - 93);
      EXPECT_EQ(s->n_done(), 3);
      const std::vector<float> found = compute(*engine, *s, chunk);
      expect_close(found, expected);
      EXPECT_EQ(source.n_loaded, 3 * 93);
      for (int32_t layer = 0; layer < 3; ++layer) {
        std::vector<int32_t> in_order(150);
        std::iota(in_order.begin(), in_order.end(), 0);
        const std::span<const int32_t> slots = s->cache().slot_tokens(layer, 1);
        EXPECT_EQ(std::vector<int32_t>(slots.begin(), slots.end()), in_order);
      }
      EXPECT_EQ(s->state(20), TokenState::kLoaded);
      EXPECT_EQ(s->state(90), TokenState::kComputed);
    }
  }
}

// Attention of a dense f64 model would be a second decoder: instead every loaded value differs from the computed one,
// and the same cache is built by hand, slot by slot, as the reference.
TEST(Steps, LaterTokensAttendToLoadedValues) {
  const std::unique_ptr<Engine> engine = make_engine(3, "ref");
  const std::vector<int32_t> tokens = random_tokens(90);
  const auto whole = make_sequence(*engine, tokens);
  const std::vector<float> exact = step_runs(*engine, *whole, {{0, 90}});
  const auto with_loaded = [&](std::vector<std::vector<TokenRun>> steps) {
    CopySource source(*engine, *whole, 0.5f);
    const auto s = make_sequence(*engine, tokens);
    const std::vector<TokenRun> loaded{{10, 50}};
    s->supply(loaded, source);
    std::vector<float> logits;
    for (auto& runs : steps) logits = step_runs(*engine, *s, std::move(runs));
    return logits;
  };
  const std::vector<float> at_once = with_loaded({{{0, 10}, {50, 90}}});
  EXPECT_GT(distance(at_once, exact), 1e-3f);
  EXPECT_EQ(at_once, with_loaded({{{0, 10}}, {{50, 90}}}));
  EXPECT_EQ(at_once, with_loaded({{{0, 4}}, {{4, 10}, {50, 51}}, {{51, 90}}}));

  // The reference: a cache that holds these slots from the start.
  CopySource source(*engine, *whole, 0.5f);
  const auto by_hand = make_sequence(*engine, tokens);
  const std::vector<float> head = step_runs(*engine, *by_hand, {{0, 10}});
  EXPECT_TRUE(head.empty());
  std::vector<int32_t> gap(40);
  std::iota(gap.begin(), gap.end(), 10);
  for (int32_t layer = 0; layer < 3; ++layer) {
    source.load(layer, gap, by_hand->cache().append(layer, gap));
  }
  by_hand->assume_computed(50);
  EXPECT_EQ(step_runs(*engine, *by_hand, {{50, 90}}), at_once);
}

// A nested plan: loaded tokens 20..60 run through layers 0 and 1 themselves, tokens 30..60 of them through layer 0
// only; deeper layers take the loaded slots. Scattered: every third token continues.
TEST(Steps, LoadedTokensCanEnterTheFirstLayers) {
  for (std::string_view backend : backend_names()) {
    SCOPED_TRACE(backend);
    const std::unique_ptr<Engine> engine = make_engine(4, backend);
    const std::vector<int32_t> tokens = random_tokens(100);
    const auto whole = make_sequence(*engine, tokens);
    const std::vector<float> expected = step_runs(*engine, *whole, {{0, 100}});
    class Scatter final : public LayerHooks {
     public:
      std::vector<size_t> n_rows, n_runs;
      bool after_attention(int layer, const Observed& o, std::vector<int32_t>& keep) override {
        n_rows.push_back(o.tokens.size());
        n_runs.push_back(o.runs.size());
        for (size_t i = 0; i < o.tokens.size(); ++i) {
          const int32_t t = o.tokens[i];
          const bool loaded = t >= 20 && t < 60;
          if (!loaded || (layer == 0 && t % 3 == 0)) keep.push_back(static_cast<int32_t>(i));
        }
        return layer <= 1;
      }
    } scatter;
    LeaveAt leave(0, 30, 60);
    const std::vector<TokenRun> loaded{{20, 60}};
    for (LayerHooks* hooks : {static_cast<LayerHooks*>(&scatter), static_cast<LayerHooks*>(&leave)}) {
      CopySource source(*engine, *whole, 1.0f);
      const auto s = make_sequence(*engine, tokens);
      s->supply(loaded, source);
      expect_close(step_runs(*engine, *s, {{0, 100}}, hooks), expected);
      EXPECT_EQ(s->cache().n_slots(0, 0), 100);
      EXPECT_EQ(s->cache().n_slots(3, 1), 100);
    }
    EXPECT_EQ(scatter.n_rows, (std::vector<size_t>{100, 73, 60, 60}));
    EXPECT_EQ(scatter.n_runs, (std::vector<size_t>{1, 15, 2, 2}));
    // Other values in the loaded slots change the answer, so it does depend on these slots.
    CopySource other(*engine, *whole, 0.5f);
    const auto s = make_sequence(*engine, tokens);
    s->supply(loaded, other);
    EXPECT_GT(distance(step_runs(*engine, *s, {{0, 100}}, &scatter), expected), 1e-4f);
  }
}

// The first of two runs must not attend to the second one's slots, which lie in the same pages by then.
TEST(Steps, RunDoesNotAttendToLaterRuns) {
  const std::unique_ptr<Engine> engine = make_engine(2, "ref");
  std::vector<int32_t> tokens = random_tokens(80);
  class LastQueryOfFirstRun final : public LayerHooks {
   public:
    std::vector<float> k;
    bool after_attention(int layer, const Observed& o, std::vector<int32_t>&) override {
      if (layer != 1) return false;  // keys of layer 1 come from what layer 0 attended to
      EXPECT_EQ(o.runs.size(), 2u);
      EXPECT_EQ(o.views[0].n_slots[0], 50);
      EXPECT_EQ(o.views[1].n_slots[0], 80);
      k.assign(o.k.row<float>(49), o.k.row<float>(49) + kHeadDim);
      return false;
    }
  } a, b;
  const auto first = make_sequence(*engine, tokens);
  step_runs(*engine, *first, {{0, 50}, {50, 80}}, &a);
  for (size_t t = 50; t < 80; ++t) tokens[t] = (tokens[t] + 7) % kVocab;
  const auto second = make_sequence(*engine, tokens);
  step_runs(*engine, *second, {{0, 50}, {50, 80}}, &b);
  EXPECT_EQ(a.k, b.k);
}

// A prompt in chunks through layers 0..K, its hidden states kept, some rows dropped, then through the rest.
TEST(LayerRanges, MatchASingleStep) {
  for (std::string_view backend : backend_names()) {
    SCOPED_TRACE(backend);
    const std::unique_ptr<Engine> engine = make_engine(5, backend);
    const std::vector<int32_t> tokens = random_tokens(100);
    const auto whole = make_sequence(*engine, tokens), ranged = make_sequence(*engine, tokens);
    class Leave final : public LayerHooks {
     public:
      bool after_attention(int layer, const Observed& o, std::vector<int32_t>& keep) override {
        for (size_t i = 0; i < o.tokens.size(); ++i) {
          if (o.tokens[i] < 30 || o.tokens[i] >= 80) keep.push_back(static_cast<int32_t>(i));
        }
        return layer == 1;
      }
    } leave;
    const std::vector<float> expected = step_runs(*engine, *whole, {{0, 100}}, &leave);

    const int64_t hidden = engine->model().config().text.hidden_size;
    std::vector<float> states(static_cast<size_t>(100 * hidden));
    const auto run = [&](std::vector<TokenRun> runs, LayerRange layers, float* rows) {
      int64_t n = 0;
      for (const TokenRun& r : runs) n += r.end - r.begin;
      StepItem item;
      item.sequence = ranged.get();
      item.runs = runs;
      item.layers = layers;
      item.hidden = Tensor(rows, DType::kF32, {n, hidden});
      const Tensor logits = engine->stepper().step({&item, 1})[0];
      return std::vector<float>(logits.as<float>(), logits.as<float>() + logits.numel());
    };
    for (int32_t begin = 0; begin < 100; begin += 40) {
      const int32_t end = std::min(begin + 40, 100);
      EXPECT_TRUE(run({{begin, end}}, {0, 2}, states.data() + begin * hidden).empty());
    }
    EXPECT_EQ(ranged->n_pending(), 100);  // not through all layers yet
    EXPECT_EQ(ranged->cache().n_slots(1, 0), 100);
    EXPECT_EQ(ranged->cache().n_slots(2, 0), 0);
    run({{0, 30}}, {2, 4}, states.data());
    run({{80, 100}}, {2, 4}, states.data() + 80 * hidden);
    EXPECT_TRUE(run({{0, 30}}, {4, 5}, states.data()).empty());
    expect_close(run({{80, 100}}, {4, 5}, states.data() + 80 * hidden), expected);
    EXPECT_EQ(ranged->cache().n_slots(4, 1), 50);
  }
}

// ---- failures -------------------------------------------------------------------------------------------------------

class FailAt final : public LayerHooks {
 public:
  int layer = -1;
  bool in_view = false;
  KvView view(int l, const RowRun&, const Tensor&, const Tensor&, const KvView& full) override {
    if (in_view && l == layer) throw Error(ErrorCode::kIo, "injected");
    return full;
  }
  bool after_attention(int l, const Observed&, std::vector<int32_t>&) override {
    if (!in_view && l == layer) throw std::bad_alloc();
    return false;
  }
};

// Everything a cache holds, to compare.
std::vector<float> contents(Engine& engine, Sequence& s) {
  std::vector<float> all;
  const KvCache& cache = s.cache();
  for (int32_t layer = 0; layer < cache.shape().n_layers(); ++layer) {
    for (int32_t head = 0; head < kKvHeads; ++head) {
      const int32_t n = cache.n_slots(layer, head);
      std::vector<int32_t> slots(static_cast<size_t>(n));
      std::iota(slots.begin(), slots.end(), 0);
      std::vector<float> kv(static_cast<size_t>(2 * n * kHeadDim));
      engine.backend().kv_read(cache.view(layer), head, slots, Tensor(kv.data(), DType::kF32, {n, kHeadDim}),
                               Tensor(kv.data() + n * kHeadDim, DType::kF32, {n, kHeadDim}));
      all.insert(all.end(), kv.begin(), kv.end());
      for (const int32_t token : cache.slot_tokens(layer, head)) all.push_back(static_cast<float>(token));
    }
  }
  all.push_back(static_cast<float>(cache.n_pages()));
  return all;
}

// Three sequences in a step that fails in each layer, one after the other: all are as before, and continue unaffected.
TEST(FailedStep, RestoresEverySequence) {
  for (std::string_view backend : backend_names()) {
    SCOPED_TRACE(backend);
    const std::unique_ptr<Engine> engine = make_engine(3, backend);
    std::vector<std::unique_ptr<Sequence>> sequences;
    for (const int32_t n : {64, 30, 90}) sequences.push_back(make_sequence(*engine, random_tokens(n)));
    step(*engine, *sequences[0], 64);
    sequences[0]->add_token(1);        // decodes, on a page of its own
    step(*engine, *sequences[2], 50);  // in the middle of its prompt; sequence 1 has nothing yet
    std::vector<std::vector<TokenRun>> runs(3);
    std::vector<StepItem> items(3);
    std::vector<std::vector<float>> before;
    FailAt fail;
    for (size_t i = 0; i < 3; ++i) {
      sequences[i]->next_runs(512, runs[i]);
      items[i].sequence = sequences[i].get();
      items[i].runs = runs[i];
      before.push_back(contents(*engine, *sequences[i]));
    }
    items[1].hooks = &fail;
    for (fail.layer = 0; fail.layer < 3; ++fail.layer) {
      for (const bool in_view : {true, false}) {
        fail.in_view = in_view;
        try {
          engine->stepper().step(items);
          ADD_FAILURE() << "did not fail";
        } catch (const StepFailed& e) {
          EXPECT_EQ(e.item(), 1);
          EXPECT_EQ(e.code(), in_view ? ErrorCode::kIo : ErrorCode::kMemory);
        }
        for (size_t i = 0; i < 3; ++i) EXPECT_EQ(contents(*engine, *sequences[i]), before[i]) << i;
        EXPECT_EQ(sequences[1]->n_pending(), 30);
      }
    }
    const std::span<const Tensor> logits = engine->stepper().step(items);
    for (size_t i = 0; i < 3; ++i) {
      const std::vector<float> found(logits[i].as<float>(), logits[i].as<float>() + logits[i].numel());
      std::vector<int32_t> tokens;
      for (const TokenInfo& t : sequences[i]->tokens()) tokens.push_back(t.id);
      const auto alone = make_sequence(*engine, tokens);
      expect_close(found, compute(*engine, *alone, 512));
    }
  }
}

TEST(FailedStep, FailedSourceFailsItsOwnRequest) {
  const std::unique_ptr<Engine> engine = make_engine(3);
  const std::vector<int32_t> tokens = random_tokens(60);
  const auto whole = make_sequence(*engine, tokens), s = make_sequence(*engine, tokens),
             neighbour = make_sequence(*engine, random_tokens(20));
  const std::vector<float> expected = step_runs(*engine, *whole, {{0, 60}});
  CopySource source(*engine, *whole, 1.0f);
  const std::vector<TokenRun> loaded{{5, 40}};
  s->supply(loaded, source);
  const std::vector<float> before = contents(*engine, *s);
  std::vector<TokenRun> runs{{0, 5}, {40, 60}}, others{{0, 20}};
  std::vector<StepItem> items(2);
  items[0].sequence = neighbour.get(), items[0].runs = others;
  items[1].sequence = s.get(), items[1].runs = runs;
  for (source.fail_at = 0; source.fail_at < 3; ++source.fail_at) {
    try {
      engine->stepper().step(items);
      ADD_FAILURE() << "did not fail";
    } catch (const StepFailed& e) {
      EXPECT_EQ(e.item(), 1);
      EXPECT_STREQ(e.what(), "the disk is gone");
    }
    EXPECT_EQ(contents(*engine, *s), before);
    EXPECT_EQ(neighbour->n_pending(), 20);
  }
  const Tensor logits = engine->stepper().step(items)[1];
  expect_close({logits.as<float>(), logits.as<float>() + logits.numel()}, expected);
}

TEST(FailedStep, ExhaustedPoolKeepsItsPageCount) {
  // 24 pages: 4 lists (2 layers x 2 heads) of at most 6.
  const std::unique_ptr<Engine> engine = make_engine(2, "ref", 24 * 64 * 2 * kHeadDim * 4);
  const auto small = make_sequence(*engine, random_tokens(100)), large = make_sequence(*engine, random_tokens(300));
  step(*engine, *small, 512);
  const std::vector<float> before = contents(*engine, *small);
  try {
    step(*engine, *large, 512);
    ADD_FAILURE() << "did not fail";
  } catch (const StepFailed& e) {
    EXPECT_EQ(e.code(), ErrorCode::kOutOfPages);
  }
  EXPECT_EQ(large->cache().n_pages(), 0);
  EXPECT_EQ(contents(*engine, *small), before);
  step(*engine, *large, 250);  // what fits continues
  EXPECT_EQ(large->n_done(), 250);
}

}  // namespace
}  // namespace vlcache
