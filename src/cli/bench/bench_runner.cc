#include "cli/bench/bench_runner.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/clock.h"
#include "base/error.h"
#include "base/splitmix.h"

namespace vlcache {
namespace {

constexpr int32_t kFillRows = 256;
constexpr int32_t kSeenTokens = 64;  // of a random fill are computed, so that a policy acts on real KV
constexpr double kProbeSeconds = 0.3;

uint64_t fnv1a(const void* data, size_t bytes) {
  uint64_t h = 14695981039346656037ull;
  for (size_t i = 0; i < bytes; ++i) h = (h ^ static_cast<const uint8_t*>(data)[i]) * 1099511628211ull;
  return h;
}

// A number in [0, 2^32) per call.
uint32_t next_random(uint64_t& state) { return static_cast<uint32_t>(splitmix(state += kSplitmixStep) >> 32); }

// The minimum of work in one run.
struct Work {
  double tokens, flops, bytes;
};

// Bytes to read for these matrices, over their parameters; dense ones without the padding of their layout.
double bytes_per_weight(std::span<const Weight* const> matrices) {
  double bytes = 0, weights = 0;
  for (const Weight* w : matrices) {
    for (const WeightSegment& segment : w->segments) {
      const double n = static_cast<double>(segment.n_out * w->n_in);
      weights += n;
      bytes +=
          segment.form ? static_cast<double>(segment.memory.bytes()) : n * static_cast<double>(dtype_bytes(w->dtype));
    }
  }
  return bytes / weights;
}

// Bytes of K and V that a row reads of n slots in every head, its own included.
double kv_bytes_read(const Engine& engine, int64_t n) {
  const int64_t n_unfilled = pages_for(n) * int64_t{kPageSlots} - n;  // slots of the last page, which has values
  return static_cast<double>(engine.kv_bytes(n)) -
         static_cast<double>(n_unfilled * engine.kv_bytes(1)) / static_cast<double>(kPageSlots);
}

// The same of a sequence's n rows, decoded one by one after `depth` slots.
double kv_bytes_decoded(const Engine& engine, int64_t depth, int64_t n) {
  double bytes = 0;
  for (int64_t i = 1; i <= n; ++i) bytes += kv_bytes_read(engine, depth + i);
  return bytes;
}

// Of all rows of such a test together: what they need not read because sequences share attention.
double kv_bytes_saved(const Engine& engine, const BenchCase& test) {
  if (!engine.options().share_attention || test.n_gen == 0) return 0;
  const int32_t n_whole = test.n_shared / kPageSlots * kPageSlots;
  return n_whole == 0 ? 0 : kv_bytes_read(engine, n_whole) * (test.n_seqs - 1) * test.n_gen;
}

int64_t kept_depth(const BenchCase& test, double kept_share) {
  return std::llround(static_cast<double>(test.n_depth) * kept_share);
}

Work text_work(const Engine& engine, const BenchCase& test, double kept_share) {
  const Model& model = engine.model();
  const TextConfig& t = model.config().text;
  std::vector<const Weight*> matrices;
  for (const TextLayerWeights& l : model.weights().text.layers) {
    for (const Weight* w : {&l.qkv, &l.o, &l.gate_up, &l.down}) matrices.push_back(w);
    for (const auto* experts : {&l.experts_gate_up, &l.experts_down}) {
      for (const Weight& w : *experts) matrices.push_back(&w);
    }
  }
  const Weight* const output = &model.weights().text.output();
  const double step_rows =
      test.n_gen > 0 ? test.n_seqs : std::min<double>(test.n_prompt, engine.options().prefill_chunk);
  const double layer_weights = t.layers_weights(step_rows);
  const double output_weights = t.output_weights();
  const double n = std::max(test.n_prompt, test.n_gen), seqs = test.n_seqs;
  const double steps = test.n_gen > 0 ? n : std::ceil(n / engine.options().prefill_chunk);
  // Row i of n attends to the kept slots of the depth, and i + 1 slots.
  const double depth = test.n_depth * kept_share, mean_slots = depth + (n + 1) / 2;
  const double rows = n * seqs;
  const double logit_rows = test.n_gen > 0 ? rows : seqs;
  const int64_t slots = kept_depth(test, kept_share);
  const double kv_bytes = test.n_gen > 0 ? kv_bytes_decoded(engine, slots, test.n_gen)
                                         : kv_bytes_read(engine, slots + test.n_prompt) * steps;
  return {
      .tokens = rows,
      .flops = t.layers_flops(mean_slots) * rows + 2 * output_weights * logit_rows,
      .bytes = (layer_weights * bytes_per_weight(matrices) + output_weights * bytes_per_weight({&output, 1})) * steps +
               kv_bytes * seqs - kv_bytes_saved(engine, test)};
}

// Pairs of rows that attend to each other in a layer, of one tile.
double attended_pairs(const VisionConfig& v, int32_t layer, double rows, double n_windows) {
  return v.windowed(layer) ? rows * rows / n_windows : rows * rows;
}

// The encoder alone. The last windows of a grid are smaller; they count as equal shares of its patches.
Work vision_work(const Engine& engine, const BenchCase& test) {
  const Model& model = engine.model();
  const VisionConfig& v = *model.config().vision;
  const auto patches_of = [&](int64_t pixels) { return static_cast<double>(pixels / v.patch_size); };
  const double grid_rows = v.traits.any_grid ? patches_of(test.height) : static_cast<double>(v.side()),
               grid_cols = v.traits.any_grid ? patches_of(test.width) : static_cast<double>(v.side());
  const double tiles = test.n_tiles, patches = grid_rows * grid_cols,
               rows = patches + static_cast<double>(v.n_class_rows()), h = static_cast<double>(v.hidden_size);
  const double window = std::max(1.0, patches_of(v.window)),
               n_windows = std::ceil(grid_rows / window) * std::ceil(grid_cols / window);
  const double layers = static_cast<double>(v.n_used_layers());
  const double layer_weights = 4 * h * h + (v.traits.gated_mlp ? 3 : 2) * h * static_cast<double>(v.ffn_size);
  const double patch_weights = static_cast<double>(v.n_frames * v.n_channels * v.patch_size * v.patch_size) * h;
  double pairs = 0;
  for (int32_t layer = 0; layer < static_cast<int32_t>(v.n_used_layers()); ++layer)
    pairs += attended_pairs(v, layer, rows, n_windows);
  return {.tokens = tiles * (patches + static_cast<double>(v.n_class_features())),
          .flops = tiles * (layers * 2 * rows * layer_weights + 4 * pairs * h + 2 * patches * patch_weights),
          .bytes = (layers * layer_weights + patch_weights) * static_cast<double>(dtype_bytes(model.compute_dtype()))};
}

Work work_of(const Engine& engine, const BenchResult& result) {
  return result.test.n_tiles > 0 ? vision_work(engine, result.test) : text_work(engine, result.test, result.kept_share);
}

}  // namespace

BenchRunner::BenchRunner(Engine& engine, PolicyPtr policy, Fill fill, uint64_t seed)
    : engine_(engine), policy_(std::move(policy)), fill_(fill), state_(seed) {}

int32_t BenchRunner::random_token() {
  return static_cast<int32_t>(next_random(state_) % static_cast<uint64_t>(engine_.model().config().text.vocab_size));
}

// Runs every sequence until it has computed its pending tokens and then n_tokens - 1 more; returns the mean time of
// compressing a prompt.
double BenchRunner::run_all(const Sequences& sequences, int32_t n_tokens) {
  Scheduler scheduler(engine_);
  std::vector<RequestId> ids;
  for (const auto& sequence : sequences) {
    if (sequence->n_pending() == 0) continue;
    Request request;
    request.sequence = sequence.get();
    request.options.max_tokens = n_tokens;
    request.options.ignore_eos = true;
    request.callbacks.choose = [this, n_tokens, n_chosen = 0](std::span<float> logits) mutable {
      if (++n_chosen == n_tokens) last_hash_ = fnv1a(logits.data(), logits.size_bytes());
      return random_token();
    };
    ids.push_back(scheduler.add(std::move(request)));
  }
  while (scheduler.step()) {
  }
  double compress_ms = 0;
  for (const RequestId id : ids)
    compress_ms += scheduler.remove(id).timings.compress_ms / static_cast<double>(ids.size());
  return compress_ms;
}

// Block by block, so that pages become codes as after prefilling: the whole depth as values would need twice the
// memory.
void BenchRunner::fill_random(Sequence& sequence, int32_t begin, int32_t depth) {
  KvCache& cache = sequence.cache();
  const KvShape& shape = cache.shape();
  sequence.keep_places(/*regular=*/false);
  std::vector<std::vector<float>> values;  // kFillRows rows of K, then of V, by layer; the same in every block
  for (int32_t l = 0; l < shape.n_layers(); ++l) {
    const int64_t n = int64_t{kFillRows} * shape.n_own_heads(l) * shape.layers[static_cast<size_t>(l)].head_dim;
    values.emplace_back(static_cast<size_t>(2 * n));
    for (float& x : values.back()) x = static_cast<float>(next_random(state_)) * 0x1p-31f - 1.0f;
  }
  std::vector<int32_t> tokens;
  for (; begin < depth; begin += kFillRows) {
    const int32_t rows = std::min(kFillRows, depth - begin);
    tokens.resize(static_cast<size_t>(rows));
    std::iota(tokens.begin(), tokens.end(), begin);
    for (int32_t l = 0; l < shape.n_layers(); ++l) {
      if (shape.n_own_heads(l) == 0) continue;
      const int64_t n_heads = shape.n_own_heads(l), d = shape.layers[static_cast<size_t>(l)].head_dim;
      float* const k = values[static_cast<size_t>(l)].data();
      engine_.backend().kv_write(Tensor(k, DType::kF32, {rows, n_heads, d}),
                                 Tensor(k + kFillRows * n_heads * d, DType::kF32, {rows, n_heads, d}),
                                 cache.append(l, tokens));
      cache.encode(l);
    }
    cache.end_step();
  }
  sequence.assume_computed(depth);
}

Prompt BenchRunner::random_prompt(int32_t depth, int32_t n_more) {
  Prompt prompt;
  for (int32_t t = 0; t < depth; ++t) prompt.tokens.push_back(t % 2);  // a cheap text that later prompts extend
  for (int32_t t = 0; t < n_more; ++t) prompt.tokens.push_back(random_token());
  // A policy that drops tokens between the layers may look for an image's: the depth, except for its end, is declared
  // to be one. The embeddings stay the text's.
  if (policy_->row_dropper() != nullptr && depth > kSeenTokens) {
    prompt.spans = {{.begin = 0, .end = depth - kSeenTokens, .image = 0, .first_row = 0}};
    prompt.images.emplace_back().allocate(1, 1, 1);
  }
  return prompt;
}

// A policy that acts after the prompt needs captures of its last tokens, or of all; one that drops tokens between the
// layers must compute them.
bool BenchRunner::can_fill_random(const Sequence& sequence) const {
  if (fill_ == Fill::kPrefill || !policy_->keeps_kv() || policy_->row_dropper() != nullptr) return false;
  return !std::ranges::any_of(policy_->needs(sequence.prompt_shape()), &CaptureRequest::needs_all_rows);
}

// The beginning that all sequences fork.
std::unique_ptr<Sequence> BenchRunner::fill_shared(int32_t n_shared) {
  if (policy_->evicts() || !policy_->keeps_kv()) {
    throw Error(ErrorCode::kInput,
                "bench: --shared-depth requires a policy that keeps all KV, found " + policy_->name());
  }
  Sequences root;
  root.push_back(engine_.new_sequence(random_prompt(n_shared, 0), policy_));
  if (can_fill_random(*root[0])) fill_random(*root[0], 0, std::max(0, n_shared - kSeenTokens));
  run_all(root, 1);
  root[0]->rewind(n_shared);
  return std::move(root[0]);
}

void BenchRunner::fill(const BenchCase& test) {
  const int32_t depth = test.n_depth;
  sequences_.clear();
  empty_.clear();
  const std::unique_ptr<Sequence> root = test.n_shared > 0 ? fill_shared(test.n_shared) : nullptr;
  for (int32_t i = 0; i < test.n_seqs; ++i) {
    sequences_.push_back(root != nullptr ? root->fork(policy_, {})
                                         : engine_.new_sequence(random_prompt(depth, 0), policy_));
    Sequence& s = *sequences_.back();
    if (test.n_shared == depth && root != nullptr) continue;
    if (root != nullptr) s.continue_with(random_prompt(depth, 0));
    if (can_fill_random(s)) fill_random(s, s.n_done(), std::max(s.n_done(), depth - kSeenTokens));
  }
  if (depth == 0) return;
  compress_ms_ = run_all(sequences_, 1 + policy_->acts_after_tokens());
  for (const auto& s : sequences_) {
    s->rewind(depth);
    s->cache().keep_place(depth);
  }
  int64_t n_kept = 0, n_all = 0;
  const Sequence& s = *sequences_[0];
  const KvShape& shape = s.cache().shape();
  for (int32_t layer = 0; layer < shape.n_layers(); ++layer) {
    for (int32_t head = 0; head < shape.n_own_heads(layer); ++head) {
      n_kept += s.n_visible(layer, head);
      n_all += shape.most_visible(layer, depth);
    }
  }
  kept_share_ = static_cast<double>(n_kept) / static_cast<double>(std::max<int64_t>(n_all, 1));
}

double BenchRunner::time_steps(const BenchCase& test, const Sequences& sequences) {
  for (const auto& s : sequences) {
    const bool frees = s->cache().shape().largest_window() > 0 && !s->complete();
    if (frees && test.n_prompt + test.n_gen > kPagesBeforeWindow * kPageSlots) {
      throw Error(ErrorCode::kInput, "bench: after " + policy_->name() +
                                         " has evicted, layers with a sliding window can be taken back by " +
                                         std::to_string(kPagesBeforeWindow * kPageSlots) + " tokens; use fewer");
    }
    s->rewind(test.n_depth);
    s->reserve(test.n_prompt + test.n_gen);
    if (test.n_prompt > 0) {
      const int32_t kept = s->continue_with(random_prompt(test.n_depth, test.n_prompt));
      if (kept < test.n_depth && policy_->keeps_kv()) {
        throw Error(ErrorCode::kInput, "bench: prompts after a depth cannot be timed with " + policy_->name() +
                                           ", which has evicted parts of it; use -p 0 or -d 0");
      }
    } else {
      s->add_token(random_token());
    }
  }
  const auto start = Clock::now();
  run_all(sequences, std::max(1, test.n_gen));
  return static_cast<double>((test.n_prompt + test.n_gen) * test.n_seqs) / seconds_since(start);
}

// The same steps at depth 0.
double BenchRunner::time_at_0(const BenchCase& test) {
  while (std::ssize(empty_) < test.n_seqs) empty_.push_back(engine_.new_sequence(random_prompt(0, 0), policy_));
  BenchCase at_0 = test;
  at_0.n_depth = 0;
  return time_steps(at_0, empty_);
}

double BenchRunner::time_tiles(const BenchCase& test) {
  const VisionConfig& vision = *engine_.model().config().vision;
  ImageTiles image;
  if (vision.traits.any_grid) {
    image.allocate(test.n_tiles, test.height, test.width);
  } else {
    image.allocate(test.n_tiles, vision.image_size, vision.image_size);
  }
  for (float& x : std::span(image.tensor().as<float>(), static_cast<size_t>(image.tensor().numel())))
    x = static_cast<float>(next_random(state_)) * 0x1p-31f - 1.0f;
  const auto start = Clock::now();
  const VisionOutput features = engine_.model().encode_features(image);
  const double seconds = seconds_since(start);
  last_hash_ = fnv1a(features.embeds.data, static_cast<size_t>(features.embeds.bytes()));
  return static_cast<double>(features.embeds.rows()) / seconds;
}

// Workspaces and clock speed settle in a short run of the same kind.
BenchResult BenchRunner::begin(const BenchCase& test) {
  BenchResult result;
  result.test = test;
  result.kept_share = kept_share_;
  result.compress_ms = compress_ms_;
  for (const auto& s : sequences_) result.kv_bytes += s->cache().bytes() + s->cache().table_bytes();
  BenchCase warm_up = test;
  warm_up.n_gen = std::min(warm_up.n_gen, 4);
  if (has_p(test)) time_at_0(warm_up);
  time_once(warm_up);
  return result;
}

bool BenchRunner::has_p(const BenchCase& test) const {
  return test.n_gen > 0 && test.n_depth > 0 && policy_->keeps_kv();
}

void BenchRunner::repeat(BenchResult& result) {
  if (has_p(result.test)) result.tokens_per_s_at_0.push_back(time_at_0(result.test));
  const auto kv_reads = [this] {
    KvReads sum;
    for (const auto& s : sequences_) sum += s->kv_reads();
    return sum;
  };
  const auto coded_bytes_read = [this] {
    int64_t n = 0;
    for (const auto& s : sequences_) n += s->cache().coded_bytes_read();
    return n;
  };
  const int64_t before = coded_bytes_read();
  const KvReads reads_before = kv_reads();
  result.tokens_per_s.push_back(time_once(result.test));
  result.coded_bytes_read = coded_bytes_read() - before;
  const KvReads reads = kv_reads();
  result.kv_reads = {.bytes = reads.bytes - reads_before.bytes, .saved = reads.saved - reads_before.saved};
  result.output_hash = last_hash_;
}

void BenchRunner::add_limits(BenchResult& result, const MachineLimits& before, const MachineLimits& after) {
  result.limits.read_gb_s += (before.read_gb_s + after.read_gb_s) / 2;
  result.limits.bf16_tflops += (before.bf16_tflops + after.bf16_tflops) / 2;
  result.limits.f32_tflops += (before.f32_tflops + after.f32_tflops) / 2;
  result.limits.int8_tops += (before.int8_tops + after.int8_tops) / 2;
}

void BenchRunner::finish(BenchResult& result) {
  const auto n = static_cast<double>(result.tokens_per_s.size());
  MachineLimits& limits = result.limits;
  for (double* limit : {&limits.read_gb_s, &limits.bf16_tflops, &limits.f32_tflops, &limits.int8_tops}) *limit /= n;
  result.avg_ts = std::accumulate(result.tokens_per_s.begin(), result.tokens_per_s.end(), 0.0) / n;
  double square = 0;
  for (double x : result.tokens_per_s) square += (x - result.avg_ts) * (x - result.avg_ts);
  result.stddev_ts = n > 1 ? std::sqrt(square / (n - 1)) : 0.0;
  result.limit_tflops = limit_tflops(engine_, result.test, limits);
  result.limit_ts = limit_tokens_per_s(engine_, result, result.by_bandwidth);
  const Work work = work_of(engine_, result);
  result.bytes_per_token = work.bytes / work.tokens;
  result.limit_pct = 100.0 * result.avg_ts / result.limit_ts;
  if (result.tokens_per_s_at_0.empty()) return;
  const BenchCase& test = result.test;
  const double kv_bytes = kv_bytes_decoded(engine_, kept_depth(test, result.kept_share), test.n_gen) -
                          kv_bytes_decoded(engine_, 0, test.n_gen);
  const double token_bytes = (kv_bytes - kv_bytes_saved(engine_, test) / test.n_seqs) / test.n_gen;
  const double token_s = 1 / median(result.tokens_per_s_at_0) + token_bytes / (1e9 * limits.read_gb_s);
  result.p_ts = 1 / token_s;
  result.p_pct = 100.0 * median(result.tokens_per_s) / result.p_ts;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t n = values.size();
  return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

std::vector<std::vector<BenchResult>> BenchRunner::run_in_turn(std::span<BenchRunner> runners,
                                                               const std::vector<BenchCase>& cases, int32_t repetitions,
                                                               const std::function<void()>& after_run) {
  std::vector<std::vector<BenchResult>> results(runners.size(), std::vector<BenchResult>(cases.size()));
  // Prompts last: with one, a sequence has another prompt than the depth.
  std::vector<size_t> order(cases.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_partition(order.begin(), order.end(), [&](size_t c) { return cases[c].n_prompt == 0; });
  LimitsProbe probe;
  for (BenchRunner& runner : runners) runner.fill(cases[0]);
  for (const size_t c : order) {
    const BenchCase& test = cases[c];
    CHECK(test.n_depth == cases[0].n_depth && test.n_seqs == cases[0].n_seqs && test.n_shared == cases[0].n_shared);
    CHECK((test.n_prompt > 0) + (test.n_gen > 0) + (test.n_tiles > 0) == 1);
    for (size_t i = 0; i < runners.size(); ++i) {
      results[i][c] = runners[i].begin(test);
      after_run();
    }
    MachineLimits before = probe.measure(kProbeSeconds);
    for (int32_t r = 0; r < repetitions; ++r) {
      for (size_t i = 0; i < runners.size(); ++i) {
        runners[i].repeat(results[i][c]);
        const MachineLimits after = probe.measure(kProbeSeconds);
        add_limits(results[i][c], before, after);
        after_run();
        before = after;
      }
    }
    for (size_t i = 0; i < runners.size(); ++i) runners[i].finish(results[i][c]);
  }
  for (BenchRunner& runner : runners) runner.sequences_.clear(), runner.empty_.clear();
  return results;
}

double limit_tflops(const Engine& engine, const BenchCase& test, const MachineLimits& limits) {
  const Weights& weights = engine.model().weights();
  if (engine.model().compute_dtype() == DType::kF32) return limits.f32_tflops;
  const Weight& one = test.n_tiles > 0 ? weights.vision->layers.front().qkv : weights.text.layers.front().qkv;
  if (!one.segments.front().form) return limits.bf16_tflops;
  // With codes an input is two bytes, or one.
  const double bytes = engine.model().activation_bits() == ActivationBits::k15 ? 2 : 1;
  return std::max(limits.bf16_tflops, limits.int8_tops / bytes);
}

double limit_tokens_per_s(const Engine& engine, const BenchResult& result, bool& by_bandwidth) {
  const MachineLimits& limits = result.limits;
  const Work work = work_of(engine, result);
  const double flop_seconds = work.flops / (1e12 * limit_tflops(engine, result.test, limits));
  const double byte_seconds = work.bytes / (1e9 * limits.read_gb_s);
  by_bandwidth = byte_seconds > flop_seconds;
  return work.tokens / std::max(flop_seconds, byte_seconds);
}

}  // namespace vlcache
