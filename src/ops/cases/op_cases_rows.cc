#include <cmath>

#include "ops/cases/op_case_maker.h"
#include "ops/cases/op_case_tables.h"

namespace vlcache {
namespace {

constexpr int64_t kRows[] = {0, 1, 17, 81, 987};
constexpr RowLayout kLayouts[] = {RowLayout::kDense, RowLayout::kStrided, RowLayout::kMisaligned};
constexpr float kEps = 1e-5f;

std::string label(int64_t n, int64_t hidden, RowLayout layout, bool in_place = false) {
  return numbered("n=", n) + " hidden=" + std::to_string(hidden) + (in_place ? " in place" : "") +
         std::string(row_layout_name(layout));
}

// Calls add_case(n, hidden, layout) for all row counts and the layouts that matter.
template <typename AddCase>
void for_each_shape(const AddCase& add_case) {
  for (int64_t n : kRows) add_case(n, int64_t{96}, RowLayout::kDense);
  for (RowLayout layout : kLayouts) add_case(int64_t{17}, int64_t{67}, layout);
  add_case(int64_t{3}, int64_t{1}, RowLayout::kDense);
}

void add_norm_cases(OpCases& cases) {
  for_each_shape([&](int64_t n, int64_t hidden, RowLayout layout) {
    for (bool in_place : {false, true}) {
      auto rms = [=](const OpSetup& setup, PreparedOp& op) {
        OpCaseMaker make(setup, op);
        const Tensor x = make.input({n, hidden}, 3.0f, layout), w = make.input({hidden});
        const Tensor y = in_place ? make.in_place("y", x) : make.output("y", {n, hidden}, layout);
        op.run = [&backend = setup.backend, x, w, y] { backend.rms_norm(x, w, kEps, y); };
      };
      auto layer = [=](const OpSetup& setup, PreparedOp& op) {
        OpCaseMaker make(setup, op);
        const Tensor x = make.input({n, hidden}, 3.0f, layout), w = make.input({hidden}), b = make.input({hidden});
        const Tensor y = in_place ? make.in_place("y", x) : make.output("y", {n, hidden}, layout);
        op.run = [&backend = setup.backend, x, w, b, y] { backend.layer_norm(x, w, b, kEps, y); };
      };
      cases.push_back({"rms_norm", label(n, hidden, layout, in_place), rms});
      cases.push_back({"layer_norm", label(n, hidden, layout, in_place), layer});
    }
  });
  for (int64_t d : {32, 80, 128}) {
    auto per_head = [=](const OpSetup& setup, PreparedOp& op) {
      OpCaseMaker make(setup, op);
      const Tensor x = make.input({17, 3, d}, 3.0f, RowLayout::kStrided), w = make.input({d});
      op.run = [&backend = setup.backend, x, w] { backend.rms_norm(x, w, kEps, x); };
      make.in_place("y", x);
    };
    cases.push_back({"rms_norm", numbered("n=17 H=3 d=", d) + " in place strided", per_head});
  }
}

void add_sum_cases(OpCases& cases) {
  for_each_shape([&](int64_t n, int64_t hidden, RowLayout layout) {
    for (int target : {0, 1, 2}) {  // y is new, a, b
      auto prepare = [=](const OpSetup& setup, PreparedOp& op) {
        OpCaseMaker make(setup, op);
        const Tensor a = make.input({n, hidden}, 1.0f, layout), b = make.input({n, hidden}, 1.0f, layout);
        const Tensor y = target == 0 ? make.output("y", {n, hidden}, layout) : make.in_place("y", target == 1 ? a : b);
        op.run = [&backend = setup.backend, a, b, y] { backend.add(a, b, y); };
      };
      const char* where = target == 0 ? "" : target == 1 ? " y=a" : " y=b";
      cases.push_back({"add", label(n, hidden, layout) + where, prepare});
    }
    auto one_row = [=](const OpSetup& setup, PreparedOp& op) {
      OpCaseMaker make(setup, op);
      const Tensor a = make.input({n, hidden}, 1.0f, layout), b = make.input({1, hidden});
      const Tensor y = make.output("y", {n, hidden}, layout);
      op.run = [&backend = setup.backend, a, b, y] { backend.add(a, b, y); };
    };
    cases.push_back({"add", label(n, hidden, layout) + " one row of b", one_row});
  });
}

void add_scale_cases(OpCases& cases) {
  for_each_shape([&](int64_t n, int64_t hidden, RowLayout layout) {
    for (bool in_place : {false, true}) {
      auto prepare = [=](const OpSetup& setup, PreparedOp& op) {
        OpCaseMaker make(setup, op);
        const Tensor x = make.input({n, hidden}, 1.0f, layout);
        const Tensor y = in_place ? make.in_place("y", x) : make.output("y", {n, hidden}, layout);
        op.run = [&backend = setup.backend, x, y] { backend.scale(x, 0.22f, y); };
      };
      cases.push_back({"scale", label(n, hidden, layout, in_place), prepare});
    }
  });
}

void add_activation_cases(OpCases& cases) {
  struct Named {
    Activation act;
    const char* name;
  };
  for (const Named& a : {Named{Activation::kNone, "none"}, Named{Activation::kSilu, "silu"},
                         Named{Activation::kGelu, "gelu"}, Named{Activation::kGeluTanh, "gelu_tanh"},
                         Named{Activation::kQuickGelu, "quick_gelu"}, Named{Activation::kRelu, "relu"}}) {
    const Activation act = a.act;
    for_each_shape([&](int64_t n, int64_t hidden, RowLayout layout) {
      if (act != Activation::kSilu && n != 17) return;
      auto gated = [=](const OpSetup& setup, PreparedOp& op) {
        OpCaseMaker make(setup, op);
        const Tensor x = make.input({n, 2 * hidden}, 8.0f, layout), y = make.output("y", {n, hidden}, layout);
        op.run = [&backend = setup.backend, x, y, act] { backend.gated_act(x, act, y); };
      };
      auto plain = [=](const OpSetup& setup, PreparedOp& op) {
        OpCaseMaker make(setup, op);
        const Tensor x = make.input({n, hidden}, 8.0f, layout);
        const Tensor y = hidden == 67 ? make.in_place("y", x) : make.output("y", {n, hidden}, layout);
        op.run = [&backend = setup.backend, x, y, act] { backend.activate(x, act, y); };
      };
      cases.push_back({"gated_act", std::string(a.name) + " " + label(n, hidden, layout), gated});
      cases.push_back({"activate", std::string(a.name) + " " + label(n, hidden, layout, hidden == 67), plain});
    });
  }
  // exp must neither overflow nor turn into NaN far from zero.
  for (Activation act : {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh, Activation::kQuickGelu}) {
    auto far = [=](const OpSetup& setup, PreparedOp& op) {
      OpCaseMaker make(setup, op);
      const Tensor x = make.input({5, 40}, 1000.0f), y = make.output("y", {5, 40});
      op.run = [&backend = setup.backend, x, y, act] { backend.activate(x, act, y); };
    };
    cases.push_back({"activate", numbered("far from zero ", static_cast<int>(act)), far});
  }
}

void add_copy_cases(OpCases& cases) {
  for_each_shape([&](int64_t n, int64_t hidden, RowLayout layout) {
    auto gather = [=](const OpSetup& setup, PreparedOp& op) {
      OpCaseMaker make(setup, op);
      const Tensor x = make.input({29, hidden}, 1.0f, layout), y = make.output("y", {n, hidden}, layout);
      const std::span<int32_t> rows = make.random_ints(n, 29);
      op.outputs.back().agreement = Agreement::kExact;
      op.run = [&backend = setup.backend, x, rows, y] { backend.gather_rows(x, rows, y); };
    };
    auto scatter = [=](const OpSetup& setup, PreparedOp& op) {
      OpCaseMaker make(setup, op);
      const Tensor x = make.input({n, hidden}, 1.0f, layout), y = make.input({n + 7, hidden}, 1.0f, layout);
      const std::span<int32_t> rows = make.permutation(static_cast<int32_t>(n) + 7).first(static_cast<size_t>(n));
      make.watch("y", y, Agreement::kExact);
      op.run = [&backend = setup.backend, x, rows, y] { backend.scatter_rows(x, rows, y); };
    };
    cases.push_back({"gather_rows", label(n, hidden, layout), gather});
    cases.push_back({"scatter_rows", label(n, hidden, layout), scatter});
  });
  struct Pair {
    DType from, to;
  };
  for (const Pair& p :
       {Pair{DType::kF32, DType::kBF16}, Pair{DType::kBF16, DType::kF32}, Pair{DType::kF16, DType::kF32},
        Pair{DType::kF16, DType::kBF16}, Pair{DType::kF32, DType::kF32}}) {
    for (int64_t n : kRows) {
      auto prepare = [=](const OpSetup& setup, PreparedOp& op) {
        OpCaseMaker make(setup, op);
        const Tensor x = make.input_as(p.from, {n, 67}, 100.0f), y = make.scratch(p.to, {n, 67});
        make.watch("y", y, Agreement::kExact);
        op.run = [&backend = setup.backend, x, y] { backend.convert(x, y); };
      };
      const std::string pair = std::string(dtype_name(p.from)) + " to " + std::string(dtype_name(p.to));
      cases.push_back({"convert", pair + " n=" + std::to_string(n), prepare});
    }
  }
}

OpCase rope_case(int64_t n, int64_t n_heads, int64_t d, RowLayout layout, bool in_place) {
  auto prepare = [=](const OpSetup& setup, PreparedOp& op) {
    OpCaseMaker make(setup, op);
    const Tensor x = make.input({n, n_heads, d}, 1.0f, layout);
    const Tensor cos = make.scratch(DType::kF32, {n, d / 2}), sin = make.scratch(DType::kF32, {n, d / 2});
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t c = 0; c < d / 2; ++c) {
        const double angle =
            static_cast<double>(3 * i + 11) * std::pow(10000.0, -2.0 * static_cast<double>(c) / static_cast<double>(d));
        cos.row<float>(i)[c] = static_cast<float>(std::cos(angle));
        sin.row<float>(i)[c] = static_cast<float>(std::sin(angle));
      }
    }
    const Tensor y = in_place ? make.in_place("y", x) : make.output("y", {n, n_heads, d}, layout);
    op.run = [&backend = setup.backend, x, cos, sin, y] { backend.rope(x, cos, sin, y); };
  };
  const std::string shape = numbered("n=", n) + " H=" + std::to_string(n_heads) + " d=" + std::to_string(d) +
                            (in_place ? " in place" : "") + std::string(row_layout_name(layout));
  return {"rope", shape, prepare, 0.0, static_cast<double>(4 * n * n_heads * d)};
}

}  // namespace

