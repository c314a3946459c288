// Each script has a function that is given the typed words, and a table of the words that may follow each command and
// flag.
#include <algorithm>

#include "base/error.h"
#include "cli/flags/command_info.h"

namespace vlcache {
namespace {

bool takes_path(const FlagInfo& flag) {
  return flag.value_name.starts_with("FILE") || flag.value_name.starts_with("DIR");
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

// In single quotes, for every shell here.
std::string quoted(std::string_view text, std::string_view quote) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'') {
      out += quote;
    } else {
      out += c;
    }
  }
  return out + "'";
}

// Calls visit(command) for a command and all below it.
template <typename Visit>
void walk(const CommandInfo& command, const Visit& visit) {
  visit(command);
  for (const CommandInfo& sub : command.commands) walk(sub, visit);
}

// "cache ls" of "vlcache cache ls"
std::string words_after_program(const CommandInfo& command) {
  const size_t space = command.name.find(' ');
  return space == std::string::npos ? "" : command.name.substr(space + 1);
}

// Words that may follow a command: its sub-commands, flags and the values of its positional arguments.
std::vector<std::string> words_of(const CommandInfo& command) {
  std::vector<std::string> words;
  for (const CommandInfo& sub : command.commands) words.emplace_back(sub.last_name());
  for (const FlagInfo& flag : command.flags) {
    const auto& more = flag.is_positional ? flag.choices : flag.names;
    words.insert(words.end(), more.begin(), more.end());
  }
  return words;
}

std::string bash(const CommandInfo& root) {
  std::string commands, values;
  walk(root, [&](const CommandInfo& command) {
    const std::string name = words_after_program(command);
    commands += "    " + quoted(name, "'\\''") + ") words=" + quoted(joined(words_of(command)), "'\\''") + " ;;\n";
    for (const FlagInfo& flag : command.flags) {
      if (flag.is_positional || flag.value_name.empty()) continue;
      std::string patterns;
      for (const std::string& each : flag.names) {
        patterns += (patterns.empty() ? "" : " | ") + quoted(name + " " + each, "'\\''");
      }
      values += "    " + patterns + ") ";
      values += takes_path(flag)
                    ? "compopt -o filenames; COMPREPLY=($(compgen -f -- \"$word\"))"
                    : "COMPREPLY=($(compgen -W " + quoted(joined(flag.choices), "'\\''") + " -- \"$word\"))";
      values += "; return ;;\n";
    }
  });
  return "# Completion of vlcache for bash: source <(vlcache completions bash)\n"
         "_vlcache() {\n"
         "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command= words= i\n"
         "  local known=" +
         [&] {
           std::string names = "'|";
           walk(root, [&](const CommandInfo& command) { names += words_after_program(command) + "|"; });
           return names + "'";
         }() +
         "\n"
         "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
         "    [[ $known == *\"|${command:+$command }${COMP_WORDS[i]}|\"* ]] && command=${command:+$command "
         "}${COMP_WORDS[i]}\n"
         "  done\n"
         "  case \"$command $before\" in\n" +
         values +
         "  esac\n"
         "  case \"$command\" in\n" +
         commands +
         "  esac\n"
         "  COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
         "  [ ${#COMPREPLY[@]} -gt 0 ] || { compopt -o filenames; COMPREPLY=($(compgen -f -- \"$word\")); }\n"
         "}\n"
         "complete -F _vlcache vlcache\n";
}

// In zsh's descriptions of arguments, brackets and colons end them.
std::string zsh_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

std::string zsh_value(const FlagInfo& flag) {
  if (flag.value_name.empty()) return "";
  const std::string action = takes_path(flag)       ? "_files"
                             : flag.choices.empty() ? " "
                                                    : "(" + joined(flag.choices) + ")";
  return ":" + zsh_text(flag.value_name) + ":" + action;
}

// _vlcache_cache_ls
std::string zsh_function(const CommandInfo& command) {
  std::string name = "_" + command.name;
  std::ranges::replace_if(
      name, [](char c) { return c == ' ' || c == '-'; }, '_');
  return name;
}

