#include <algorithm>

#include "base/error.h"
#include "cli/flags/command_info.h"

namespace vlcache {
namespace {

constexpr size_t kIndent = 30;  // of descriptions

// The basic group first, the machine's last; a command's own are between.
size_t rank_of(const std::string& group) {
  constexpr std::string_view kOrder[] = {
      "Arguments", "Basic", "Access", "Options", "Sampling", "Answer", "Compression and reuse", "Cache", "Machine"};
  const auto* at = std::ranges::find(kOrder, std::string_view(group));
  return static_cast<size_t>(at - kOrder);
}

std::vector<std::string> groups_of(const CommandInfo& command) {
  std::vector<std::string> groups;
  for (const FlagInfo& flag : command.flags) {
    if (std::ranges::find(groups, flag.group) == groups.end()) groups.push_back(flag.group);
  }
  std::ranges::stable_sort(groups, {}, rank_of);
  return groups;
}

// Words of `text` in lines of at most `width` columns, the first of which has `column` already; later ones are
// indented.
std::string wrapped(std::string_view text, size_t indent, size_t width, size_t column) {
  std::string out;
  const auto n_columns = [](std::string_view word) {
    return static_cast<size_t>(
        std::ranges::count_if(word, [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
  };
  for (size_t i = 0; i < text.size();) {
    const size_t end = std::min(text.find(' ', i), text.size());
    const std::string_view word = text.substr(i, end - i);
    if (column > indent && column + 1 + n_columns(word) > width) {
      out += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (i > 0) {
      out += ' ';
      ++column;
    }
    out += word;
    column += n_columns(word);
    i = end + 1;
  }
  return out;
}

std::string entry(const std::string& head, const std::string& help, size_t width) {
  const bool fits = head.size() + 3 < kIndent;  // two spaces between the columns
  const std::string space = fits ? std::string(kIndent - head.size() - 2, ' ') : "\n" + std::string(kIndent, ' ');
  return "  " + head + space + wrapped(help, kIndent, width, kIndent) + "\n";
}

std::string head_of(const FlagInfo& flag) {
  std::string head;
  for (const std::string& name : flag.names) head += (head.empty() ? "" : ", ") + name;
  if (!flag.is_positional && flag.names[0].starts_with("--")) head = "    " + head;
  return flag.is_positional || flag.value_name.empty() ? head : head + " " + flag.value_name;
}

std::string details_of(const FlagInfo& flag) {
  std::string text = flag.help;
  std::string more;
  const auto add = [&](const std::string& part) { more += (more.empty() ? "" : "; ") + part; };
  if (flag.is_required) add("required");
  std::string choices;
  for (const std::string& choice : flag.choices) choices += (choices.empty() ? "" : ", ") + choice;
  if (!choices.empty()) add(choices);
  if (!flag.range.empty()) add(flag.range);
  if (!flag.fallback.empty()) add("default " + flag.fallback);
  if (!more.empty()) text += " [" + more + "]";
  return text;
}

}  // namespace

std::string wrapped_lines(const std::string& text, size_t width) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const size_t end = std::min(text.find('\n', i), text.size());
    const std::string line = text.substr(i, end - i);
    const bool is_to_copy = line.starts_with("Example") || line.starts_with("vlcache") || line.starts_with("  ");
    const size_t gap = line.find("  "), column = gap == line.npos ? 0 : line.find_first_not_of(' ', gap);
    out += (is_to_copy ? line : wrapped(line, column == line.npos ? 0 : column, width, 0)) + "\n";
    i = end + 1;
  }
  return out;
}

std::string wrapped_text(const std::string& text, size_t indent, size_t width) {
  return wrapped(text, indent, width, 0);
}

std::string help_text(const CommandInfo& command, size_t width) {
  std::string text = wrapped(command.help, 0, width, 0) + "\n\nUsage: " + command.name;
  for (const FlagInfo& flag : command.flags) {
    if (!flag.is_positional && flag.is_required) text += " " + flag.names.back() + " " + flag.value_name;
  }
  text += " [OPTIONS]";
  for (const FlagInfo& flag : command.flags) {
    if (flag.is_positional) text += flag.is_required ? " " + flag.names[0] : " [" + flag.names[0] + "]";
  }
  if (!command.commands.empty()) text += " COMMAND";
  text += "\n";
  for (const std::string& group : groups_of(command)) {
    text += "\n" + group + ":\n";
    for (const FlagInfo& flag : command.flags) {
      if (flag.group != group) continue;
      const std::string variable = flag.environment.empty() ? "" : " (" + flag.environment + ")";
      text += entry(head_of(flag), details_of(flag) + variable, width);
    }
  }
  if (!command.commands.empty()) text += "\nCommands:\n";
  for (const CommandInfo& sub : command.commands) text += entry(std::string(sub.last_name()), sub.help, width);
  if (!command.footer.empty()) text += "\n" + wrapped_lines(command.footer, width);
  return text;
}

std::string short_help_text(const CommandInfo& command, std::span<const FirstFlag> first, size_t width) {
  CommandInfo shown{.name = command.name, .help = command.help, .footer = command.footer, .flags = {}, .commands = {}};
  for (const FlagInfo& flag : command.flags) {
    if (flag.is_positional) shown.flags.push_back(flag);
  }
  for (const FirstFlag& wanted : first) {
    const auto found = std::ranges::find_if(command.flags, [&](const FlagInfo& flag) {
      return std::ranges::find(flag.names, wanted.name) != flag.names.end();
    });
    CHECK(found != command.flags.end());
    shown.flags.push_back({.names = found->names,
                           .is_required = found->is_required,
                           .value_name = found->value_name,
                           .fallback = found->fallback,
                           .group = std::string(wanted.group),
                           .help = std::string(wanted.help)});
  }
  const size_t n_others = command.flags.size() - shown.flags.size();
  return help_text(shown, width) + "\n" +
         wrapped(command.name + " --help-all describes " + std::to_string(n_others) + " more flags.", 0, width, 0) +
         "\n";
}

namespace {

constexpr size_t kManWidth = 72;

// Text without commands of troff, and with the characters as they are typed in a shell.
std::string troff(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool begins_line = out.empty() || out.back() == '\n';
    switch (c) {
      case '\\':
        out += "\\e";
        break;
      case '-':
        out += "\\-";
        break;
      case '\'':
        out += "\\(aq";
        break;
      case '`':
        out += "\\(ga";
        break;
      case '~':
        out += "\\(ti";
        break;
      case '^':
        out += "\\(ha";
        break;
      case '.':
        out += begins_line ? "\\&." : ".";
        break;
      default:
        out += c;
    }
  }
  return out;
}

void add_to_man(std::string& page, const CommandInfo& command) {
  for (const std::string& group : groups_of(command)) {
    page += ".SS " + troff(group) + "\n";
    for (const FlagInfo& flag : command.flags) {
      if (flag.group != group) continue;
      std::string head = head_of(flag);
      head.erase(0, head.find_first_not_of(' '));
      page += ".TP\n\\fB" + troff(head) + "\\fR\n" + troff(details_of(flag)) + "\n";
      if (!flag.environment.empty()) page += ".br\n\\%" + troff(flag.environment) + "\n";  // never hyphenated
    }
  }
  if (!command.footer.empty() && command.commands.empty()) {
    page += ".PP\n.nf\n" + troff(wrapped_lines(command.footer, kManWidth)) + ".fi\n";
  }
  for (const CommandInfo& sub : command.commands) {
    page += ".SH " + troff(sub.name) + "\n" + troff(sub.help) + "\n";
    add_to_man(page, sub);
  }
}

}  // namespace

std::string man_page(const CommandInfo& root) {
  const std::string does = troff(root.help.substr(root.help.find(' ') + 1));
  std::string page = ".TH VLCACHE 1 \"\" \"vlcache " VLCACHE_VERSION "\" \"User Commands\"\n.SH NAME\nvlcache \\- " +
                     does + "\n.SH SYNOPSIS\n.B vlcache\nCOMMAND [OPTIONS]\n.SH DESCRIPTION\n" + troff(root.footer) +
                     "\n";
  add_to_man(page, root);
  return page;
}

}  // namespace vlcache
