#include "server/operations/metrics.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/contracts/kv.h"
#include "base/format.h"

namespace vlcache {
namespace {

// vLLM's buckets: its dashboards compute quantiles from them.
const std::vector<double> kFirstToken = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                                         1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560};
const std::vector<double> kGap = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                                  0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80};
const std::vector<double> kRequest = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                      30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};

// 1, 2, 5, 10, 20, ...
std::vector<double> token_bounds(int64_t most) {
  std::vector<double> bounds;
  for (double power = 1; power <= static_cast<double>(most); power *= 10) {
    for (const double digit : {1, 2, 5}) {
      if (digit * power <= static_cast<double>(most)) bounds.push_back(digit * power);
    }
  }
  return bounds;
}

// Formats as Python does, 1.0 or 0.3: bucket labels are compared with Python's.
std::string number(double x) {
  if (x == std::floor(x) && std::abs(x) < 1e15) return format("%.1f", x);
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, x).ptr};
}

// Escapes the only characters that labels must not hold as they are.
std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

// Builds the text: one family after another, each with its type.
class Writer {
 public:
  explicit Writer(const std::string& labels) : labels_(labels) {}
  void family(const std::string& name, const char* type, const char* help) {
    name_ = name;
    text_ += "# HELP " + name + " " + help + "\n# TYPE " + name + " " + type + "\n";
  }
  void value(double x, const std::string& more = "") {
    text_ += name_ + "{" + labels_ + (more.empty() ? "" : "," + more) + "} " + number(x) + "\n";
  }
  void one(const std::string& name, const char* type, const char* help, double x) {
    family(name, type, help);
    value(x);
  }
  template <typename Counts>
  void each(const std::string& name, const char* label, const char* help, const Counts& counts) {
    family(name, "counter", help);
    for (const auto& [key, n] : counts) value(static_cast<double>(n), std::string(label) + "=\"" + escaped(key) + "\"");
  }
  void histogram(const std::string& name, const char* help, const Histogram& histogram) {
    family(name, "histogram", help);
    histogram.append(text_, name, labels_);
  }
  std::string take() { return std::move(text_); }

 private:
  std::string labels_, name_, text_;
};

void write_failures(Writer& w, const std::vector<TierChain::State>& tiers) {
  w.family("vlcache:tier_errors_total", "counter", "Of the failures, those of an operation for a reason.");
  for (const TierChain::State& tier : tiers) {
    const auto count = [&](int64_t n, const char* operation, std::string_view reason, bool always) {
      if (n == 0 && !always) return;
      w.value(static_cast<double>(n), "tier=\"" + escaped(tier.name) + "\",operation=\"" + operation + "\",reason=\"" +
                                          std::string(reason) + "\"");
    };
    for (size_t i = 0; i < kMissReasons; ++i) {
      const auto reason = static_cast<MissReason>(i);
      const bool io = reason == MissReason::kIo;
      if (is_failure(reason)) count(tier.stats.n_missed[i], "read", miss_reason_name(reason), io);
    }
    for (size_t i = 0; i < kPutOutcomes; ++i) {
      const auto outcome = static_cast<PutOutcome>(i);
      const bool io = outcome == PutOutcome::kIo;
      if (is_failure(outcome)) count(tier.stats.n_put[i], "write", put_outcome_name(outcome), io);
    }
  }
  w.family("vlcache:tier_up", "gauge", "0: the latest attempt to read or to write has failed.");
  for (const TierChain::State& tier : tiers) w.value(tier.stats.works() ? 1 : 0, "tier=\"" + escaped(tier.name) + "\"");
  w.family("vlcache:tier_skipped_total", "counter", "Records not stored by choice: for others, or a full queue.");
  for (const TierChain::State& tier : tiers) {
    const std::string label = "tier=\"" + escaped(tier.name) + "\",reason=\"";
    const int64_t outranked = tier.stats.n_put[static_cast<size_t>(PutOutcome::kOutranked)];
    w.value(static_cast<double>(outranked), label + put_outcome_name(PutOutcome::kOutranked).data() + "\"");
    w.value(static_cast<double>(tier.queue.n_refused), label + "queue\"");
  }
}

void write_first_uses(Writer& w, const PrefixSaver::FirstUseStats& stats) {
  w.one("vlcache:first_use_bytes_total", "counter", "KV of prompts that was stored after their first use.",
        static_cast<double>(stats.queued));
  w.family("vlcache:first_use_skipped_bytes_total", "counter", "KV of prompts that was not, though they had images.");
  w.value(static_cast<double>(stats.beyond_bound), "reason=\"bound\"");
  w.value(static_cast<double>(stats.evicted), "reason=\"evicted\"");
  w.value(static_cast<double>(stats.late), "reason=\"busy\"");
  w.one("vlcache:first_use_hour_bytes", "gauge", "Of the stored, that of the last hour.",
        static_cast<double>(stats.hour));
  w.one("vlcache:first_use_max_hour_bytes", "gauge", "What that may be (--cache-first-use).",
        static_cast<double>(stats.most_an_hour));
}

