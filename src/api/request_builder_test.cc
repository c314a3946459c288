#include "api/request_builder.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "engine/engine.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson turn(std::string_view text) {
  return OrderedJson::parse(R"({"role": "user", "content": [{"type": "image"}, {"type": "text", "text": ")" +
                            std::string(text) + R"("}]})");
}

// As `chat` and a server's clients continue a conversation: with all of its messages and images.
TEST(PrepareChat, ImagesOfEarlierTurnsAreNotDecodedAgain) {
  const std::string dir = std::string(VLCACHE_SOURCE_DIR) + "/tests/fixtures/models/smolvlm-split";
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

}  // namespace
}  // namespace vlcache
