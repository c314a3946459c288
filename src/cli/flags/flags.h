// The command line: Command and Flag describe commands and their flags. Only flags.cc includes the library that parses
// it, CLI11, which takes seconds to compile.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace vlcache {

// A flag while it is being described; each function returns the flag.
class Flag {
 public:
  explicit Flag(CLI::Option* option) : option_(option) {}

  const Flag& group(const std::string& heading) const;      // in --help
  const Flag& value_name(const std::string& name) const;    // in --help, instead of the value's type
  const Flag& show_default() const;                         // in --help: the current value
  const Flag& default_text(const std::string& text) const;  // likewise
  const Flag& required(bool is_required = true) const;
  const Flag& one_per_use() const;      // of a list: each use adds one value
  const Flag& delimiter(char c) const;  // of a list: separates values
  const Flag& needs(const Flag& other) const;
  const Flag& one_of(const std::vector<std::string>& values) const;
  const Flag& not_negative() const;
  template <std::integral T>
  const Flag& range(T low, T high) const {
    return integer_range(low, high);
  }
  const Flag& range(double low, double high) const;
  // check(text) returns its fault; "": none.
  const Flag& check(const std::function<std::string(const std::string& text)>& check) const;
  // transform(text) replaces the value that was given.
  const Flag& transform(const std::function<std::string(const std::string& text)>& transform) const;
  // Its environment variable is the same in every command that has it: --kv-mode is VLCACHE_KV_MODE. All others include
  // their command's name (VLCACHE_BENCH_BATCH).
  const Flag& share_environment() const;

  CLI::Option* option() const { return option_; }

 private:
  const Flag& integer_range(int64_t low, int64_t high) const;

  CLI::Option* option_;
};

// A command while it is being described.
class Command {
 public:
  explicit Command(CLI::App* app) : app_(app) {}

  Command add_command(const std::string& name, const std::string& help) const;
  // names: "-n,--max-tokens", or "PROMPT" for a positional one. The flag sets `value`, which must outlive the parse:
  // bool and std::optional<bool> (without a value), int, int64_t, uint64_t, float, double, std::string, std::optional
  // and std::vector of these as far as flags.cc lists them.
  template <typename T>
  Flag add(const std::string& names, T& value, const std::string& help) const;
  Flag flag(const std::string& name) const;
  // After the parse: for each value given to one of these flags on the command line, in its order, the flag's index.
  std::vector<size_t> order_of(const std::vector<Flag>& flags) const;
  void remove(const Flag& flag) const;
  // Below the flags in --help.
  void footer(const std::string& text) const;
  // One of its sub-commands is required; or is optional, at most one.
  void require_command() const;
  void allow_command() const;
  bool was_given_command() const;
  // What the command does, once the command line has been parsed.
  void run(const std::function<void()>& action) const;

 private:
  CLI::App* app_;
};

// Parses and runs: every flag has an environment variable, --config reads a file of them. `describe` adds the commands.
// Returns the exit code; errors of the command line are printed to stderr. Throws Error(kInput) for a configuration
// file, and what commands throw.
int run_command_line(int argc, char** argv, const std::function<void(const Command& root)>& describe);

}  // namespace vlcache
