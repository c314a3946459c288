// Attention against the limits of the machine: decode in bytes of K and V per second, prefill and vision in operations
// per second, each beside the limit probed right before and after.
// Usage: attention_bench [repetitions [threads [words: decode prefill dense pages stats write pairs coded,
// or an instruction set of --max-isa]]]. With one
// thread CPU time is measured, so that other processes on a shared machine count less.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <limits>
#include <random>
#include <string>

#include "base/os/threads.h"
#include "ops/cpu/attention/attention.h"
#include "ops/cpu/attention/kv_pages.h"
#include "ops/limits.h"

namespace vlcache {
namespace {

const LimitsProbe& limits_probe() {
  static const LimitsProbe probe;
  return probe;
}

struct Shape {
  const char* name;
  int n_heads, n_kv_heads, head_dim;
};
constexpr Shape kShapes[] = {{"1.1B", 32, 4, 64}, {"0.5B", 14, 2, 64}, {"135M", 9, 3, 64}, {"2B", 16, 8, 128}};

void fill(const Buffer& b, uint32_t seed) {
  uint16_t* x = reinterpret_cast<uint16_t*>(b.data());
  for (int64_t i = 0; i < b.bytes() / 2; ++i) {
    seed = seed * 1664525u + 1013904223u;
    x[i] = to_bf16(static_cast<float>(static_cast<int32_t>(seed)) * (1.0f / 2147483648.0f)).bits;
  }
}

// Views of several layers over one pool larger than any cache. Pages lie in runs of `run`, the runs in random order.
struct Cache {
  Buffer pool;
  std::vector<std::vector<int32_t>> pages;
  std::vector<int32_t> n_slots;
  std::vector<KvView> views;

  Cache(const Shape& shape, int depth, int64_t min_bytes, int run = 8, KvCodec codec = KvCodec::kBF16)
      : n_slots(static_cast<size_t>(shape.n_kv_heads), depth) {
    const int64_t per_head = (depth + kPageSlots - 1) / kPageSlots, per_view = per_head * shape.n_kv_heads;
    const int64_t page_bytes = cpu::kv_page_bytes(codec, shape.head_dim);
    const int64_t n_views = std::max<int64_t>(1, (min_bytes + per_view * page_bytes - 1) / (per_view * page_bytes));
    pool = Buffer(n_views * per_view * page_bytes);
    fill(pool, 7);
    for (int64_t at = 0; at < pool.bytes() && is_coded(codec); at += page_bytes) set_scales(at, shape.head_dim, codec);
    std::vector<int32_t> starts, ids;
    for (int32_t at = 0; at < n_views * per_view; at += run) starts.push_back(at);
    std::shuffle(starts.begin(), starts.end(), std::mt19937(3));
    for (int32_t start : starts) {
      for (int32_t id = start; id < std::min<int64_t>(start + run, n_views * per_view); ++id) ids.push_back(id);
    }
    for (int64_t i = 0; i < n_views; ++i)
      pages.emplace_back(ids.begin() + i * per_view, ids.begin() + (i + 1) * per_view);
    for (const std::vector<int32_t>& p : pages) {
      KvView view{.pages = p.data(),
                  .n_slots = n_slots.data(),
                  .page_stride = static_cast<int32_t>(per_head),
                  .n_kv_heads = shape.n_kv_heads,
                  .head_dim = shape.head_dim,
                  .codec = codec};
      view.pools[static_cast<int>(codec)] = {pool.data(), page_bytes};
      views.push_back(view);
    }
  }

