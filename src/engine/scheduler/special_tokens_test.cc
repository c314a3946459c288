// The text of answers with special tokens: left out, shown, or at the end; the tokens that an answer may consist of.
#include <gmock/gmock.h>

#include "engine/answer_text.h"
#include "engine/engine_testing.h"
#include "engine/scheduler/scheduler.h"
#include "io/tokenizer/tokenizer.h"
#include "model/family.h"
#include "tests/testing.h"

namespace vlcache {
namespace {

const std::vector<std::string> kTagged = {"<row_1_col_1>", "a", "<row_1_col_2>", "b", "<|end|>"};

// Options about the text.
struct Shown {
  bool skip = true, included = false, ignore_eos = false;
  std::vector<std::string> stop = {}, stop_tokens = {}, shown = {};
};

class SpecialTokens : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    const std::string dir = std::string(VLCACHE_SOURCE_DIR) + "/tests/fixtures/models/idefics3-single";
    engine_ = Engine::load(Checkpoint(dir), {.backend = "ref", .dtype = DType::kF32, .kv_memory_bytes = 1 << 20});
  }
  static void TearDownTestSuite() { engine_.reset(); }

  static int32_t id(std::string_view token) { return engine_->tokenizer().token_id(token); }
  // An answer of these tokens, the last of which ends it.
  static GenerateResult answer(const Shown& shown, const std::vector<std::string>& tokens = kTagged) {
    Request request;
    request.prompt = engine_->prepare_tokens({5, 6, 7});
    request.policy = parse_policy("full");
    GenerateOptions& options = request.options;
    options.max_tokens = static_cast<int32_t>(tokens.size());
    options.ignore_eos = shown.ignore_eos;
    options.stop = shown.stop;
    for (const std::string& token : shown.stop_tokens) options.stop_tokens.push_back(id(token));
    for (const std::string& token : shown.shown) options.shown_tokens.push_back(id(token));
    options.skip_special_tokens = shown.skip;
    options.include_stop = shown.included;
    std::string streamed;
    request.callbacks.on_text = [&](std::string_view text) { streamed += text; };
    request.callbacks.choose = [&, i = size_t{0}](std::span<float>) mutable { return id(tokens[i++]); };
    GenerateResult result = generate(*engine_, std::move(request));
    EXPECT_EQ(streamed, result.text);
    return result;
  }

  static std::unique_ptr<Engine> engine_;
};
std::unique_ptr<Engine> SpecialTokens::engine_;

TEST_F(SpecialTokens, AreLeftOutUnlessShown) {
  EXPECT_EQ(answer({}).text, "ab");
  EXPECT_EQ(answer({.shown = {"<row_1_col_2>"}}).text, "a<row_1_col_2>b");
  EXPECT_EQ(answer({.skip = false}).text, "<row_1_col_1>a<row_1_col_2>b");
}

TEST_F(SpecialTokens, EndsOfTurnsAreNeverShown) {
  const std::vector<std::string> tokens = {"a", "<|end|>", "<row_1_col_1>", "b"};
  const GenerateResult result = answer({.skip = false, .ignore_eos = true}, tokens);
  EXPECT_EQ(result.text, "a<row_1_col_1>b");
  EXPECT_EQ(result.tokens.size(), 4u);
  EXPECT_EQ(answer({.skip = false, .included = true, .stop_tokens = {"<|end|>"}}).text, "<row_1_col_1>a<row_1_col_2>b");
}

TEST_F(SpecialTokens, StopsSeeShownTokensAndMayBelongToTheAnswer) {
  const std::string tag = "<row_1_col_2>";
  EXPECT_EQ(answer({.stop = {"a" + tag}}).text, "ab");
  EXPECT_EQ(answer({.skip = false, .stop = {"a" + tag}}).text, "<row_1_col_1>");
  EXPECT_EQ(answer({.skip = false, .included = true, .stop = {"a" + tag}}).text, "<row_1_col_1>a" + tag);
  for (const bool included : {false, true}) {
    const GenerateResult by_tag = answer({.skip = false, .included = included, .stop_tokens = {tag}});
    EXPECT_EQ(by_tag.text, included ? "<row_1_col_1>a" + tag : "<row_1_col_1>a");
    EXPECT_EQ(by_tag.finish_reason, FinishReason::kStop);
    EXPECT_EQ(answer({.included = included, .stop_tokens = {tag}}).text, "a");
    EXPECT_EQ(answer({.included = included, .stop_tokens = {"b"}}).text, included ? "ab" : "a");
  }
}

