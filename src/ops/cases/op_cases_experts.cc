#include <memory>

#include "ops/cases/op_case_maker.h"
#include "ops/cases/op_case_tables.h"

namespace vlcache {
namespace {

// Logits among which whole rows and neighbours are equal.
void add_route_cases(OpCases& cases) {
  struct Shape {
    int64_t n, n_experts, k;
  };
  for (const Shape& s :
       {Shape{0, 8, 2}, Shape{1, 128, 8}, Shape{17, 60, 4}, Shape{81, 5, 5}, Shape{3, 1, 1}, Shape{987, 128, 8}}) {
    for (const bool ties : {false, true}) {
      auto prepare = [=](const OpSetup& setup, PreparedOp& op) {
        OpCaseMaker make(setup, op);
        const Tensor logits = make.input({s.n, s.n_experts}, ties ? 0.0f : 4.0f, RowLayout::kStrided);
        const Tensor ids = make.scratch(DType::kI32, {s.n, s.k}), as_floats = make.output_f32("ids", {s.n, s.k});
        const Tensor weights = make.output_f32("weights", {s.n, s.k});
        op.outputs.front().agreement = Agreement::kExact;
        op.run = [&backend = setup.backend, logits, ids, weights] { backend.route(logits, ids, weights); };
        op.finish = [ids, as_floats] {
          for (int64_t i = 0; i < ids.numel(); ++i) as_floats.as<float>()[i] = static_cast<float>(ids.as<int32_t>()[i]);
        };
      };
      cases.push_back({"route",
                       numbered("n=", s.n) + " E=" + std::to_string(s.n_experts) + " k=" + std::to_string(s.k) +
                           (ties ? " all equal" : ""),
                       prepare});
    }
  }
}

void add_grouped_cases(OpCases& cases) {
  for (const std::vector<int32_t>& sizes : {std::vector<int32_t>{0, 0, 0}, {1}, {0, 3, 0, 17, 1}, {64, 0, 20, 9}}) {
    std::vector<int32_t> offsets = {0};
    for (const int32_t n : sizes) offsets.push_back(offsets.back() + n);
    auto prepare = [=](const OpSetup& setup, PreparedOp& op) {
      OpCaseMaker make(setup, op);
      const auto weights = std::make_shared<std::vector<Weight>>();
      for (size_t g = 0; g < sizes.size(); ++g) {
        const Tensor part = make.input_as(setup.values, {40, 67});
        weights->push_back(setup.backend.pack({&part, 1}));
      }
      const Tensor x = make.input({offsets.back(), 67}, 1.0f, RowLayout::kStrided);
      const Tensor y = make.output("y", {offsets.back(), 40}, RowLayout::kStrided);
      op.run = [&backend = setup.backend, x, weights, offsets, y] { backend.grouped_matmul(x, *weights, offsets, y); };
    };
    cases.push_back(
        {"grouped_matmul", numbered("groups=", std::ssize(sizes)) + " n=" + std::to_string(offsets.back()), prepare});
  }
}

void add_combine_cases(OpCases& cases) {
  for (const int64_t n : {0, 1, 17, 81}) {
    for (const int64_t hidden : {1, 67, 96}) {
      for (const bool in_place : {false, true}) {
        auto prepare = [=](const OpSetup& setup, PreparedOp& op) {
          OpCaseMaker make(setup, op);
          constexpr int64_t kPerRow = 3;
          const Tensor x = make.input({n, hidden}, 1.0f, RowLayout::kStrided);
          const Tensor rows = make.input({29, hidden}), weights = make.input_as(DType::kF32, {n, kPerRow});
          const std::span<int32_t> at = make.random_ints(n * kPerRow, 29);
          const Tensor places(at.data(), DType::kI32, {n, kPerRow});
          const Tensor y = in_place ? make.in_place("y", x) : make.output("y", {n, hidden}, RowLayout::kStrided);
          op.run = [&backend = setup.backend, x, rows, places, weights, y] {
            backend.combine_rows(x, rows, places, weights, y);
          };
        };
        cases.push_back({"combine_rows",
                         numbered("n=", n) + " hidden=" + std::to_string(hidden) + (in_place ? " in place" : ""),
                         prepare});
      }
    }
  }
}

}  // namespace

void add_expert_cases(OpCases& cases) {
  add_route_cases(cases);
  add_grouped_cases(cases);
  add_combine_cases(cases);
}

}  // namespace vlcache
