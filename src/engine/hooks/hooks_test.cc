// The seams of the forward pass, tested by policies of each kind on a random model: dropping rows, choosing pages,
// several owners in one step.
#include <algorithm>

#include "engine/engine_testing.h"

namespace vlcache {
namespace {

// Which slots survive: those of pages 0 and 3 of four.
bool in_dropped_pages(int32_t position) { return position >= 64 && position < 192; }

// FastV's shape: rows of the middle pages go no further than layer 1.
class DropRows final : public LayerHooks {
 public:
  std::vector<int> layers_seen;
  bool after_attention(int layer, const Observed& o, std::vector<int32_t>& keep) override {
    layers_seen.push_back(layer);
    for (size_t i = 0; i < o.tokens.size(); ++i) {
      if (!in_dropped_pages(o.tokens[i])) keep.push_back(static_cast<int32_t>(i));
    }
    return layer == 1;
  }
};

// Quest's shape: from layer 2 on, the last rows attend to pages 0 and 3 only.
class ChoosePages final : public LayerHooks {
 public:
  std::vector<int> layers_seen;
  KvView view(int layer, const RowRun&, const Tensor&, const Tensor&, const KvView& full) override {
    layers_seen.push_back(layer);
    if (layer < 2 || full.n_slots[0] <= 192) return full;
    pages_.clear();
    n_slots_.clear();
    for (int32_t h = 0; h < full.n_kv_heads; ++h) {
      for (int64_t page : {0, 3}) pages_.push_back(full.pages[h * full.page_stride + page]);
      n_slots_.push_back(full.n_slots[h] - 128);
    }
    KvView chosen = full;
    chosen.pages = pages_.data();
    chosen.page_stride = 2;
    chosen.n_slots = n_slots_.data();
    return chosen;
  }

