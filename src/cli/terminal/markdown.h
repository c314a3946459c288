// TerminalMarkdown shows a model's Markdown on a terminal while it arrives: headings, bold text, code, lists and
// tables. Everything else stays as the model wrote it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace vlcache {

// Whether a stream is a terminal that colours suit: NO_COLOR (https://no-color.org) is not set.
bool takes_colour(int fd);
// Columns of the terminal; `otherwise` if `fd` is none.
size_t terminal_width(int fd, size_t otherwise = 80);

class TerminalMarkdown {
 public:
  struct Options {
    bool renders = true;  // false: the text as it is, without control characters
    bool colour = true;
    size_t width = 80;  // of the terminal; wider tables stay as they are
  };

  explicit TerminalMarkdown(Options options) : options_(options) {}

  // What to print for the next piece of the answer. Control characters of the text are dropped: it must not command the
  // terminal.
  std::string add(std::string_view text);
  // The rest, with all styles ended.
  std::string finish();

 private:
  enum class Place : uint8_t { kLineBegin, kText, kFenceLine, kCode, kTable };

  void take(char c);
  void begin_line();
  void take_text(char c);
  void settle_stars(char next);
  void end_line();
  void end_table();
  void style();

  Options options_;
  Place place_ = Place::kLineBegin;
  std::string out_, held_;  // held_: the beginning of a line whose kind is not known yet, or a line of a table
  size_t n_stars_ = 0;
  bool heading_ = false, bold_ = false, code_ = false, in_fence_ = false, after_c2_ = false, escaped_ = false;
  std::vector<std::string> table_;
};

}  // namespace vlcache
