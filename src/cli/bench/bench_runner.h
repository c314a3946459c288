// BenchRunner times prefill and decode at a depth, and compares them with the machine's limits.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/scheduler/scheduler.h"
#include "ops/limits.h"

namespace vlcache {

// One row of the report: n_prompt tokens prefilled, or n_gen tokens generated one by one, after n_depth tokens, in
// every of n_seqs sequences; or n_tiles tiles through the vision encoder, of `width` x `height` pixels where it accepts
// any size.
struct BenchCase {
  int32_t n_prompt = 0;
  int32_t n_gen = 0;
  int32_t n_tiles = 0;
  int32_t width = 0, height = 0;
  int32_t n_depth = 0;
  int32_t n_seqs = 1;
  int32_t n_shared = 0;  // first tokens of the depth whose KV all sequences have in common
};

struct BenchResult {
  BenchCase test;
  std::vector<double> tokens_per_s;  // one per repetition
  double avg_ts = 0, stddev_ts = 0;
  MachineLimits limits;          // mean of the probes before and after each repetition
  double limit_tflops = 0;       // in the arithmetic of the test
  double limit_ts = 0;           // tokens/s at the measured limit
  double limit_pct = 0;          // avg_ts / limit_ts
  double bytes_per_token = 0;    // that must be read: weights, KV
  bool by_bandwidth = false;     // which limit: bytes (weights once a step, KV) or FLOPs
  uint64_t output_hash = 0;      // of the logits' bits of the last step: equal runs agree
  double kept_share = 1;         // of the depth's slots, after eviction
  double compress_ms = 0;        // of that, per sequence: statistics, scores, compaction
  int64_t kv_bytes = 0;          // pages and tables of all sequences before the test
  int64_t coded_bytes_read = 0;  // by attention in the last repetition (KvCache::coded_bytes_read)
  KvReads kv_reads;              // likewise (Sequence::kv_reads)
  // Decoding after a depth has the tokens/s of the same steps at depth 0, each measured just before a repetition, and
  // P: the tokens/s of a step as long as one at depth 0 plus the time of reading the depth's KV at the measured
  // bandwidth. Empty and 0: another test, or a policy that keeps no KV.
  std::vector<double> tokens_per_s_at_0;
  double p_ts = 0, p_pct = 0;  // p_pct: of the median of tokens_per_s
};

// Of at least one value; of an even number, the mean of the middle two.
double median(std::vector<double> values);

// Sequences filled to one depth; every test starts there and is rewound.
class BenchRunner {
 public:
  enum class Fill : uint8_t { kPrefill, kRandom };
  BenchRunner(Engine& engine, PolicyPtr policy, Fill fill, uint64_t seed);

  // Runs cases of one depth and batch size, alternating between `runners`, `repetitions` times each after one warm-up,
  // with a probe of the machine between any two runs. after_run() is called (repetitions + 1) x cases x runners times.
  // [runners][cases]
  static std::vector<std::vector<BenchResult>> run_in_turn(std::span<BenchRunner> runners,
                                                           const std::vector<BenchCase>& cases, int32_t repetitions,
                                                           const std::function<void()>& after_run);

 private:
  using Sequences = std::vector<std::unique_ptr<Sequence>>;
  void fill(const BenchCase& test);
  void fill_random(Sequence& sequence, int32_t begin, int32_t depth);
  bool can_fill_random(const Sequence& sequence) const;
  std::unique_ptr<Sequence> fill_shared(int32_t n_shared);
  BenchResult begin(const BenchCase& test);
  void repeat(BenchResult& result);
  static void add_limits(BenchResult& result, const MachineLimits& before, const MachineLimits& after);
  void finish(BenchResult& result);
  bool has_p(const BenchCase& test) const;
  double time_at_0(const BenchCase& test);
  double time_once(const BenchCase& test) { return test.n_tiles > 0 ? time_tiles(test) : time_steps(test, sequences_); }
  double time_steps(const BenchCase& test, const Sequences& sequences);
  double time_tiles(const BenchCase& test);
  Prompt random_prompt(int32_t depth, int32_t n_more);
  double run_all(const Sequences& sequences, int32_t n_tokens);
  int32_t random_token();

  Engine& engine_;
  PolicyPtr policy_;
  Fill fill_;
  uint64_t state_;
  Sequences sequences_, empty_;  // filled to the depth; as many without one
  uint64_t last_hash_ = 0;
  double kept_share_ = 1, compress_ms_ = 0;
};

// FLOPs and bytes of a case, per second of work at the limits: the tokens/s that a perfect program would reach. A
// tile's tokens are the rows that it yields.
double limit_tflops(const Engine& engine, const BenchCase& test, const MachineLimits& limits);
double limit_tokens_per_s(const Engine& engine, const BenchResult& result, bool& by_bandwidth);

}  // namespace vlcache
