// AccessLog writes a line of JSON for every request, for counting and billing; never the text of prompts and answers.
#pragma once

#include <cstdio>
#include <filesystem>
#include <mutex>
#include <string>

#include "server/operations/exchange.h"

namespace vlcache {

class AccessLog {
 public:
  // "-": standard output. Appends. Throws Error(kIo) if it cannot write.
  explicit AccessLog(std::filesystem::path file);
  ~AccessLog();
  AccessLog(const AccessLog&) = delete;

  // Any thread.
  void write(const ExchangeReport& report);
  // Reopens the file, after it has been moved away. Throws Error(kIo) and keeps the old one.
  void reopen();

 private:
  std::FILE* open() const;

  std::filesystem::path file_;
  std::mutex mutex_;
  std::FILE* to_;
};

// "POST /v1/chat/completions 200 found 261 of 270 prompt tokens, 12 generated, 85 ms", for people at a terminal.
std::string terminal_line(const ExchangeReport& report);
// {"time", "id", "peer", "tenant", "method", "path", "status", "ms", "prompt_tokens", "cached_tokens",
// "completion_tokens", "error", "gone", "bug"}; keys without a value are left out.
std::string log_line(const ExchangeReport& report, std::chrono::system_clock::time_point time);

}  // namespace vlcache
