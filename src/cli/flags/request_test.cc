// Lines of `run --requests`: what they become, and the errors of invalid ones.
#include "cli/flags/request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "cli/flags/batch_line.h"

namespace vlcache {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

RequestLine read(const std::string& line, const Question& defaults = {}, const RequestFields& fields = {}) {
  RequestLine read = read_request(line, defaults, fields);
  EXPECT_TRUE(read.question) << read.error;
  if (!read.question) read.question.emplace();
  return read;
}

std::string error_of(const std::string& line) {
  const RequestLine read = read_request(line, {}, {});
  EXPECT_FALSE(read.question) << line;
  return read.error;
}

TEST(Request, KeysOverrideDefaults) {
  const Question defaults{.prompt = "", .images = {}, .system = "s", .raw = true};
  RequestFields fields;
  fields.max_tokens = 5;
  fields.top_k = 3;
  const RequestLine r =
      read(R"({"prompt": "p", "images": "a.png", "temperature": 0.5, "top_k": null, "stop": ["x"]})", defaults, fields);
  EXPECT_EQ(r.question->prompt, "p");
  EXPECT_TRUE(r.question->raw && r.question->system == "s" && r.question->messages.empty());
  EXPECT_EQ(r.fields.max_tokens, 5);
  EXPECT_EQ(r.fields.top_k, 3);
  EXPECT_FLOAT_EQ(*r.fields.temperature, 0.5f);
  EXPECT_THAT(*r.fields.stop, ElementsAre("x"));
  EXPECT_THAT(r.question->images, ElementsAre("a.png"));
}

TEST(Request, IdIsReadFromInvalidLines) {
  const RequestLine line = read_request(R"({"id": {"n": 1}, "prompt": 3})", {}, {});
  EXPECT_FALSE(line.question);
  EXPECT_EQ(line.id.dump(), R"({"n":1})");
  EXPECT_THAT(line.error, HasSubstr("prompt"));
  EXPECT_TRUE(read_request("[1]", {}, {}).id.is_null());
}

TEST(Request, DeepNestingIsAnErrorInAnyKey) {
  std::string deep(100'000, '[');
  deep.append(100'000, ']');
  EXPECT_THAT(error_of(R"({"id": )" + deep + R"(, "prompt": "x"})"), HasSubstr("256"));
  EXPECT_THAT(error_of(R"({"prompt": "x", "stop": )" + deep + "}"), HasSubstr("256"));
}

TEST(Request, PathsWithNulAreRejected) {
  EXPECT_THAT(error_of(R"({"prompt": "x", "images": "\u0000"})"), HasSubstr("NUL"));
  EXPECT_THAT(error_of(R"({"prompt": "x", "images": ["a", "b.png\u0000.txt"]})"), HasSubstr("b.png"));
  EXPECT_THAT(error_of(R"({"messages": [{"role": "user", "content": [{"type": "image", "image": "\u0000"}]}]})"),
              HasSubstr("NUL"));
}

TEST(Request, ImagesFollowTheOrderOfTheirParts) {
  const Question r = *read(R"({"images": ["b1", "b2", "rest"], "messages": [
      {"role": "user", "content": [{"type": "image"}, {"type": "image_url", "image_url": {"url": "file://own1"}}]},
      {"role": "user", "content": [{"type": "text", "text": "t"}, {"type": "image", "path": "own2"}, {"type": "image"}]},
      {"role": "user", "content": "text"}]})")
                          .question;
  EXPECT_THAT(r.images, ElementsAre("b1", "own1", "own2", "b2", "rest"));
  const auto messages = template_json(r.messages);
  for (const auto& part : {messages[0]["content"][1], messages[1]["content"][1]}) {
    EXPECT_EQ(part.dump(), R"({"type":"image"})");
  }
  EXPECT_THAT(error_of(R"({"images": ["one"], "messages": [{"role": "user", "content": [{"type": "image"},
      {"type": "image"}]}]})"),
              HasSubstr("images"));
}

