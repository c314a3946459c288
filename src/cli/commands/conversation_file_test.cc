// Files of conversations: a written one is read again, and so is one of the page.
#include "cli/commands/conversation_file.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/image/encode.h"

namespace vlcache {
namespace {

constexpr const char* kImages = "pictures";

EncodedImage image_named(const std::string& where) {
  return {.bytes = std::make_shared<const std::vector<std::byte>>(encode_png(Image(2, 1))),
          .where = where,
          .limits = {},
          .options = {},
          .owner = ""};
}

TEST(ConversationFileTest, IsReadAsItWasWritten) {
  EncodedImage page = image_named("b.png");
  page.text = "on the page";
  const ConversationFile written{
      .name = "A page",
      .system = "Be brief.",
      .turns = {{.question = "What?",
                 .images = {image_named("/tmp/a.png"), page},
                 .documents = {},
                 .answer = "\u00fc\n1",
                 .kv = "",
                 .budget = ""},
                {.question = "And?", .images = {}, .documents = {}, .answer = "", .kv = "vl-cache", .budget = "0.1"}}};
  const std::string text = conversation_text(written, 1700000000000);
  const nlohmann::json file = nlohmann::json::parse(text);
  EXPECT_EQ(file["messages"][0][kImages][0]["name"], "a.png");
  EXPECT_EQ(file["messages"][0][kImages][0]["width"], 2);
  EXPECT_EQ(file["messages"][3]["answers"][0][kImages].size(), 2);  // of the whole prompt
  const ConversationFile read = parse_conversation(text, "x.json");
  EXPECT_EQ(read.name, written.name);
  EXPECT_EQ(read.system, written.system);
  ASSERT_EQ(read.turns.size(), 2U);
  EXPECT_EQ(read.turns[0].question, "What?");
  EXPECT_EQ(read.turns[0].answer, "\u00fc\n1");
  ASSERT_EQ(read.turns[0].images.size(), 2U);
  EXPECT_EQ(*read.turns[0].images[1].bytes, *written.turns[0].images[1].bytes);
  EXPECT_EQ(read.turns[0].images[1].where, "b.png");
  EXPECT_EQ(read.turns[0].images[1].text, "on the page");
  EXPECT_EQ(read.turns[1].kv, "vl-cache");
  EXPECT_EQ(read.turns[1].budget, "0.1");
}

TEST(ConversationFileTest, HasItsVideos) {
  const auto bytes = [](std::string_view text) {
    const auto all = std::as_bytes(std::span(text));
    return std::make_shared<const std::vector<std::byte>>(all.begin(), all.end());
  };
  ChatTurn turn{.question = "What?", .images = {}, .documents = {}, .answer = "a", .kv = "", .budget = ""};
  turn.videos.resize(2);
  turn.videos[0].request = {.video = {.clip = bytes("0000ftyp"), .where = "/tmp/a.mp4"},
                            .choice = {.fps = 0.5, .max_frames = 8}};
  turn.videos[1].request.video.frames = {image_named("x").bytes, image_named("y").bytes};
  const ConversationFile read = parse_conversation(conversation_text({.name = "", .turns = {turn}}, 0), "x.json");
  ASSERT_EQ(read.turns.at(0).videos.size(), 2U);
  const VideoRequest &clip = read.turns[0].videos[0].request, &frames = read.turns[0].videos[1].request;
  EXPECT_EQ(*clip.video.clip, *turn.videos[0].request.video.clip);
  EXPECT_EQ(clip.video.where, "a.mp4");
  EXPECT_EQ(clip.choice.fps, 0.5);
  EXPECT_EQ(clip.choice.max_frames, 8);
  ASSERT_EQ(frames.video.frames.size(), 2U);
  EXPECT_EQ(*frames.video.frames[1], *image_named("y").bytes);
}

TEST(ConversationFileTest, OfThePageIsReadAsThePageContinuesIt) {
  const ConversationFile read = parse_conversation(R"({"name": "n", "messages": [
      {"role": "user", "text": "q", "files": [{"name": "f.txt", "text": "in it\n\n"}],
       "documents": [{"name": "r.pdf", "pages": "2-3", "url": "data:application/pdf;base64,JVBERi0="}]},
      {"role": "assistant", "answers": [{"text": "first", "state": "done"}, {"text": "second"}]},
      {"role": "user", "text": "stopped"}, {"role": "assistant", "answers": [{"text": "", "state": "stopped"}]},
      {"role": "user", "text": "open"}]})",
                                                   "x.json");
  ASSERT_EQ(read.turns.size(), 1U);
  EXPECT_EQ(read.turns[0].question, "f.txt:\n\nin it\n\nq");
  EXPECT_EQ(read.turns[0].answer, "first");
  ASSERT_EQ(read.turns[0].documents.size(), 1U);
  EXPECT_EQ(read.turns[0].documents[0].pages, "2-3");
  EXPECT_EQ(read.turns[0].documents[0].document.bytes->size(), 5U);
}

TEST(ConversationFileTest, NamesWhatIsWrong) {
  const std::pair<std::string, const char*> kCases[] = {
      {"[", "x.json"},
      {"[]", "x.json: expected a conversation"},
      {R"({"messages": 3})", "messages: expected a list"},
      {R"({"messages": [3]})", "messages[0]: expected a message with the role user"},
      {R"({"messages": [{"role": "assistant", "answers": []}]})", "messages[0]: expected a message with the role user"},
      {R"({"messages": [{"role": "user"}, {"role": "assistant", "answers": []}]})", "answers: expected at least one"},
      {R"({"messages": [{"role": "user", ")" + std::string(kImages) +
           R"(": [{"name": "a.png", "url": "http://x"}]}, 3]})",
       "a.png"},
  };
  for (const auto& [text, says] : kCases) {
    try {
      parse_conversation(text, "x.json");
      ADD_FAILURE() << text;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(says), std::string::npos) << e.what();
    }
  }
}

}  // namespace
}  // namespace vlcache
