// The text that Prometheus reads: every line matches its grammar, buckets add up, labels are escaped.
#include "server/operations/metrics.h"

#include <gtest/gtest.h>

#include <regex>
#include <set>
#include <sstream>

namespace vlcache {
namespace {

GenerateResult result(size_t n_tokens, FinishReason reason) {
  GenerateResult r;
  r.tokens.resize(n_tokens);
  r.finish_reason = reason;
  r.n_prompt = 100;
  r.cache.n_prefix_tokens = 64;
  r.timings.ttft_ms = 50;
  r.timings.decode_ms = 300;
  return r;
}

double value(const std::string& text, const std::string& series) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(series + " ")) return std::stod(line.substr(series.size() + 1));
  }
  ADD_FAILURE() << series << " is not in\n" << text;
  return -1;
}

const std::string kModel = R"({model_name="m",engine="0")";

TEST(Metrics, CountAnswers) {
  Metrics metrics("m", 4096);
  GenerateResult coded = result(4, FinishReason::kStop);
  coded.kv.coded_bytes_read = 512;
  coded.kv.reads = {.bytes = 2048, .saved = 1024};
  metrics.add(coded, {.to_first = 0.07, .all = 0.4});
  metrics.add(result(1, FinishReason::kLength), {.to_first = 3, .all = 3});
  metrics.add(result(0, FinishReason::kCancelled), {.to_first = 1, .all = 1});
  metrics.add_gap(0.1);
  const std::string first = metrics.text({.kv_max_pages = 9}, 0);
  EXPECT_EQ(value(first, "vlcache:requests_refused_total" + kModel + ",reason=\"access\"}"), 0);
  EXPECT_EQ(value(first, "vlcache:http_responses_total" + kModel + ",status=\"429\"}"), 0);
  EXPECT_EQ(value(first, "vllm:cache_config_info" + kModel + ",block_size=\"64\",num_gpu_blocks=\"9\"}"), 1);
  metrics.add_refused("queue");
  const std::string text = metrics.text({.n_running = 2,
                                         .n_waiting = 3,
                                         .kv_bytes = 1,
                                         .kv_max_bytes = 4,
                                         .kv_bytes_by_codec = {{KvCodec::kBF16, 0}, {KvCodec::kInt8, 1}}},
                                        7);
  EXPECT_EQ(value(text, "vlcache:kv_codec_bytes" + kModel + ",codec=\"bf16\"}"), 0);
  EXPECT_EQ(value(text, "vlcache:kv_codec_bytes" + kModel + ",codec=\"int8\"}"), 1);
  EXPECT_EQ(value(text, "vlcache:kv_coded_read_bytes_total" + kModel + "}"), 512);
  EXPECT_EQ(value(text, "vlcache:kv_read_bytes_total" + kModel + "}"), 2048);
  EXPECT_EQ(value(text, "vlcache:kv_shared_read_bytes_total" + kModel + "}"), 1024);
  EXPECT_EQ(value(text, "vllm:num_requests_running" + kModel + "}"), 2);
  EXPECT_EQ(value(text, "vllm:num_requests_waiting" + kModel + "}"), 3);
  EXPECT_EQ(value(text, "vllm:kv_cache_usage_perc" + kModel + "}"), 0.25);
  EXPECT_EQ(value(text, "vllm:prompt_tokens_total" + kModel + "}"), 200);
  EXPECT_EQ(value(text, "vllm:generation_tokens_total" + kModel + "}"), 5);
  EXPECT_EQ(value(text, "vllm:prefix_cache_queries_total" + kModel + "}"), 200);
  EXPECT_EQ(value(text, "vllm:prefix_cache_hits_total" + kModel + "}"), 128);
  EXPECT_EQ(value(text, "vllm:request_success_total" + kModel + ",finished_reason=\"stop\"}"), 1);
  EXPECT_EQ(value(text, "vllm:request_success_total" + kModel + ",finished_reason=\"abort\"}"), 1);
  EXPECT_EQ(value(text, "vllm:time_to_first_token_seconds_count" + kModel + "}"), 2);
  EXPECT_EQ(value(text, "vllm:time_to_first_token_seconds_bucket" + kModel + ",le=\"0.06\"}"), 0);
  EXPECT_EQ(value(text, "vllm:time_to_first_token_seconds_bucket" + kModel + ",le=\"0.08\"}"), 1);
  EXPECT_EQ(value(text, "vllm:inter_token_latency_seconds_bucket" + kModel + ",le=\"0.1\"}"), 1);  // inclusive
  EXPECT_EQ(value(text, "vllm:inter_token_latency_seconds_bucket" + kModel + ",le=\"0.075\"}"), 0);
  EXPECT_DOUBLE_EQ(value(text, "vllm:request_time_per_output_token_seconds_sum" + kModel + "}"), 0.1);
  EXPECT_EQ(value(text, "vllm:request_generation_tokens_bucket" + kModel + ",le=\"2.0\"}"), 1);
  EXPECT_EQ(value(text, "vlcache:requests_refused_total" + kModel + ",reason=\"queue\"}"), 1);
  EXPECT_EQ(value(text, "vlcache:connections" + kModel + "}"), 7);
}

