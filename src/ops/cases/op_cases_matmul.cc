#include "ops/cases/op_case_maker.h"
#include "ops/cases/op_case_tables.h"

namespace vlcache {
namespace {

struct MatmulShape {
  int64_t n, n_out, n_in;
  Activation act = Activation::kNone;
  bool bias = false, residual = false, in_place = false, f32_out = false;
  RowLayout layout = RowLayout::kDense;
};

std::string describe(const MatmulShape& s) {
  static constexpr const char* kActs[] = {"", " silu", " gelu", " gelu_tanh", " quick_gelu", " relu"};
  std::string text = numbered("n=", s.n) + " " + std::to_string(s.n_in) + "->" + std::to_string(s.n_out);
  text += s.bias ? " bias" : "";
  text += kActs[static_cast<size_t>(s.act)];
  text += s.residual ? " residual" : s.in_place ? " residual=y" : "";
  text += s.f32_out ? " f32 out" : "";
  return text + std::string(row_layout_name(s.layout));
}

void prepare_matmul(const MatmulShape& s, const OpSetup& setup, PreparedOp& op) {
  OpCaseMaker make(setup, op);
  const Tensor x = make.input({s.n, s.n_in}, 1.0f, s.layout);
  const Weight& w = make.packed({s.n_out / 2, s.n_out - s.n_out / 2}, s.n_in);
  Epilogue epilogue{.act = s.act};
  if (s.bias) epilogue.bias = make.keep(make.input({s.n_out}));
  Tensor y;
  if (s.in_place) {
    y = make.in_place("y", make.input({s.n, s.n_out}, 1.0f, s.layout));
  } else if (s.f32_out) {
    y = make.output_f32("y", {s.n, s.n_out});
  } else {
    y = make.output("y", {s.n, s.n_out}, s.layout);
  }
  if (s.residual) epilogue.residual = make.keep(make.input({s.n, s.n_out}, 1.0f, s.layout));
  if (s.in_place) epilogue.residual = make.keep(y);
  op.run = [&backend = setup.backend, &w, x, y, epilogue] { backend.matmul(x, w, y, epilogue); };
}

OpCase matmul_case(const MatmulShape& s) {
  const double n = static_cast<double>(s.n), weights = static_cast<double>(s.n_in * s.n_out);
  return {.op = "matmul",
          .shape = describe(s),
          .prepare = [s](const OpSetup& setup, PreparedOp& op) { prepare_matmul(s, setup, op); },
          .flops = 2 * n * weights,
          .bytes = 2 * (weights + n * static_cast<double>(s.n_in + s.n_out))};
}

void add_embed_cases(OpCases& cases) {
  for (int64_t n : {0, 1, 17, 987}) {
    for (const char* table : {"packed", "f32 rows", "bf16 rows", "f16 rows"}) {
      const std::string kind = table;
      auto prepare = [n, kind](const OpSetup& setup, PreparedOp& op) {
        OpCaseMaker make(setup, op);
        const int32_t vocab = 131;
        const int64_t hidden = 72;
        const Weight* w = nullptr;
        if (kind == "packed") {
          w = &make.packed({vocab}, hidden);
        } else {
          const DType dtype = kind[0] == 'b' ? DType::kBF16 : kind == "f16 rows" ? DType::kF16 : DType::kF32;
          const Tensor rows = make.input_as(dtype, {vocab, hidden});
          w = &op.weights.emplace_back(Weight{.n_out = vocab, .n_in = hidden, .dtype = dtype, .rows = rows});
        }
        const std::span<int32_t> ids = make.random_ints(n, vocab);
        const Tensor y = make.output("y", {n, hidden});
        op.run = [&backend = setup.backend, w, ids, y] { backend.embed(ids, *w, y); };
      };
      cases.push_back({"embed", numbered("n=", n) + " " + kind, prepare});
    }
  }
}

// pack is seen through embed: whatever the layout, row i must come back as row i.
void add_pack_cases(OpCases& cases) {
  struct Shape {
    DType dtype;
    std::vector<int64_t> rows;
    int64_t n_in;
  };
  for (const Shape& s :
       {Shape{DType::kF32, {1}, 1}, Shape{DType::kF32, {64, 32, 32}, 48}, Shape{DType::kBF16, {67}, 51},
        Shape{DType::kBF16, {576, 192, 192}, 576}, Shape{DType::kF16, {33, 17}, 65}}) {
    std::string shape(dtype_name(s.dtype));
    for (int64_t rows : s.rows) shape += numbered(" ", rows);
    auto prepare = [s](const OpSetup& setup, PreparedOp& op) {
      OpCaseMaker make(setup, op);
      std::vector<Tensor> parts;
      for (int64_t rows : s.rows) parts.push_back(make.input_as(s.dtype, {rows, s.n_in}));
      Weight& w = op.weights.emplace_back(setup.backend.pack(parts));
      std::vector<int32_t> all(static_cast<size_t>(w.n_out));
      for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int32_t>(i);
      const Tensor y = make.output("rows", {w.n_out, s.n_in});
      const std::span<int32_t> ids = make.ints(all);
      op.run = [&backend = setup.backend, parts, &w] { w = backend.pack(parts); };
      op.finish = [&backend = setup.backend, &w, ids, y] { backend.embed(ids, w, y); };
    };
    cases.push_back({"pack", shape + " x " + std::to_string(s.n_in), prepare});
  }
}

}  // namespace

void add_matmul_cases(OpCases& cases) {
  add_pack_cases(cases);
  for (int64_t n : {0, 1, 2, 5, 17, 81, 987}) {
    cases.push_back(matmul_case({.n = n, .n_out = 96, .n_in = 64}));
    cases.push_back(matmul_case({.n = n, .n_out = 67, .n_in = 51, .bias = true, .residual = true}));
  }
  for (Activation act :
       {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh, Activation::kQuickGelu, Activation::kRelu}) {
    cases.push_back(matmul_case({.n = 1, .n_out = 80, .n_in = 72, .act = act, .bias = true}));
    cases.push_back(matmul_case({.n = 17, .n_out = 80, .n_in = 72, .act = act, .bias = true}));
  }
  for (int64_t n : {1, 17}) {
    cases.push_back(matmul_case({.n = n, .n_out = 3, .n_in = 33000}));  // an output alone is a thread's share
    for (RowLayout layout : {RowLayout::kStrided, RowLayout::kMisaligned}) {
      cases.push_back(
          matmul_case({.n = n, .n_out = 65, .n_in = 130, .bias = true, .residual = true, .layout = layout}));
    }
    cases.push_back(matmul_case({.n = n, .n_out = 576, .n_in = 1536, .in_place = true}));
    cases.push_back(matmul_case({.n = n, .n_out = 1003, .n_in = 96, .f32_out = true}));
    cases.push_back(matmul_case({.n = n, .n_out = 1, .n_in = 1}));
  }
  add_embed_cases(cases);
}

void add_matmul_bench(OpCases& cases) {
  for (int64_t n : {1, 4, 16, 512}) {
    cases.push_back(matmul_case({.n = n, .n_out = 5632, .n_in = 2048}));
    cases.push_back(matmul_case({.n = n, .n_out = 2048, .n_in = 5632, .in_place = true}));
  }
}

}  // namespace vlcache