void write_caches(Writer& w, const CacheTotals& totals) {
  const std::pair<const char*, const CacheTotals::Cache*> caches[] = {
      {"prefix", &totals.prefix}, {"image_kv", &totals.image_kv}, {"encoder", &totals.encoder}};
  const auto each = [&](const char* name, const char* type, const char* help, auto value) {
    w.family(name, type, help);
    for (const auto& [cache, c] : caches)
      w.value(static_cast<double>(value(*c)), std::string("cache=\"") + cache + "\"");
  };
  using Cache = CacheTotals::Cache;
  each("vlcache:cache_hits_total", "counter", "Hits of a cache: requests, or images.",
       [](const Cache& c) { return c.n_hits; });
  each("vlcache:cache_misses_total", "counter", "Misses of a cache.", [](const Cache& c) { return c.n_misses; });
  each("vlcache:cache_saved_tokens_total", "counter", "Tokens that hits have saved from being computed.",
       [](const Cache& c) { return c.n_tokens; });
  each("vlcache:cache_evictions_total", "counter", "What a cache has dropped for others.",
       [](const Cache& c) { return c.n_evictions; });
  each("vlcache:cache_bytes", "gauge", "What a cache holds.", [](const Cache& c) { return c.bytes; });
  w.one("vlcache:cache_max_bytes", "gauge", "What all caches in memory may hold together (--cache-ram).",
        static_cast<double>(totals.max_bytes));
  if (totals.tiers.empty()) return;
  const auto tiers = [&](const char* name, const char* help, auto value) {
    w.family(name, "counter", help);
    for (const TierChain::State& tier : totals.tiers) {
      w.value(static_cast<double>(value(tier.stats)), "tier=\"" + escaped(tier.name) + "\"");
    }
  };
  tiers("vlcache:tier_hits_total", "Records found in a tier.", [](const TierStats& s) { return s.n_hits; });
  tiers("vlcache:tier_misses_total", "Records not found in a tier.", [](const TierStats& s) { return s.n_misses(); });
  tiers("vlcache:tier_failed_total", "Records that could not be read or written, and probes of a tier.",
        [](const TierStats& s) { return s.n_failed() + s.n_failed_writes(); });
  write_failures(w, totals.tiers);
  tiers("vlcache:tier_read_bytes_total", "Read from a tier.", [](const TierStats& s) { return s.bytes_read; });
  tiers("vlcache:tier_written_bytes_total", "Written to a tier.", [](const TierStats& s) { return s.bytes_written; });
  tiers("vlcache:tier_evictions_total", "Records removed from a tier for others.",
        [](const TierStats& s) { return s.n_evictions; });
  write_first_uses(w, totals.first_use);
}

void write_uploads(Writer& w, const Uploads::State& state) {
  w.one("vlcache:uploads", "gauge", "Files of /v1/files.", static_cast<double>(state.n_files));
  w.one("vlcache:upload_bytes", "gauge", "Memory that they use.", static_cast<double>(state.bytes));
  w.one("vlcache:upload_max_bytes", "gauge", "Memory that they may use (--files-memory).",
        static_cast<double>(state.max_bytes));
  const std::map<std::string, int64_t> removed = {
      {"deleted", state.n_removed}, {"evicted", state.n_evicted}, {"expired", state.n_expired}};
  w.each("vlcache:uploads_removed_total", "reason", "Uploads that are no longer kept.", removed);
}

void write_reuse(Writer& w, const std::map<KvCodec, ReuseCounts::State>& by_codec) {
  const auto each = [&](const char* name, const char* type, const char* help, auto value) {
    w.family(name, type, help);
    for (const auto& [codec, state] : by_codec) {
      const std::string label = "kv_codec=\"" + std::string(kv_codec_name(codec)) + "\",images=";
      w.value(static_cast<double>(value(state.one)), label + "\"one\"");
      w.value(static_cast<double>(value(state.several)), label + "\"several\"");
    }
  };
  using Kind = ReuseCounts::Kind;
  each("vlcache:reuse_compared", "gauge", "Answers compared with those under reuse, by all processes on one folder.",
       [](const Kind& k) { return k.evidence.answers.n; });
  each("vlcache:reuse_changed", "gauge", "Those of them that reuse would change.",
       [](const Kind& k) { return k.evidence.answers.n_changed; });
  each("vlcache:reuse_open", "gauge", "1: images are reused by that.",
       [](const Kind& k) { return k.open_since ? 1 : 0; });
}

}  // namespace

