// Engines with layers that have a sliding window and free the pages before it. Answers equal a computation in one step,
// which frees nothing, wherever a sequence continues.
#include <set>

#include "engine/engine_caches.h"
#include "engine/engine_testing.h"
#include "engine/page_testing.h"
#include "engine/reuse/prefix_load.h"
#include "engine/reuse/prefix_reuse.h"
#include "engine/reuse/shortened_prefix.h"
#include "store/fake_tier_testing.h"

namespace vlcache {
namespace {

constexpr int32_t kSlidingWindow = 100;

struct WindowedModel {
  std::string_view model_type;  // mistral: all layers have the window; qwen2: the last alone
  std::optional<KvCodec> codec;
};

// Two layers; `window`: a number, or null for none.
ModelConfig two_layers(std::string_view model_type, const Json& window) {
  Json config = parse_json(
      R"({"vocab_size": 61, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 16, "torch_dtype": "float32", "num_hidden_layers": 2,
    "max_position_embeddings": 8192, "use_sliding_window": true, "max_window_layers": 1})",
      "test");
  config["model_type"] = model_type;
  config["sliding_window"] = window;
  if (model_type.ends_with("_vl_text")) config["rope_scaling"] = {{"mrope_section", {2, 3, 3}}};
  return parse_model_config(config, "test");
}
std::unique_ptr<Engine> two_layer_engine(std::string_view model_type, const Json& window = kSlidingWindow) {
  return Engine::random(two_layers(model_type, window), {.backend = "ref", .kv_memory_bytes = 64 << 20}, /*seed=*/5);
}

class WindowedPrefix : public testing::TestWithParam<WindowedModel> {
 protected:
  std::unique_ptr<Engine> start(int64_t kv_bytes = 64 << 20, int32_t chunk = 128) const {
    EngineOptions options;
    options.backend = "ref";
    options.kv_memory_bytes = kv_bytes;
    options.cache_bytes = 32 << 20;
    options.kv_codec = GetParam().codec;
    options.prefill_chunk = chunk;
    options.tiers = {tier_};
    options.save_prefixes = saving_;
    options.cache_deadline_ms = deadline_ms_;
    return Engine::random(two_layers(GetParam().model_type, kSlidingWindow), options, /*seed=*/5);
  }
  static std::vector<int32_t> prompt(int32_t n, int32_t n_common, uint32_t seed) {
    std::vector<int32_t> tokens = random_tokens(n_common, 1);
    tokens.push_back(static_cast<int32_t>(seed));
    const std::vector<int32_t> rest = random_tokens(n - n_common - 1, seed);
    tokens.insert(tokens.end(), rest.begin(), rest.end());
    return tokens;
  }
  // The last of these answer tokens is the likeliest where all tokens are computed in one step, in which no page can be
  // freed.
  static void expect_answer(Engine& engine, std::vector<int32_t> tokens, const std::vector<int32_t>& answer) {
    ASSERT_FALSE(answer.empty());
    tokens.insert(tokens.end(), answer.begin(), answer.end() - 1);
    const auto s = make_sequence(engine, tokens);
    const std::vector<float> logits = compute(engine, *s, static_cast<int32_t>(tokens.size()));
    EXPECT_EQ(std::ranges::max_element(logits) - logits.begin(), answer.back());
  }
  static GenerateResult ask(Engine& engine, const std::vector<int32_t>& tokens) {
    GenerateResult result = generate(engine, prefix_request(engine, tokens));
    expect_answer(engine, tokens, ids_of(result));
    return result;
  }
  bool all_windowed() const { return GetParam().model_type == "mistral"; }
  bool coded() const { return GetParam().codec.has_value(); }

  // The tier's calls that open windowed records of tokens after `begin`.
  static std::set<std::string> windowed_records(Engine& engine, std::span<const TokenInfo> tokens, int32_t begin) {
    std::set<std::string> calls;
    for (const auto& piece : exact_prefix(engine, {tokens, {}, std::nullopt, engine.kv_codec()}).pieces) {
      if (piece.windowed && piece.end > begin) calls.insert("open " + std::to_string(piece.key.content[0]));
    }
    return calls;
  }

