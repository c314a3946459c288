// --help, completions and the man page of a small program.
#include <gtest/gtest.h>

#include "cli/flags/command_info.h"

namespace vlcache {
namespace {

CommandInfo program() {
  const FlagInfo help{.names = {"-h", "--help"}, .group = "Options", .help = "this help"};
  CommandInfo run{
      .name = "vlcache run",
      .help = "answer a question",
      .footer = "Example: vlcache run",
      .flags = {{.names = {"PROMPT"},
                 .is_positional = true,
                 .value_name = "TEXT",
                 .group = "Arguments",
                 .help = "the question"},
                help,
                {.names = {"--threads"},
                 .value_name = "N",
                 .range = "0 to 1024",
                 .fallback = "0",
                 .environment = "VLCACHE_THREADS",
                 .group = "Machine",
                 .help = "threads"},
                {.names = {"-m", "--model"},
                 .is_required = true,
                 .value_name = "DIR",
                 .environment = "VLCACHE_MODEL",
                 .group = "Basic",
                 .help = "the model's folder"},
                {.names = {"--dtype"},
                 .value_name = "NAME",
                 .choices = {"f32", "bf16"},
                 .group = "Machine",
                 .help = "it's of weights, which is a description that takes more than a line of sixty columns"}}};
  CommandInfo cache{
      .name = "vlcache cache", .help = "list stored records", .footer = "", .flags = {help}, .commands = {}};
  cache.commands.push_back({.name = "vlcache cache ls",
                            .help = "list it",
                            .footer = "",
                            .flags = {help, {.names = {"--json"}, .group = "Options", .help = "as JSON"}},
                            .commands = {}});
  return {.name = "vlcache",
          .help = "vlcache: an engine",
          .footer = "Flags have variables.",
          .flags = {help},
          .commands = {run, cache}};
}

TEST(HelpTextTest, HasBasicFlagsFirstAndWraps) {
  EXPECT_EQ(help_text(program().commands[0], 60),
            "answer a question\n\n"
            "Usage: vlcache run --model DIR [OPTIONS] [PROMPT]\n\n"
            "Arguments:\n"
            "  PROMPT                      the question\n\n"
            "Basic:\n"
            "  -m, --model DIR             the model's folder [required]\n"
            "                              (VLCACHE_MODEL)\n\n"
            "Options:\n"
            "  -h, --help                  this help\n\n"
            "Machine:\n"
            "      --threads N             threads [0 to 1024; default 0]\n"
            "                              (VLCACHE_THREADS)\n"
            "      --dtype NAME            it's of weights, which is a\n"
            "                              description that takes more\n"
            "                              than a line of sixty columns\n"
            "                              [f32, bf16]\n\n"
            "Example: vlcache run\n");
  EXPECT_NE(help_text(program(), 60).find("\nCommands:\n  run                         answer a question\n"),
            std::string::npos);
}

TEST(HelpTextTest, ShortHelpHasTheFirstFlagsAndTellsOfTheOthers) {
  const FirstFlag first[] = {{"Basic", "--model", "where the model is"}, {"More", "--threads", "fewer threads"}};
  EXPECT_EQ(short_help_text(program().commands[0], first, 60),
            "answer a question\n\n"
            "Usage: vlcache run --model DIR [OPTIONS] [PROMPT]\n\n"
            "Arguments:\n"
            "  PROMPT                      the question\n\n"
            "Basic:\n"
            "  -m, --model DIR             where the model is [required]\n\n"
            "More:\n"
            "      --threads N             fewer threads [default 0]\n\n"
            "Example: vlcache run\n\n"
            "vlcache run --help-all describes 2 more flags.\n");
}

TEST(HelpTextTest, CompletionsAndManPageNameEveryFlag) {
  const CommandInfo root = program();
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const std::string script = shell_completions(root, shell);
    for (const char* name : {"run", "cache", "ls", "model", "threads", "dtype", "json", "f32"}) {
      EXPECT_NE(script.find(name), std::string::npos) << shell << " " << name;
    }
  }
  EXPECT_NE(shell_completions(root, "zsh").find("it'\\''s of weights"), std::string::npos);
  EXPECT_NE(shell_completions(root, "fish").find("it\\'s of weights"), std::string::npos);
  const std::string page = man_page(root);
  for (const char* text : {".TH VLCACHE 1", ".SH vlcache run", "\\-\\-dtype NAME", "\n\\%VLCACHE_MODEL\n",
                           "it\\(aqs of weights", ".SH vlcache cache ls"}) {
    EXPECT_NE(page.find(text), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace vlcache
