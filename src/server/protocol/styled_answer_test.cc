// How often the progress of a prompt is passed on, and its JSON.
#include "server/protocol/styled_answer.h"

#include <gtest/gtest.h>

namespace vlcache {
namespace {

using std::chrono::milliseconds;
using OrderedJson = nlohmann::ordered_json;

class FakeReply final : public HttpReply {
 public:
  void send(HttpResponse) override {}
  void begin(HttpResponse, std::string) override {}
  void write(std::string piece) override { pieces.push_back(std::move(piece)); }
  void end() override {}
  void on_gone(std::function<void()>) override {}

  std::vector<std::string> pieces;
};

// Says progress alone.
class ProgressStyle final : public AnswerStyle {
 public:
  OrderedJson whole(std::span<const GenerateResult>) override { return {}; }
  std::string begin() override { return ""; }
  std::string text(int, std::string_view) override { return ""; }
  std::string progress(const PromptProgress& progress) override {
    OrderedJson json;
    add_progress(json, progress);
    return json.dump();
  }
  std::string calls(int, std::span<const ToolCall>) override { return ""; }
  std::string ended(int, const GenerateResult&, bool) override { return ""; }
  std::string end(std::span<const GenerateResult>) override { return ""; }
  std::string failed(const Error&) override { return ""; }
};

TEST(StyledAnswer, ProgressIsTold) {
  const auto reply = std::make_shared<FakeReply>();
  ChatRequest asked;
  asked.fields.stream = true;
  StyledAnswer answer(std::make_unique<ProgressStyle>(), asked, 1, reply);
  const auto begin = Clock::now();
  const auto tell = [&](int ms, PromptProgress progress) {
    const size_t n = reply->pieces.size();
    progress.n_total = 530;
    progress.ms = ms;
    answer.progress(progress, begin + milliseconds(ms));
    return reply->pieces.size() - n;
  };
  EXPECT_EQ(tell(50, {.share = 0.1}), 0u);  // a short wait
  EXPECT_EQ(tell(120, {.share = 0.25, .seconds_left = 0.36}), 1u);
  EXPECT_EQ(reply->pieces.back(), R"({"prompt_progress":{"total":530,"cache":0,"processed":0,"time_ms":120},)"
                                  R"("vlcache_progress":{"share":0.25,"seconds_left":0.4}})");
  for (int ms = 121; ms < 220; ++ms) EXPECT_EQ(tell(ms, {.share = 0.3, .n_done = 64, .n_cached = 64}), 0u);
  EXPECT_EQ(tell(220, {.share = 0.31}), 1u);
  EXPECT_EQ(tell(221, {.share = 0.6, .n_done = 512, .n_cached = 64}), 1u);  // a step, as ever
  EXPECT_EQ(tell(222, {.share = 0.6, .n_done = 512, .n_cached = 64}), 0u);
  EXPECT_EQ(tell(223, {.share = 0.9, .n_done = 530}), 1u);
  EXPECT_EQ(tell(224, {.share = 1, .seconds_left = 0, .n_done = 530}), 1u);
  EXPECT_EQ(reply->pieces.back(), R"({"prompt_progress":{"total":530,"cache":0,"processed":530,"time_ms":224},)"
                                  R"("vlcache_progress":{"share":1.0,"seconds_left":0.0}})");
  int n = 0;
  for (int ms = 1000; ms < 2000; ++ms) n += static_cast<int>(tell(ms, {.waiting = true, .n_done = 530}));
  EXPECT_EQ(n, 10);
  EXPECT_TRUE(OrderedJson::parse(reply->pieces.back())["vlcache_progress"]["waiting"]);
}

}  // namespace
}  // namespace vlcache
