// LineEditor reads messages on a terminal, with libedit: arrow keys, history, completion, and pastes of several lines,
// which stay one message.
#pragma once

#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "cli/terminal/shell_words.h"

namespace vlcache {

class LineEditor {
 public:
  struct Options {
    std::string prompt;
    bool bold = false;              // the prompt
    std::filesystem::path history;  // the file of former messages, readable by its owner only; empty: none is kept
    std::function<Completion(std::string_view before_cursor)> complete;
    std::function<bool()> stopped;  // asked several times a second while waiting: true ends it
  };
  enum class Result : uint8_t {
    kMessage,
    kEnd,      // Ctrl-D, or the terminal was closed
    kStopped,  // Ctrl-C twice, or `stopped` returned true
  };

  // Whether messages are typed by a user: standard input and error are a terminal that can move its cursor.
  static bool is_possible();
  // $XDG_STATE_HOME/vlcache/history; empty if there is no home directory.
  static std::filesystem::path default_history();

  explicit LineEditor(Options options);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  // Waits for a message, without the line break at its end. Ctrl-C clears the line; at an empty line, the second one in
  // sequence ends the input. Ctrl-Z suspends the process.
  Result next(std::string& message);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace vlcache
