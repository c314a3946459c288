// Every op on shapes of real models (op_bench_cases) against the limits of the machine: one line per case, in percent
// of the read bandwidth and of the arithmetic peak, both probed right before and after. Weights and pages of a case are
// read again in each run and may stay in the caches, so a case can be above 100 % of the bandwidth; gemm_bench and
// attention_bench read from memory. Bytes are those of bf16, also under f32. Usage:
// op_bench [bf16|f32] [--backend NAME] [--threads N] [words that a case's name contains...]
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/os/threads.h"
#include "base/sha256.h"
#include "ops/cases/op_cases.h"
#include "ops/factory.h"
#include "ops/limits.h"

namespace vlcache {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  DType dtype = DType::kBF16;
  std::string backend = "auto";
  std::vector<std::string_view> words;
};

// The median of many runs, as the limits are medians.
double median_ms(const std::function<void()>& run) {
  std::vector<double> times;
  const Clock::time_point start = Clock::now();
  while (times.size() < 7 || Clock::now() - start < std::chrono::milliseconds(300)) {
    const Clock::time_point begin = Clock::now();
    run();
    times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
  }
  std::ranges::nth_element(times, times.begin() + std::ssize(times) / 2);
  return times[times.size() / 2];
}

// The first digits of a digest of all outputs.
std::string output_hash(const PreparedOp& op) {
  Sha256 hash;
  for (const OpOutput& output : op.outputs) {
    const Tensor& t = output.values;
    const int64_t size = dtype_bytes(t.dtype);
    for (int64_t i = 0; i < t.rows(); ++i) {
      hash.add(std::span(t.data + i * t.stride * size, static_cast<size_t>(t.row_size() * size)));
    }
  }
  return hex(hash.finish()).substr(0, 12);
}

void bench(const OpCase& c, Backend& backend, DType dtype, const LimitsProbe& probe) {
  PreparedOp op;
  c.prepare({backend, dtype, /*seed=*/1}, op);
  op.run();
  if (op.finish) op.finish();
  const std::string hash = output_hash(op);
  const MachineLimits before = probe.measure(0.1);
  const double ms = median_ms(op.run);
  const MachineLimits after = probe.measure(0.1);
  const double gb_s = (before.read_gb_s + after.read_gb_s) / 2;
  const bool wide = dtype == DType::kF32;
  const double tflops = (wide ? before.f32_tflops + after.f32_tflops : before.bf16_tflops + after.bf16_tflops) / 2;
  std::printf("%-70s %9.3f ms", c.name().c_str(), ms);
  if (c.bytes > 0) std::printf(" %6.1f %% read", 100 * c.bytes / ms / 1e6 / gb_s);
  if (c.flops > 0) std::printf(" %6.1f %% flop", 100 * c.flops / ms / 1e9 / tflops);
  std::printf("  of %.1f GB/s, %.3f TFLOP/s  output %s\n", gb_s, tflops, hash.c_str());
  std::fflush(stdout);
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    if (arg == "bf16" || arg == "f32") {
      options.dtype = arg == "f32" ? DType::kF32 : DType::kBF16;
    } else if (arg == "--backend" && i + 1 < argc) {
      options.backend = argv[++i];
    } else if (arg == "--threads" && i + 1 < argc) {
      const std::string_view value = argv[++i];
      int n = 0;
      std::from_chars(value.data(), value.data() + value.size(), n);
      if (n < 1) throw Error(ErrorCode::kInput, "--threads: expected a number above 0, found " + std::string(value));
      set_threads(n);
    } else {
      options.words.push_back(arg);
    }
  }
  return options;
}

void run(const Options& options) {
  const std::unique_ptr<Backend> backend = make_backend(options.backend, options.dtype);
  const LimitsProbe probe;
  std::printf("%s, %s, %d threads\n", options.backend.c_str(), std::string(dtype_name(options.dtype)).c_str(),
              static_cast<int>(n_threads()));
  for (const OpCase& c : op_bench_cases()) {
    const std::string name = c.name();
    const auto in_name = [&](std::string_view word) { return name.find(word) != std::string::npos; };
    if (std::ranges::all_of(options.words, in_name)) bench(c, *backend, options.dtype, probe);
  }
}

}  // namespace
}  // namespace vlcache

int main(int argc, char** argv) {
  try {
    vlcache::run(vlcache::parse(argc, argv));
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
  return 0;
}
