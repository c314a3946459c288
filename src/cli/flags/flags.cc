#include "cli/flags/flags.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <istream>
#include <iterator>
#include <memory>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/config_json.h"
#include "base/error.h"
#include "base/nearest.h"
#include "cli/flags/command_info.h"
#include "cli/flags/environment.h"
#include "cli/terminal/markdown.h"

namespace vlcache {
namespace {

std::string upper_case(std::string name) {
  for (char& c : name) c = c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

std::string environment_name(const std::string& command, const CLI::Option& option) {
  return upper_case("vlcache_" + (command.empty() ? "" : command + "_") + option.get_lnames().at(0));
}

// Every flag has an environment variable, of its own unless commands share it (--batch of bench is
// VLCACHE_BENCH_BATCH). Of a flag given twice, the last value counts.
void finish_flags(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    const auto& names = option->get_lnames();
    if (names.empty() || names[0].starts_with("help") || names[0] == "config" || names[0] == "version") continue;
    if (option->get_envname().empty()) option->envname(environment_name(app.get_name(), *option));
    if (option->get_items_expected_max() == 1) option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }
  for (CLI::App* command : app.get_subcommands({})) finish_flags(*command);
}

// Splits "TEXT:{auto,f32}" and "INT:INT in [1 - 4096]", as CLI11 describes a value and its checks.
void describe_value(std::string type, FlagInfo& info) {
  const size_t choices = type.find(":{"), range = type.find(" in ["), sign = type.find(":NONNEGATIVE");
  if (choices != type.npos) {
    const std::string list = type.substr(choices + 2, type.rfind('}') - choices - 2);
    for (size_t i = 0; i <= list.size();) {
      const size_t end = std::min(list.find(',', i), list.size());
      info.choices.push_back(list.substr(i, end - i));
      i = end + 1;
    }
    type.resize(choices);
  } else if (range != type.npos) {
    const size_t middle = type.find(" - ", range);
    const std::string low = type.substr(range + 5, middle - range - 5),
                      high = type.substr(middle + 3, type.rfind(']') - middle - 3);
    info.range = high.size() > 9 ? "at least " + low : low + " to " + high;
    type.resize(type.rfind(':', range));
  } else if (sign != type.npos) {
    info.range = "at least 0";
    type.resize(sign);
  }
  constexpr std::pair<const char*, const char*> kNames[] = {{"INT", "N"}, {"UINT", "N"}, {"FLOAT", "NUMBER"}};
  for (const auto& [cli11, ours] : kNames) {
    if (type == cli11) type = ours;
  }
  info.value_name = type == "TEXT" && !info.choices.empty() ? "NAME" : type;
}

// CLI11 shows the default of a list as "[1,2]".
std::string without_list_brackets(const std::string& text) {
  return text.starts_with('[') && text.ends_with(']') ? text.substr(1, text.size() - 2) : text;
}

FlagInfo info_of(const CLI::Option& option) {
  FlagInfo info{.is_positional = option.get_positional(),
                .is_required = option.get_required(),
                .fallback = without_list_brackets(option.get_default_str()),
                .environment = option.get_envname(),
                .group = option.get_positional() ? "Arguments" : option.get_group(),
                .help = option.get_description()};
  if (info.is_positional) {
    info.names = {option.get_name(true)};
  } else {
    for (const std::string& name : option.get_snames()) info.names.push_back("-" + name);
    for (const std::string& name : option.get_lnames()) info.names.push_back("--" + name);
  }
  if (option.get_type_size_max() > 0) describe_value(option.get_type_name(), info);
  return info;
}

// name: of the command, with its parents.
CommandInfo info_of(const CLI::App& app, const std::string& name) {
  CommandInfo info{
      .name = name, .help = app.get_description(), .footer = app.get_footer(), .flags = {}, .commands = {}};
  for (const bool positional : {true, false}) {
    for (const CLI::Option* option : app.get_options()) {
      if (option->get_positional() == positional && !option->get_group().empty())
        info.flags.push_back(info_of(*option));
    }
  }
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    info.commands.push_back(info_of(*sub, name + " " + sub->get_name()));
  }
  return info;
}

// `vlcache completions`: made of the same descriptions as --help.
void add_completions_command(const CLI::App& app, const Command& root, std::string& shell) {
  const Command command = root.add_command("completions", "Print shell completions or the man page");
  command.add("SHELL", shell, "Shell whose completion script is printed; man prints the man page")
      .one_of({"bash", "zsh", "fish", "man"})
      .required();
  command.footer(
      "vlcache completions bash > ~/.local/share/bash-completion/completions/vlcache\n"
      "vlcache completions zsh > DIR/_vlcache             # DIR: a folder of $fpath\n"
      "vlcache completions fish > ~/.config/fish/completions/vlcache.fish\n"
      "vlcache completions man > ~/.local/share/man/man1/vlcache.1");
  command.run([&app, &shell] {
    const CommandInfo info = info_of(app, "vlcache");
    std::fputs((shell == "man" ? man_page(info) : shell_completions(info, shell)).c_str(), stdout);
  });
}

// TOML in UTF-8, with or without a byte order mark, which editors of Windows write.
class TomlText : public CLI::ConfigTOML {
 public:
  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
    std::istringstream text(checked_text(std::string(std::istreambuf_iterator<char>(input), {}), "--config"));
    return CLI::ConfigTOML::from_config(text);
  }
};
std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(sub->get_name());
  return names;
}

