// The table of request fields: every field is read, has its default, and is described.
#include "api/request_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <set>

#include "base/json.h"
#include "tests/testing.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;
using testing::ElementsAre;
using testing::HasSubstr;

RequestFields body(const char* text) { return read_body_fields(OrderedJson::parse(text)); }
std::string body_error(const char* text) {
  return error_of([&] { body(text); });
}

TEST(RequestFields, NamesAndFlagsAreUnique) {
  std::set<std::string> names, flags;
  for (const RequestField& field : request_fields()) {
    EXPECT_TRUE(names.insert(field.name).second) << field.name;
    const bool is_new = *field.flag == '\0' || flags.insert(field.flag).second;
    EXPECT_TRUE(is_new) << field.flag;
    EXPECT_NE(std::string(field.help), "") << field.name;
  }
}

// A member that the table leaves out would be lost by over().
TEST(RequestFields, TableCoversEveryMember) {
  const auto all = [] {
    RequestFields f;
    f.max_tokens = f.min_tokens = f.top_k = f.logprobs = f.n = f.priority = f.min_image_tokens = f.max_image_tokens =
        f.score_from = f.no_repeat_ngram_size = 7;
    f.temperature = f.top_p = f.min_p = f.repetition_penalty = f.presence_penalty = f.frequency_penalty = 0.5f;
    f.image_dedup = f.video_prune = 0.5f;
    f.timeout = 2.0;
    f.seed = Seed{3, false};
    f.stop = f.bad_words = {"x"};
    f.stop_token_ids = f.allowed_token_ids = f.suppress_tokens = {4};
    f.logit_bias = {TokenBias{1, 2.0f}};
    f.ignore_eos = f.explain = f.query_aware = f.evict_while_prefill = f.stream = f.return_progress = f.cache_prompt =
        f.pdf_text = f.image_dedup_weights = f.reuse_similar = f.skip_special_tokens = f.spaces_between_special_tokens =
            f.include_stop_str_in_output = f.return_token_ids = true;
    f.kv = f.kv_codec = f.reuse = f.cache_salt = "t";
    f.kv_budget = BudgetText{"0.5"};
    f.response_format = 1;
    return f;
  }();
  const RequestFields f = over({}, all);
  for (const auto& member : {f.max_tokens, f.min_tokens, f.top_k, f.logprobs, f.n, f.priority, f.min_image_tokens,
                             f.max_image_tokens, f.score_from, f.no_repeat_ngram_size}) {
    EXPECT_EQ(member, 7);
  }
  for (const auto& member : {f.temperature, f.top_p, f.min_p, f.repetition_penalty, f.presence_penalty,
                             f.frequency_penalty, f.image_dedup, f.video_prune}) {
    EXPECT_EQ(member, 0.5f);
  }
  EXPECT_TRUE(f.timeout && f.seed && f.stop && f.bad_words && f.suppress_tokens && f.stop_token_ids &&
              f.allowed_token_ids && f.logit_bias && f.kv_budget);
  EXPECT_TRUE(f.ignore_eos && f.explain && f.query_aware && f.evict_while_prefill && f.stream && f.return_progress &&
              f.cache_prompt && f.pdf_text && f.image_dedup_weights && f.reuse_similar && f.skip_special_tokens &&
              f.spaces_between_special_tokens && f.include_stop_str_in_output && f.return_token_ids);
  EXPECT_TRUE(f.kv && f.kv_codec && f.reuse && f.cache_salt && !f.response_format.is_null());
}

