// Defines one table, op x shapes. It drives the comparison of every backend with ops/ref, bench/op_bench and
// docs/ops.md.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "ops/backend.h"

namespace vlcache {

// How exactly two backends must agree on an output.
enum class Agreement : uint8_t {
  kRounded,         // up to the rounding of the compute dtype
  kWeightsRounded,  // the same, where one side may round weights or codes to it that the other has exactly
  kExact,           // bit for bit: copies and conversions
  kCounts,          // whole numbers that come from comparing rounded values: a few may differ by one
};

struct OpOutput {
  std::string name;
  Agreement agreement = Agreement::kRounded;
  Tensor values;  // f32 or bf16
};

// What a case is made for. Inputs depend on `values` and `seed` alone, so two backends get the same numbers.
struct OpSetup {
  Backend& backend;
  DType values;  // inputs are rounded to this dtype, whatever the backend computes in
  uint64_t seed;
};

// A case ready to run: owns its inputs and outputs.
struct PreparedOp {
  std::deque<Buffer> buffers;
  std::deque<Weight> weights;
  std::deque<Tensor> tensors;     // that argument structs point at
  std::function<void()> run;      // calls the op; may be repeated by a benchmark
  std::function<void()> finish;   // may be empty; else called once after run, before the outputs are read
  std::vector<OpOutput> outputs;  // valid after run
  std::vector<Tensor> untouched;  // all-ones bytes that must still be all ones after run: gaps between rows
};

struct OpCase {
  std::string op;     // as in Backend
  std::string shape;  // "n=17 hidden=576 strided"
  std::function<void(const OpSetup&, PreparedOp&)> prepare;
  double flops = 0.0;  // of one run
  double bytes = 0.0;  // that one run must read and write, bf16
  std::string name() const { return op + " " + shape; }
};

// Describes an op for the docs; every op of Backend is listed, and has at least one case.
struct OpInfo {
  std::string_view op;
  std::string_view computes;
  std::string_view aliasing;
};
std::vector<OpInfo> op_infos();

// Small and odd shapes: every edge that an op has.
std::vector<OpCase> op_cases();
// A few shapes of real models, for bench/op_bench: each states its flops or bytes.
std::vector<OpCase> op_bench_cases();

// The text of docs/ops.md.
std::string ops_markdown();

}  // namespace vlcache
