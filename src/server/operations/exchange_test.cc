// What is added to a reply, and what is reported, for every way in which it can end.
#include "server/operations/exchange.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "server/operations/access_log.h"

namespace vlcache {
namespace {

class FakeReply final : public HttpReply {
 public:
  void send(HttpResponse response) override { head = std::move(response); }
  void begin(HttpResponse h, std::string) override { head = std::move(h); }
  void write(std::string piece) override { text += piece; }
  void end() override { ++n_ends; }
  void on_gone(std::function<void()> callback) override { gone = std::move(callback); }

  HttpResponse head;
  std::string text;
  int n_ends = 0;
  std::function<void()> gone;
};

class ExchangeTest : public testing::Test {
 protected:
  std::unique_ptr<Exchange> exchange(const std::string& id = "") {
    HttpRequest request{.method = "POST", .path = "/v1/x", .peer = "10.0.0.1"};
    if (!id.empty()) request.headers = {{"x-request-id", id}};
    return std::make_unique<Exchange>(reply, request, [this](const ExchangeReport& r) { reports.push_back(r); });
  }
  std::string header(std::string_view name) const {
    for (const auto& [key, value] : reply->head.headers) {
      if (key == name) return value;
    }
    return "";
  }

  std::shared_ptr<FakeReply> reply = std::make_shared<FakeReply>();
  std::vector<ExchangeReport> reports;
};

TEST_F(ExchangeTest, RepliesHaveTheIdAndTheHeaders) {
  auto e = exchange("theirs-1");
  e->set_caller({.name = "alice"}, {{"vary", "origin"}});
  e->send({.status = 201, .headers = {{"a", "b"}}, .body = "x"});
  e.reset();
  EXPECT_EQ(header("x-request-id"), "theirs-1");
  EXPECT_EQ(header("vary"), "origin");
  EXPECT_EQ(header("a"), "b");
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].status, 201);
  EXPECT_EQ(reports[0].tenant, "alice");
  EXPECT_FALSE(reports[0].gone);
}

TEST_F(ExchangeTest, InvalidRequestIdsAreReplaced) {
  for (const std::string& id :
       {std::string(), std::string("a b"), std::string("a\"b"), std::string("\xff"), std::string(200, 'x')}) {
    exchange(id)->send({});
    EXPECT_TRUE(header("x-request-id").starts_with("req-")) << id;
    EXPECT_EQ(header("x-request-id").size(), 28u);
  }
}

TEST_F(ExchangeTest, StreamsAreReportedAtTheirEnd) {
  auto e = exchange();
  e->begin({.status = 200}, "");
  e->write("piece");
  EXPECT_TRUE(reports.empty());
  e->count_tokens(10, 4, 2);
  e->count_tokens(0, 0, 3);
  e->end();
  e.reset();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].n_generated, 5);
  EXPECT_EQ(reply->text, "piece");
  EXPECT_EQ(reply->n_ends, 1);
}

// A stream that a bug ends has already sent status 200: the log states what happened, under the request's id.
TEST_F(ExchangeTest, BugsAreReportedWithTheId) {
  auto e = exchange("theirs-2");
  e->begin({.status = 200}, "");
  e->note_bug(Error(ErrorCode::kInput, "the client's"));
  e->note_bug(Error(ErrorCode::kBug, "x.cc:1: CHECK(y) failed"));
  e->end();
  ASSERT_EQ(reports.size(), 1u);
  const auto line = nlohmann::json::parse(log_line(reports[0], {}));
  EXPECT_EQ(line["id"], "theirs-2");
  EXPECT_EQ(line["bug"], "x.cc:1: CHECK(y) failed");
}

TEST_F(ExchangeTest, DisconnectedClientIsReported) {
  auto e = exchange();
  bool called = false;
  e->on_gone([&] { called = true; });
  reply->gone();
  EXPECT_TRUE(called);
  e->begin({.status = 200}, "");
  e->end();
  exchange();  // dropped without a reply
  e = exchange();
  e->on_gone([] {});
  reply->gone();
  e->send({.status = 200});  // no client reads it
  ASSERT_EQ(reports.size(), 3u);
  EXPECT_TRUE(reports[0].gone);
  EXPECT_EQ(reports[0].status, 200);
  EXPECT_TRUE(reports[1].gone);
  EXPECT_EQ(reports[1].status, 499);
  EXPECT_TRUE(reports[2].gone);
  EXPECT_EQ(reports[2].status, 499);
}

TEST(AccessLog, LinesAreJson) {
  ExchangeReport report{.id = "req-1",
                        .method = "POST",
                        .path = "/v1/\xff\n\"x",
                        .peer = "::1",
                        .tenant = "bob",
                        .status = 200,
                        .ms = 12.34567};
  const std::chrono::system_clock::time_point time{std::chrono::milliseconds(1700000000123)};
  const std::string plain = log_line(report, time);
  EXPECT_EQ(plain.find('\n'), plain.npos);
  nlohmann::json line = nlohmann::json::parse(plain);
  EXPECT_EQ(line["time"], "2023-11-14T22:13:20.123Z");
  EXPECT_EQ(line["ms"], 12.346);
  EXPECT_FALSE(line.contains("prompt_tokens") || line.contains("gone"));
  report.generates = report.gone = true;
  report.n_prompt = 7;
  EXPECT_FALSE(line.contains("notes"));
  report.notes = {"a", "b"};
  line = nlohmann::json::parse(log_line(report, time));
  EXPECT_EQ(line["prompt_tokens"], 7);
  EXPECT_EQ(line["gone"], true);
  EXPECT_EQ(line["notes"], nlohmann::json({"a", "b"}));
}

TEST(AccessLog, LinesForATerminal) {
  ExchangeReport report{.method = "POST", .path = "/v1/chat/completions", .status = 200, .ms = 12.6};
  EXPECT_EQ(terminal_line(report), "POST /v1/chat/completions 200 13 ms");
  report.generates = true;
  report.n_prompt = 70;
  report.n_cached = 64;
  report.n_generated = 9;
  report.notes = {"tools: the model is not shown f"};
  EXPECT_EQ(terminal_line(report),
            "POST /v1/chat/completions 200 found 64 of 70 prompt tokens, 9 generated, 13 ms; tools: the model is not "
            "shown f");
  report = {.method = "POST", .path = "/v1/x", .status = 400, .ms = 1, .gone = true, .error = "a\n\x1b[2Jb\x7f"};
  EXPECT_EQ(terminal_line(report), "POST /v1/x 400 1 ms: a  [2Jb  (the client left)");  // no control characters
}

TEST(AccessLog, ContinuesInANewFileAfterReopen) {
  const std::string file = testing::TempDir() + "/vlcache-access.log", old = file + ".1";
  std::filesystem::remove(file);
  AccessLog log(file);
  log.write({.id = "first"});
  std::filesystem::rename(file, old);
  log.write({.id = "second"});
  log.reopen();
  log.write({.id = "third"});
  const auto text = [](const std::string& name) {
    std::stringstream s;
    s << std::ifstream(name).rdbuf();
    return s.str();
  };
  EXPECT_NE(text(old).find("first"), std::string::npos);
  EXPECT_NE(text(old).find("second"), std::string::npos);
  EXPECT_NE(text(file).find("third"), std::string::npos);
  EXPECT_EQ(text(file).find("first"), std::string::npos);
  EXPECT_ANY_THROW(AccessLog("/dev/null/folder/log"));
}

}  // namespace
}  // namespace vlcache
