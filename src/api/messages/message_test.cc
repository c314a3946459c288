// Messages as chat templates are given them, and OpenAI's messages as they are read.
#include "api/messages/message.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "api/json_fields.h"
#include "api/messages/chat_request.h"
#include "base/error.h"
#include "base/json.h"
#include "io/image/encode.h"
#include "io/image/tiff_testing.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson json_of(const char* text) { return parse_ordered_json(text, "test"); }

ChatLimits media_limits() {
  return {.read_url = [](const std::string&, const std::string&, FileKind,
                         const auto&) { return std::vector<std::byte>(3); },
          .read_document =
              [](DocumentRequest request) {
                request.document.text = request.name;
                return std::vector{request.document, request.document};
              },
          .read_video = [](VideoRequest request) { return InputVideo{.where = request.video.where}; }};
}

ChatRequest read_chat(const std::string& messages) {
  return read_chat_request(parse_body(R"({"messages": )" + messages + "}"), {}, media_limits());
}

std::string chat_error(const std::string& messages) {
  try {
    read_chat(messages);
  } catch (const Error& e) {
    return e.what();
  }
  return "none";
}

TEST(Message, PartsKeepTheirPlaces) {
  const ChatRequest chat = read_chat(R"([{"role": "developer", "content": ""}, {"role": "user", "content": [
      {"type": "image_url", "image_url": "http://a/b.png"}, {"type": "text", "text": "a"},
      {"type": "file", "file": {"file_data": "AAAA", "filename": "n.pdf"}},
      {"type": "video_url", "video_url": "http://a/b.mp4"}]}])");
  EXPECT_EQ(template_json(chat.messages),
            json_of(R"([{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "a"},
              {"type": "image"}, {"type": "text", "text": "n.pdf"}, {"type": "image"}, {"type": "text", "text": "n.pdf"},
              {"type": "video"}]}])"));
  std::vector<Message> messages = chat.messages;
  const InputMedia media = take_media(take_parts(messages));
  EXPECT_EQ(std::get<std::vector<EncodedImage>>(media.images).size(), 3u);
  EXPECT_EQ(media.videos.at(0).where, "messages[1].content[3].video_url");
}

TEST(Message, ATiffOfSeveralPagesIsADocument) {
  const auto n_images = [](const std::string& part) {
    const ChatRequest chat = read_chat(R"([{"role": "user", "content": [)" + part + "]}]");
    return std::ranges::count_if(chat.messages.at(0).parts,
                                 [](const Part& p) { return std::holds_alternative<ImagePart>(p); });
  };
  const auto data_of = [](const std::string& tiff) {
    const auto bytes = tiff_bytes(tiff);
    return "\"data:image/tiff;base64," + base64({bytes.begin(), bytes.end()}) + "\"";
  };
  const std::string one = data_of(make_tiff({grey_page(1)})), two = data_of(make_tiff({grey_page(1), grey_page(2)}));
  const std::string image = R"({"type": "image_url", "image_url": {"url": )";
  EXPECT_EQ(n_images(image + one + "}}"), 1);
  EXPECT_EQ(n_images(image + two + "}}"), 2);  // what read_document of this test gives
  EXPECT_EQ(n_images(R"({"type": "file", "file": {"file_data": )" + one + "}}"), 2);
  EXPECT_EQ(
      chat_error(R"([{"role": "user", "content": [)" + image + data_of(std::string("II*\0\1\1\1\1", 8)) + "}}]}]"),
      "messages[0].content[0].image_url: TIFF: the directory at byte 16843009 does not lie within the file's 8 "
      "bytes: the file is truncated or damaged");
}

TEST(Message, CallsAndThoughts) {
  const ChatRequest chat = read_chat(R"([{"role": "assistant", "content": [{"type": "thinking", "thinking":
      [{"type": "text", "text": "h"}, {"text": "m"}]}, {"type": "refusal", "refusal": "no"}],
      "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {"a": 1}}}], "function_call": {"name": "g"}},
      {"role": "function", "content": "r", "name": "f"}])");
  EXPECT_EQ(template_json(chat.messages),
            json_of(R"([{"role": "assistant", "content": [{"type": "text", "text": "no"}], "reasoning_content": "hm",
              "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}},
                {"id": "", "type": "function", "function": {"name": "g", "arguments": "{}"}}]},
              {"role": "tool", "content": "r", "tool_call_id": "", "name": "f"}])"));
  EXPECT_EQ(template_json(read_chat(R"([{"role": "assistant", "content": null, "reasoning": "t"}])").messages),
            json_of(R"([{"role": "assistant", "content": "", "reasoning_content": "t"}])"));
}

TEST(Message, ErrorsNameTheClientsPlace) {
  EXPECT_EQ(
      chat_error(R"([{"role": "assistant", "content": [{"type": "thinking", "thinking": "t"}, 1]}])"),
      "messages[0].content[1]: expected a part of type \"text\", \"image_url\", \"video_url\" or \"file\", found 1");
  EXPECT_EQ(chat_error(R"([{"role": "assistant", "function_call": {"name": ""}}])"),
            "messages[0].function_call.name: expected a name");
  EXPECT_EQ(chat_error("[]"), "messages: expected a list of messages, at least one");
  EXPECT_EQ(chat_error(R"([{"role": "system", "content": ""}])"), "messages: expected one that is not empty");
}

// GCC 12 destroys a nested aggregate twice when a later member's initialiser throws.
TEST(Message, WrongFieldsBesideTheDataOfMediaAreErrors) {
  const auto of_part = [](const std::string& part) {
    return chat_error(R"([{"role": "user", "content": [)" + part + "]}]");
  };
  EXPECT_EQ(of_part(R"({"type": "file", "file": {"file_data": "AAAA", "filename": 1}})"),
            "messages[0].content[0].file.filename: expected a string");
  EXPECT_EQ(of_part(R"({"type": "file", "file": {"file_data": "AAAA"}, "vlcache": {"pages": {}}})"),
            "messages[0].content[0].vlcache.pages: expected a text such as \"3-7\" or \"1,4-6\"");
  EXPECT_EQ(of_part(R"({"type": "file", "file": {"file_data": 1}})"),
            "messages[0].content[0].file.file_data: expected a string");
  EXPECT_EQ(of_part(R"({"type": "image_url", "image_url": {"url": "http://a", "detail": 1}})"),
            "messages[0].content[0].image_url.detail: expected low, high, auto or original");
  EXPECT_NE(of_part(R"({"type": "video_url", "video_url": {"url": "http://a"}, "fps": "x"})").find("fps"),
            std::string::npos);
  EXPECT_EQ(of_part(R"({"type": "video", "video": {"data": 1}})"),
            "messages[0].content[0].video.data: expected a string");
}

TEST(Message, SystemTextJoinsTheSystemMessage) {
  const auto joined = [](const std::string& messages) {
    ChatRequest chat = read_chat(messages);
    add_system_text(chat.messages, "T");
    return template_json(chat.messages).dump();
  };
  EXPECT_EQ(joined(R"([{"role":"user","content":"a"}])"),
            R"([{"role":"system","content":"T"},{"role":"user","content":"a"}])");
  EXPECT_EQ(joined(R"([{"role":"system","content":"S"}])"), R"([{"role":"system","content":"S\n\nT"}])");
  EXPECT_EQ(joined(R"([{"role":"system","content":[{"type":"text","text":"S"}]}])"),
            R"([{"role":"system","content":[{"type":"text","text":"S"},{"type":"text","text":"\n\nT"}]}])");
}

}  // namespace
}  // namespace vlcache
