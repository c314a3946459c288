// The same part in the spellings of all APIs: the result, and the errors of parts that cannot be read.
#include "api/messages/any_part.h"

#include <gtest/gtest.h>

#include <string>

#include "api/json_fields.h"
#include "api/messages/chat_request.h"
#include "base/error.h"
#include "base/json.h"

namespace vlcache {
namespace {

// The beginning of a PNG file in base64, and the last URL that was read.
constexpr const char* kPng = "iVBORw0KGgoAAAAN";

std::string last_url;

ChatLimits any_limits() {
  return {.read_url =
              [](const std::string& url, const std::string&, FileKind, const auto&) {
                last_url = url;
                return std::vector<std::byte>(12);
              },
          .read_document = [](DocumentRequest request) { return std::vector{request.document}; },
          .read_video = [](VideoRequest request) { return InputVideo{.where = request.video.where}; }};
}

// The content of one user message with this part, as templates get it; an error's text.
std::string content_of(const std::string& part) {
  static const ChatLimits kLimits = any_limits();
  last_url = "";
  try {
    const ChatRequest chat =
        read_chat_request(parse_body(R"({"messages": [{"role": "user", "content": [)" + part + "]}]}"), {}, kLimits);
    for (const Part& read : chat.messages[0].parts) {
      const auto* image = std::get_if<ImagePart>(&read);
      if (image != nullptr) {
        EXPECT_EQ(image->image.bytes->size(), 12u) << part;
      }
    }
    return template_json(chat.messages)[0]["content"].dump();
  } catch (const Error& e) {
    return e.what();
  }
}

std::string with_data(std::string part) {
  for (const auto& [mark, text] :
       {std::pair<std::string, std::string>{"URI", "data:image/png;base64," + std::string(kPng)}, {"B64", kPng}}) {
    for (size_t at = part.find(mark); at != part.npos; at = part.find(mark)) part.replace(at, mark.size(), text);
  }
  return part;
}

TEST(AnyPart, ImagesInAllSpellings) {
  for (const char* part :
       {R"({"type": "image_url", "image_url": {"url": "URI", "detail": "low"}})",
        R"({"type": "image_url", "image_url": "URI"})",
        R"({"type": "input_image", "image_url": "URI"})",
        R"({"type": "input_image", "image_url": {"url": "URI"}})",
        R"({"type": "image", "image": "URI"})",
        R"({"type": "image", "image": "B64"})",
        R"({"type": "image", "image": {"url": "URI"}})",
        R"({"type": "image", "url": "URI"})",
        R"({"type": "image", "base64": "B64"})",
        R"({"type": "image", "data": "B64"})",
        R"({"type": "image", "base64": "URI"})",
        R"({"type": "image", "image_url": "URI"})",
        R"({"image": "URI"})",
        R"({"image_url": {"url": "URI"}})",
        R"({"type": null, "image_url": "URI"})",
        R"({"input_image": "URI"})",
        R"({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "B64"}})",
        R"({"type": "image", "source": {"type": "base64", "data": "URI"}})",
        R"({"source": {"type": "base64", "media_type": "image/png", "data": "B64"}})",
        R"({"type": "image", "image": "URI", "text": null})"}) {
    EXPECT_EQ(content_of(with_data(part)), R"([{"type":"image"}])") << part;
  }
  EXPECT_EQ(content_of(with_data(R"({"image": "URI", "text": "t"})")),
            R"([{"type":"image"},{"type":"text","text":"t"}])");
  EXPECT_EQ(content_of(R"({"type": "image", "path": "/a/b%c.png"})"), R"([{"type":"image"}])");
  EXPECT_EQ(last_url, "file:///a/b%25c.png");
  EXPECT_EQ(content_of(R"({"type": "image", "image": "https://h/a.png"})"), R"([{"type":"image"}])");
  EXPECT_EQ(last_url, "https://h/a.png");
}

TEST(AnyPart, TextsInAllSpellings) {
  for (const char* part :
       {R"("t")", R"({"type": "text", "text": "t"})", R"({"type": "input_text", "text": "t"})",
        R"({"type": "output_text", "text": "t", "annotations": []})", R"({"type": "refusal", "refusal": "t"})",
        R"({"text": "t"})", R"({"type": "input_text", "input_text": "t"})",
        R"({"type": "text", "text": "t", "image_url": null})"}) {
    EXPECT_EQ(content_of(part), R"([{"type":"text","text":"t"}])") << part;
  }
}

TEST(AnyPart, FilesAndVideosInAllSpellings) {
  for (
      const char* part :
      {R"({"type": "file", "file": {"file_data": "AAAAAAAAAAAAAAAA"}})",
       R"({"type": "input_file", "file_data": "AAAAAAAAAAAAAAAA"})",
       R"({"type": "file", "file": "data:application/pdf;base64,AAAAAAAAAAAAAAAA"})",
       R"({"file": {"file_data": "AAAAAAAAAAAAAAAA"}})",
       R"({"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "AAAAAAAAAAAAAAAA"}})",
       R"({"type": "document_url", "document_url": "https://h/a.pdf"})",
       R"({"type": "file_url", "file_url": {"url": "https://h/a.pdf"}})"}) {
    const std::string content = content_of(part);
    EXPECT_TRUE(content == R"([{"type":"image"}])") << part << content;
  }
  EXPECT_EQ(content_of(R"({"type": "document", "source": {"type": "text", "data": "t"}})"),
            R"([{"type":"text","text":"t"}])");
  for (const char* part :
       {R"({"type": "video", "video": "https://h/a.mp4"})", R"({"type": "video", "url": "https://h/a.mp4"})",
        R"({"type": "video", "base64": "AAAAAAAAAAAAAAAA"})", R"({"type": "video", "path": "/a.mp4"})",
        R"({"video": "https://h/a.mp4"})", R"({"type": "input_video", "input_video": {"data": "AAAAAAAAAAAAAAAA"}})"}) {
    EXPECT_EQ(content_of(part), R"([{"type":"video"}])") << part;
  }
}

TEST(AnyPart, WhatCannotBeReadNamesItself) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"type": "text", "text": "t", "image_url": {"url": "URI"}})",
       "messages[0].content[0].image_url: not within a part of text"},
      {R"({"type": "input_text", "text": "t", "video": "URI"})",
       "messages[0].content[0].video: not within a part of text"},
      {R"({"type": "image"})", "messages[0].content[0].image_url: expected {\"url\": "},
      {R"({"type": "image", "image": {}})", "messages[0].content[0].image_url: expected {\"url\": "},
      {R"({"type": "image", "image": 7})", "messages[0].content[0].image: expected {\"url\": "},
      {R"({"type": "image", "image": "page.png"})",
       "messages[0].content[0].image: expected an absolute path, a URL or base64"},
      {R"({"type": "image", "path": "../a"})", "messages[0].content[0].path: expected an absolute path"},
      {R"({"type": "image", "base64": "*"})", "messages[0].content[0].base64: expected base64"},
      {R"({"type": "image", "base64": "https://h/a.png"})", "messages[0].content[0].base64: expected base64"},
      {R"({"type": "image", "source": {"type": "base64", "media_type": "text/plain", "data": "AAAA"}})",
       "messages[0].content[0].source.data: expected a data URI of an image"},
      {R"({"type": "audio", "image": "URI"})", "messages[0].content[0]: expected a part of type"},
      {R"({"type": "input_audio", "input_audio": {}})", "messages[0].content[0]: expected a part of type"},
      {R"({"type": "text"})", "messages[0].content[0]: expected a part of type"},
      {R"({"x": 1})", "messages[0].content[0]: expected a part of type"},
      {R"({})", "messages[0].content[0]: expected a part of type"},
      {R"([])", "messages[0].content[0]: expected a part of type"},
      {R"({"type": 7, "text": "t"})", "messages[0].content[0]: expected a part of type"},
      {R"({"type": "file", "file": 7})", "messages[0].content[0].file: expected an object with file_data"},
      {R"({"type": "video"})", "messages[0].content[0].video_url: expected"}};
  for (const auto& [part, begin] : cases) {
    const std::string what = content_of(with_data(part));
    EXPECT_EQ(what.substr(0, std::string(begin).size()), begin) << part;
  }
}

