#include "server/protocol/styled_answer.h"

#include <algorithm>
#include <utility>

#include "server/http/json_reply.h"
#include "server/protocol/chat_reply.h"

namespace vlcache {
namespace {

// Between two events of progress, and before the first: short waits need none.
constexpr std::chrono::milliseconds kProgressInterval{100};

void begin_stream(HttpReply& reply, const AnswerStyle& style) {
  reply.begin({.status = 200, .content_type = "text/event-stream", .headers = {}, .body = ""}, style.heartbeat());
}

}  // namespace

StyledAnswer::StyledAnswer(std::unique_ptr<AnswerStyle> style, const ChatRequest& asked, size_t n_answers,
                           HttpReplyPtr reply)
    : style_(std::move(style)),
      n_(n_answers),
      stream_(asked.stream()),
      reply_(std::move(reply)),
      may_call_(asked.tools.may_call()),
      include_thoughts_(asked.include_thoughts),
      told_at_(Clock::now()) {
  if (!asked.stream()) return;
  readers_.resize(n_answers, {ThoughtReader(asked.thoughts, asked.in_thought),
                              ToolCallReader(asked.call_syntax, asked.tools.names(), asked.calls_are_held(),
                                             asked.tools.string_parameters())});
}

void StyledAnswer::begin() {
  if (!stream_) return;
  begin_stream(*reply_, *style_);
  write(style_->begin());
}

void StyledAnswer::text(int index, std::string_view text) {
  if (!stream_) return;
  say(index, readers_[static_cast<size_t>(index)].thoughts.push(text));
}

void StyledAnswer::progress(const PromptProgress& progress, Clock::time_point now) {
  const bool computed =
      progress.n_done > std::max(told_.n_done, progress.n_cached) || (progress.share == 1 && told_.share < 1);
  if (!computed && now - told_at_ < kProgressInterval) return;
  told_at_ = now;
  told_ = progress;
  write(style_->progress(progress));
}

void StyledAnswer::token(int index, const GeneratedToken& token) { style_->token(index, token); }

void StyledAnswer::done(int index, GenerateResult result) {
  if (result.error && !error_) error_ = result.error;
  if (stream_ && !result.error) {
    Reader& reader = readers_[static_cast<size_t>(index)];
    say(index, reader.thoughts.finish());
    if (may_call_) say(index, reader.reader.finish());
    write(style_->ended(index, result, reader.has_calls));
  }
  results_[index] = std::move(result);
  if (results_.size() == n_) finish();
}

void StyledAnswer::say(int index, const ThoughtReader::Piece& piece) {
  if (!piece.thought.empty() && include_thoughts_) write(style_->thought(index, piece.thought));
  if (piece.text.empty()) return;
  if (may_call_) return say(index, readers_[static_cast<size_t>(index)].reader.push(piece.text));
  write(style_->text(index, piece.text));
}

void StyledAnswer::say(int index, const ToolCallReader::Piece& piece) {
  if (!piece.text.empty()) write(style_->text(index, piece.text));
  if (piece.calls.empty()) return;
  readers_[static_cast<size_t>(index)].has_calls = true;
  write(style_->calls(index, piece.calls));
}

void StyledAnswer::write(std::string piece) {
  if (!piece.empty()) reply_->write(std::move(piece));
}

void StyledAnswer::finish() {
  std::vector<GenerateResult> results;
  for (auto& [index, result] : results_) results.push_back(std::move(result));
  if (!stream_) {
    reply_->send(error_ ? error_response(*error_) : json_response(style_->whole(results)));
    return;
  }
  write(error_ ? style_->failed(*error_) : style_->end(results));
  reply_->end();
}

void stream_failure(AnswerStyle& style, const Error& error, HttpReply& reply) {
  begin_stream(reply, style);
  reply.write(style.begin() + style.failed(error));
  reply.end();
}

}  // namespace vlcache
