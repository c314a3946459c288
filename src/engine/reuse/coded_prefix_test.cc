// Prefixes of an engine whose full KV pages become codes: reused where a sequence can continue, under that codec alone.
#include "engine/engine_caches.h"
#include "engine/engine_testing.h"
#include "engine/reuse/prefix_reuse.h"
#include "engine/reuse/shortened_prefix.h"
#include "store/fake_tier_testing.h"

namespace vlcache {
namespace {

class CodedPrefixReuse : public testing::Test {
 protected:
  std::unique_ptr<Engine> start(std::optional<KvCodec> codec = KvCodec::kInt8, int64_t cache_bytes = 64 << 20) const {
    const Json config = parse_json(
        R"({"vocab_size": 61, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2,
      "num_key_value_heads": 2, "head_dim": 16, "torch_dtype": "float32", "num_hidden_layers": 2,
      "max_position_embeddings": 4096, "model_type": "llama"})",
        "test");
    EngineOptions options;
    options.backend = "ref";
    options.kv_memory_bytes = 64 << 20;
    options.cache_bytes = cache_bytes;
    options.kv_codec = codec;
    options.tiers = {tier_};
    options.save_prefixes = saving_;
    return Engine::random(parse_model_config(config, "test"), options, /*seed=*/5);
  }
  // Of n tokens, which differ from other prompts' from n_common on.
  static std::vector<int32_t> prompt(int32_t n, int32_t n_common, uint32_t seed) {
    std::vector<int32_t> tokens = random_tokens(n_common, 1);
    tokens.push_back(static_cast<int32_t>(seed));
    const std::vector<int32_t> rest = random_tokens(n - n_common - 1, seed);
    tokens.insert(tokens.end(), rest.begin(), rest.end());
    return tokens;
  }
  static GenerateResult ask(Engine& engine, const std::vector<int32_t>& tokens) {
    GenerateResult result = generate(engine, prefix_request(engine, tokens));
    EXPECT_EQ(ids_of(result), answer_alone(engine, tokens));
    return result;
  }

  const std::shared_ptr<FakeTier> tier_ = std::make_shared<FakeTier>(nullptr, "fake", /*near=*/true);
  PrefixSaving saving_ = PrefixSaving::kAuto;
};

TEST_F(CodedPrefixReuse, FromTheThirdPromptOnAllThatIsSharedIsReused) {
  const auto engine = start();
  EXPECT_EQ(ask(*engine, prompt(620, 300, 2)).cache.n_prefix_tokens, 0);
  const GenerateResult second = ask(*engine, prompt(560, 300, 3));
  EXPECT_EQ(second.cache.n_prefix_tokens, 64);
  EXPECT_EQ(second.cache.prefix_reason,
            "236 more tokens are in the cache, but coded KV can be continued only at certain places");
  EXPECT_EQ(ask(*engine, prompt(400, 300, 4)).cache.n_prefix_tokens, 300);
  const GenerateResult again = ask(*engine, prompt(560, 300, 3));
  EXPECT_EQ(again.cache.n_prefix_tokens, 559);
  EXPECT_EQ(again.cache.prefix_reason, "");
  EXPECT_EQ(ask(*engine, prompt(512, 300, 5)).cache.n_prefix_tokens, 300);
  EXPECT_EQ(ask(*engine, prompt(512, 300, 5)).cache.n_prefix_tokens, 511);  // the end of a block of rows
  expect_no_page_lost(*engine);
}

// Memory that holds a part of each prompt: the rest of one may end where no sequence can continue.
TEST_F(CodedPrefixReuse, EvictedPrefixesGiveTheSameAnswers) {
  const auto large = start();
  const auto engine = start(KvCodec::kInt8, 9 * large->caches().usual().prefixes().group_bytes());
  int32_t n_reused = 0;
  for (const auto& [n, n_common] : {std::pair(500, 300), {420, 300}, {600, 300}, {420, 300}, {330, 310}}) {
    n_reused += ask(*engine, prompt(n, n_common, static_cast<uint32_t>(n) % 50)).cache.n_prefix_tokens;
  }
  EXPECT_GT(n_reused, 300);
  EXPECT_GT(engine->caches().usual().prefixes().stats().n_evictions, 0);
  expect_no_page_lost(*engine);
}