Request free_request(Engine& engine, std::vector<int32_t> allowed, int32_t max_tokens = 24) {
  Request request;
  request.prompt = engine.prepare_tokens(random_tokens(20));
  request.policy = parse_policy("full");
  request.options.max_tokens = max_tokens;
  request.options.ignore_eos = true;
  request.options.allowed_tokens = std::move(allowed);
  request.options.sampling.temperature = 5;
  return request;
}

TEST(AllowedTokens, TheAnswerConsistsOfThem) {
  const auto engine = make_engine(2);
  const auto is_allowed = testing::AnyOf(3, 7, 60);
  const std::vector<int32_t> ids = ids_of(generate(*engine, free_request(*engine, {7, 3, 60, 3})));
  EXPECT_EQ(ids.size(), 24u);
  EXPECT_THAT(ids, testing::Each(is_allowed));
  EXPECT_THAT(ids, testing::Not(testing::Each(ids[0])));
  EXPECT_THAT(ids_of(generate(*engine, free_request(*engine, {}))), testing::Not(testing::Each(is_allowed)));
  Request biased = free_request(*engine, {3, 7});
  biased.options.sampling.biases = {{7, 100.0f}, {8, 100.0f}};
  EXPECT_THAT(ids_of(generate(*engine, std::move(biased))), testing::Each(7));
}

// Each of a batch has its own, and log probabilities are the model's.
TEST(AllowedTokens, EveryRequestOfABatchHasItsOwn) {
  const auto engine = make_engine(2);
  std::vector<Request> requests;
  for (int32_t i = 0; i < 4; ++i) requests.push_back(free_request(*engine, {i}, 3));
  for (Request& request : requests) request.options.sampling.n_logprobs = 1;
  const std::vector<GenerateResult> results = generate(*engine, std::move(requests));
  for (int32_t i = 0; i < 4; ++i) EXPECT_THAT(ids_of(results[static_cast<size_t>(i)]), testing::Each(i));
  EXPECT_EQ(results[0].tokens[0].top[0].logprob, results[1].tokens[0].top[0].logprob);
  EXPECT_LT(results[0].tokens[0].logprob + results[1].tokens[0].logprob, results[0].tokens[0].top[0].logprob);
}

// Nothing may come next.
class NothingAllowed final : public TokenConstraint {
 public:
  bool mask(std::span<float> logits, std::span<const int32_t>) override {
    for (size_t i = 1; i < logits.size(); ++i) logits[i] = -INFINITY;
    return true;
  }
  void take(int32_t) override {}
  bool complete() const override { return false; }
};

TEST(AllowedTokens, NoneThatTheGrammarAllowsIsAnError) {
  const auto engine = make_engine(2);
  for (const int32_t allowed : {0, 1}) {
    Request request = free_request(*engine, {allowed}, 2);
    request.constraint = std::make_unique<NothingAllowed>();
    const std::string error = error_of([&] { generate(*engine, std::move(request)); });
    EXPECT_EQ(error == "no error", allowed == 0) << error;
    if (allowed == 1) {
      EXPECT_THAT(error, testing::StartsWith("allowed_token_ids: none of these tokens"));
    }
  }
}

Tokenizer with_token(const std::string& content, bool special) {
  const Json json = {{"version", "1.0"},
                     {"model", {{"type", "BPE"}, {"vocab", {{"a", 0}}}, {"merges", Json::array()}}},
                     {"added_tokens", {{{"id", 1}, {"content", content}, {"special", special}}}}};
  return Tokenizer::from_json(json.dump(), "t");
}

TEST(AnswerTokens, AreFoundInDoclingsVocabulariesAlone) {
  const auto found = [](const char* model_type, const Tokenizer& tokenizer) {
    ModelConfig config;
    config.family = &find_family(model_type, "t");
    return answer_token_list(answer_tokens(config, tokenizer));
  };
  for (const char* token : {"<doctag>", "<otsl>", "<loc_0>"}) {
    EXPECT_EQ(found("idefics3", with_token(token, true)), token);
    EXPECT_EQ(found("smolvlm", with_token(token, true)), token);
    EXPECT_EQ(found("idefics3", with_token(token, false)), "") << "decoding never leaves it out";
    EXPECT_EQ(found("qwen3_vl", with_token(token, true)), "");
  }
  EXPECT_EQ(found("qwen2_vl", with_token("<|box_start|>", true)), "");
  EXPECT_EQ(found("idefics3", with_token("<image>", true)), "");
  for (const char* name : {"idefics3-split", "granite-docling", "smolvlm-split", "smolvlm2-split"}) {
    const Checkpoint checkpoint(std::string(VLCACHE_SOURCE_DIR) + "/tests/fixtures/models/" + name);
    EXPECT_EQ(found("smolvlm", Tokenizer::load(checkpoint)), "") << name;
  }
}

}  // namespace
}  // namespace vlcache
