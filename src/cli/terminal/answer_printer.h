// AnswerPrinter prints an answer to standard output while it is generated: rendered on a terminal, as it is on a pipe.
#pragma once

#include <optional>
#include <string_view>

#include "cli/terminal/markdown.h"

namespace vlcache {

class AnswerPrinter {
 public:
  struct Options {
    bool plain = false;  // neither Markdown nor colours, on a terminal, too
  };

  explicit AnswerPrinter(const Options& options);
  // White space with which the answer begins, as many models' answers do, is left out.
  void add(std::string_view text);
  // Prints the rest and a line break.
  void finish();

 private:
  std::optional<TerminalMarkdown> terminal_;  // none: a pipe or a file
  bool begun_ = false;                        // something but white space has come
};

}  // namespace vlcache
