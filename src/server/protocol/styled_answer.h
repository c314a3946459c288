// StyledAnswer passes the answers of one request, as the inference thread generates them, to the reply in the style of
// an endpoint.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "server/http/http_server.h"
#include "server/protocol/answer_style.h"

namespace vlcache {

class StyledAnswer {
 public:
  StyledAnswer(std::unique_ptr<AnswerStyle> style, const ChatRequest& asked, size_t n_answers, HttpReplyPtr reply);

  // Called once the request is accepted; after that, the inference thread alone calls the members.
  void begin();
  // Passed on when more of the prompt's tokens are computed, else ten times a second at most.
  void progress(const PromptProgress& progress, Clock::time_point now = Clock::now());
  void token(int index, const GeneratedToken& token);
  void text(int index, std::string_view text);
  void done(int index, GenerateResult result);

 private:
  struct Reader {
    ThoughtReader thoughts;
    ToolCallReader reader;
    bool has_calls = false;
  };
  void say(int index, const ThoughtReader::Piece& piece);
  void say(int index, const ToolCallReader::Piece& piece);
  void write(std::string piece);
  void finish();

  std::unique_ptr<AnswerStyle> style_;
  size_t n_;
  bool stream_;
  HttpReplyPtr reply_;
  bool may_call_, include_thoughts_;
  std::vector<Reader> readers_;  // by answer, of a stream
  std::map<int, GenerateResult> results_;
  std::optional<Error> error_;
  // The progress that was passed on last, and when; or when the answer began.
  Clock::time_point told_at_;
  PromptProgress told_;
};

// A stream that begins and says at once that it has failed.
void stream_failure(AnswerStyle& style, const Error& error, HttpReply& reply);

}  // namespace vlcache