std::vector<std::string> flag_names(const CLI::App& app, const std::string& before) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back(before + name);
  }
  return names;
}

std::vector<const CLI::App*> with_commands(const CLI::App& app) {
  std::vector<const CLI::App*> apps{&app};
  for (size_t i = 0; i < apps.size(); ++i) {
    for (const CLI::App* command : apps[i]->get_subcommands([](const CLI::App*) { return true; }))
      apps.push_back(command);
  }
  return apps;
}

// CLI11 calls every configuration file INI, and unknown keys in it "run.no-such-flag", "no-such-command.++".
std::string config_problem(std::string what, const CLI::App& app) {
  constexpr std::string_view kUnknown = "INI was not able to parse ", kSection = ".++";
  if (!what.starts_with(kUnknown)) return "--config: " + what;
  what.erase(0, kUnknown.size());
  const std::vector<std::string> commands = command_names(app);
  if (!what.ends_with(kSection)) {
    const std::string command = what.substr(0, what.find('.')),
                      name = what.substr(std::min(what.find('.'), what.size() - 1) + 1);
    const bool known = std::ranges::find(commands, command) != commands.end();
    std::vector<std::string> flags;
    if (known) {
      flags = flag_names(*app.get_subcommand(command), "");
    } else {  // perhaps a command's flag without its section
      for (const CLI::App* of : with_commands(app)) std::ranges::move(flag_names(*of, ""), std::back_inserter(flags));
    }
    const std::string meant = did_you_mean(known ? name : what, flags);
    return "--config: '" + what + "': expected a flag as in [run] max-tokens = 64" + meant;
  }
  what.erase(what.size() - kSection.size());
  return "--config: [" + what + "]: there is no such command" + did_you_mean(what, commands);
}

std::string file_problem(const CLI::App& app) {
  const std::string path = app.get_config_ptr()->as<std::string>();
  std::error_code error;
  const bool exists = std::filesystem::exists(path, error);
  const bool folder = std::filesystem::is_directory(path, error);
  return "--config: " + path + ": " +
         (folder   ? "is a folder, expected a file"
          : exists ? "cannot be read"
                   : "no such file");
}

// The probable meaning of a word that no command or flag has; "": none.
std::string suggestion(const CLI::App& app, int argc, char** argv) {
  const CLI::App* command = &app;
  const std::vector<std::string> commands = command_names(app);
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (i > 1 && std::string_view(argv[i - 1]) == "--config") continue;
    if (!word.starts_with('-')) {
      if (command != &app) continue;
      if (std::ranges::find(commands, word) == commands.end()) {
        return "there is no command '" + word + "'" + did_you_mean(word, commands);
      }
      command = app.get_subcommand(word);
      continue;
    }
    if (!word.starts_with("--")) continue;
    const std::string name = word.substr(0, word.find('='));
    std::vector<std::string> flags;
    for (const CLI::App* of : {command, &app}) {
      for (std::string& known : flag_names(*of, "--")) flags.push_back(std::move(known));
    }
    if (std::ranges::find(flags, name) == flags.end()) {
      const std::string meant = did_you_mean(name, flags);
      return (command == &app ? "there is no flag '" : command->get_name() + " has no flag '") + name + "'" + meant;
    }
  }
  return "";
}

// The flags of all commands that have a variable which is set, unless the command line has the flag.
std::vector<FlagVariable> set_by_variables(const CLI::App& app, std::vector<Variable> variables) {
  const std::vector<const CLI::App*> apps = with_commands(app);
  for (const CLI::App* of : apps) {
    for (const CLI::Option* given : of->parse_order()) {
      std::erase_if(variables, [&](const Variable& variable) { return variable.name == given->get_envname(); });
    }
  }
  std::vector<FlagVariable> set;
  for (Variable& variable : variables) {
    for (const CLI::App* of : apps) {
      for (const CLI::Option* option : of->get_options()) {
        const bool is_new = set.empty() || set.back().variable.name != variable.name;
        if (is_new && option->get_envname() == variable.name) set.push_back({"--" + option->get_lnames()[0], variable});
      }
    }
  }
  return set;
}