TEST(Request, PartsInTheSpellingsOfServers) {
  const Question r = *read(R"({"messages": [{"role": "user", "content": ["a", {"type": "input_text", "text": "b"},
      {"type": "input_image", "image_url": "c.png"}, {"image": "d.png"}, {"type": "image", "base64": "AAAA"},
      {"type": "image_url", "image_url": {"url": "data:image/png;base64,BBBB"}},
      {"type": "image", "image": "FILE://localhost/e%20f.png"},
      {"type": "file", "file": {"file_data": "CCCC"}}]}, {"role": "assistant", "content": []}]})")
                          .question;
  EXPECT_THAT(r.images, ElementsAre("c.png", "d.png", "data:;base64,AAAA", "data:image/png;base64,BBBB", "/e f.png",
                                    "data:application/pdf;base64,CCCC"));
  const auto messages = template_json(r.messages);
  EXPECT_EQ(messages[0]["content"][0].dump(), R"({"type":"text","text":"a"})");
  EXPECT_EQ(messages[0]["content"][1].dump(), R"({"type":"text","text":"b"})");
  for (int i = 2; i < 8; ++i) EXPECT_EQ(messages[0]["content"][i].dump(), R"({"type":"image"})");
  EXPECT_EQ(messages[1]["content"], "");
  const std::string before = R"({"messages": [{"role": "user", "content": [)";
  EXPECT_THAT(error_of(before + R"({"type": "text", "text": "a", "image": "b.png"}]}]})"), HasSubstr("own"));
  EXPECT_THAT(error_of(before + R"({"type": "photo", "image": "b.png"}]}]})"), HasSubstr("type \"image\""));
}

TEST(Request, VideosFollowTheOrderOfTheirParts) {
  const Question r = *read(R"({"videos": ["b1,fps=2", {"video": ["f1", "f2"], "max_frames": 4}, "rest"], "messages": [
      {"role": "user", "content": [{"type": "video"}, {"type": "video_url", "video_url": {"url": "file://own"}, "fps": 1},
      {"type": "image", "image": "i"}, {"type": "video"}]}]})")
                          .question;
  ASSERT_EQ(r.videos.size(), 4U);
  EXPECT_EQ(r.videos[0].video.path, "b1");
  EXPECT_EQ(r.videos[0].video.choice.fps, 2);
  EXPECT_EQ(r.videos[1].video.path, "own");
  EXPECT_EQ(r.videos[1].video.choice.fps, 1);
  EXPECT_THAT(r.videos[2].frames, ElementsAre("f1", "f2"));
  EXPECT_EQ(r.videos[2].video.choice.max_frames, 4);
  EXPECT_EQ(r.videos[3].video.path, "rest");
  EXPECT_THAT(r.images, ElementsAre("i"));
  EXPECT_EQ(template_json(r.messages)[0]["content"].dump(),
            R"([{"type":"video"},{"type":"video"},{"type":"image"},{"type":"video"}])");
  EXPECT_THAT(error_of(R"({"messages": [{"role": "user", "content": [{"type": "video"}]}]})"), HasSubstr("videos"));
  for (const char* bad : {"7", "[7]", "[[]]", "{}", R"({"video": "x", "fps": "2"})", R"({"video": "x", "fps": -2})",
                          R"({"video": "x", "max_frames": 1.5})", R"("x\u0000")"}) {
    EXPECT_THAT(error_of(std::string(R"({"prompt": "p", "videos": )") + bad + "}"), HasSubstr("request: ")) << bad;
  }
}

TEST(Request, SeedsCoverTheFullRange) {
  const auto seed = [](const std::string& text) {
    return *read(R"({"prompt": "x", "seed": )" + text + "}").fields.seed;
  };
  EXPECT_EQ(seed("18446744073709551615").value, UINT64_MAX);
  EXPECT_EQ(seed("1e3").value, 1000u);
  EXPECT_TRUE(seed("-1").fresh);
  EXPECT_FALSE(seed("18446744073709551615").fresh || seed("-2").fresh);
  for (const char* bad : {"1.5", "18446744073709551616", "\"1\""}) {
    EXPECT_THAT(error_of(R"({"prompt": "x", "seed": )" + std::string(bad) + "}"), HasSubstr("seed")) << bad;
  }
}

TEST(Request, UnknownKeySuggestsTheNearestOne) {
  EXPECT_THAT(error_of(R"({"prompt": "x", "max_token": 3})"), HasSubstr("did you mean 'max_tokens'"));
  EXPECT_THAT(error_of(R"({"prompt": "x", "mesages": []})"), HasSubstr("did you mean 'messages'"));
  EXPECT_THAT(error_of(R"({"prompt": "x", "zzzz": []})"), HasSubstr("known are id, prompt"));
}

