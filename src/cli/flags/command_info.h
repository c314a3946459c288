// What --help, the completions of shells and the man page are made of: commands and flags as plain data.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/flags/first_flags.h"

namespace vlcache {

struct FlagInfo {
  std::vector<std::string> names;  // "-n", "--max-tokens"; of a positional argument its name alone
  bool is_positional = false, is_required = false;
  std::string value_name;            // empty: a switch
  std::vector<std::string> choices;  // values that it accepts; empty: any
  std::string range;                 // "1 to 4096"
  std::string fallback;              // the value without the flag
  std::string environment;           // the variable that sets it
  std::string group;                 // heading in --help
  std::string help;
};

struct CommandInfo {
  std::string name;  // with its parents: "vlcache cache ls"
  std::string help, footer;
  std::vector<FlagInfo> flags;  // positional arguments first
  std::vector<CommandInfo> commands;

  std::string_view last_name() const { return std::string_view(name).substr(name.rfind(' ') + 1); }
};

// Lines of at most `width` columns; all but the first begin with `indent` spaces.
std::string wrapped_text(const std::string& text, size_t indent, size_t width);
// Each line wrapped at words; one of two columns ("/help      this list") is indented to the second. Examples, which
// are for copying, stay whole.
std::string wrapped_lines(const std::string& text, size_t width);
// All flags in groups, the basic one first. Wrapped at `width` columns.
std::string help_text(const CommandInfo& command, size_t width);
// Its first flags alone, and how to see the others.
std::string short_help_text(const CommandInfo& command, std::span<const FirstFlag> first, size_t width);
// A man page of section 1, in troff.
std::string man_page(const CommandInfo& root);
// A script that completes commands, flags, values and files in this shell: bash, zsh or fish.
std::string shell_completions(const CommandInfo& root, std::string_view shell);

}  // namespace vlcache