  std::set<std::string> damaged_, late_;  // calls of the tier
  Gate late_calls_;
  const std::shared_ptr<FakeTier> tier_ = std::make_shared<FakeTier>(
      [this](const std::string& call) {
        if (damaged_.contains(call)) throw Error(ErrorCode::kIo, "damaged");
        if (late_.contains(call)) late_calls_.pass();
      },
      "fake", /*near=*/true);
  double deadline_ms_ = 5000;
  PrefixSaving saving_ = PrefixSaving::kAuto;
};

TEST_P(WindowedPrefix, FreesWhatNoLaterTokenSees) {
  const auto engine = start();
  const auto s = make_sequence(*engine, random_tokens(900));
  const std::vector<float> pieces = compute(*engine, *s, 70);
  EXPECT_TRUE(s->complete());
  EXPECT_TRUE(s->exact());
  for (int32_t layer = 0; layer < 2; ++layer) {
    const bool windowed = layer == 1 || all_windowed();
    EXPECT_EQ(s->n_visible(layer, 0), windowed ? kSlidingWindow - 1 : 900);
    EXPECT_EQ(s->cache().holds(layer, 0, 0), !windowed);
    EXPECT_TRUE(s->cache().holds(layer, 1, 900 - kSlidingWindow));
  }
  if (!coded()) {
    EXPECT_EQ(s->cache().bytes(), engine->kv_bytes(900));
  }
  const auto whole = make_sequence(*engine, random_tokens(900));
  expect_close(pieces, compute(*engine, *whole, 900));
  std::vector<int32_t> ids = random_tokens(900);
  for (int i = 0; i < 150; ++i) {
    ids.push_back(i % kVocab);
    s->add_token(ids.back());
    const std::vector<float> logits = compute(*engine, *s, 1);
    if (i % 50 < 49) continue;
    const auto again = make_sequence(*engine, ids);
    expect_close(logits, compute(*engine, *again, 1100));
  }
  if (!coded()) {
    EXPECT_LE(s->cache().bytes(), engine->kv_bytes(1100));
  }
}

// A fork shares the held pages; both continue alone.
TEST_P(WindowedPrefix, ForksGoOn) {
  const auto engine = start();
  const std::vector<int32_t> tokens = random_tokens(700);
  const auto s = make_sequence(*engine, tokens);
  compute(*engine, *s, 100);
  const auto fork = s->fork(parse_policy("full"), {});
  for (Sequence* each : {s.get(), fork.get()}) {
    std::vector<int32_t> ids = tokens;
    for (int i = 0; i < 150; ++i) {
      ids.push_back(each == fork.get() ? i % 7 : i % 5);
      each->add_token(ids.back());
    }
    const std::vector<float> logits = compute(*engine, *each, 40);
    const auto whole = make_sequence(*engine, ids);
    expect_close(logits, compute(*engine, *whole, 850));
  }
}

TEST_P(WindowedPrefix, FromTheThirdPromptOnAllThatIsSharedIsReused) {
  const auto engine = start();
  EXPECT_EQ(ask(*engine, prompt(820, 300, 2)).cache.n_prefix_tokens, 0);
  const GenerateResult second = ask(*engine, prompt(760, 300, 3));
  EXPECT_EQ(second.cache.n_prefix_tokens, 0);
  EXPECT_EQ(second.cache.prefix_reason, std::string("300 more tokens are in the cache, but ") +
                                            (coded() ? "coded KV" : "a model with sliding windows") +
                                            " can be continued only at certain places");
  EXPECT_EQ(ask(*engine, prompt(500, 300, 4)).cache.n_prefix_tokens, 300);
  const GenerateResult again = ask(*engine, prompt(760, 300, 3));
  EXPECT_EQ(again.cache.n_prefix_tokens, 759);
  EXPECT_EQ(again.cache.prefix_reason, "");
  EXPECT_EQ(ask(*engine, prompt(612, 300, 5)).cache.n_prefix_tokens, 300);
  expect_no_page_lost(*engine);
}

