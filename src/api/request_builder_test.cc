#include "api/request_builder.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "api/kv_codec_choice.h"
#include "base/error.h"
#include "engine/engine.h"
#include "tests/testing.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson turn(std::string_view text) {
  return OrderedJson::parse(R"({"role": "user", "content": [{"type": "image"}, {"type": "text", "text": ")" +
                            std::string(text) + R"("}]})");
}

// As `chat` and a server's clients continue a conversation: with all of its messages and images.
TEST(PrepareChat, ImagesOfEarlierTurnsAreNotDecodedAgain) {
  const std::string dir = fixture_model("smolvlm-split");
  const auto engine =
      Engine::load(Checkpoint(dir), {.backend = "ref", .dtype = DType::kF32, .kv_memory_bytes = 1 << 20});
  const std::string images = std::string(VLCACHE_SOURCE_DIR) + "/tests/fixtures/models/smolvlm-images/image-";
  const EncodedImage first = read_encoded_image(images + "0.png"), second = read_encoded_image(images + "1.png");
  OrderedJson messages = OrderedJson::array();
  messages.push_back(turn("What is this?"));
  const Prompt asked = prepare_chat(*engine, messages, std::vector{first});
  ASSERT_EQ(asked.images.size(), 1u);
  EXPECT_FALSE(asked.images[0].pixels.empty());
  messages.push_back({{"role", "assistant"}, {"content", "A page."}});
  messages.push_back(turn("And this?"));
  Prompt next = prepare_chat(*engine, messages, std::vector{first, second});
  ASSERT_EQ(next.images.size(), 2u);
  EXPECT_TRUE(next.images[0].pixels.empty());
  EXPECT_FALSE(next.images[1].pixels.empty());
  EXPECT_EQ(image_keys(next)[0], image_keys(asked)[0]);
  EXPECT_EQ(next.with_pixels(0), asked.images[0]);
}

// The codec of a request, by each form of a name, and where the name or the policy does not allow it.
TEST(RequestBuilder, CodecOfKv) {
  const Checkpoint checkpoint(fixture_model("smolvlm-split"));
  const ReuseChoice reuse({}, checkpoint, {}, [] { return AnsweringForm(); });
  const auto engine = Engine::load(
      checkpoint, {.backend = "ref", .dtype = DType::kF32, .kv_codec = KvCodec::kInt8, .kv_memory_bytes = 1 << 20});
  RequestBuilder builder(*engine, reuse, nullptr);
  const auto codec_of = [&](std::optional<std::string> name, const char* policy = "full") {
    RequestFields fields;
    fields.kv_codec = std::move(name);
    fields.kv = policy;
    builder.check_options(fields);
    return builder.request(engine->prepare_tokens({1, 2}), fields).kv_codec;
  };
  EXPECT_EQ(codec_of({}), KvCodec::kInt8);  // as the engine has it
  EXPECT_EQ(codec_of("auto"), KvCodec::kF32);
  const auto planned = Engine::load(
      checkpoint, {.backend = "ref", .dtype = DType::kF32, .auto_codec = KvCodec::kInt8, .kv_memory_bytes = 1 << 20});
  RequestBuilder by_plan(*planned, reuse, nullptr);
  EXPECT_EQ(planned->kv_codec(), KvCodec::kInt8);
  for (const char* policy : {"full", "static"}) {  // which needs values
    for (const std::optional<std::string>& name : {std::optional<std::string>(), {"auto"}, {"f32"}}) {
      RequestFields fields;
      fields.kv_codec = name, fields.kv = policy;
      Request request = by_plan.request(planned->prepare_tokens({1, 2}), fields);
      EXPECT_EQ(request.kv_codec,
                name == "f32" || policy == std::string_view("static") ? KvCodec::kF32 : KvCodec::kInt8);
    }
  }
  EXPECT_EQ(codec_of("bf16", "static"), KvCodec::kBF16);
  EXPECT_EQ(codec_of("q8_0"), KvCodec::kInt8);
  const std::string allowed = error_of([&] { parse_kv_codec("int7"); });
  EXPECT_EQ(error_of([&] { codec_of("int7"); }), "kv_codec: " + allowed);
  EXPECT_EQ(error_of([&] { codec_of(""); }), "kv_codec: " + error_of([&] { parse_kv_codec(""); }));
  for (const std::optional<std::string>& codes : {std::optional<std::string>(), {"int8"}}) {
    EXPECT_NE(error_of([&] { codec_of(codes, "static"); }).find("static reserves slots"), std::string::npos);
  }
}

// A plan decides for requests with the codec that it was measured with; for others, images are reused only exactly.
TEST(ReuseChoice, APlanIsOfOneCodec) {
  const Checkpoint checkpoint(fixture_model("smolvlm-split"));
  const std::filesystem::path path = std::filesystem::path(testing::TempDir()) / ("plan-" + std::to_string(getpid()));
  const ReuseEvidence good{.answers = {.n = 1000, .n_changed = 0}};
  const auto write = [&](std::optional<KvCodec> codec) {
    const ReusePlan plan{.model = checkpoint.fingerprint(), .kv_codec = codec, .shares = {0.5}, .one = good};
    std::ofstream(path) << reuse_plan_json(plan);
  };
  const auto choice = [&](KvCodec codec, KvCodec values = KvCodec::kBF16) {
    return ReuseChoice({.plan = path}, checkpoint, {},
                       [=] { return AnsweringForm{.values = values, .kv_codec = codec}; });
  };
  const auto reuses = [](const ReuseChoice& choice, KvCodec codec) {
    return choice.options("auto", 1, codec).chooser != nullptr;
  };
  struct Case {
    std::optional<KvCodec> measured;  // none: as earlier versions wrote it
    KvCodec values, of_plan, other;
  };
  using enum KvCodec;
  for (const Case& c : {Case{{}, kBF16, kBF16, kInt8}, Case{{}, kF32, kF32, kBF16}, Case{kInt8, kBF16, kInt8, kBF16},
                        Case{kInt4, kF32, kInt4, kK8V4}}) {
    write(c.measured);
    const std::string of_plan(kv_codec_name(c.of_plan)), other(kv_codec_name(c.other));
    const ReuseChoice own = choice(c.of_plan, c.values);
    EXPECT_TRUE(reuses(own, c.of_plan));
    EXPECT_FALSE(reuses(own, c.other));
    EXPECT_EQ(own.options("auto", 1, c.other).why_exact,
              "the plan was measured with KV codec " + of_plan + ", here it is " + other);
    EXPECT_NE(own.options("vlcache", 1, c.other).chooser, nullptr);  // by name
    EXPECT_EQ(error_of([&] { choice(c.other, c.values); }),
              path.string() + ": the plan was measured with KV codec " + of_plan + ", here it is " + other +
                  "; `vlcache tune reuse --kv-codec " + other + "` measures one");
  }
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace vlcache