TEST(Request, BudgetWithoutPolicyReplacesThePolicyOfTheFlags) {
  RequestFields fields;
  fields.kv = "snapkv";
  fields.kv_budget = BudgetText{"0.5"};
  EXPECT_EQ(read(R"({"prompt": "x"})", {}, fields).fields.kv, "snapkv");
  const RequestFields r = read(R"({"prompt": "x", "kv_budget": 0.2})", {}, fields).fields;
  EXPECT_FALSE(r.kv);
  EXPECT_EQ(r.kv_budget->text, "0.2");
}

TEST(Request, KeepsTheKeysOfMessagesInOrder) {
  const Question r = *read(R"({"messages": [{"role": "user", "zeta": 1, "alpha": 2, "content": "x"}]})").question;
  EXPECT_EQ(template_json(r.messages).dump(), R"([{"role":"user","zeta":1,"alpha":2,"content":"x"}])");
}

TEST(Request, MessagesAreCheckedBeforeTemplatesReadThem) {
  const std::string before = R"({"messages": [{"role": "user", "content": "q"}, )", after = "]}";
  for (const auto& [message, says] : std::map<std::string, const char*>{
           {R"({"role": "tool", "content": [1]})", "messages[1].content: expected parts with a type, found 1"},
           {R"({"role": "user", "content": [{"type": {}}]})", "messages[1].content: expected parts with a type"},
           {R"({"role": "user", "content": 5})", "messages[1].content: expected a text or a list of parts, found 5"},
           {R"({"role": "assistant", "tool_calls": [1]})", "messages[1].tool_calls[0].function: expected"},
           {R"({"role": "assistant", "tool_calls": [{"function": {"name": 4}}]})", "function.name: expected a name"}}) {
    EXPECT_THAT(error_of(before + message + after), HasSubstr(says));
  }
  read(before + R"({"role": "user", "content": [{"text": "of no type"}]})" + after);
  read(before + R"({"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f"}}]})" + after);
}

TEST(Request, ErrorsAreNeverEmpty) {
  for (const char* line : {"", "{", "1", "{}", R"({"prompt": "x", "messages": [1]})", R"({"messages": []})",
                           R"({"messages": [1]})", R"({"messages": [{"role": 1}]})", R"({"raw": true, "messages": 1})",
                           R"({"prompt": "x", "stop_token_ids": [-1]})", R"({"prompt": "x", "top_p": 2})",
                           R"({"prompt": "x", "images": [1]})", R"({"x": 1})"}) {
    EXPECT_NE(error_of(line), "") << line;
  }
}

TEST(Request, ImagesBesideTheTextOfAMessage) {
  const Question q =
      *read(R"({"messages": [{"role": "user", "content": "q", "images": ["a.png", "b.png"]}]})").question;
  EXPECT_THAT(q.images, ElementsAre("a.png", "b.png"));
  EXPECT_EQ(template_json(q.messages).dump(),
            R"([{"role":"user","content":[{"type":"image"},{"type":"image"},{"type":"text","text":"q"}]}])");
  EXPECT_TRUE(read(R"({"messages": [{"role": "user", "content": "q", "images": []}]})").question->images.empty());
  EXPECT_THAT(error_of(R"({"messages": [{"role": "user", "content": "q", "images": "a.png"}]})"),
              HasSubstr("messages[0].images: expected a list of paths"));
  EXPECT_THAT(error_of(R"({"messages": [{"role": "system", "content": "q", "images": ["a.png"]}]})"),
              HasSubstr("messages[0].images: expected none"));
}