// Four times what a place of so short a window keeps.
TEST_P(WindowedPrefix, HasRegularPlaces) {
  if (coded()) return;  // as above, and slow
  const auto engine = start(64 << 20, 512);
  generate(*engine, prefix_request(*engine, prompt(2100, 1700, 2)));
  EXPECT_EQ(generate(*engine, prefix_request(*engine, prompt(1700, 1600, 3))).cache.n_prefix_tokens, 1536);
  expect_no_page_lost(*engine);
}

// A conversation whose first message is edited after two turns.
TEST_P(WindowedPrefix, FiveTurnsOfChat) {
  const auto engine = start();
  std::vector<int32_t> tokens = random_tokens(400, 1);
  const auto s = make_sequence(*engine, tokens);
  for (uint32_t turn = 0; turn < 5; ++turn) {
    Request request = prefix_request(*engine, tokens);
    request.sequence = s.get();
    if (turn > 0) s->continue_with(request.prompt);
    const GenerateResult result = generate(*engine, std::move(request));
    const std::vector<int32_t> answer = ids_of(result);
    expect_answer(*engine, tokens, answer);
    tokens.insert(tokens.end(), answer.begin(), answer.end());
    const std::vector<int32_t> question = random_tokens(120, 20 + turn);
    tokens.insert(tokens.end(), question.begin(), question.end());
    if (turn == 2) tokens[300] = tokens[300] == 3 ? 4 : 3;
    EXPECT_LE(s->cache().bytes(), engine->kv_bytes(s->n_tokens() + 64) * (coded() ? 2 : 1));
  }
  s->release();
  expect_no_page_lost(*engine);
}

// Two requests of which memory has room for one.
TEST_P(WindowedPrefix, PreemptedRequestsGiveTheSameAnswers) {
  const auto measure = start();
  const int64_t bytes = measure->kv_bytes(800);
  const auto engine = start(coded() ? 2 * bytes : bytes + bytes / 3);  // both forms of a page for a step
  std::vector<Request> requests;
  std::vector<std::vector<int32_t>> prompts{prompt(700, 10, 2), prompt(650, 10, 3)};
  for (const std::vector<int32_t>& tokens : prompts) {
    requests.push_back(prefix_request(*engine, tokens));
    requests.back().options.max_tokens = 150;
  }
  const std::vector<GenerateResult> results = generate(*engine, std::move(requests));
  const auto large = start();
  EXPECT_GT(results[0].preemptions.n_times + results[1].preemptions.n_times, 0);
  for (size_t i = 0; i < 2; ++i) {
    ASSERT_FALSE(results[i].error) << results[i].error->what();
    expect_answer(*large, prompts[i], ids_of(results[i]));
  }
  expect_no_page_lost(*engine);
}

TEST_P(WindowedPrefix, TiersGiveItToAnotherProcess) {
  const std::vector<int32_t> tokens = prompt(850, 500, 2);
  {
    const auto engine = start();
    ask(*engine, tokens);
    engine->kv().save_prefixes(kNoDeadline);
  }
  saving_ = PrefixSaving::kAlways;  // at any measured speed of the tier
  const auto engine = start();
  const GenerateResult found = ask(*engine, tokens);
  EXPECT_EQ(found.cache.n_prefix_tokens, 849);
  EXPECT_EQ(found.cache.prefix_sources.at("fake"), 849);
  EXPECT_EQ(ask(*engine, prompt(600, 400, 3)).cache.n_prefix_tokens, 0);
  EXPECT_EQ(ask(*engine, tokens).cache.prefix_sources.size(), 0);  // from memory
  expect_no_page_lost(*engine);
}

// Memory has the beginning of a prompt, tiers have all of it.
TEST_P(WindowedPrefix, TiersContinueWhatMemoryHas) {
  const std::vector<int32_t> longer = prompt(900, 600, 2);
  {
    const auto engine = start();
    ask(*engine, longer);
    engine->kv().save_prefixes(kNoDeadline);
  }
  saving_ = PrefixSaving::kAlways;
  for (const int32_t n : {590, 100}) {
    const auto engine = start();
    ask(*engine, {longer.begin(), longer.begin() + n});
    const GenerateResult found = ask(*engine, longer);
    EXPECT_EQ(found.cache.n_prefix_tokens, 899) << n;
    expect_no_page_lost(*engine);
  }
}

