// AccessLog: a line of JSON for every request, for whoever counts and bills; no text of prompts and answers.
#pragma once

#include <cstdio>
#include <filesystem>
#include <mutex>
#include <string>

#include "server/operations/exchange.h"

namespace vlcache {

class AccessLog {
 public:
  // "-": standard output. Appends. Throws Error(kIo) where it cannot write.
  explicit AccessLog(std::filesystem::path file);
  ~AccessLog();
  AccessLog(const AccessLog&) = delete;

  // Any thread.
  void write(const ExchangeReport& report);
  // Opens the file anew, which somebody has moved away. Throws Error(kIo), and goes on with the old one.
  void reopen();

 private:
  std::FILE* open() const;

  std::filesystem::path file_;
  std::mutex mutex_;
  std::FILE* to_;
};

// {"time", "id", "peer", "tenant", "method", "path", "status", "ms", "prompt_tokens", "cached_tokens",
// "completion_tokens", "gone", "bug"}; what there is nothing to say about is left out.
std::string log_line(const ExchangeReport& report, std::chrono::system_clock::time_point time);

}  // namespace vlcache