TEST(RequestFields, BodyFieldsAreReadFromTheTopLevelOrVlcache) {
  const RequestFields f = body(R"({"top_k": 5.0, "temperature": null, "stop": ["a", "b"], "stop_token_ids": [1, 2],
      "logit_bias": {"3": -1.5}, "min_tokens": 4,
      "vlcache": {"kv": "snapkv", "kv_budget": 0.25, "query_aware": false, "evict_while_prefill": true}})");
  EXPECT_EQ(f.top_k, 5);
  EXPECT_EQ(f.min_tokens, 4);
  EXPECT_FALSE(f.temperature);
  EXPECT_THAT(*f.stop, ElementsAre("a", "b"));
  EXPECT_THAT(*f.stop_token_ids, ElementsAre(1, 2));
  EXPECT_EQ(f.logit_bias->at(0).token, 3);
  EXPECT_EQ(f.logit_bias->at(0).bias, -1.5f);
  EXPECT_EQ(f.kv, "snapkv");
  EXPECT_EQ(f.kv_budget->text, "0.25");
  EXPECT_EQ(f.query_aware, false);
  EXPECT_EQ(f.evict_while_prefill, true);
  EXPECT_EQ(body_error(R"({"query_aware": false})"),
            "query_aware: belongs into the object \"vlcache\": {\"vlcache\": {\"query_aware\": ...}}");
  EXPECT_THAT(body_error(R"({"vlcache": {"kv_budgte": 1}})"), testing::HasSubstr("did you mean 'kv_budget'"));
  for (const char* file :
       {"duo:heads=/etc/passwd", "razor:sinks=1,heads=/etc/passwd", "duo:a=:heads=,heads=/etc/passwd"}) {
    EXPECT_THAT(body_error((OrderedJson{{"vlcache", {{"kv", file}}}}).dump().c_str()),
                testing::HasSubstr("a request may not name a file"));
  }
  EXPECT_EQ(body(R"({"vlcache": {"kv": "duo"}})").kv, "duo");
  EXPECT_EQ(body(R"({"max_tokens": -1})").max_tokens, INT32_MAX);
  EXPECT_EQ(body(R"({"max_tokens": 0})").max_tokens, 0);
}

TEST(RequestFields, ErrorsNameTheFieldAndTheExpectedValue) {
  EXPECT_EQ(body_error(R"({"top_k": -2})"), "top_k: expected an integer from -1 to 2147483647");
  EXPECT_EQ(body_error(R"({"top_k": 1.5})"), "top_k: expected an integer from -1 to 2147483647");
  EXPECT_EQ(body_error(R"({"temperature": -1})"), "temperature: expected a number >= 0.0");
  EXPECT_EQ(body_error(R"({"presence_penalty": "1"})"), "presence_penalty: expected a number");
  EXPECT_EQ(body_error(R"({"presence_penalty": 1e300})"), "presence_penalty: expected a number");
  EXPECT_EQ(body_error(R"({"top_p": 1.5})"), "top_p: expected a number from 0.0 to 1.0");
  EXPECT_EQ(body_error(R"({"stop": [1]})"), "stop: expected a string or a list of strings");
  EXPECT_EQ(body_error(R"({"stop_token_ids": [-1]})"), "stop_token_ids: expected a list of token ids");
  EXPECT_EQ(body_error(R"({"logit_bias": {"x": 1}})"), "logit_bias: expected token ids as names, found \"x\"");
  EXPECT_EQ(body_error(R"({"logit_bias": {"1": 101}})"), "logit_bias.1: expected a number from -100 to 100");
  EXPECT_EQ(body_error(R"({"vlcache": {"explain": 1}})"), "vlcache.explain: expected true or false");
  EXPECT_EQ(body_error(R"({"vlcache": {"kv_codec": 8}})"), "vlcache.kv_codec: expected a string");
  EXPECT_EQ(body_error(R"({"vlcache": []})"), "vlcache: expected an object");
  EXPECT_EQ(error_of([] {
              read_line_fields({{"min_tokens", -1}});
            }),
            "request: min_tokens: expected an integer from 0 to 2147483647, found -1");
}

TEST(RequestFields, LargeValuesAreAcceptedByEveryReader) {
  EXPECT_EQ(body(R"({"temperature": 1e6, "repetition_penalty": 1e4, "presence_penalty": -9})").presence_penalty, -9.0f);
  EXPECT_EQ(generate_options(body(R"({"top_k": -1})")).sampling.top_k, 0);
  EXPECT_EQ(read_line_fields({{"top_k", -1}, {"logprobs", 1 << 20}}).logprobs, 1 << 20);
}

