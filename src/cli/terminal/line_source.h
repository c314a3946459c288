// LineSource reads lines from a file, a pipe or a terminal, with or without waiting for the next one: it serves a
// client that waits for each answer and one that sends everything at once.
#pragma once

#include <functional>
#include <string>

namespace vlcache {

class LineSource {
 public:
  // Called while waiting, several times a second: true ends the waiting.
  using Stopped = std::function<bool()>;

  // `fd` stays open: the caller owns it.
  LineSource(int fd, Stopped stopped) : fd_(fd), stopped_(std::move(stopped)) {}
  // "-" is standard input. Throws Error(kNotFound) if the file cannot be opened.
  LineSource(const std::string& path, Stopped stopped);
  ~LineSource();
  LineSource(const LineSource&) = delete;
  LineSource& operator=(const LineSource&) = delete;

  // The next line, without its line break; the last line needs none, and the first one loses its byte order mark.
  // Returns false at the end of the input, when `stopped` returns true, and without `wait` when there is no complete
  // line yet. Throws Error(kIo) if reading fails.
  bool next(std::string& line, bool wait);

 private:
  bool take(std::string& line);
  bool read_more(bool wait);

  int fd_;
  bool owned_ = false;
  bool at_end_ = false, at_first_ = true;
  Stopped stopped_;
  std::string buffer_;
  size_t begin_ = 0;    // of the next line in buffer_
  size_t scanned_ = 0;  // up to here there is no line break
};

}  // namespace vlcache
