// Lines from a file, a pipe or a terminal, of which only those that are there can be asked for: a client that waits for
// each answer and one that sends everything at once are both served.
#pragma once

#include <functional>
#include <string>

namespace vlcache {

class LineSource {
 public:
  // Asked while waiting, several times a second: true ends the waiting.
  using Stopped = std::function<bool()>;

  // `fd` stays the caller's.
  LineSource(int fd, Stopped stopped) : fd_(fd), stopped_(std::move(stopped)) {}
  // "-" is standard input. Throws Error(kNotFound) if the file cannot be opened.
  LineSource(const std::string& path, Stopped stopped);
  ~LineSource();
  LineSource(const LineSource&) = delete;
  LineSource& operator=(const LineSource&) = delete;

  // The next line, without its end; the last one needs none. False at the end of the input, when `stopped` says so, and
  // without `wait` when no whole line has come yet. Throws Error(kIo) if reading fails.
  bool next(std::string& line, bool wait);

 private:
  bool take(std::string& line);
  bool read_more(bool wait);

  int fd_;
  bool owned_ = false;
  bool at_end_ = false;
  Stopped stopped_;
  std::string buffer_;
  size_t begin_ = 0;    // of the next line in buffer_
  size_t scanned_ = 0;  // up to here there is no end of it
};

}  // namespace vlcache