void Histogram::add(double value) {
  const auto at = std::ranges::lower_bound(bounds_, value) - bounds_.begin();
  ++counts_[static_cast<size_t>(at)];
  sum_ += value;
}

void Histogram::append(std::string& text, const std::string& name, const std::string& labels) const {
  uint64_t n = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    n += counts_[i];
    const std::string bound = i < bounds_.size() ? number(bounds_[i]) : "+Inf";
    text += name + "_bucket{" + labels + ",le=\"" + bound + "\"} " + number(static_cast<double>(n)) + "\n";
  }
  text += name + "_sum{" + labels + "} " + number(sum_) + "\n";
  text += name + "_count{" + labels + "} " + number(static_cast<double>(n)) + "\n";
}

Metrics::Metrics(std::string model_name, int64_t max_positions)
    : labels_("model_name=\"" + escaped(model_name) + "\",engine=\"0\""),
      finished_{{"abort", 0}, {"error", 0}, {"length", 0}, {"stop", 0}},
      refused_{{"access", 0}, {"documents", 0}, {"queue", 0}},
      statuses_{{"200", 0}, {"400", 0}, {"401", 0}, {"403", 0}, {"404", 0},
                {"429", 0}, {"499", 0}, {"500", 0}, {"503", 0}},
      ttft_(kFirstToken),
      gap_(kGap),
      per_token_(kGap),
      all_(kRequest),
      queue_(kRequest),
      prefill_(kRequest),
      decode_(kRequest),
      n_prompts_(token_bounds(max_positions)),
      n_answers_(token_bounds(max_positions)) {}

void Metrics::add_to(Counts& counts, const std::string& key) {
  const std::lock_guard lock(mutex_);
  ++counts[key];
}

void Metrics::add_gap(double seconds) {
  const std::lock_guard lock(mutex_);
  gap_.add(seconds);
}

void Metrics::add(const GenerateResult& result, const Times& times) {
  const auto n_tokens = static_cast<double>(result.tokens.size());
  const Timings& t = result.timings;
  const std::lock_guard lock(mutex_);
  ++finished_[result.finish_reason == FinishReason::kCancelled ? "abort" : name(result.finish_reason)];
  all_.add(times.all);
  coded_bytes_read_ += result.kv.coded_bytes_read;
  kv_reads_ += result.kv.reads;
  n_preemptions_ += result.preemptions.n_times;
  n_replayed_ += result.preemptions.n_replayed;
  n_replayed_otherwise_ += result.preemptions.n_different;
  if (result.tokens.empty()) return;  // it ended before its first token
  n_prompt_ += result.n_prompt;
  n_generated_ += std::ssize(result.tokens);
  n_prefix_queried_ += result.n_prompt;
  n_prefix_hit_ += result.cache.n_prefix_tokens;
  n_cached_ += result.cache.n_loaded();
  ttft_.add(times.to_first);
  queue_.add(std::max(0.0, times.to_first - t.ttft_ms / 1000));
  prefill_.add(t.ttft_ms / 1000);
  decode_.add(t.decode_ms / 1000);
  if (n_tokens > 1) per_token_.add(t.decode_ms / 1000 / (n_tokens - 1));
  n_prompts_.add(result.n_prompt);
  n_answers_.add(n_tokens);
  vision_s_ += t.vision_ms / 1000;
  compress_s_ += t.compress_ms / 1000;
}

