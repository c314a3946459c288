// The command line: one sub-command per file of this folder. Errors of input and environment end here, with exit
// code 2; Ctrl-C with 130.
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <string_view>

#include "base/error.h"
#include "cli/command.h"

namespace {

// Every flag has an environment variable: what no command shares is its own (--batch of bench is VLCACHE_BENCH_BATCH).
// A flag given twice means the last.
void finish_flags(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    const auto& names = option->get_lnames();
    if (names.empty() || names[0] == "help" || names[0] == "config" || names[0] == "version") continue;
    if (option->get_envname().empty()) option->envname(vlcache::environment_name(app.get_name(), *option));
    if (option->get_items_expected_max() == 1) option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }
  for (CLI::App* command : app.get_subcommands({})) finish_flags(*command);
}

// CLI11 calls every configuration file INI, and what it does not know of it "run.no-such-flag", "no-such-command.++".
std::string config_problem(std::string what) {
  constexpr std::string_view kUnknown = "INI was not able to parse ", kSection = ".++";
  if (!what.starts_with(kUnknown)) return "--config: " + what;
  what.erase(0, kUnknown.size());
  if (!what.ends_with(kSection)) return "--config: '" + what + "': expected a flag as in [run] max-tokens = 64";
  what.erase(what.size() - kSection.size());
  return "--config: [" + what + "]: there is no such command";
}

int run(int argc, char** argv) {
  CLI::App app{
      "vlcache: an inference engine for vision-language models with a KV cache that can be seen, cut and reused",
      "vlcache"};
  app.set_version_flag("--version", "vlcache " VLCACHE_VERSION);
  app.require_subcommand(1);
  app.get_formatter()->column_width(34);
  app.set_config("--config", "", "read flags from a TOML file ([run] max-tokens = 64)")->type_name("FILE");
  app.allow_config_extras(CLI::config_extras_mode::error);  // a typo is not silently another run
  app.fallthrough();
  vlcache::add_run_command(app);
  vlcache::add_chat_command(app);
  vlcache::add_serve_command(app);
  vlcache::add_logits_command(app);
  vlcache::add_tokenize_commands(app);
  vlcache::add_info_command(app);
  vlcache::add_bench_command(app);
  vlcache::add_eval_command(app);
  vlcache::add_inspect_command(app);
  vlcache::add_policies_command(app);
  vlcache::add_cache_command(app);
  vlcache::add_simulate_command(app);
  vlcache::add_tune_command(app);
  vlcache::add_verify_command(app);
  finish_flags(app);
  app.footer(
      "Flags have environment variables, named beside them in each command's help: of flags about the model and the\n"
      "generation VLCACHE_ and the name in capitals (VLCACHE_THREADS=2), of all others with the command between\n"
      "(VLCACHE_BENCH_BATCH=4).\n"
      "vlcache COMMAND --help describes a command.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ConfigError& e) {
    throw vlcache::Error(vlcache::ErrorCode::kInput, config_problem(e.what()));
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    throw vlcache::Error(vlcache::ErrorCode::kIo, "writing to standard output failed (is the disk full?)");
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const vlcache::Interrupted&) {
    std::fflush(stdout);
    return 130;
  } catch (const vlcache::Error& e) {
    std::fprintf(stderr, "vlcache: %s\n", e.what());
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "vlcache: out of memory\n");
  } catch (const std::exception& e) {
    std::fprintf(stderr, "vlcache: %s\n", e.what());
  }
  return 2;
}