 private:
  std::vector<int32_t> pages_, n_slots_;
};

TEST(LayerHooks, DroppingRowsAndChoosingPagesAgree) {
  for (std::string_view backend : backend_names()) {
    SCOPED_TRACE(backend);
    const std::unique_ptr<Engine> engine = make_engine(4, backend);
    const std::vector<int32_t> tokens = random_tokens(205);

    DropRows drop;
    const auto dropped = make_sequence(*engine, tokens);
    const std::vector<float> a = compute(*engine, *dropped, 192, &drop);
    EXPECT_EQ(drop.layers_seen, (std::vector<int>{0, 1, 2, 3, 0, 1, 2, 3}));
    EXPECT_EQ(dropped->cache().n_slots(1, 0), 205);
    EXPECT_EQ(dropped->cache().n_slots(2, 0), 205 - 128);
    EXPECT_EQ(dropped->cache().slot_tokens(3, 1)[64], 192);  // slots follow on, tokens keep their positions

    ChoosePages choose;
    const auto chosen = make_sequence(*engine, tokens);
    const std::vector<float> b = compute(*engine, *chosen, 192, &choose);
    EXPECT_EQ(choose.layers_seen, drop.layers_seen);
    expect_close(a, b);

    const auto whole = make_sequence(*engine, tokens);
    EXPECT_GT(distance(a, compute(*engine, *whole, 192)), 1e-3f) << "the policies changed nothing";
  }
}

TEST(LayerHooks, DroppingInOneChunkOrSeveralIsTheSame) {
  const std::unique_ptr<Engine> engine = make_engine(4);
  const std::vector<int32_t> tokens = random_tokens(205);
  DropRows drop;
  const auto one = make_sequence(*engine, tokens), many = make_sequence(*engine, tokens);
  expect_close(compute(*engine, *one, 512, &drop), compute(*engine, *many, 130, &drop));
}

// A chunk may end all its rows in the middle of the model: nothing is left to compute, no logits are returned.
TEST(LayerHooks, AllRowsOfARunCanBeDroppedAtALayer) {
  const std::unique_ptr<Engine> engine = make_engine(4);
  const std::vector<int32_t> tokens = random_tokens(205);
  DropRows drop;
  const auto one = make_sequence(*engine, tokens), cut = make_sequence(*engine, tokens);
  const std::vector<float> expected = compute(*engine, *one, 512, &drop);
  drop.layers_seen.clear();
  std::vector<float> found;
  for (const int32_t rows : {64, 128, 13}) found = step(*engine, *cut, rows, &drop);
  EXPECT_EQ(drop.layers_seen, (std::vector<int>{0, 1, 2, 3, 0, 1, 0, 1, 2, 3}));  // the second stops there
  expect_close(found, expected);
}

// Notes which tokens it was shown, and drops the odd ones of them after layer 0.
class Watch final : public LayerHooks {
 public:
  std::vector<int32_t> tokens;  // of layer 0
  std::vector<float> k;         // first value of each row's key in layer 0
  bool drops = false;
  bool after_attention(int layer, const Observed& o, std::vector<int32_t>& keep) override {
    EXPECT_EQ(o.runs.front().row_begin, 0);
    if (layer != 0) return false;
    for (size_t i = 0; i < o.tokens.size(); ++i) {
      tokens.push_back(o.tokens[i]);
      k.push_back(o.k.row<float>(static_cast<int64_t>(i))[0]);
      if (o.tokens[i] % 2 == 0) keep.push_back(static_cast<int32_t>(i));
    }
    return drops;
  }
};

// Four sequences in one step, prefill and decode mixed; two of them watched, one of those dropping rows: each hook sees
// exactly what it sees when its sequence is alone, and every sequence gives its own logits.
TEST(HookDispatcher, EverySequenceHasItsOwnHooks) {
  for (std::string_view backend : backend_names()) {
    SCOPED_TRACE(backend);
    const std::unique_ptr<Engine> engine = make_engine(3, backend);
    const std::vector<int32_t> lengths{70, 9, 33, 21};
    const auto prepare = [&](size_t i) {
      auto s = make_sequence(*engine, random_tokens(lengths[i], static_cast<uint32_t>(i)));
      if (i == 1) {
        compute(*engine, *s, 512);
        s->add_token(5);  // decodes
      }
      return s;
    };
    std::vector<std::unique_ptr<Sequence>> sequences;
    std::vector<Watch> watches(4);
    std::vector<std::vector<TokenRun>> runs(4);
    std::vector<StepItem> items(4);
    watches[2].drops = true;
    for (size_t i = 0; i < 4; ++i) {
      sequences.push_back(prepare(i));
      sequences[i]->next_runs(512, runs[i]);
      items[i].sequence = sequences[i].get();
      items[i].runs = runs[i];
      if (i == 1 || i == 2) items[i].hooks = &watches[i];
    }
    const std::span<const Tensor> logits = engine->stepper().step(items);
    std::vector<std::vector<float>> together;
    for (const Tensor& t : logits) together.emplace_back(t.as<float>(), t.as<float>() + t.numel());
    for (size_t i = 0; i < 4; ++i) {
      Watch alone;
      alone.drops = watches[i].drops;
      const auto s = prepare(i);
      expect_close(together[i], step(*engine, *s, 512, i == 1 || i == 2 ? &alone : nullptr));
      if (i != 1 && i != 2) continue;
      EXPECT_EQ(watches[i].tokens, alone.tokens);
      expect_close(watches[i].k, alone.k);
      EXPECT_EQ(sequences[i]->cache().n_slots(2, 0), s->cache().n_slots(2, 0));
    }
    EXPECT_EQ(sequences[2]->cache().n_slots(2, 1), 17);  // tokens 0, 2, .. 32
  }
}

// Several hooks of one sequence: each sees the view that the previous one chose, a row continues if all let it.
TEST(HookDispatcher, HooksOfOneSequenceRunInOrder) {
  const std::unique_ptr<Engine> engine = make_engine(4);
  DropRows drop;
  Watch even;
  even.drops = true;
  class Both final : public LayerHooks {
   public:
    HookDispatcher dispatcher;
    bool after_attention(int layer, const Observed& o, std::vector<int32_t>& keep) override {
      return dispatcher.after_attention(layer, o, keep);
    }
  } both;
  both.dispatcher.add(0, drop);
  both.dispatcher.add(0, even);
  const auto s = make_sequence(*engine, random_tokens(205));
  compute(*engine, *s, 512, &both);
  EXPECT_EQ(s->cache().n_slots(1, 0), 103);  // even tokens
  EXPECT_EQ(s->cache().n_slots(2, 0), 103 - 64);
}

// What a decoding row attends to, from the scores that the kernel computed anyway.
class WantScores final : public LayerHooks {
 public:
  std::vector<std::vector<float>> attention;  // per layer, [H, n]
  bool wants_scores(int, int32_t) const override { return true; }
  bool after_attention(int, const Observed& o, std::vector<int32_t>&) override {
    if (o.scores.empty() || o.scores[0].empty()) return false;
    std::vector<float>& a = attention.emplace_back();
    for (int64_t h = 0; h < o.scores[0].rows(); ++h) {
      for (int64_t j = 0; j < o.scores[0].row_size(); ++j) {
        a.push_back(std::exp(o.scores[0].row<float>(h)[j] - o.lse.row<float>(0)[h]));
      }
    }
    return false;
  }
};

TEST(Scores, AreTheAttentionOfADecodingRow) {
  for (std::string_view backend : backend_names()) {
    SCOPED_TRACE(backend);
    const std::unique_ptr<Engine> engine = make_engine(2, backend);
    const auto a = make_sequence(*engine, random_tokens(130)), b = make_sequence(*engine, random_tokens(40, 3));
    for (Sequence* s : {a.get(), b.get()}) {
      compute(*engine, *s, 512);
      s->add_token(3);
    }
    WantScores wants;
    std::vector<TokenRun> run_a{{130, 131}}, run_b{{40, 41}};
    std::vector<StepItem> items(2);
    items[0].sequence = a.get(), items[0].runs = run_a, items[0].hooks = &wants;
    items[1].sequence = b.get(), items[1].runs = run_b;
    engine->stepper().step(items);
    ASSERT_EQ(wants.attention.size(), 2u);
    ASSERT_EQ(wants.attention[1].size(), static_cast<size_t>(kHeads * 131));
    // Against the column sums of the same row, which the statistics compute by themselves.
    class Sums final : public LayerHooks {
     public:
      Backend& backend;
      std::vector<float> sums = std::vector<float>(kHeads * 131, 0.0f);
      explicit Sums(Backend& b) : backend(b) {}
      bool after_attention(int layer, const Observed& o, std::vector<int32_t>&) override {
        if (layer != 1) return false;
        AttentionStats stats;
        stats.column_sums = Tensor(sums.data(), DType::kF32, {kHeads, 131});
        const AttentionArgs args{.scale = o.scale, .window = o.window, .positions = o.tokens.data()};
        backend.attention_stats(o.q, o.views[0], args, stats);
        return false;
      }
    } sums(engine->backend());
    const auto again = make_sequence(*engine, random_tokens(130));
    compute(*engine, *again, 512);
    again->add_token(3);
    step(*engine, *again, 1, &sums);
    expect_close(wants.attention[1], sums.sums, 1e-5f);
  }
}

}  // namespace
}  // namespace vlcache