// A request waits for one that computes what it shares, if it can continue there.
TEST_F(CodedPrefixReuse, WaitsForAPlaceThatIsToCome) {
  const auto engine = start();
  const std::vector<int32_t> first = prompt(600, 300, 2);
  std::vector<int32_t> longer = first, parted = prompt(500, 300, 3);
  longer.insert(longer.end(), 30, 7);
  std::vector<Request> requests;
  for (const std::vector<int32_t>& tokens : {first, longer, parted})
    requests.push_back(prefix_request(*engine, tokens));
  const std::vector<GenerateResult> results = generate(*engine, std::move(requests));
  EXPECT_EQ(results[1].cache.n_prefix_tokens, 576);
  EXPECT_EQ(results[2].cache.n_prefix_tokens, 64);
  EXPECT_EQ(ids_of(results[1]), answer_alone(*engine, longer));
  EXPECT_EQ(ids_of(results[2]), answer_alone(*engine, parted));
}

TEST_F(CodedPrefixReuse, TiersGiveItUnderTheSameCodecAlone) {
  const std::vector<int32_t> tokens = prompt(450, 400, 2);
  const auto save = [&](std::optional<KvCodec> codec) {
    const auto engine = start(codec);
    ask(*engine, tokens);
    engine->kv().save_prefixes(kNoDeadline);
  };
  save(KvCodec::kInt8);
  {
    const auto engine = start(KvCodec::kInt8);
    const GenerateResult found = ask(*engine, tokens);
    EXPECT_EQ(found.cache.n_prefix_tokens, 449);
    EXPECT_EQ(found.cache.prefix_sources.at("fake"), 449);
    EXPECT_EQ(ask(*engine, prompt(300, 200, 3)).cache.n_prefix_tokens, 64);
    EXPECT_EQ(ask(*engine, tokens).cache.prefix_sources.size(), 0);  // from memory
  }
  for (const std::optional<KvCodec> other : {std::optional<KvCodec>(), {KvCodec::kInt4}}) {
    const GenerateResult missed = ask(*start(other), tokens);
    EXPECT_EQ(missed.cache.n_prefix_tokens, 0);
    EXPECT_EQ(missed.cache.prefix_reason, "the prompt's beginning is stored, but computed with KV codec int8");
  }
  save(std::nullopt);
  EXPECT_EQ(ask(*start(std::nullopt), tokens).cache.n_prefix_tokens, 449);
}

// Memory has the beginning of a prompt, tiers have all of it: the loaded pages join the cached ones.
TEST_F(CodedPrefixReuse, TiersContinueWhatMemoryHas) {
  const std::vector<int32_t> longer = prompt(700, 500, 2);
  const std::vector<int32_t> beginning(longer.begin(), longer.begin() + 390);
  {
    const auto engine = start();
    ask(*engine, longer);
    engine->kv().save_prefixes(kNoDeadline);
  }
  saving_ = PrefixSaving::kAlways;  // at any measured speed of the tier
  for (const int32_t n : {390, 100}) {
    const auto engine = start();
    ask(*engine, {beginning.begin(), beginning.begin() + n});
    const GenerateResult found = ask(*engine, longer);
    EXPECT_EQ(found.cache.n_prefix_tokens, 699) << n;
    EXPECT_GE(found.cache.prefix_sources.at("fake"), 699 - n);
    expect_no_page_lost(*engine);
  }
}

TEST_F(CodedPrefixReuse, SessionsComeBack) {
  const std::vector<int32_t> tokens = random_tokens(500, 1), question = random_tokens(50, 2);
  PrefixTokens stored;
  {
    const auto engine = start();
    const auto sequence = make_sequence(*engine, tokens);
    compute(*engine, *sequence, 512);
    stored = PrefixReuse::store(*engine, *sequence, {});
    EXPECT_TRUE(engine->caches().usual().prefix_store()->flush(kNoDeadline));
  }
  const auto plain = start(std::nullopt);
  EXPECT_EQ(PrefixReuse::restore(*plain, stored), 0);
  EXPECT_EQ(PrefixReuse::restore(*plain, stored, KvCodec::kInt8), 500);
  const auto engine = start();
  EXPECT_EQ(PrefixReuse::restore(*engine, stored), 500);
  std::vector<int32_t> longer = tokens;
  longer.insert(longer.end(), question.begin(), question.end());
  EXPECT_EQ(ask(*engine, longer).cache.n_prefix_tokens, 500);
  // Its oldest turns are taken out: the rest moves, and its codes are made again.
  Prompt shorter = engine->prepare_tokens({longer.begin() + 200, longer.end()});
  EXPECT_EQ(shorten_prefix(*engine, stored, PrefixReuse::cached(*engine, stored), shorter), 300);
  Request request = prefix_request(*engine, {1});
  request.prompt = std::move(shorter);
  EXPECT_EQ(generate(*engine, std::move(request)).cache.n_prefix_tokens, 300);
  expect_no_page_lost(*engine);
}

}  // namespace
}  // namespace vlcache