std::string Metrics::text(const Inference::State& state, size_t n_connections, const Uploads::State& uploads) const {
  Writer w(labels_);
  const std::lock_guard lock(mutex_);
  w.one("vllm:num_requests_running", "gauge", "Requests that are computed.", state.n_running);
  w.one("vllm:num_requests_waiting", "gauge", "Requests that wait for that.", state.n_waiting);
  const double most = static_cast<double>(std::max<int64_t>(1, state.kv_max_bytes));
  w.one("vllm:kv_cache_usage_perc", "gauge", "KV pages in use, kept prefixes included; 1: all.",
        static_cast<double>(state.kv_bytes) / most);
  w.family("vllm:cache_config_info", "gauge", "Slots of a KV page, and how many pages there may be.");
  w.value(1, "block_size=\"" + std::to_string(kPageSlots) + "\",num_gpu_blocks=\"" +
                 std::to_string(state.kv_max_pages) + "\"");
  w.one("vllm:num_preemptions_total", "counter", "Times that a request freed its KV for others and was resumed later.",
        static_cast<double>(n_preemptions_));
  w.one("vlcache:replayed_tokens_total", "counter", "Tokens of answers that were computed again after preemption.",
        static_cast<double>(n_replayed_));
  w.one("vlcache:replayed_tokens_different_total", "counter",
        "Of these, where checked: tokens that were no longer the likeliest (0 in f32).",
        static_cast<double>(n_replayed_otherwise_));
  w.one("vllm:prefix_cache_queries_total", "counter", "Prompt tokens looked up in the prefix cache.",
        static_cast<double>(n_prefix_queried_));
  w.one("vllm:prefix_cache_hits_total", "counter", "Prompt tokens found in it.", static_cast<double>(n_prefix_hit_));
  w.one("vllm:prompt_tokens_total", "counter", "Prompt tokens.", static_cast<double>(n_prompt_));
  w.one("vllm:generation_tokens_total", "counter", "Generated tokens.", static_cast<double>(n_generated_));
  w.each("vllm:request_success_total", "finished_reason", "Answers, by how they ended.", finished_);
  w.histogram("vllm:time_to_first_token_seconds", "From a request to its first text.", ttft_);
  w.histogram("vllm:inter_token_latency_seconds", "Between two pieces of an answer's text, tokens as a rule.", gap_);
  w.histogram("vllm:request_time_per_output_token_seconds", "Between two tokens, mean over an answer.", per_token_);
  w.histogram("vllm:e2e_request_latency_seconds", "From a request to its end.", all_);
  w.histogram("vllm:request_queue_time_seconds", "From a request to its place in the batch.", queue_);
  w.histogram("vllm:request_prefill_time_seconds", "From there to the first token.", prefill_);
  w.histogram("vllm:request_decode_time_seconds", "From the first token to the last.", decode_);
  w.histogram("vllm:request_prompt_tokens", "Prompt tokens of a request.", n_prompts_);
  w.histogram("vllm:request_generation_tokens", "Generated tokens of an answer.", n_answers_);
  w.one("vlcache:cached_tokens_total", "counter", "Prompt tokens not computed: prefixes and images, mean over layers.",
        n_cached_);
  w.one("vlcache:vision_seconds_total", "counter", "Time in image encoders.", vision_s_);
  w.one("vlcache:compress_seconds_total", "counter", "Time in policies that keep or drop KV.", compress_s_);
  w.one("vlcache:kv_bytes", "gauge", "KV pages in use.", static_cast<double>(state.kv_bytes));
  w.family("vlcache:kv_codec_bytes", "gauge", "KV pages in use, by the codec of their values (--kv-codec).");
  for (const auto& [codec, bytes] : state.kv_bytes_by_codec) {
    w.value(static_cast<double>(bytes), "codec=\"" + std::string(kv_codec_name(codec)) + "\"");
  }
  w.one("vlcache:kv_coded_read_bytes_total", "counter",
        "Pages of codes that attention has read, in answers that ended.", static_cast<double>(coded_bytes_read_));
  w.one("vlcache:kv_read_bytes_total", "counter", "KV pages that attention has read, in answers that ended.",
        static_cast<double>(kv_reads_.bytes));
  w.one("vlcache:kv_shared_read_bytes_total", "counter",
        "KV pages that it did not read again, because requests read pages together (--shared-attention).",
        static_cast<double>(kv_reads_.saved));
  w.one("vlcache:kv_max_bytes", "gauge", "KV pages that there may be.", static_cast<double>(state.kv_max_bytes));
  w.one("vlcache:connections", "gauge", "Open connections.", static_cast<double>(n_connections));
  w.each("vlcache:requests_refused_total", "reason", "Requests that were not let in.", refused_);
  w.each("vlcache:http_responses_total", "status", "Replies, by status; 499: the client left before.", statuses_);
  write_uploads(w, uploads);
  write_caches(w, state.caches);
  if (!state.reuse.empty()) write_reuse(w, state.reuse);
  return w.take();
}

void AnswerTimes::text() {
  const Clock::time_point now = Clock::now();
  if (to_first_ < 0) {
    to_first_ = std::chrono::duration<double>(now - begin_).count();
  } else {
    metrics_.add_gap(std::chrono::duration<double>(now - last_).count());
  }
  last_ = now;
}

void AnswerTimes::done(const GenerateResult& result) {
  const double all = seconds_since(begin_);
  metrics_.add(result, {.to_first = to_first_ < 0 ? all : to_first_, .all = all});
}

}  // namespace vlcache