TEST(Request, QuestionsForEvalAreRequests) {
  const RequestLine line = read(R"({"id": "i", "image": "a.png", "question": "Q?", "answer": "A", "answers": ["A", "B"],
      "kind": "k", "metric": "anls"})");
  EXPECT_EQ(line.question->prompt, "Q?");
  EXPECT_THAT(line.question->images, ElementsAre("a.png"));
  // Other keys of a question are for other programs.
  EXPECT_EQ(read(R"({"question": "Q?", "answers": ["A"], "n_pages": 2, "qid": 7, "pages": [1]})").question->prompt,
            "Q?");
  for (const auto& [text, says] : std::map<std::string, std::string>{
           {R"({"question": "Q", "prompt": "Q"})", "request: expected either question or prompt, found both"},
           {R"({"prompt": "Q", "image": "a", "images": "b"})", "request: expected either images or image, found both"},
           {R"({"question": "Q", "messages": []})", "or messages, found both"},
           {R"({"answer": "A"})", "or messages, found neither"},
           {R"({"turns": [{"question": "Q"}]})", "turns: expected a question on each line"},
           {R"({"question": 3})", "question: expected a string, found 3"},
           {R"({"question": "Q", "anwser": "A"})", "did you mean 'answer'"},
           {R"({"question": "Q", "n_pages": 2})", "unknown key 'n_pages'"},
           {R"({"question": "Q", "answer": "A", "imgaes": []})", "did you mean 'images'"},
           {R"({"question": "Q", "answer": "A", "max_tokns": 3})", "did you mean 'max_tokens'"}}) {
    EXPECT_THAT(error_of(text), HasSubstr(says)) << text;
  }
}

TEST(Request, RelativePathsLeadBesideTheFileOfLines) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "vlcache_request_test";
  std::filesystem::create_directories(folder);
  for (const char* name : {"a.png", "b.pdf", "c.mp4"}) std::ofstream(folder / name) << "x";
  const Question defaults{.prompt = "", .images = {}, .folder = folder};
  const Question q = *read(R"({"prompt": "p", "images": ["a.png", "b.pdf#2-3", "/a.png", "data:image/png;base64,AA=="],
      "videos": ["c.mp4", ["a.png", "no.png"]]})",
                           defaults)
                          .question;
  EXPECT_THAT(q.images, ElementsAre(folder / "a.png", folder / "b.pdf#2-3", "/a.png", "data:image/png;base64,AA=="));
  EXPECT_EQ(q.videos[0].video.path, folder / "c.mp4");
  EXPECT_THAT(q.videos[1].frames, ElementsAre(folder / "a.png", folder / "no.png"));
  const Question in_parts =
      *read(R"({"messages": [{"role": "user", "content": [{"type": "image", "image": "a.png"}]}]})", defaults).question;
  EXPECT_THAT(in_parts.images, ElementsAre(folder / "a.png"));
  std::filesystem::remove_all(folder);
}

TEST(BatchLine, ReadsTheServersEndpoints) {
  const auto read = [](const std::string& more) {
    return read_batch_line(R"({"custom_id": "a", "method": "POST", )" + more + "}");
  };
  for (const auto& [url, endpoint] :
       std::map<std::string, std::string>{{"/v1/chat/completions", "chat/completions"},
                                          {"/v1/completions", "completions"},
                                          {"/chat/completions", "chat/completions"},
                                          {"https://api.openai.com/v1/responses", "responses"},
                                          {"/v1/messages/", "messages"}}) {
    const auto line = read(R"("url": ")" + url + R"(", "body": {"a": 12345678901234567890123})");
    ASSERT_TRUE(line);
    EXPECT_EQ(line->error, "");
    EXPECT_EQ(line->endpoint, endpoint);
    EXPECT_EQ(line->custom_id, "a");
    EXPECT_TRUE(line->body.contains("a"));
  }
  const std::string url = R"("url": "/v1/completions")";
  for (const auto& [more, says] : std::map<std::string, std::string>{
           {R"("url": "/v1/embeddings", "body": {})", "url: expected /v1/chat/completions"},
           {R"("body": {})", "url: expected /v1/chat/completions"},
           {url, "body: expected an object, found none"},
           {url + R"(, "body": [])", "body: expected an object"},
           {url + R"(, "body": {}, "boddy": 1)", "unknown key 'boddy' (did you mean 'body'?)"},
           {url + R"(, "body": {}, "method": "GET")", "method: expected \"POST\""}}) {
    const auto line = read(more);
    ASSERT_TRUE(line);
    EXPECT_THAT(line->error, HasSubstr(says));
    EXPECT_EQ(line->custom_id, "a");
  }
  EXPECT_THAT(read_batch_line(R"({"custom_id": 5, "body": {}})")->error, HasSubstr("custom_id: expected a text"));
  for (const char* own : {R"({"prompt": "\"custom_id\""})", R"({"prompt": "x", "body": 1})", R"({"custom_id)", "[]",
                          R"(["custom_id"])"}) {
    EXPECT_FALSE(read_batch_line(own)) << own;
  }
}

}  // namespace
}  // namespace vlcache
