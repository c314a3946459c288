#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/cases/op_case_maker.h"
#include "ops/cases/op_case_tables.h"

namespace vlcache {
namespace {

using Codecs = CacheShape::Codecs;
using Hidden = CacheShape::Hidden;

struct SeqShape {
  int32_t n_rows;
  int32_t past;  // slots before the rows' own; negative: the first rows see nothing
};

struct AttentionShape {
  std::string label;
  std::vector<SeqShape> seqs;
  int32_t n_kv_heads = 2, group = 4, d = 64;
  Codecs codecs = Codecs::kBF16;
  bool ragged = false;  // head h keeps a (h + 1) / Hk part of the past
  bool bias = false, slot_pos = false, q_sinks = false, sink_logits = false;
  Hidden hidden = Hidden::kNone;
  bool scattered = false;  // rows see up to any slot, in no order; some see nothing
  bool logits = false;     // of sequences of one row
  bool weights = false;    // of the rows, in statistics
  int32_t window = 0, n_sinks = 0;
  bool rounds_codes = false;  // kernels for many rows round products of codes of int4 and their scales
  float q_scale = 2.0f;
  RowLayout layout = RowLayout::kDense;
};

std::string describe(const AttentionShape& s) {
  std::string text = s.label;
  for (const SeqShape& seq : s.seqs) text += numbered(" ", seq.n_rows) + "@" + std::to_string(seq.past);
  text += numbered(" Hk=", s.n_kv_heads) + " G=" + std::to_string(s.group) + " d=" + std::to_string(s.d);
  return text + std::string(row_layout_name(s.layout));
}

// The shape with all else that a cache can have.
AttentionShape with_everything(AttentionShape s) {
  s.codecs = Codecs::kMixed;
  s.ragged = s.bias = s.slot_pos = s.q_sinks = true;
  return s;
}

KvView make_cache(OpCaseMaker& make, const AttentionShape& s, const SeqShape& seq, int32_t* last_position) {
  CacheShape cache{.head_dim = s.d,
                   .codecs = s.codecs,
                   .slot_bias = s.bias,
                   .hidden = s.hidden,
                   .slot_pos = s.slot_pos,
                   .fresh_rows = seq.n_rows};
  for (int32_t h = 0; h < s.n_kv_heads; ++h) {
    const int32_t past = s.ragged ? seq.past * (h + 1) / s.n_kv_heads : seq.past;
    cache.n_slots.push_back(std::max(0, past + seq.n_rows));
  }
  *last_position = cache.last_position();
  return make.cache(cache);
}

struct PreparedAttention {
  Tensor q;
  std::vector<AttentionSeq> seqs;
  AttentionArgs args;
};

PreparedAttention prepare_inputs(OpCaseMaker& make, const AttentionShape& s, int64_t n) {
  PreparedAttention a;
  const int64_t n_heads = s.n_kv_heads * s.group;
  a.q = make.input({n, n_heads, s.d}, s.q_scale, s.layout);
  a.args = {.scale = 1.0f / std::sqrt(static_cast<float>(s.d)), .window = s.window, .n_sinks = s.n_sinks};
  if (s.q_sinks) a.args.q_sinks = make.keep(make.input({n, n_heads, s.d}, s.q_scale, s.layout));
  if (s.sink_logits) {
    const std::span sinks(make.input_as(DType::kF32, {n_heads}, 3.0f).as<float>(), static_cast<size_t>(n_heads));
    sinks[0] = -std::numeric_limits<float>::infinity();  // a head without one
    if (n_heads > 2) sinks[1] = 0.0f, sinks[2] = 40.0f;  // softmax1, and more than all slots together
    a.args.sink_logits = sinks;
  }
  std::vector<int32_t> positions(static_cast<size_t>(n), 0);
  int32_t row = 0;
  for (const SeqShape& seq : s.seqs) {
    int32_t last;
    a.seqs.push_back({row, seq.n_rows, make_cache(make, s, seq, &last)});
    if (s.scattered) a.seqs.back().n_after = make.random_ints(seq.n_rows, seq.past + seq.n_rows + 3).data();
    for (int32_t i = 0; i < seq.n_rows; ++i) {
      const int32_t n_after = s.scattered ? a.seqs.back().n_after[i] : seq.n_rows - 1 - i;
      positions[static_cast<size_t>(row + i)] = last - n_after;
    }
    row += seq.n_rows;
  }
  if (s.slot_pos) a.args.positions = make.ints(positions).data();
  return a;
}

// An output [H, more than the slots] of ones, for outputs that are joined or written in part: the rest must stay.
Tensor slots_output(OpCaseMaker& make, const AttentionShape& s, const SeqShape& seq, const OpOutput& what) {
  const Tensor t = make.scratch(DType::kF32, {s.n_kv_heads * s.group, std::max(0, seq.past + seq.n_rows) + 5});
  std::fill_n(t.as<float>(), t.numel(), 1.0f);
  make.watch(what.name, t, what.agreement);
  return t;
}

int64_t count_rows(const AttentionShape& s) {
  int64_t n = 0;
  for (const SeqShape& seq : s.seqs) n += seq.n_rows;
  return n;
}

void prepare_attention(const AttentionShape& s, const OpSetup& setup, PreparedOp& op) {
  OpCaseMaker make(setup, op);
  const int64_t n = count_rows(s), n_heads = s.n_kv_heads * s.group;
  const int64_t n_with_stranger = n + 1;  // the last row is in no sequence and must be left alone
  PreparedAttention a = prepare_inputs(make, s, n_with_stranger);
  const Tensor out = make.output("out", {n_with_stranger, n_heads, s.d}, s.layout);
  if (s.rounds_codes) op.outputs.back().agreement = Agreement::kWeightsRounded;
  a.args.lse = make.output_f32("lse", {n_with_stranger, n_heads});
  for (OpOutput& output : op.outputs) {
    op.untouched.push_back(output.values.slice_rows(n, n_with_stranger));
    output.values = output.values.slice_rows(0, n);
  }
  for (size_t i = 0; i < s.seqs.size() && s.logits; ++i) {
    if (s.seqs[i].n_rows != 1) continue;
    const Tensor logits = slots_output(make, s, s.seqs[i], {.name = numbered("logits of ", static_cast<int64_t>(i))});
    a.seqs[i].logits = logits.as<float>();
    a.seqs[i].logits_stride = logits.row_size();
  }
  op.run = [&backend = setup.backend, a, out] { backend.attention(a.q, a.seqs, a.args, out); };
}

OpCase attention_case(const AttentionShape& s) {
  double pairs = 0.0, slots = 0.0;
  for (const SeqShape& seq : s.seqs) {
    pairs += seq.n_rows * (seq.past + (seq.n_rows + 1) / 2.0);
    slots += seq.past + seq.n_rows;
  }
  return {.op = "attention",
          .shape = describe(s),
          .prepare = [s](const OpSetup& setup, PreparedOp& op) { prepare_attention(s, setup, op); },
          .flops = 4 * pairs * s.n_kv_heads * s.group * s.d,
          .bytes = 4 * slots * s.n_kv_heads * s.d};
}

constexpr int32_t kBand = 50;  // ends within a page

// with_lse: after the attention itself, which has computed the sums of the rows.
void prepare_stats(const AttentionShape& s, AttentionStats::Rule rule, bool with_lse, const OpSetup& setup,
                   PreparedOp& op) {
  OpCaseMaker make(setup, op);
  PreparedAttention a = prepare_inputs(make, s, count_rows(s));
  AttentionStats stats{.rule = rule, .threshold = 0.2f, .n_after = a.seqs[0].n_after, .band = kBand};
  if (s.weights) stats.row_weight = make.input_as(DType::kF32, {count_rows(s)}).as<float>();
  const auto output = [&](const OpOutput& what) { return slots_output(make, s, s.seqs[0], what); };
  stats.column_sums = output({"column_sums", Agreement::kRounded, {}});
  stats.band_sums = output({"band_sums", Agreement::kRounded, {}});
  stats.column_max = output({"column_max", Agreement::kRounded, {}});
  // Without these outputs no pass over the rows is needed once their sums are known.
  if (!with_lse || rule == AttentionStats::Rule::kRowMax)
    stats.below_counts = output({"below_counts", Agreement::kCounts, {}});
  stats.seen_counts = output({"seen_counts", Agreement::kExact, {}});
  std::fill_n(stats.column_max.as<float>(), stats.column_max.numel(), 0.01f);  // some are larger, some are not
  Tensor out;
  if (with_lse) {
    const int64_t n_heads = s.n_kv_heads * s.group;
    out = make.input({count_rows(s), n_heads, s.d});  // overwritten; attention has cases of its own
    a.args.lse = stats.lse = make.output_f32("lse", {count_rows(s), n_heads});
  }
  op.run = [&backend = setup.backend, a, stats, out]() mutable {
    if (!out.empty()) backend.attention(a.q, a.seqs, a.args, out);
    backend.attention_stats(a.q, a.seqs[0].kv, a.args, stats);
  };
}

OpCase stats_case(const AttentionShape& s, AttentionStats::Rule rule, bool with_lse = false) {
  const std::string name = rule == AttentionStats::Rule::kRowMax ? " row max" : " uniform";
  return {"attention_stats", describe(s) + name + (with_lse ? ", lse given" : ""),
          [=](const OpSetup& setup, PreparedOp& op) { prepare_stats(s, rule, with_lse, setup, op); }};
}

OpCase merge_case(int64_t n, int64_t n_heads, int64_t d, bool in_place) {
  auto prepare = [=](const OpSetup& setup, PreparedOp& op) {
    OpCaseMaker make(setup, op);
    const Tensor oa = make.input({n, n_heads, d}), ob = make.input({n, n_heads, d});
    const Tensor la = make.input_as(DType::kF32, {n, n_heads}, 60.0f),
                 lb = make.input_as(DType::kF32, {n, n_heads}, 60.0f);
    constexpr float kNothing = -std::numeric_limits<float>::infinity();
    for (int64_t i = 0; i < n; i += 3) la.row<float>(i)[0] = kNothing;
    for (int64_t i = 0; i < n; i += 2) lb.row<float>(i)[0] = kNothing;
    const Tensor o = in_place ? make.in_place("o", oa) : make.output("o", {n, n_heads, d});
    const Tensor lse = in_place ? make.in_place("lse", la) : make.output_f32("lse", {n, n_heads});
    op.run = [&backend = setup.backend, oa, la, ob, lb, o, lse] { backend.merge_attention(oa, la, ob, lb, o, lse); };
  };
  const std::string shape = numbered("n=", n) + " H=" + std::to_string(n_heads) + " d=" + std::to_string(d);
  return {"merge_attention", shape + (in_place ? " in place" : ""), prepare};
}

std::string_view hidden_name(Hidden hidden) {
  return hidden == Hidden::kFew ? "slots" : hidden == Hidden::kPages ? "pages" : "head";
}

// Hidden slots, alone and with everything else; logits of the sequences of one row.
void add_hidden_shapes(std::vector<AttentionShape>& shapes) {
  shapes.push_back({.label = "logits", .seqs = {{1, 0}, {1, 300}, {5, 90}, {1, 63}}, .group = 3, .logits = true});
  shapes.push_back({.label = "logits long", .seqs = {{1, 5000}}, .group = 32, .d = 32, .logits = true});
  for (const bool bias : {false, true}) {
    shapes.push_back({.label = std::string(bias ? "bias " : "") + "logits sinks 4 window 700",
                      .seqs = {{1, 3000}, {1, 30}},
                      .codecs = Codecs::kMixed,
                      .ragged = true,
                      .bias = bias,
                      .logits = true,
                      .window = 700,
                      .n_sinks = 4});
  }
  for (const Hidden hidden : {Hidden::kFew, Hidden::kPages, Hidden::kHead}) {
    const std::string label = "hidden " + std::string(hidden_name(hidden));
    for (const SeqShape& seq : {SeqShape{1, 0}, SeqShape{1, 700}, SeqShape{81, 200}}) {
      shapes.push_back({.label = label, .seqs = {seq}, .hidden = hidden, .logits = true});
      shapes.push_back(
          with_everything({.label = label + " everything",
                           .seqs = {seq, {3, 90}, {1, 200}},
                           .n_kv_heads = 3,
                           .group = 7,
                           .d = 80,
                           .hidden = hidden,
                           .logits = true,
                           .window = 100,
                           .n_sinks = 3,
                           // Peaks of a bias and a logit, rounded to bf16, would stand out of a row of averages.
                           .q_scale = 1.0f}));
    }
  }
}

// A logit in the denominator that is no slot: items of a long row, hidden slots, windows, codes.
void add_sink_shapes(std::vector<AttentionShape>& shapes) {
  for (const SeqShape& seq : {SeqShape{1, -1}, SeqShape{1, 300}, SeqShape{1, 5000}, SeqShape{81, 200}}) {
    shapes.push_back({.label = "sink logits", .seqs = {seq, {3, 90}}, .sink_logits = true, .logits = true});
    shapes.push_back(
        {.label = "sink logits f32", .seqs = {seq}, .group = 1, .codecs = Codecs::kF32, .sink_logits = true});
    shapes.push_back({.label = "sink logits int8", .seqs = {seq}, .codecs = Codecs::kInt8, .sink_logits = true});
    AttentionShape everything = with_everything({.label = "sink logits everything",
                                                 .seqs = {seq, {9, 40}},
                                                 .group = 7,
                                                 .hidden = Hidden::kFew,
                                                 .logits = true,
                                                 .window = 60,
                                                 .n_sinks = 3,
                                                 .q_scale = 1.0f});
    everything.sink_logits = true;
    shapes.push_back(everything);
  }
}

// Rows at any position among the slots.
void add_scattered_shapes(std::vector<AttentionShape>& shapes) {
  for (const SeqShape& seq : {SeqShape{1, 300}, SeqShape{17, 300}, SeqShape{150, 100}}) {
    shapes.push_back({.label = "scattered", .seqs = {seq, {1, 100}}, .scattered = true, .logits = true});
    shapes.push_back({.label = "scattered f32", .seqs = {seq}, .group = 1, .codecs = Codecs::kF32, .scattered = true});
    shapes.push_back({.label = "scattered window 50", .seqs = {seq}, .scattered = true, .window = 50, .n_sinks = 2});
    shapes.push_back(with_everything({.label = "scattered everything",
                                      .seqs = {seq, {9, 40}},
                                      .group = 7,
                                      .hidden = Hidden::kFew,
                                      .scattered = true,
                                      .window = 60,
                                      .n_sinks = 3}));
  }
}

// Pages of codes, alone, beside pages of values, and in both forms.
void add_coded_shapes(std::vector<AttentionShape>& shapes) {
  for (int32_t d : {32, 64, 80, 96, 128, 256}) {
    shapes.push_back(
        {.label = "int8", .seqs = {{1, 200}, {3, 90}, {40, 30}}, .group = 3, .d = d, .codecs = Codecs::kInt8});
  }
  for (int32_t group : {1, 4, 8}) {
    shapes.push_back({.label = "int8", .seqs = {{1, 700}}, .group = group, .codecs = Codecs::kInt8, .logits = true});
    shapes.push_back(
        {.label = "mixed int8", .seqs = {{1, 700}, {17, 300}}, .group = group, .codecs = Codecs::kMixedInt8});
  }
  for (const SeqShape& seq : {SeqShape{1, 1500}, SeqShape{20, 1010}, SeqShape{300, 900}}) {
    AttentionShape shape{.label = "int8 in both forms", .seqs = {seq}, .codecs = Codecs::kBornInt8};
    shapes.push_back(shape);
    shape.label = "int8 in both forms, window of scattered rows";
    shape.scattered = true, shape.window = 800, shape.n_sinks = 70, shape.q_sinks = true;
    shapes.push_back(shape);
    shape = with_everything(shape);
    shape.label += ", everything";
    shape.codecs = Codecs::kBornInt8, shape.hidden = Hidden::kFew, shape.q_scale = 1.0f;
    shapes.push_back(shape);
  }
}

// The same of codecs with int4.
void add_int4_shapes(std::vector<AttentionShape>& all) {
  std::vector<AttentionShape> shapes;
  struct Named {
    Codecs codecs, born;
    const char* name;
  };
  for (const Named& n :
       {Named{Codecs::kInt4, Codecs::kBornInt4, "int4"}, Named{Codecs::kK8V4, Codecs::kBornK8V4, "k8v4"}}) {
    for (int32_t d : {32, 64, 80, 96, 128, 256}) {
      shapes.push_back(
          {.label = n.name, .seqs = {{1, 200}, {3, 90}, {40, 30}}, .group = 3, .d = d, .codecs = n.codecs});
    }
    for (int32_t group : {1, 4, 8}) {
      shapes.push_back({.label = n.name, .seqs = {{1, 700}}, .group = group, .codecs = n.codecs, .logits = true});
    }
    shapes.push_back(
        {.label = n.name + std::string(" in both forms"), .seqs = {{1, 1500}, {20, 1010}}, .codecs = n.born});
  }
  for (int32_t group : {1, 7}) {
    shapes.push_back(
        {.label = "mixed all", .seqs = {{1, 700}, {17, 300}}, .group = group, .codecs = Codecs::kMixedAll});
  }
  for (AttentionShape& shape : shapes) {
    shape.rounds_codes = true;
    all.push_back(std::move(shape));
  }
}

std::vector<AttentionShape> attention_shapes() {
  std::vector<AttentionShape> shapes;
  for (int32_t d : {32, 64, 72, 80, 96, 128}) {
    for (int32_t group : {1, 4, 7, 8})
      shapes.push_back({.label = "decode", .seqs = {{1, 200}}, .group = group, .d = d});
    shapes.push_back({.label = "prefill", .seqs = {{81, 30}}, .group = 3, .d = d});
    shapes.push_back({.label = "prefill f32", .seqs = {{17, 130}}, .group = 7, .d = d, .codecs = Codecs::kF32});
  }
  for (int32_t past : {0, 62, 63, 64, 127, 986, 5000}) shapes.push_back({.label = "decode", .seqs = {{1, past}}});
  for (int32_t n : {2, 17, 63, 64, 65, 81, 987}) shapes.push_back({.label = "prefill", .seqs = {{n, 0}}, .group = 1});
  shapes.push_back({.label = "prefill", .seqs = {{64, 64}}});
  shapes.push_back({.label = "prefill", .seqs = {{81, 987}}, .group = 7, .d = 80});
  for (int32_t d : {514, 1024}) {
    shapes.push_back({.label = "wide heads", .seqs = {{17, 64}, {1, 100}}, .d = d, .codecs = Codecs::kMixed});
  }
  shapes.push_back({.label = "nothing", .seqs = {{0, 5}}});
  shapes.push_back({.label = "nothing to see", .seqs = {{1, -1}}});
  shapes.push_back({.label = "first rows see nothing", .seqs = {{17, -10}}});
  const std::vector<SeqShape> batch = {{1, 300}, {17, 3}, {0, 10}, {1, 0}, {81, 64}, {1, 700}};
  shapes.push_back({.label = "batch", .seqs = batch, .group = 3});
  shapes.push_back({.label = "batch ragged", .seqs = batch, .n_kv_heads = 3, .ragged = true, .bias = true});
  const std::vector<SeqShape> decodes = {{1, 300}, {1, 64}, {1, 0}, {1, 1}, {1, 511}, {1, 63}};
  shapes.push_back(
      {.label = "decode batch ragged mixed", .seqs = decodes, .d = 80, .codecs = Codecs::kMixed, .ragged = true});
  for (const SeqShape& seq : {SeqShape{1, 300}, SeqShape{81, 200}, SeqShape{200, 0}}) {
    shapes.push_back({.label = "bias", .seqs = {seq}, .bias = true});
    shapes.push_back({.label = "mixed", .seqs = {seq}, .codecs = Codecs::kMixed});
    shapes.push_back({.label = "window 16", .seqs = {seq}, .window = 16});
    shapes.push_back({.label = "window 100 ragged", .seqs = {seq}, .n_kv_heads = 3, .ragged = true, .window = 100});
    shapes.push_back({.label = "window 70 slot_pos", .seqs = {seq}, .slot_pos = true, .window = 70});
    shapes.push_back({.label = "sinks 4 window 32", .seqs = {seq}, .window = 32, .n_sinks = 4});
    shapes.push_back({.label = "q_sinks 4 window 32", .seqs = {seq}, .q_sinks = true, .window = 32, .n_sinks = 4});
    shapes.push_back(
        {.label = "q_sinks 70 window 65", .seqs = {seq}, .d = 80, .q_sinks = true, .window = 65, .n_sinks = 70});
    shapes.push_back({.label = "q_sinks 4 without window", .seqs = {seq}, .q_sinks = true, .n_sinks = 4});
    shapes.push_back(
        with_everything({.label = "everything", .seqs = {seq, {3, 90}}, .group = 7, .window = 60, .n_sinks = 3}));
    // Logits of about 30: their own f32 rounding, 30 x 2^-24 x a few terms, must stay below the tolerance on the
    // output.
    shapes.push_back({.label = "peaked", .seqs = {seq}, .q_scale = 30.0f});
    shapes.push_back({.label = "rows", .seqs = {seq}, .d = 72, .layout = RowLayout::kStrided});
    shapes.push_back({.label = "rows",
                      .seqs = {seq},
                      .d = 72,
                      .q_sinks = true,
                      .window = 50,
                      .n_sinks = 5,
                      .layout = RowLayout::kMisaligned});
  }
  add_hidden_shapes(shapes);
  add_sink_shapes(shapes);
  add_scattered_shapes(shapes);
  add_coded_shapes(shapes);
  add_int4_shapes(shapes);
  return shapes;
}

std::vector<AttentionShape> stats_shapes() {
  std::vector<AttentionShape> shapes;
  for (const SeqShape& seq :
       {SeqShape{0, 5}, SeqShape{1, 0}, SeqShape{1, 300}, SeqShape{17, 46}, SeqShape{81, 0}, SeqShape{64, 300}}) {
    shapes.push_back({.label = "plain", .seqs = {seq}});
    shapes.push_back(with_everything(
        {.label = "everything", .seqs = {seq}, .n_kv_heads = 3, .group = 7, .d = 80, .window = 40, .n_sinks = 3}));
  }
  for (int32_t d : {32, 72, 96, 128}) shapes.push_back({.label = "plain", .seqs = {{33, 100}}, .group = 1, .d = d});
  shapes.push_back({.label = "f32 window 20",
                    .seqs = {{33, 100}},
                    .codecs = Codecs::kF32,
                    .window = 20,
                    .layout = RowLayout::kStrided});
  shapes.push_back({.label = "long", .seqs = {{987, 0}}, .n_kv_heads = 1, .group = 2});
  for (int32_t n : {1, 3, 12, 40}) {
    const SeqShape seq{n, 3000};
    shapes.push_back({.label = "few rows", .seqs = {seq}});
    shapes.push_back(
        {.label = "few rows weighted window 900", .seqs = {seq}, .group = 7, .weights = true, .window = 900});
    shapes.push_back({.label = "scattered weighted", .seqs = {seq}, .group = 3, .scattered = true, .weights = true});
  }
  for (int32_t n : {1, 70}) {
    shapes.push_back({.label = "int8", .seqs = {{n, 200}}, .codecs = Codecs::kInt8});
    shapes.push_back({.label = "int8 in both forms", .seqs = {{n, 1000}}, .group = 1, .codecs = Codecs::kBornInt8});
  }
  for (const Hidden hidden : {Hidden::kFew, Hidden::kPages, Hidden::kHead}) {
    for (const SeqShape& seq : {SeqShape{1, 0}, SeqShape{1, 300}, SeqShape{81, 100}}) {
      const std::string label = "hidden " + std::string(hidden_name(hidden));
      shapes.push_back({.label = label, .seqs = {seq}, .hidden = hidden});
      shapes.push_back(with_everything({.label = label + " scattered everything",
                                        .seqs = {seq},
                                        .group = 7,
                                        .d = 80,
                                        .hidden = hidden,
                                        .scattered = true,
                                        .weights = true,
                                        .window = 40,
                                        .n_sinks = 3}));
    }
  }
  for (const SeqShape& seq : {SeqShape{1, -1}, SeqShape{1, 3000}, SeqShape{81, 100}}) {
    shapes.push_back({.label = "sink logits", .seqs = {seq}, .group = 7, .sink_logits = true, .window = 90});
  }
  for (int32_t n : {1, 70}) {
    shapes.push_back({.label = "int4", .seqs = {{n, 200}}, .codecs = Codecs::kInt4});
    shapes.push_back({.label = "k8v4", .seqs = {{n, 200}}, .d = 80, .codecs = Codecs::kK8V4});
  }
  return shapes;
}

}  // namespace

void add_attention_cases(OpCases& cases) {
  for (const AttentionShape& s : attention_shapes()) cases.push_back(attention_case(s));
  for (const AttentionShape& s : stats_shapes()) {
    cases.push_back(stats_case(s, AttentionStats::Rule::kRowMax));
    cases.push_back(stats_case(s, AttentionStats::Rule::kUniform));
    for (const auto rule : {AttentionStats::Rule::kRowMax, AttentionStats::Rule::kUniform})
      cases.push_back(stats_case(s, rule, /*with_lse=*/true));
  }
  for (int64_t n : {0, 1, 17, 81}) {
    cases.push_back(merge_case(n, 3, 72, false));
    cases.push_back(merge_case(n, 4, 64, true));
  }
}

void add_attention_bench(OpCases& cases) {
  for (int32_t past : {512, 4096, 32768}) {
    cases.push_back(attention_case({.label = "decode", .seqs = {{1, past}}, .n_kv_heads = 4, .group = 8}));
  }
  for (int32_t past : {0, 4096, 16384}) {
    cases.push_back(attention_case({.label = "prefill", .seqs = {{512, past}}, .n_kv_heads = 4, .group = 8}));
  }
}

}  // namespace vlcache