TEST(RequestFields, RequestOverridesFlagOverridesCheckpointOverridesTable) {
  GenerationDefaults checkpoint;
  checkpoint.do_sample = true;
  checkpoint.top_k = 40;
  checkpoint.top_p = 0.9;
  checkpoint.repetition_penalty = 1.5;
  RequestFields flags;
  flags.top_k = 20;
  const RequestFields defaults = default_fields(flags, checkpoint, Front::kRun);
  const GenerateOptions options = generate_options(over(body(R"({"top_p": 0.5, "top_k": null})"), defaults));
  EXPECT_EQ(options.sampling.top_p, 0.5f);
  EXPECT_EQ(options.sampling.top_k, 20);
  EXPECT_EQ(options.sampling.temperature, 1.0f);
  EXPECT_EQ(options.sampling.repetition_penalty, 1.5f);
  EXPECT_EQ(options.max_tokens, 256);
  checkpoint.do_sample = false;
  const GenerateOptions greedy = generate_options(default_fields({}, checkpoint, Front::kServe));
  EXPECT_EQ(greedy.sampling.temperature, 0.0f);
  EXPECT_EQ(greedy.sampling.top_k, 0);
  EXPECT_EQ(greedy.sampling.repetition_penalty, 1.5f);
  EXPECT_EQ(greedy.max_tokens, INT32_MAX);
}

TEST(RequestFields, SeedsByCommand) {
  const auto seed = [](const RequestFields& fields) { return generate_options(fields).sampling.seed; };
  EXPECT_EQ(seed(fallback_fields(Front::kRun)), 0U);
  EXPECT_NE(seed(fallback_fields(Front::kServe)), seed(fallback_fields(Front::kServe)));
  RequestFields flags;
  flags.seed = Seed{7, false};
  EXPECT_EQ(seed(over({}, flags)), 7U);
  EXPECT_NE(seed(over(body(R"({"seed": -1})"), flags)), seed(over(body(R"({"seed": -1})"), flags)));
  EXPECT_EQ(seed(body(R"({"seed": -2})")), static_cast<uint64_t>(-2));
}

TEST(RequestFields, CachePromptSetsReuseUnlessReuseIsGiven) {
  EXPECT_EQ(body(R"({"cache_prompt": false})").reuse, "off");
  EXPECT_EQ(body(R"({"cache_prompt": false, "vlcache": {"reuse": "exact"}})").reuse, "exact");
  EXPECT_FALSE(body(R"({"cache_prompt": true})").reuse);
}

TEST(RequestFields, BodiesOfOtherEndpointsHaveFieldsWithACommonName) {
  const RequestFields fields = read_common_fields(
      OrderedJson::parse(R"({"top_k": 3, "max_tokens": 5, "n": 2, "vlcache": {"kv": "h2o"}, "min_p": null})"));
  EXPECT_EQ(fields.top_k, 3);
  EXPECT_EQ(fields.kv, "h2o");
  EXPECT_FALSE(fields.max_tokens || fields.n || fields.min_p);
}

// docs/server/requests.md has the table between two marks. VLCACHE_UPDATE_DOCS=1 rewrites it there.
TEST(RequestFields, DocsAreUpToDate) {
  const std::filesystem::path path = std::filesystem::path(VLCACHE_SOURCE_DIR) / "docs/server/requests.md";
  const std::string text = read_text_file(path), begin = "<!-- request fields -->\n", end = "<!-- end -->";
  const size_t from = text.find(begin), to = text.find(end, from);
  ASSERT_TRUE(from != std::string::npos && to != std::string::npos);
  const std::string wanted = text.substr(0, from) + begin + fields_markdown() + text.substr(to);
  if (std::getenv("VLCACHE_UPDATE_DOCS") != nullptr) std::ofstream(path) << wanted;
  EXPECT_EQ(text, wanted) << "VLCACHE_UPDATE_DOCS=1 writes it";
}

}  // namespace
}  // namespace vlcache