// Takes Kubernetes' variables out of the environment, and warns of variables that no flag has. Returns the others.
std::vector<Variable> checked_variables(const CLI::App& app, int argc, char** argv) {
  std::vector<std::string> known;
  for (const CLI::App* of : with_commands(app)) {
    for (const CLI::Option* option : of->get_options()) {
      if (!option->get_envname().empty()) known.push_back(option->get_envname());
    }
  }
  std::vector<Variable> variables = own_variables();
  for (const std::string& line : unknown_variables(variables, known))
    std::fprintf(stderr, "vlcache: warning: %s\n", line.c_str());
  std::string left_out;
  std::erase_if(variables, [&](const Variable& variable) {
    if (std::ranges::find(known, variable.name) == known.end()) return true;
    if (!is_of_kubernetes(variable)) return false;
    unsetenv(variable.name.c_str());
    for (int i = 1; i < argc; ++i) {  // flags of other commands are not missed
      if (variable.name.starts_with("VLCACHE_" + upper_case(argv[i]) + "_"))
        left_out += (left_out.empty() ? "" : ", ") + variable.name;
    }
    return true;
  });
  if (!left_out.empty())
    std::fprintf(stderr, "vlcache: note: %s is left out: Kubernetes sets it for a Service of this name\n",
                 left_out.c_str());
  return variables;
}

// Parses, and runs the command. Errors name the variables that the values at fault come from.
void parse(CLI::App& app, int argc, char** argv, const std::vector<Variable>& variables) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::FileError&) {
    throw Error(ErrorCode::kInput, file_problem(app));
  } catch (const CLI::ConfigError& e) {
    throw Error(ErrorCode::kInput, config_problem(e.what(), app));
  } catch (const CLI::ParseError& e) {
    const std::string origin =
        e.get_exit_code() == 0 ? "" : origin_of_error(e.what(), set_by_variables(app, variables));
    if (origin.empty()) throw;
    throw Error(ErrorCode::kInput, e.what() + origin);
  } catch (const Error& e) {
    const std::string origin =
        e.code() == ErrorCode::kCancelled ? "" : origin_of_error(e.what(), set_by_variables(app, variables));
    if (origin.empty()) throw;
    throw Error(e.code(), e.what() + origin);
  }
}

}  // namespace

const Flag& Flag::group(const std::string& heading) const {
  option_->group(heading);
  return *this;
}
const Flag& Flag::value_name(const std::string& name) const {
  option_->type_name(name);
  return *this;
}
const Flag& Flag::show_default() const {
  option_->capture_default_str();
  return *this;
}
const Flag& Flag::default_text(const std::string& text) const {
  option_->default_str(text);
  return *this;
}
const Flag& Flag::required(bool is_required) const {
  option_->required(is_required);
  return *this;
}
const Flag& Flag::one_per_use() const {
  option_->allow_extra_args(false);
  return *this;
}
const Flag& Flag::delimiter(char c) const {
  option_->delimiter(c);
  return *this;
}
const Flag& Flag::needs(const Flag& other) const {
  option_->needs(other.option_);
  return *this;
}
const Flag& Flag::one_of(const std::vector<std::string>& values) const {
  option_->check(CLI::IsMember(values));
  return *this;
}
const Flag& Flag::not_negative() const {
  option_->check(CLI::NonNegativeNumber);
  return *this;
}
const Flag& Flag::integer_range(int64_t low, int64_t high) const {
  option_->check(CLI::Range(low, high));
  return *this;
}
const Flag& Flag::range(double low, double high) const {
  option_->check(CLI::Range(low, high));
  return *this;
}
const Flag& Flag::check(const std::function<std::string(const std::string& text)>& check) const {
  option_->check(check);
  return *this;
}
const Flag& Flag::transform(const std::function<std::string(const std::string& text)>& transform) const {
  option_->transform([transform](const std::string& text) { return transform(text); });
  return *this;
}
const Flag& Flag::share_environment() const {
  option_->envname(environment_name("", *option_));
  return *this;
}

