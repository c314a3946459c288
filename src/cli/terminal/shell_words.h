// Reads paths as terminals write them when a file is dropped on them: quoted, with backslashes, with ~, as file://
// URLs; and completes them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace vlcache {

// A word of a line by the shell's rules: quotes and backslashes are resolved, nothing is expanded.
struct ShellWord {
  std::string text;
  size_t begin = 0, end = 0;  // its bytes in the line, quotes included
};
// An unclosed quote reaches to the end.
std::vector<ShellWord> shell_words(std::string_view line);

// "~" and "~/..." become the home directory; file:// URLs become paths.
std::string expand_path(std::string_view path);

// The paths of an argument: its words, or all of it as a single path if a file of that name exists ("/tmp/my
// page.png").
std::vector<std::string> paths_of(std::string_view argument);

// Files at the beginning of a message, as a terminal inserts them when they are dropped, and the text after them. A
// file alone may have any name; text is left after names of images only. No paths: the message begins with no file.
struct DroppedFiles {
  std::vector<std::string> paths;
  std::string text;
  std::string missing;    // a path among them that does not exist: the message is neither files nor a text
  std::string mere_name;  // the message is a text that begins with such a name of an image or clip, without a folder
};
DroppedFiles dropped_files(std::string_view message);

// Texts that may replace the line from `begin` to the cursor.
struct Completion {
  size_t begin = 0;
  std::vector<std::string> candidates;  // sorted; a folder ends in '/'
};
// Completes the last word as a path. Candidates keep the word's form: with ~ if it has it, spaces after a backslash.
Completion complete_path(std::string_view before_cursor);
// Completes `word`, which begins at `begin`, with the words of `known` that begin with it.
Completion complete_word(std::string_view word, size_t begin, const std::vector<std::string>& known);
// What all candidates begin with.
std::string common_beginning(const std::vector<std::string>& candidates);

}  // namespace vlcache