TEST(AnyPart, ContentWithoutPartsIsEmptyText) {
  const ChatRequest chat = read_chat_request(
      parse_body(R"({"messages": [{"role": "user", "content": []}, {"role": "assistant", "content": []},
        {"role": "tool", "content": [], "tool_call_id": "1"}, {"role": "system", "content": []}]})"),
      {}, any_limits());
  EXPECT_EQ(template_json(chat.messages).dump(), R"([{"role":"user","content":""},{"role":"assistant","content":""},)"
                                                 R"({"role":"tool","content":"","tool_call_id":"1"}])");
}

TEST(DataUri, FirstBytesDecideWhereTheTypeSaysNothingOrIsWrong) {
  const auto problem = [](const std::string& uri, FileKind kind) -> std::string {
    try {
      decode_data_uri(uri, "here", kind);
      return "";
    } catch (const Error& e) {
      return e.what();
    }
  };
  const std::string png = kPng, pdf = "JVBERi0xLjQK", clip = "AAAAGGZ0eXBtcDQy";
  for (const char* type :
       {"", "application/octet-stream", "binary/octet-stream", "None", "null", "APPLICATION/OCTET-STREAM",
        "application/octet-stream;name=a.png", "image/jpg", "IMAGE/PNG", "image/png;charset=utf-8", "text/plain",
        "application/x-pdf", "video/mp4", "audio/mpeg", "undefined", "x"}) {
    const std::string uri = "data:" + std::string(type) + ";base64,";
    EXPECT_EQ(problem(uri + png, FileKind::kImage), "") << type;
    EXPECT_EQ(problem(uri + pdf, FileKind::kPdf), "") << type;
    EXPECT_EQ(problem(uri + clip, FileKind::kVideo), "") << type;
  }
  for (const char* type : {"text/plain", "application/pdf", "video/mp4"}) {
    EXPECT_NE(problem("data:" + std::string(type) + ";base64,AAAA", FileKind::kImage), "") << type;
  }
  EXPECT_EQ(problem("data:image/png;base64;name=x," + png, FileKind::kImage), "");
  EXPECT_NE(problem("data:image/png," + png, FileKind::kImage).find("in base64"), std::string::npos);
  EXPECT_NE(problem("https://h/a.png", FileKind::kImage).find("--image-url-prefix"), std::string::npos);
  EXPECT_NE(problem("FILE:///a.png", FileKind::kImage).find("--image-path-prefix"), std::string::npos);
}

}  // namespace
}  // namespace vlcache