Command Command::add_command(const std::string& name, const std::string& help) const {
  return Command(app_->add_subcommand(name, help));
}
template <typename T>
Flag Command::add(const std::string& names, T& value, const std::string& help) const {
  if constexpr (std::is_same_v<T, bool>) {
    return Flag(app_->add_flag(names, value, help));
  } else if constexpr (std::is_same_v<T, std::optional<bool>>) {
    return Flag(app_->add_flag_function(
        names, [&value](int64_t times) { value = times > 0; }, help));
  } else {
    return Flag(app_->add_option(names, value, help));
  }
}
template Flag Command::add(const std::string&, bool&, const std::string&) const;
template Flag Command::add(const std::string&, std::optional<bool>&, const std::string&) const;
template Flag Command::add(const std::string&, int&, const std::string&) const;
template Flag Command::add(const std::string&, int64_t&, const std::string&) const;
template Flag Command::add(const std::string&, uint64_t&, const std::string&) const;
template Flag Command::add(const std::string&, float&, const std::string&) const;
template Flag Command::add(const std::string&, double&, const std::string&) const;
template Flag Command::add(const std::string&, std::string&, const std::string&) const;
template Flag Command::add(const std::string&, std::optional<int>&, const std::string&) const;
template Flag Command::add(const std::string&, std::optional<float>&, const std::string&) const;
template Flag Command::add(const std::string&, std::optional<double>&, const std::string&) const;
template Flag Command::add(const std::string&, std::optional<std::string>&, const std::string&) const;
template Flag Command::add(const std::string&, std::vector<int>&, const std::string&) const;
template Flag Command::add(const std::string&, std::vector<int64_t>&, const std::string&) const;
template Flag Command::add(const std::string&, std::vector<std::string>&, const std::string&) const;
template Flag Command::add(const std::string&, std::optional<std::vector<int>>&, const std::string&) const;
template Flag Command::add(const std::string&, std::optional<std::vector<std::string>>&, const std::string&) const;

Flag Command::flag(const std::string& name) const { return Flag(app_->get_option(name)); }
std::vector<size_t> Command::order_of(const std::vector<Flag>& flags) const {
  std::vector<size_t> order;
  for (const CLI::Option* given : app_->parse_order()) {
    const auto found = std::ranges::find(flags, given, &Flag::option);
    if (found != flags.end()) order.push_back(static_cast<size_t>(found - flags.begin()));
  }
  return order;
}
void Command::remove(const Flag& flag) const { app_->remove_option(flag.option()); }
void Command::footer(const std::string& text) const { app_->footer(text); }
void Command::require_command() const { app_->require_subcommand(1); }
void Command::allow_command() const { app_->require_subcommand(0, 1); }
bool Command::was_given_command() const { return !app_->get_subcommands().empty(); }
void Command::run(const std::function<void()>& action) const { app_->callback(action); }

int run_command_line(int argc, char** argv, const std::function<void(const Command& root)>& describe) {
  CLI::App app{"vlcache: serves vision-language models on CPUs; compresses, reuses and shows their KV cache",
               "vlcache"};
  app.set_help_flag("-h,--help", "Print help");
  app.set_help_all_flag("--help-all", "Print help with all flags");
  app.set_version_flag("--version", "vlcache " VLCACHE_VERSION, "Print the version");
  app.require_subcommand(1);
  app.formatter_fn([](const CLI::App* command, const std::string& name, CLI::AppFormatMode mode) {
    const size_t width = std::clamp<size_t>(terminal_width(STDOUT_FILENO, 100), 40, 120);
    const std::span<const FirstFlag> first = first_flags(command->get_name());
    const CommandInfo info = info_of(*command, name);
    return first.empty() || mode == CLI::AppFormatMode::All ? help_text(info, width)
                                                            : short_help_text(info, first, width);
  });
  app.set_config("--config", "", "TOML file of flags, in a section per command: [run] max-tokens = 64 (default: none)")
      ->type_name("FILE");
  app.config_formatter(std::make_shared<TomlText>());
  app.allow_config_extras(CLI::config_extras_mode::error);  // a typo must not silently change the run
  app.fallthrough();
  describe(Command(&app));
  std::string shell;
  add_completions_command(app, Command(&app), shell);
  finish_flags(app);
  app.footer(
      "Every flag can be set by an environment variable, which the command's help names: VLCACHE_THREADS=2 for flags "
      "that several commands share, VLCACHE_BENCH_BATCH=4 for flags of one command. A flag on the command line "
      "overrides its variable.\n"
      "`vlcache COMMAND --help` describes a command, `--help-all` all of its flags.");
  if (argc == 1) {
    std::fputs(app.help().c_str(), stdout);
    return 0;
  }
  try {
    parse(app, argc, argv, checked_variables(app, argc, argv));
  } catch (const CLI::ParseError& e) {
    const bool is_missing = dynamic_cast<const CLI::RequiredError*>(&e) != nullptr;
    const bool unknown = is_missing || dynamic_cast<const CLI::ExtrasError*>(&e) != nullptr;
    std::string meant = unknown ? suggestion(app, argc, argv) : "";
    if (meant.empty() && is_missing && app.get_subcommands().empty()) meant = "expected a command, found none";
    if (!meant.empty()) {
      std::fprintf(stderr, "vlcache: %s; --help-all lists all\n", meant.c_str());
      return 2;
    }
    return app.exit(e) == 0 ? 0 : 2;
  }
  return 0;
}

}  // namespace vlcache