TEST(Metrics, EveryLineMatchesTheGrammar) {
  Metrics metrics("a \"quoted\\\" name\nof two lines", 100);
  for (int i = 0; i < 20; ++i)
    metrics.add(result(static_cast<size_t>(i), FinishReason::kStop), {.to_first = 0.01 * i, .all = 0.1 * i});
  metrics.add_status(200);
  Inference::State state;
  state.caches.tiers.push_back({.name = "disk"});
  const std::string text = metrics.text(state, 0);
  const std::regex comment("# (HELP|TYPE) [a-z0-9_:]+ .+"),
      sample("[a-z_:0-9]+\\{([a-z_]+=\"([^\"\\\\\n]|\\\\[\\\\\"n])*\",?)*\\} (\\+Inf|NaN|[0-9.e+-]+)");
  std::istringstream lines(text);
  std::set<std::string> series, types;
  for (std::string line; std::getline(lines, line);) {
    EXPECT_TRUE(std::regex_match(line, line.starts_with('#') ? comment : sample)) << line;
    const std::string name =
        line.starts_with('#') ? line.substr(0, line.find(' ', 8)) : line.substr(0, line.rfind(' '));
    EXPECT_TRUE(series.insert(name).second) << "twice: " << line;
  }
  EXPECT_NE(text.find("model_name=\"a \\\"quoted\\\\\\\" name\\nof two lines\""), text.npos);
  EXPECT_NE(text.find("vlcache:tier_hits_total{"), text.npos);
}

TEST(Metrics, FailuresOfTiersAreCountedByOperationAndReason) {
  Metrics metrics("m", 100);
  Inference::State state;
  TierChain::State& tier = state.caches.tiers.emplace_back();
  tier.name = "redis";
  tier.stats.n_missed[static_cast<size_t>(MissReason::kIo)] = 3;
  tier.stats.n_missed[static_cast<size_t>(MissReason::kAbsent)] = 50;
  tier.stats.n_put[static_cast<size_t>(PutOutcome::kNoSpace)] = 2;
  tier.stats.n_put[static_cast<size_t>(PutOutcome::kOutranked)] = 7;
  tier.stats.cannot_write = "no space: OOM";
  state.caches.first_use = {.queued = 100, .beyond_bound = 30, .hour = 90, .most_an_hour = 120};
  const std::string text = metrics.text(state, 0), labels = "{model_name=\"m\",engine=\"0\",tier=\"redis\"";
  const auto has = [&](const std::string& line) { return text.find(line + "\n") != text.npos; };
  EXPECT_TRUE(has("vlcache:tier_failed_total" + labels + "} 5.0")) << text;
  EXPECT_TRUE(has("vlcache:tier_errors_total" + labels + ",operation=\"read\",reason=\"io error\"} 3.0"));
  EXPECT_TRUE(has("vlcache:tier_errors_total" + labels + ",operation=\"write\",reason=\"no space\"} 2.0"));
  EXPECT_TRUE(has("vlcache:tier_errors_total" + labels + ",operation=\"write\",reason=\"io error\"} 0.0"));
  EXPECT_TRUE(has("vlcache:tier_up" + labels + "} 0.0"));
  EXPECT_TRUE(has("vlcache:tier_skipped_total" + labels + ",reason=\"outranked\"} 7.0"));
  const std::string model = "{model_name=\"m\",engine=\"0\"";
  EXPECT_TRUE(has("vlcache:first_use_bytes_total" + model + "} 100.0"));
  EXPECT_TRUE(has("vlcache:first_use_skipped_bytes_total" + model + ",reason=\"bound\"} 30.0"));
  EXPECT_TRUE(has("vlcache:first_use_hour_bytes" + model + "} 90.0"));
  EXPECT_TRUE(has("vlcache:first_use_max_hour_bytes" + model + "} 120.0"));
}

TEST(Histogram, BucketsAreCumulative) {
  Histogram histogram({1, 2});
  for (const double x : {0.5, 1.0, 1.5, 2.5, 100.0}) histogram.add(x);
  std::string text;
  histogram.append(text, "h", "a=\"b\"");
  EXPECT_EQ(text,
            "h_bucket{a=\"b\",le=\"1.0\"} 2.0\nh_bucket{a=\"b\",le=\"2.0\"} 3.0\nh_bucket{a=\"b\",le=\"+Inf\"} 5.0\n"
            "h_sum{a=\"b\"} 105.5\nh_count{a=\"b\"} 5.0\n");
}

}  // namespace
}  // namespace vlcache
