// Metrics in Prometheus' text format: with vLLM's names where the meaning is the same, so that its dashboards show
// them, and vlcache:... elsewhere.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "api/messages/uploads.h"
#include "base/clock.h"
#include "engine/request.h"
#include "server/operations/inference.h"

namespace vlcache {

class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}
  void add(double value);
  // Appends the lines of name{labels,le="..."}, _sum and _count.
  void append(std::string& text, const std::string& name, const std::string& labels) const;

 private:
  std::vector<double> bounds_;    // ascending, upper and inclusive
  std::vector<uint64_t> counts_;  // by the first bound that holds the value; the last: no bound does
  double sum_ = 0;
};

// Counts all requests since the start. Any thread.
class Metrics {
 public:
  // max_positions: the model's, which bounds the histograms of tokens.
  Metrics(std::string model_name, int64_t max_positions);

  // Seconds between two pieces of an answer's text.
  void add_gap(double seconds);
  struct Times {
    double to_first = 0, all = 0;  // seconds since the request arrived
  };
  void add(const GenerateResult& result, const Times& times);
  void add_refused(const char* reason) { add_to(refused_, reason); }
  void add_status(int status) { add_to(statuses_, std::to_string(status)); }

  std::string text(const Inference::State& state, size_t n_connections, const Uploads::State& uploads = {}) const;

 private:
  using Counts = std::map<std::string, int64_t>;
  void add_to(Counts& counts, const std::string& key);

  std::string labels_;
  mutable std::mutex mutex_;  // guards all below
  int64_t n_prompt_ = 0, n_generated_ = 0, n_prefix_queried_ = 0, n_prefix_hit_ = 0;
  int64_t coded_bytes_read_ = 0;
  KvReads kv_reads_;
  int64_t n_preemptions_ = 0, n_replayed_ = 0, n_replayed_otherwise_ = 0;
  double n_cached_ = 0;
  Counts finished_, refused_, statuses_;
  Histogram ttft_, gap_, per_token_, all_, queue_, prefill_, decode_, n_prompts_, n_answers_;
  double vision_s_ = 0, compress_s_ = 0;
};

// Measures the times of one answer, as its client sees them, for Metrics. Used by the inference thread.
class AnswerTimes {
 public:
  AnswerTimes(Metrics& metrics, Clock::time_point begin) : metrics_(metrics), begin_(begin) {}
  void text();
  void done(const GenerateResult& result);

 private:
  Metrics& metrics_;
  Clock::time_point begin_, last_{};
  double to_first_ = -1;
};

}  // namespace vlcache