// A damaged or late record of windowed layers shortens the prefix; the window of the place before it has other records.
TEST_P(WindowedPrefix, AMissedRecordShortensThePrefix) {
  if (coded()) return;  // no place before 2,048 tokens
  const std::vector<int32_t> tokens = random_tokens(1900, 1);
  {
    const auto engine = start(64 << 20, 512);
    generate(*engine, prefix_request(*engine, tokens));
    engine->kv().save_prefixes(kNoDeadline);
  }
  saving_ = PrefixSaving::kAlways;
  for (const auto& [begin, n_expected] : {std::pair{1856, 1856}, {1536, 1536}}) {
    const auto engine = start(64 << 20, 512);
    damaged_ = windowed_records(*engine, engine->prepare_tokens(tokens).token_infos(), begin);
    const GenerateResult found = ask(*engine, tokens);
    EXPECT_EQ(found.cache.n_prefix_tokens, n_expected);
    EXPECT_EQ(found.cache.prefix_sources.at("fake"), n_expected);
    expect_no_page_lost(*engine);
  }
  deadline_ms_ = 800;
  const auto engine = start(64 << 20, 512);
  const std::vector<TokenInfo> infos = engine->prepare_tokens(tokens).token_infos();
  damaged_.clear(), late_ = windowed_records(*engine, infos, 1536);
  PrefixLoad load(*engine, {infos, {}, std::nullopt, engine->kv_codec()});
  EXPECT_TRUE(load.pending(Clock::now() + std::chrono::milliseconds(1000)));
  late_calls_.open();
  EXPECT_FALSE(load.pending(kNoDeadline));
  EXPECT_EQ(load.n_known(), 1536);
}

TEST_P(WindowedPrefix, SessionsComeBack) {
  const std::vector<int32_t> tokens = random_tokens(800, 1), question = random_tokens(50, 2);
  PrefixTokens stored;
  {
    const auto engine = start();
    const auto sequence = make_sequence(*engine, tokens);
    compute(*engine, *sequence, 128);
    stored = PrefixReuse::store(*engine, *sequence, {});
    EXPECT_TRUE(engine->caches().usual().prefix_store()->flush(kNoDeadline));
  }
  const auto engine = start();
  EXPECT_EQ(PrefixReuse::restore(*engine, stored), 800);
  std::vector<int32_t> longer = tokens;
  longer.insert(longer.end(), question.begin(), question.end());
  EXPECT_EQ(ask(*engine, longer).cache.n_prefix_tokens, 800);
  // Its oldest turns are taken out: the rest moves.
  Prompt shorter = engine->prepare_tokens({longer.begin() + 200, longer.end()});
  EXPECT_EQ(shorten_prefix(*engine, stored, PrefixReuse::cached(*engine, stored), shorter), 600);
  Request request = prefix_request(*engine, {1});
  request.prompt = std::move(shorter);
  EXPECT_EQ(generate(*engine, std::move(request)).cache.n_prefix_tokens, 600);
  expect_no_page_lost(*engine);
}

