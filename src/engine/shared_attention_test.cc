// Sequences that share pages of KV read them together: the same tokens as alone, with fewer bytes.
#include <gtest/gtest.h>

#include "engine/engine_testing.h"

#ifndef VLCACHE_REF_ONLY

namespace vlcache {
namespace {

constexpr int64_t kSharingMemory = 64 << 20, kSharingCache = 8 << 20;

// size: all that engines here differ in.
struct SharingEngine {
  bool share = true;
  std::optional<KvCodec> codec;
  std::string_view model_type = "llama";
  int64_t kv_memory_bytes = kSharingMemory;
};

std::unique_ptr<Engine> sharing_engine(const SharingEngine& shape) {
  Json config = parse_json(
      R"({"vocab_size": 61, "hidden_size": 48, "intermediate_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2,
          "num_key_value_heads": 2, "head_dim": 32, "torch_dtype": "float32", "sliding_window": 40,
          "max_position_embeddings": 4096})",
      "test");
  config["model_type"] = shape.model_type;
  EngineOptions options;
  options.kv_memory_bytes = shape.kv_memory_bytes;
  options.cache_bytes = kSharingCache;
  options.kv_codec = shape.codec;
  options.share_attention = shape.share;
  return Engine::random(parse_model_config(config, "test"), options, /*seed=*/5);
}

std::vector<int32_t> prompt_with_common_start(int32_t n_common, uint32_t seed) {
  std::vector<int32_t> tokens = random_tokens(n_common);
  for (const int32_t t : random_tokens(20 + static_cast<int32_t>(seed), seed)) tokens.push_back(t);
  return tokens;
}

KvReads sum_of_reads(const std::vector<GenerateResult>& results) {
  KvReads sum;
  for (const GenerateResult& r : results) sum += r.kv.reads;
  return sum;
}

// Answers of several lengths to prompts that begin alike, of which the cache has the beginning: rows leave their groups
// one by one, and the last ones read alone.
std::vector<GenerateResult> answers_to_common_start(Engine& engine, const std::vector<std::string>& policies) {
  generate(engine, prefix_request(engine, random_tokens(700)));
  std::vector<Request> requests;
  for (uint32_t i = 0; i < policies.size(); ++i) {
    requests.push_back(prefix_request(engine, prompt_with_common_start(700, 30 + i), policies[i],
                                      takes_budget(policies[i]) ? "0.4" : ""));
    requests.back().options.max_tokens = 4 + 5 * static_cast<int32_t>(i);
  }
  return generate(engine, std::move(requests));
}

void expect_equal_answers(const std::vector<GenerateResult>& a, const std::vector<GenerateResult>& b) {
  for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(ids_of(a[i]), ids_of(b[i])) << i;
}

TEST(SharedAttention, AnswersTheSameWithFewerBytes) {
  for (const std::optional<KvCodec> codec : {std::optional<KvCodec>(), std::optional(KvCodec::kInt8)}) {
    const std::vector<std::string> policies(5, "full");
    const std::vector<GenerateResult> on = answers_to_common_start(*sharing_engine({.codec = codec}), policies),
                                      off = answers_to_common_start(*sharing_engine({.share = false, .codec = codec}),
                                                                    policies);
    expect_equal_answers(on, off);
    EXPECT_EQ(sum_of_reads(off).saved, 0);
    EXPECT_GT(sum_of_reads(on).saved, 0);
    EXPECT_EQ(sum_of_reads(on).bytes + sum_of_reads(on).saved, sum_of_reads(off).bytes);
    for (const GenerateResult& r : on) EXPECT_GT(r.kv.reads.saved, 0);
  }
}

// A rule that wants the logits of its rows, a policy that has evicted, and layers with a window: such rows read alone.
TEST(SharedAttention, LeavesOtherRowsAlone) {
  const std::vector<std::string> policies{"h2o", "snapkv", "streaming:sinks=4", "full", "full"};
  const std::vector<GenerateResult> on = answers_to_common_start(*sharing_engine({}), policies),
                                    off = answers_to_common_start(*sharing_engine({.share = false}), policies);
  expect_equal_answers(on, off);
  for (size_t i = 0; i < policies.size(); ++i)
    EXPECT_EQ(on[i].kv.reads.saved > 0, policies[i] == "full") << policies[i];
  for (size_t i = 0; i < policies.size(); ++i) EXPECT_EQ(on[i].kv.slots, off[i].kv.slots) << policies[i];
  const std::vector<std::string> all(3, "full");
  EXPECT_EQ(sum_of_reads(answers_to_common_start(*sharing_engine({.model_type = "mistral"}), all)).saved, 0);
}

// Memory for two of four answers: preempted requests come back, find the common beginning and share it again.
TEST(SharedAttention, PreemptedRequestsAnswerTheSame) {
  constexpr int32_t kCommon = 640, kAnswer = 200;
  const int64_t memory = sharing_engine({})->kv_bytes(1280);
  std::vector<std::vector<GenerateResult>> results;
  for (const bool share : {true, false}) {
    const auto engine = sharing_engine({.share = share, .kv_memory_bytes = share ? memory : kSharingMemory});
    generate(*engine, prefix_request(*engine, random_tokens(kCommon)));
    std::vector<Request> requests;
    for (uint32_t i = 0; i < 4; ++i) {
      requests.push_back(prefix_request(*engine, prompt_with_common_start(kCommon, 30 + i)));
      requests.back().options.max_tokens = kAnswer;
    }
    results.push_back(generate(*engine, std::move(requests)));
    expect_no_page_lost(*engine);
  }
  expect_equal_answers(results[0], results[1]);
  int32_t n_preempted = 0;
  for (const GenerateResult& r : results[0]) {
    n_preempted += r.preemptions.n_times;
    EXPECT_EQ(r.preemptions.n_different, 0);
  }
  EXPECT_GT(n_preempted, 0);
  EXPECT_GT(sum_of_reads(results[0]).saved, 0);
}

// Forks share all pages but the last, which each copies; one of them is cancelled while the others read with it.
TEST(SharedAttention, ForksAndACancelledRequest) {
  std::vector<std::vector<GenerateResult>> results;
  for (const bool share : {true, false}) {
    const auto engine = sharing_engine({.share = share});
    const auto s = make_sequence(*engine, random_tokens(700));
    compute(*engine, *s, 700);
    std::vector<std::unique_ptr<Sequence>> forks;
    std::vector<Request> requests;
    int32_t n_tokens = 0;
    for (uint32_t i = 0; i < 4; ++i) {
      forks.push_back(s->fork(parse_policy("full"), {}));
      requests.push_back(prefix_request(*engine, prompt_with_common_start(700, 30 + i)));
      requests.back().options.max_tokens = 20;
      forks.back()->continue_with(requests.back().prompt);
      requests.back().sequence = forks.back().get();
    }
    requests[1].callbacks.on_token = [&n_tokens](const GeneratedToken&) { ++n_tokens; };
    requests[1].callbacks.cancelled = [&n_tokens] { return n_tokens >= 7; };
    results.push_back(generate(*engine, std::move(requests)));
    EXPECT_EQ(results.back()[1].finish_reason, FinishReason::kCancelled);
    EXPECT_GE(std::ssize(results.back()[1].tokens), 7);
    EXPECT_LT(std::ssize(results.back()[1].tokens), 20);
  }
  expect_equal_answers(results[0], results[1]);
  for (const GenerateResult& r : results[0]) EXPECT_GT(r.kv.reads.saved, 0);
}

}  // namespace
}  // namespace vlcache

#endif
