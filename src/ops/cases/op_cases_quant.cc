// matmul and embed with quantised weights: every form of the formats that there are readers or makers of, over odd
// shapes; and matrices whose segments are stored differently.
#include <string>
#include <vector>

#include "base/numeric/quant_blocks.h"
#include "ops/cases/op_case_maker.h"
#include "ops/cases/op_case_tables.h"

namespace vlcache {
namespace {

struct NamedForm {
  std::string name;
  QuantForm form;
};

// Those that `--weights` makes, of blocks of GGUF (Q8_0 is int8), and of checkpoints in words of 32 bits.
std::vector<NamedForm> all_forms() {
  constexpr MinKind kNoMin = MinKind::kNone, kZero = MinKind::kZeroPoint;
  std::vector<NamedForm> forms = {{"int4", kInt4},
                                  {"int6", kInt6},
                                  {"AWQ", {4, 128, ScaleKind::kF16, kZero}},
                                  {"GPTQ 8 bits", {8, 64, ScaleKind::kF16, kZero}},
                                  {"compressed-tensors 4 bits", {4, 128, ScaleKind::kBF16, kNoMin}},
                                  {"compressed-tensors 8 bits", {8, 128, ScaleKind::kBF16, kZero}}};
  for (int i = 0; i < kBlockKinds; ++i) {
    const BlockShape& shape = block_shape(static_cast<BlockKind>(i));
    forms.push_back({std::string(shape.name), shape.form});
  }
  return forms;
}

std::string describe(const NamedForm& form, int64_t n, int64_t n_out, int64_t n_in) {
  return form.name + numbered(" n=", n) + " " + std::to_string(n_in) + "->" + std::to_string(n_out);
}

struct QuantShape {
  int64_t n, n_out, n_in;
};

OpCase quantised_matmul(const NamedForm& form, const QuantShape& s) {
  const double weights = static_cast<double>(s.n_in * s.n_out);
  return {.op = "matmul",
          .shape = describe(form, s.n, s.n_out, s.n_in),
          .prepare =
              [form, s](const OpSetup& setup, PreparedOp& op) {
                OpCaseMaker make(setup, op);
                const Tensor x = make.input({s.n, s.n_in}, 1.0f, RowLayout::kStrided);
                const Weight& w = op.weights.emplace_back(make.quantised(form.form, s.n_out, s.n_in));
                const Tensor y = make.output("y", {s.n, s.n_out}, RowLayout::kStrided);
                op.outputs.back().agreement = Agreement::kWeightsRounded;
                op.run = [&backend = setup.backend, &w, x, y] { backend.matmul(x, w, y); };
              },
          .flops = 2 * static_cast<double>(s.n) * weights,
          .bytes = weights * form.form.bits_per_weight(s.n_in) / 8};
}

// q and k in one form, v in another, and a part that is not quantised; all ends inside panels.
OpCase mixed_matmul(int64_t n, bool f32_out) {
  auto prepare = [=](const OpSetup& setup, PreparedOp& op) {
    OpCaseMaker make(setup, op);
    constexpr int64_t kIn = 200, kOut = 70 + 33 + 64 + 9;
    const Tensor x = make.input({n, kIn}), dense = make.input_as(setup.values, {33, kIn});
    std::vector<Weight> parts;
    parts.push_back(make.quantised(kInt4, 70, kIn));
    parts.push_back(setup.backend.pack({&dense, 1}));
    parts.push_back(make.quantised(kInt6, 64, kIn));
    parts.push_back(make.quantised(kInt8, 9, kIn));
    const Weight& w = op.weights.emplace_back(stack(std::move(parts)));
    Epilogue epilogue{.bias = make.keep(make.input({kOut})), .act = Activation::kSilu};
    const Tensor y = f32_out ? make.output_f32("y", {n, kOut}) : make.in_place("y", make.input({n, kOut}));
    if (!f32_out) epilogue.residual = make.keep(y);
    op.outputs.back().agreement = Agreement::kWeightsRounded;
    op.run = [&backend = setup.backend, &w, x, y, epilogue] { backend.matmul(x, w, y, epilogue); };
  };
  return {"matmul", numbered("mixed segments n=", n) + (f32_out ? " f32 out" : " residual=y"), prepare};
}

// GPTQ's forms with inputs in orders of their own: k's is not q's, v has none, and x has strided rows.
OpCase ordered_matmul(int64_t n, int64_t n_in) {
  auto prepare = [=](const OpSetup& setup, PreparedOp& op) {
    OpCaseMaker make(setup, op);
    const Tensor x = make.input({n, n_in}, 1.0f, RowLayout::kStrided);
    const auto order = [&] { return make.permutation(static_cast<int32_t>(n_in)); };
    std::vector<Weight> parts;
    parts.push_back(make.quantised({4, 128, ScaleKind::kF16, MinKind::kZeroPoint}, 70, n_in, order()));
    parts.push_back(make.quantised({8, 32, ScaleKind::kBF16, MinKind::kNone}, 33, n_in, order()));
    parts.push_back(make.quantised({4, 32, ScaleKind::kF16, MinKind::kNone}, 65, n_in));
    const Weight& w = op.weights.emplace_back(stack(std::move(parts)));
    const Tensor y = make.output("y", {n, w.n_out}, RowLayout::kStrided);
    op.outputs.back().agreement = Agreement::kWeightsRounded;
    op.run = [&backend = setup.backend, &w, x, y] { backend.matmul(x, w, y); };
  };
  return {"matmul", numbered("ordered inputs n=", n) + " " + std::to_string(n_in) + "->168", prepare};
}

// Of f32, the very weights of the formula.
OpCase quantised_embed(const NamedForm& form, int64_t n_out, int64_t n_in, bool ordered = false) {
  auto prepare = [=](const OpSetup& setup, PreparedOp& op) {
    OpCaseMaker make(setup, op);
    const std::span<int32_t> order = make.permutation(ordered ? static_cast<int32_t>(n_in) : 0);
    const Weight& w = op.weights.emplace_back(make.quantised(form.form, n_out, n_in, order));
    const std::span<int32_t> ids = make.permutation(static_cast<int32_t>(n_out));
    const Tensor y = make.output("y", {n_out, n_in}, RowLayout::kMisaligned);
    if (setup.values == DType::kF32) op.outputs.back().agreement = Agreement::kExact;
    op.run = [&backend = setup.backend, &w, ids, y] { backend.embed(ids, w, y); };
  };
  return {"embed", describe(form, n_out, n_out, n_in) + (ordered ? " ordered inputs" : ""), prepare};
}

}  // namespace

void add_quant_cases(OpCases& cases) {
  for (const NamedForm& form : all_forms()) {
    for (const QuantShape& s :
         {QuantShape{1, 67, 300}, QuantShape{2, 64, 512}, QuantShape{5, 3, 33}, QuantShape{17, 130, 83}}) {
      cases.push_back(quantised_matmul(form, s));
    }
    cases.push_back(quantised_embed(form, 67, 300));
  }
  for (const int64_t n : {1, 4, 40}) {
    cases.push_back(mixed_matmul(n, false));
    cases.push_back(mixed_matmul(n, true));
  }
  for (const int64_t n : {1, 5, 17, 70}) {
    for (const int64_t n_in : {83, 300}) cases.push_back(ordered_matmul(n, n_in));
  }
  cases.push_back(quantised_embed({"GPTQ 4 bits", {4, 32, ScaleKind::kF16, MinKind::kZeroPoint}}, 67, 300, true));
}

void add_quant_bench(OpCases& cases) {
  for (const int64_t n : {1, 4, 8, 16, 512}) {
    for (const NamedForm& form : {NamedForm{"int4", kInt4}, NamedForm{"int6", kInt6}, NamedForm{"int8", kInt8}})
      cases.push_back(quantised_matmul(form, {n, 5632, 2048}));
  }
}

}  // namespace vlcache
