#include "cli/terminal/answer_printer.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>

namespace vlcache {
namespace {

void print(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

}  // namespace

AnswerPrinter::AnswerPrinter(const Options& options) {
  if (isatty(STDOUT_FILENO) == 0) return;
  terminal_.emplace(TerminalMarkdown::Options{.renders = !options.plain,
                                              .colour = !options.plain && takes_colour(STDOUT_FILENO),
                                              .width = terminal_width(STDOUT_FILENO)});
}

void AnswerPrinter::add(std::string_view text) {
  if (!begun_) text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
  if (text.empty()) return;
  begun_ = true;
  print(terminal_ ? terminal_->add(text) : text);
}

void AnswerPrinter::finish() { print((terminal_ ? terminal_->finish() : "") + "\n"); }

}  // namespace vlcache