// Policies that evict, in one step and in pieces between which pages are freed.
TEST_P(WindowedPrefix, PoliciesKeepTheSame) {
  if (coded()) return;
  const auto engine = start();
  const std::vector<int32_t> tokens = random_tokens(460, 3);
  for (const std::string_view policy :
       {"", "snapkv+uniform/h2o", "h2o+ada_head/tova", "knorm+pyramid", "key_diff+uniform/scissorhands",
        "expected_attention+uniform/refresh:every=8", "tova+uniform/streaming", "pointer@draft+uniform",
        "am:on=replay+uniform", "keyformer+uniform/keyformer", "snapkv+per_error", "fastgen", "streaming:window=150",
        "zipcache_score+global/periodic:every=8", "scissorhands+zigzag", "kvzip+uniform"}) {
    SCOPED_TRACE(policy);
    const std::string_view budget = policy == "snapkv+per_error"                             ? "error=0.2"
                                    : policy == "fastgen" || policy.starts_with("streaming") ? ""
                                                                                             : "0.1";
    std::vector<std::vector<float>> logits;
    for (const int32_t chunk : {460, 60}) {
      const auto s = make_sequence(*engine, tokens, policy, budget);
      compute(*engine, *s, chunk);
      std::vector<float>& all = logits.emplace_back();
      for (int i = 0; i < 80; ++i) {
        s->add_token(i % kVocab);
        const std::vector<float> step = compute(*engine, *s, 1);
        if (i % 16 == 15) all.insert(all.end(), step.begin(), step.end());
      }
      for (int32_t head = 0; head < 2; ++head) EXPECT_LE(s->n_visible(1, head), kSlidingWindow - 1);
    }
    expect_close(logits[0], logits[1], 1e-3f);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, WindowedPrefix,
                         testing::Values(WindowedModel{"mistral", {}}, WindowedModel{"qwen2", {}},
                                         WindowedModel{"qwen2", KvCodec::kInt8}),
                         [](const auto& info) {
                           return std::string(info.param.model_type) + (info.param.codec ? "_int8" : "");
                         });

TEST(WindowedFixtures, AnswerAsIfNothingWasFreed) {
  for (const char* name : {"mistral-window", "qwen2-window"}) {
    SCOPED_TRACE(name);
    const auto engine = load_fixture_engine(name, /*prefill_chunk=*/64);
    std::vector<int32_t> tokens = random_tokens(450);
    const auto s = make_sequence(*engine, tokens), whole = make_sequence(*engine, tokens);
    const std::vector<float> logits = compute(*engine, *whole, 450);
    expect_close(compute(*engine, *s, 64), logits);
    EXPECT_FALSE(s->cache().holds(1, 0, 0));
    const GenerateResult first = generate(*engine, prefix_request(*engine, tokens));
    const GenerateResult again = generate(*engine, prefix_request(*engine, tokens));
    EXPECT_EQ(ids_of(first)[0], std::ranges::max_element(logits) - logits.begin());
    EXPECT_EQ(ids_of(first), ids_of(again));
    EXPECT_EQ(again.cache.n_prefix_tokens, 449);
  }
}

// M-RoPE: windows count tokens, not positions.
TEST(WindowedMRope, AnswersAsIfNothingWasFreed) {
  const auto engine = two_layer_engine("qwen2_5_vl_text");
  const Prompt prompt = with_image(*engine, 700, 30, 250);
  const auto pieces = engine->new_sequence(prompt, parse_policy("full")),
             whole = engine->new_sequence(prompt, parse_policy("full"));
  expect_close(compute(*engine, *pieces, 70), compute(*engine, *whole, 700));
  EXPECT_FALSE(pieces->cache().holds(1, 0, 0));
  EXPECT_EQ(pieces->n_visible(1, 0), kSlidingWindow - 1);
}

// No page leaves a window longer than all sequences.
TEST(LongWindow, FreesNothing) {
  const auto window = two_layer_engine("mistral", 1 << 24), none = two_layer_engine("mistral", nullptr);
  const auto a = make_sequence(*window, random_tokens(500)), b = make_sequence(*none, random_tokens(500));
  EXPECT_EQ(compute(*window, *a, 64), compute(*none, *b, 64));
  EXPECT_EQ(a->cache().bytes(), b->cache().bytes());
  EXPECT_EQ(window->kv_bytes(5000), none->kv_bytes(5000));
  EXPECT_EQ(a->n_visible(0, 0), 500);
}

// Five of six layers have a window of 1,024.
TEST(WindowedFixtures, HoldAFifthOfALongContext) {
  Json config = parse_json(
      R"({"vocab_size": 61, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 16, "torch_dtype": "float32", "num_hidden_layers": 6,
    "max_position_embeddings": 40000, "use_sliding_window": true, "max_window_layers": 1, "model_type": "qwen2",
    "sliding_window": 1024})",
      "test");
  const auto bytes = [&] {
    const auto engine = Engine::random(parse_model_config(config, "test"), {.backend = "ref"}, /*seed=*/5);
    return static_cast<double>(engine->kv_bytes(32768));
  };
  const double windowed = bytes();
  config["use_sliding_window"] = false;
  EXPECT_LE(windowed / bytes(), 0.21);
}

}  // namespace
}  // namespace vlcache