void add_row_cases(OpCases& cases) {
  add_norm_cases(cases);
  add_sum_cases(cases);
  add_scale_cases(cases);
  add_activation_cases(cases);
  add_copy_cases(cases);
  for (int64_t d : {32, 64, 72, 80, 96, 128}) cases.push_back(rope_case(17, 3, d, RowLayout::kDense, false));
  for (int64_t n : kRows) cases.push_back(rope_case(n, 2, 64, RowLayout::kDense, true));
  for (RowLayout layout : kLayouts) cases.push_back(rope_case(17, 7, 80, layout, true));
}

void add_row_bench(OpCases& cases) {
  const int64_t hidden = 2048, n = 512;
  auto rms = [](const OpSetup& setup, PreparedOp& op) {
    OpCaseMaker make(setup, op);
    const Tensor x = make.input({n, hidden}), w = make.input({hidden}), y = make.output("y", {n, hidden});
    op.run = [&backend = setup.backend, x, w, y] { backend.rms_norm(x, w, kEps, y); };
  };
  auto gated = [](const OpSetup& setup, PreparedOp& op) {
    OpCaseMaker make(setup, op);
    const Tensor x = make.input({n, 2 * hidden}), y = make.output("y", {n, hidden});
    op.run = [&backend = setup.backend, x, y] { backend.gated_act(x, Activation::kSilu, y); };
  };
  const double elements = static_cast<double>(n * hidden);
  cases.push_back({"rms_norm", label(n, hidden, RowLayout::kDense), rms, 0.0, 4 * elements});
  cases.push_back({"gated_act", label(n, hidden, RowLayout::kDense), gated, 0.0, 6 * elements});
  cases.push_back(rope_case(n, 32, 64, RowLayout::kDense, true));
}

}  // namespace vlcache