 private:
  // Codes of a page are any bytes, but scales are such that values are of about 1.
  void set_scales(int64_t page, int64_t d, KvCodec codec) const {
    const auto set = [&](int64_t end, KvCodec half) {
      const int64_t bytes = cpu::kv_scale_bytes(half, d) * kPageSlots;
      std::fill_n(reinterpret_cast<bf16*>(pool.data() + page + end - bytes), bytes / 2, to_bf16(0.1f));
    };
    set(cpu::kv_k_bytes(codec, d), k_codec(codec));
    set(cpu::kv_page_bytes(codec, d), v_codec(codec));
  }
};

struct Rows {
  Buffer q, out;
  Tensor tq, tout;
  Rows(int64_t n, int64_t heads, int64_t d) : q(n * heads * d * 2), out(n * heads * d * 2) {
    fill(q, 5);
    tq = Tensor(q.data(), DType::kBF16, {n, heads, d});
    tout = Tensor(out.data(), DType::kBF16, {n, heads, d});
  }
};

double seconds() {
  timespec t;
  clock_gettime(n_threads() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

enum class Limit { kBandwidth, kBf16 };
double probe(Limit limit) {
  const MachineLimits limits = limits_probe().measure(0.2);
  return limit == Limit::kBandwidth ? 1e9 * limits.read_gb_s : 1e12 * limits.bf16_tflops;
}

// Prints median and best time of single runs over `reps` times a twentieth of a second, as shares of the limit.
void measure(const std::string& name, int reps, double work, Limit limit, const std::function<void()>& run) {
  run();
  const double before = probe(limit), begin = seconds();
  std::vector<double> times;
  while (seconds() - begin < 0.05 * reps || times.size() < 5) {
    const double start = seconds();
    run();
    times.push_back(seconds() - start);
  }
  const double top = (before + probe(limit)) / 2;
  std::sort(times.begin(), times.end());
  const double median = times[times.size() / 2], best = times[times.size() / 20];
  std::printf("| %-32s | %9.1f us | %7.2f G/s | limit %7.2f G/s | median %5.1f %% | best 5 %% of runs %5.1f %% |\n",
              name.c_str(), 1e6 * median, work / median / 1e9, top / 1e9, 100 * work / median / top,
              100 * work / best / top);
  std::fflush(stdout);
}

// Prints the median times of two ways to do something, run in turn, and what the second costs more.
void compare(const std::string& name, int reps, const std::function<void()>& plain,
             const std::function<void()>& extended) {
  std::vector<double> times[2];
  plain(), extended();
  const double begin = seconds();
  while (seconds() - begin < 0.1 * reps || times[0].size() < 5) {
    for (int way = 0; way < 2; ++way) {
      const double start = seconds();
      way == 0 ? plain() : extended();
      times[way].push_back(seconds() - start);
    }
  }
  double median[2];
  for (int way = 0; way < 2; ++way) {
    std::sort(times[way].begin(), times[way].end());
    median[way] = times[way][times[way].size() / 2];
  }
  std::printf("| %-32s | %9.1f us | %9.1f us | %+5.1f %% |\n", name.c_str(), 1e6 * median[0], 1e6 * median[1],
              100 * (median[1] / median[0] - 1));
  std::fflush(stdout);
}

// One decode row with its logits and without; over slots of which 63 are hidden and over plain ones.
void pairs(cpu::AttentionWorkspace& workspace, const Shape& shape, int depth, int reps) {
  const Cache cache(shape, depth, int64_t{384} << 20);
  const Rows rows(1, shape.n_heads, shape.head_dim);
  std::vector<float> logits(static_cast<size_t>(shape.n_heads * depth));
  std::vector<float> newest(static_cast<size_t>(shape.n_kv_heads * depth)), spread = newest;
  for (int h = 0; h < shape.n_kv_heads; ++h) {
    for (int i = 0; i < 63; ++i) {
      newest[static_cast<size_t>(h * depth + 100 + i)] = -std::numeric_limits<float>::infinity();
      spread[static_cast<size_t>(h * depth + i * depth / 63)] = -std::numeric_limits<float>::infinity();
    }
  }
  size_t at = 0;
  const auto decode = [&](const float* bias, float* scores) {
    AttentionSeq seq{0, 1, cache.views[at]};
    at = (at + 1) % cache.views.size();
    seq.kv.slot_bias = bias;
    seq.kv.slot_stride = depth;
    seq.logits = scores;
    seq.logits_stride = depth;
    cpu::attention(workspace, rows.tq, {&seq, 1}, {.scale = 0.125f}, rows.tout);
  };
  const auto plain = [&] { decode(nullptr, nullptr); };
  const std::string name = std::string(shape.name) + " decode " + std::to_string(depth);
  compare(name + " + logits", reps, plain, [&] { decode(nullptr, logits.data()); });
  compare(name + " + 63 hidden in a row", reps, plain, [&] { decode(newest.data(), nullptr); });
  compare(name + " + 63 hidden, spread", reps, plain, [&] { decode(spread.data(), nullptr); });
}

// n_rows rows over `depth` slots in bf16 and in int8; from 8192 slots on, one row reads pages that no cache holds.
void coded(cpu::AttentionWorkspace& workspace, const Shape& shape, int depth, int n_rows, int reps) {
  const int64_t min_bytes = n_rows == 1 ? int64_t{384} << 20 : 0;
  const Cache values(shape, depth, min_bytes);
  const Rows rows(n_rows, shape.n_heads, shape.head_dim);
  size_t at = 0;
  const auto attend = [&](const Cache& cache) {
    const AttentionSeq seq{0, n_rows, cache.views[at++ % cache.views.size()]};
    cpu::attention(workspace, rows.tq, {&seq, 1}, {.scale = 0.125f}, rows.tout);
  };
  for (const KvCodec codec : {KvCodec::kInt8, KvCodec::kK8V4, KvCodec::kInt4}) {
    const Cache codes(shape, depth, min_bytes, 8, codec);
    compare(
        std::string(shape.name) + " " + std::to_string(n_rows) + " rows of " + std::to_string(depth) + ": " +
            std::string(kv_codec_name(codec)),
        reps, [&] { attend(values); }, [&] { attend(codes); });
  }
}

struct Decode {
  int depth, batch;
  int run = 8;  // a prefill chunk of 512 tokens fills eight pages of a head at once
};

void decode(cpu::AttentionWorkspace& workspace, const Shape& shape, const Decode& c, int reps) {
  const auto [depth, batch, run] = c;
  const Cache cache(shape, depth, int64_t{384} << 20, run);
  const Rows rows(batch, shape.n_heads, shape.head_dim);
  size_t at = 0;
  std::vector<AttentionSeq> seqs(static_cast<size_t>(batch));
  const double bytes = 2.0 * 2 * batch * depth * shape.n_kv_heads * shape.head_dim;
  measure(std::string(shape.name) + " decode " + std::to_string(depth) + " x " + std::to_string(batch) +
              (run == 1 ? " scattered" : ""),
          reps, bytes, Limit::kBandwidth, [&] {
            for (int i = 0; i < batch; ++i) {
              seqs[static_cast<size_t>(i)] = {i, 1, cache.views[at]};
              at = (at + 1) % cache.views.size();
            }
            cpu::attention(workspace, rows.tq, seqs, {.scale = 0.125f}, rows.tout);
          });
}

void prefill(cpu::AttentionWorkspace& workspace, const Shape& shape, int depth, int reps) {
  constexpr int kChunk = 512;
  const Cache cache(shape, depth + kChunk, 0);
  const Rows rows(kChunk, shape.n_heads, shape.head_dim);
  const double pairs = kChunk * (depth + (kChunk + 1) / 2.0);
  const AttentionSeq seq{0, kChunk, cache.views[0]};
  measure(std::string(shape.name) + " prefill 512 at " + std::to_string(depth), reps,
          4.0 * pairs * shape.n_heads * shape.head_dim, Limit::kBf16, [&] {
            cpu::attention(workspace, rows.tq, {&seq, 1}, {.scale = 0.125f}, rows.tout);
          });
}

void dense(cpu::AttentionWorkspace& workspace, const char* name, std::array<int, 3> sizes, int reps) {
  const auto [n, heads, d] = sizes;
  const Rows qo(n, heads, d), kv(n, heads, d);
  const int32_t offsets[] = {0, n};
  measure(std::string(name) + " " + std::to_string(n) + " x " + std::to_string(heads) + " x " + std::to_string(d), reps,
          4.0 * n * n * heads * d, Limit::kBf16, [&] {
            cpu::dense_attention(workspace, {qo.tq, kv.tq, kv.tout, qo.tout}, {.scale = 0.125f, .offsets = offsets});
          });
}

// Statistics of the last queries of a prompt.
void stats(cpu::AttentionWorkspace& workspace, const Shape& shape, int n_rows, int n_slots, int reps) {
  const Cache cache(shape, n_slots, 0);
  const Rows rows(n_rows, shape.n_heads, shape.head_dim);
  const Buffer sums(int64_t{4} * shape.n_heads * n_slots), below(int64_t{4} * shape.n_heads * n_slots);
  AttentionStats s;
  s.column_sums = Tensor(sums.data(), DType::kF32, {shape.n_heads, n_slots});
  s.below_counts = Tensor(below.data(), DType::kF32, {shape.n_heads, n_slots});
  measure(std::string(shape.name) + " stats of " + std::to_string(n_rows) + " of " + std::to_string(n_slots), reps,
          4.0 * n_rows * (n_slots - n_rows / 2) * shape.n_heads * shape.head_dim, Limit::kBf16,
          [&] { cpu::attention_stats(workspace, rows.tq, cache.views[0], {.scale = 0.125f}, s); });
}

void write_rows(const Shape& shape, int reps) {
  constexpr int kChunk = 512;
  const Cache cache(shape, 1024, 0);
  const Rows rows(kChunk, shape.n_kv_heads, shape.head_dim);
  measure(std::string(shape.name) + " kv_write of 512 rows", reps, 4.0 * kChunk * shape.n_kv_heads * shape.head_dim,
          Limit::kBandwidth, [&] { cpu::kv_write(rows.tq, rows.tout, cache.views[0]); });
}

}  // namespace
}  // namespace vlcache

int main(int argc, char** argv) {
  using namespace vlcache;
  const int reps = argc > 1 ? std::atoi(argv[1]) : 7;
  std::string words;
  if (argc > 2) set_threads(std::atoi(argv[2]));
  for (int i = 3; i < argc; ++i) {
    words += argv[i];
    for (const cpu::InstructionSet& set : cpu::kInstructionSets) {
      if (set.name == argv[i]) cpu::limit_machine(set);
    }
  }
  const auto wanted = [&](const char* word) { return words.empty() || words.find(word) != std::string::npos; };
  const cpu::Isa isa = cpu::fastest_isa();
  cpu::AttentionWorkspace workspace(isa, cpu::has_byte_dots(isa));
  for (const Shape& shape : kShapes) {
    for (int depth : {4096, 16384, 32768}) {
      if (wanted("decode")) decode(workspace, shape, {depth, 1}, reps);
    }
    if (wanted("decode")) decode(workspace, shape, {16384, 1, 1}, reps);
    if (wanted("decode")) decode(workspace, shape, {4096, 8}, reps);
    for (int depth : {0, 4096, 16384, 32768}) {
      if (wanted("prefill")) prefill(workspace, shape, depth, reps);
    }
    if (wanted("stats")) stats(workspace, shape, 64, 2048, reps);
    if (wanted("stats")) stats(workspace, shape, 1, 32768, reps);
    if (wanted("write")) write_rows(shape, reps);
  }
  for (const Shape& shape : {kShapes[2], kShapes[0], Shape{"d 128, G 3", 6, 2, 128}, Shape{"d 128, G 8", 16, 2, 128}}) {
    for (int depth : {4096, 32768}) {
      if (wanted("coded")) coded(workspace, shape, depth, 1, reps);
    }
    if (wanted("coded")) coded(workspace, shape, 16384, 512, reps);
  }
  for (const Shape& shape : {kShapes[0], kShapes[2]}) {
    for (int depth : {4096, 32768}) {
      if (wanted("pairs")) pairs(workspace, shape, depth, reps);
    }
  }
  if (wanted("pairs")) pairs(workspace, {"tinydoc", 4, 2, 64}, 2000, reps);
  if (wanted("dense")) {
    dense(workspace, "CLIP-L", {577, 16, 64}, reps);
    dense(workspace, "SigLIP", {729, 16, 72}, reps);
    dense(workspace, "SmolVLM", {1024, 12, 64}, reps);
    dense(workspace, "Qwen3-VL-2B 1280x800", {4000, 16, 64}, reps);
    dense(workspace, "Qwen3-VL-8B 1280x800", {4000, 16, 72}, reps);
    dense(workspace, "Qwen2.5-VL 1280x800", {5336, 16, 80}, reps);
    dense(workspace, "head size 128", {4000, 16, 128}, reps);
  }
  if (wanted("pages")) {  // minutes
    dense(workspace, "Qwen3-VL-2B 2480x3508", {34320, 16, 64}, reps);
    dense(workspace, "Qwen3-VL-8B 2480x3508", {34320, 16, 72}, reps);
  }
}
