// A body is parsed once, and each image in it decoded once, whichever endpoint's it is.
#include <gtest/gtest.h>

#include <string>

#include "api/json_fields.h"
#include "api/messages/chat_request.h"
#include "base/ordered_json.h"
#include "server/protocol/messages_request.h"
#include "server/protocol/responses_request.h"

namespace vlcache {
namespace {

constexpr const char* kData = "AAECAw==";

struct Counts {
  int64_t texts = 0, decoded = 0;
  bool operator==(const Counts&) const = default;
};

template <typename Read>
Counts counts_of(const std::string& body, const Read& read) {
  const int64_t texts = n_json_texts(), decoded = n_decoded();
  const ChatRequest request = read(parse_body(body));
  size_t n_images = 0;
  for (const Message& message : request.messages) {
    for (const Part& part : message.parts) {
      const auto* image = std::get_if<ImagePart>(&part);
      if (image == nullptr) continue;
      ++n_images;
      EXPECT_EQ(image->image.bytes->size(), 4u);
    }
  }
  EXPECT_EQ(n_images, 2u);
  return {n_json_texts() - texts, n_decoded() - decoded};
}

std::string uri() { return R"("data:image/png;base64,)" + std::string(kData) + '"'; }

TEST(ReadOnce, ChatCompletions) {
  const std::string image = R"({"type": "image_url", "image_url": {"url": )" + uri() + "}}";
  const std::string body = R"({"messages": [{"role": "user", "content": [)" + image + "," + image + R"(]},
    {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f",
      "arguments": "{\"a\": 1}"}}]}, {"role": "tool", "tool_call_id": "1", "content": "b"}],
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}})";
  const auto read = [](const nlohmann::ordered_json& json) { return read_chat_request(json, {}, {}); };
  EXPECT_EQ(counts_of(body, read), (Counts{1, 2}));
}

TEST(ReadOnce, Messages) {
  const std::string image = R"({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ")" +
                            std::string(kData) + "\"}}";
  const std::string body = R"({"max_tokens": 1, "messages": [{"role": "user", "content": [)" + image + R"(]},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [)" +
                           image + R"(]}]}],
    "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}})";
  const auto read = [](const nlohmann::ordered_json& json) { return read_messages_request(json, {}, {}); };
  EXPECT_EQ(counts_of(body, read), (Counts{1, 2}));
}

TEST(ReadOnce, Responses) {
  const std::string image = R"({"type": "input_image", "image_url": )" + uri() + "}";
  const std::string body = R"({"input": [{"role": "user", "content": [)" + image + "," + image + R"(]},
    {"type": "custom_tool_call", "call_id": "1", "name": "f", "input": "x"},
    {"type": "web_search_call", "id": "w", "status": "completed", "action": {"type": "search", "query": "q"}}],
    "text": {"format": {"type": "json_schema", "schema": {"type": "object"}}}})";
  ResponsesPlan plan;
  const auto read = [&](const nlohmann::ordered_json& json) { return read_responses_request(json, {}, {}, plan); };
  EXPECT_EQ(counts_of(body, read), (Counts{1, 2}));
}

}  // namespace
}  // namespace vlcache