std::string zsh(const CommandInfo& root) {
  std::string out =
      "#compdef vlcache\n# Completion of vlcache for zsh: vlcache completions zsh > a folder of $fpath/_vlcache\n";
  walk(root, [&](const CommandInfo& command) {
    out += zsh_function(command) + "() {\n  _arguments -C \\\n";
    for (const FlagInfo& flag : command.flags) {
      if (flag.is_positional) continue;
      for (const std::string& name : flag.names) {
        out += "    " + quoted("*" + name + "[" + zsh_text(flag.help) + "]" + zsh_value(flag), "'\\''") + " \\\n";
      }
    }
    if (command.commands.empty()) {
      std::string choices;
      for (const FlagInfo& flag : command.flags) choices += flag.is_positional ? " " + joined(flag.choices) : "";
      const bool has_choices = choices.find_first_not_of(' ') != std::string::npos;
      out += "    '*: :" + (has_choices ? "(" + choices + " )" : std::string("_files")) + "'\n}\n";
      return;
    }
    out += "    '1: :->command' '*:: :->rest'\n  case $state in\n    command)\n      local -a commands=(";
    for (const CommandInfo& sub : command.commands) {
      out += "\n        " + quoted(std::string(sub.last_name()) + ":" + sub.help, "'\\''");
    }
    out += ")\n      _describe command commands ;;\n    rest) case $words[1] in\n";
    for (const CommandInfo& sub : command.commands) {
      out += "      " + std::string(sub.last_name()) + ") " + zsh_function(sub) + " ;;\n";
    }
    out += "      esac ;;\n  esac\n}\n";
  });
  return out + "if [ \"$funcstack[1]\" = _vlcache ]; then _vlcache \"$@\"; else compdef _vlcache vlcache; fi\n";
}

std::string fish(const CommandInfo& root) {
  constexpr std::string_view kQuote = "\\'";
  std::string out =
      "# Completion of vlcache for fish: vlcache completions fish > ~/.config/fish/completions/vlcache.fish\n";
  walk(root, [&](const CommandInfo& command) {
    const std::string path = words_after_program(command);
    std::string names, used;
    for (const CommandInfo& sub : command.commands) names += (names.empty() ? "" : " ") + std::string(sub.last_name());
    for (size_t i = 0; i < path.size();) {
      const size_t end = std::min(path.find(' ', i), path.size());
      used += (used.empty() ? "" : "; and ") + std::string("__fish_seen_subcommand_from ") + path.substr(i, end - i);
      i = end + 1;
    }
    const std::string condition = used.empty() ? "" : " -n " + quoted(used, kQuote);
    for (const CommandInfo& sub : command.commands) {
      const std::string before = (used.empty() ? "" : used + "; and ") + "not __fish_seen_subcommand_from " + names;
      out += "complete -c vlcache -f -n " + quoted(before, kQuote) + " -a " + std::string(sub.last_name()) + " -d " +
             quoted(sub.help, kQuote) + "\n";
    }
    for (const FlagInfo& flag : command.flags) {
      std::string line = "complete -c vlcache" + condition;
      if (flag.is_positional) {
        if (!flag.choices.empty()) out += line + " -f -a " + quoted(joined(flag.choices), kQuote) + "\n";
        continue;
      }
      for (const std::string& name : flag.names) {
        line += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      }
      if (!flag.value_name.empty()) line += takes_path(flag) ? " -r -F" : " -x";
      if (!flag.choices.empty()) line += " -a " + quoted(joined(flag.choices), kQuote);
      out += line + " -d " + quoted(flag.help, kQuote) + "\n";
    }
  });
  return out;
}

}  // namespace

std::string shell_completions(const CommandInfo& root, std::string_view shell) {
  if (shell == "bash") return bash(root);
  if (shell == "zsh") return zsh(root);
  CHECK(shell == "fish");
  return fish(root);
}

}  // namespace vlcache
