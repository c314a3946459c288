// Matrix products against the limits of the machine: one line per shape, rows and form of the weights, in percent of
// the read bandwidth (few rows) and of the arithmetic peak (many), both probed right before and after. Usage:
// gemm_bench [bf16|f32|int4|int6|int8] [model] [rows...] [avx2|avx_vnni|...] [threads=N]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/os/threads.h"
#include "ops/cpu/matmul/matmul.h"
#include "ops/cpu/packed.h"
#include "ops/cpu/quant/quant_panel.h"
#include "ops/limits.h"
#include "ops/quantiser.h"

namespace vlcache {
namespace {

const LimitsProbe& limits_probe() {
  static const LimitsProbe probe;
  return probe;
}

struct Shape {
  const char* model;
  const char* name;
  int64_t n_out, n_in;
};

constexpr Shape kShapes[] = {
    {"1.1b", "qkv", 2560, 2048},   {"1.1b", "o", 2048, 2048},      {"1.1b", "gate_up", 11264, 2048},
    {"1.1b", "down", 2048, 5632},  {"1.1b", "vocab", 32000, 2048}, {"0.5b", "qkv", 1152, 896},
    {"0.5b", "o", 896, 896},       {"0.5b", "gate_up", 9728, 896}, {"0.5b", "down", 896, 4864},
    {"135m", "qkv", 960, 576},     {"135m", "o", 576, 576},        {"135m", "gate_up", 3072, 576},
    {"135m", "down", 576, 1536},   {"clip-l", "qkv", 3072, 1024},  {"clip-l", "o", 1024, 1024},
    {"clip-l", "fc1", 4096, 1024}, {"clip-l", "fc2", 1024, 4096},  {"2b", "qkv", 4096, 2048},
    {"2b", "o", 2048, 2048},       {"2b", "gate_up", 12288, 2048}, {"2b", "down", 2048, 6144},
};

// Of copies of a weight, so that no cache holds them: server sockets have 260 MiB and more, from which copies of 256
// MiB were read up to 10 % faster than memory delivers.
constexpr int64_t kColdBytes = int64_t{1} << 30;

using Clock = std::chrono::steady_clock;

// Wall time; with one thread its CPU time, which other processes do not count towards.
double now_ms() {
  timespec t;
  clock_gettime(n_threads() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_nsec) * 1e-6;
}

// The median of many runs, as the limits are medians.
template <typename F>
double median_ms(const F& run) {
  std::vector<double> times;
  const Clock::time_point start = Clock::now();
  for (int i = 0; i < 7 || Clock::now() - start < std::chrono::milliseconds(300); ++i) {
    const double begin = now_ms();
    run(i);
    times.push_back(now_ms() - begin);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

Tensor filled(Buffer& buffer, DType dtype, int64_t rows, int64_t columns) {
  buffer = Buffer(rows * columns * dtype_bytes(dtype));
  uint32_t seed = 1;
  for (int64_t i = 0; i < rows * columns; ++i) {
    seed = seed * 1664525u + 1013904223u;
    const float value = static_cast<float>(static_cast<int32_t>(seed)) * 0x1p-31f;
    if (dtype == DType::kF32) reinterpret_cast<float*>(buffer.data())[i] = value;
    if (dtype == DType::kBF16) reinterpret_cast<bf16*>(buffer.data())[i] = to_bf16(value);
  }
  return Tensor(buffer.data(), dtype, {rows, columns});
}

// Weights and activations of a run.
struct Kind {
  std::string_view name;
  DType dtype;  // of activations
  std::optional<QuantForm> form;
};

constexpr Kind kKinds[] = {
    {"bf16", DType::kBF16, {}},    {"f32", DType::kF32, {}},      {"int4", DType::kBF16, kInt4},
    {"int6", DType::kBF16, kInt6}, {"int8", DType::kBF16, kInt8},
};

// A packed weight of one segment once more, elsewhere in memory.
Weight copy_of(const Weight& w) {
  const WeightSegment& from = w.segments[0];
  WeightSegment segment{.n_out = from.n_out, .form = from.form, .memory = Buffer(from.memory.bytes())};
  std::memcpy(segment.memory.data(), from.memory.data(), static_cast<size_t>(from.memory.bytes()));
  Weight copy{.n_out = w.n_out, .n_in = w.n_in, .dtype = w.dtype};
  copy.segments.push_back(std::move(segment));
  return copy;
}

// A way to multiply with copy i of the weights.
struct Way {
  const char* name;
  std::function<void(int i)> run;
};

void bench(const Shape& shape, const Kind& kind, const std::vector<int64_t>& all_rows) {
  const cpu::Isa isa = cpu::fastest_isa();
  cpu::Matmul matmul(isa, kind.dtype, {cpu::has_byte_dots(isa)});
  cpu::Matmul of_8_bits(isa, kind.dtype, {cpu::has_byte_dots(isa), ActivationBits::k8});
  Buffer source, x_memory;
  const Tensor rows_of_w = filled(source, kind.dtype, shape.n_out, shape.n_in);
  std::vector<Weight> weights;
  weights.push_back(kind.form ? cpu::pack_quantised(kind.dtype, QuantisedRows(*kind.form, {rows_of_w}))
                              : cpu::pack(isa, kind.dtype, {&rows_of_w, 1}));
  while (std::ssize(weights) * weights[0].bytes() <= kColdBytes) weights.push_back(copy_of(weights[0]));
  const double bytes = static_cast<double>(weights[0].bytes());
  const auto of = [&](int i) -> const Weight& { return weights[static_cast<size_t>(i) % weights.size()]; };
  for (int64_t rows : all_rows) {
    const Tensor x = filled(x_memory, kind.dtype, rows, shape.n_in);
    Buffer y_memory(rows * shape.n_out * dtype_bytes(kind.dtype));
    const Tensor y(y_memory.data(), kind.dtype, {rows, shape.n_out});
    const auto dense = [&](int i) { return cpu::panels_of(of(i), of(i).segments[0]); };
    const auto quantised = [&](int i) { return cpu::quant_panels_of(of(i), of(i).segments[0]); };
    const std::vector<Way> ways =
        kind.form ? std::vector<Way>{{"codes", [&](int i) { matmul.by_codes(x, quantised(i), y, {}); }},
                                     {"codes x 8 bits", [&](int i) { of_8_bits.by_codes(x, quantised(i), y, {}); }},
                                     {"values", [&](int i) { matmul.by_values(x, quantised(i), y, {}); }}}
                  : std::vector<Way>{{"panels", [&](int i) { matmul.by_panels(x, dense(i), y, {}); }}};
    const MachineLimits before = limits_probe().measure(0.2);
    std::vector<double> ms;
    for (const Way& way : ways) ms.push_back(median_ms(way.run));
    const MachineLimits after = limits_probe().measure(0.2);
    const double gb_s = (before.read_gb_s + after.read_gb_s) / 2;
    const double tflops = kind.dtype == DType::kBF16 ? (before.bf16_tflops + after.bf16_tflops) / 2
                                                     : (before.f32_tflops + after.f32_tflops) / 2;
    const double flops = 2.0 * static_cast<double>(rows * shape.n_out * shape.n_in);
    std::printf("%-6s %-7s %s M=%-5ld", shape.model, shape.name, std::string(kind.name).c_str(),
                static_cast<long>(rows));
    for (size_t i = 0; i < ways.size(); ++i) {
      std::printf("  %s %8.3f ms", ways[i].name, ms[i]);
      if (rows <= 16) std::printf(" %5.1f %% read", 100 * bytes / ms[i] / 1e6 / gb_s);
      std::printf(" %5.1f %% flop", 100 * flops / ms[i] / 1e9 / tflops);
    }
    std::printf("  of %.1f GB/s, %.3f TFLOP/s\n", gb_s, tflops);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace vlcache

int main(int argc, char** argv) {
  const vlcache::Kind* kind = vlcache::kKinds;
  std::vector<int64_t> rows;
  std::string model;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    const auto* named = std::ranges::find(vlcache::kKinds, arg, &vlcache::Kind::name);
    const auto* set = std::ranges::find(vlcache::cpu::kInstructionSets, arg, &vlcache::cpu::InstructionSet::name);
    if (named != std::end(vlcache::kKinds))
      kind = named;
    else if (set != vlcache::cpu::kInstructionSets.end())
      vlcache::cpu::limit_machine(*set);
    else if (arg.starts_with("threads="))
      vlcache::set_threads(std::atoi(argv[i] + 8));
    else if (std::atol(argv[i]) > 0 && arg.find_first_not_of("0123456789") == std::string::npos)
      rows.push_back(std::atol(argv[i]));
    else
      model = arg;
  }
  if (rows.empty()) rows = {1, 4, 8, 16, 32, 512, 577, 2048};
  for (const vlcache::Shape& shape : vlcache::kShapes) {
    if (model.empty() || model == shape.model) vlcache::bench(shape, *kind, rows);
  }
  return 0;
}
