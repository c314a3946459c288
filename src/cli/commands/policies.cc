// `vlcache policies`: every policy for KV, with its parameters, source and cost.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/flags/command.h"
#include "cli/flags/command_info.h"
#include "cli/terminal/markdown.h"

namespace vlcache {
namespace {

std::string_view title(PolicyInfo::Kind kind) {
  switch (kind) {
    case PolicyInfo::Kind::kPolicy:
      return "Policies";
    case PolicyInfo::Kind::kScorer:
      return "Scorers: which slots are kept (NAME, or NAME+ALLOCATOR)";
    case PolicyInfo::Kind::kAllocator:
      return "Allocators: how many slots each layer and head gets";
    case PolicyInfo::Kind::kRule:
      return "Decode rules: eviction during the answer (NAME/RULE). Without one, answer tokens are kept on top of the "
             "budget";
  }
  return "";
}

void print_json() {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const PolicyInfo& p : policy_infos()) {
    constexpr std::string_view kKinds[] = {"policy", "scorer", "allocator", "rule"};
    list.push_back({{"name", p.name},
                    {"kind", kKinds[static_cast<size_t>(p.kind)]},
                    {"parameters", p.parameters},
                    {"meaning", p.meaning},
                    {"source", p.source},
                    {"cost", p.cost}});
  }
  std::printf("%s\n", list.dump(2).c_str());
}

// The body of docs/policies.md.
void print_markdown() {
  std::optional<PolicyInfo::Kind> kind;
  for (const PolicyInfo& p : policy_infos()) {
    if (kind != p.kind) {
      std::printf("%s## %s\n\n| name | meaning | parameters | source | cost in prefill |\n|---|---|---|---|---|\n",
                  kind ? "\n" : "", std::string(title(p.kind)).c_str());
    }
    kind = p.kind;
    const auto text = [](std::string_view s) { return std::string(s); };
    std::printf("| `%s` | %s | %s | %s | %s |\n", text(p.name).c_str(), text(p.meaning).c_str(),
                text(p.parameters).c_str(), text(p.source).c_str(), text(p.cost).c_str());
  }
}

// Wrapped on a terminal; on a pipe each text stays one line.
void print_table() {
  constexpr size_t kIndent = 18;
  const size_t width = terminal_width(STDOUT_FILENO, std::string::npos);
  const auto print = [&](const std::string& name, const std::string& text) {
    std::string line = "  " + name + " ";
    line.resize(std::max(line.size(), kIndent), ' ');
    std::puts(wrapped_text(line + text, kIndent, width).c_str());
  };
  std::optional<PolicyInfo::Kind> kind;
  for (const PolicyInfo& p : policy_infos()) {
    if (kind != p.kind) std::printf("%s%s\n", kind ? "\n" : "", std::string(title(p.kind)).c_str());
    kind = p.kind;
    const auto text = [](std::string_view s) { return std::string(s); };
    print(text(p.name), text(p.meaning) + (p.source.empty() ? "" : " (" + text(p.source) + ")"));
    if (!p.parameters.empty()) print("", "parameters: " + text(p.parameters));
    if (p.cost != "none") print("", "cost: " + text(p.cost));
  }
  std::printf(
      "\nA policy is written SCORER[@PRESET][:key=value,..][+ALLOCATOR[:key=value,..]][/RULE[:key=value,..]],\n"
      "for example\n"
      "  --kv draft --kv-budget 0.1\n"
      "  --kv snapkv:w=16+pyramid:beta=10 --kv-budget 200\n"
      "  --kv draft/periodic:every=64 --kv-budget 0.1\n"
      "  --kv snapkv@kvpress --kv-budget 0.25\n"
      "--kv auto, the default where only a budget is given, is %s: %s.\n",
      parse_policy("auto")->name().c_str(), std::string(auto_reason()).c_str());
}

}  // namespace

void add_policies_command(const Command& app) {
  struct Flags {
    bool json = false, markdown = false;
  };
  auto flags = std::make_shared<Flags>();
  const Command command = app.add_command("policies", "List the KV policies (--kv), with parameters, source and cost");
  command.add("--json", flags->json, "Print JSON");
  command.add("--markdown", flags->markdown, "Print the tables of docs/policies.md");
  command.run([flags] { flags->json ? print_json() : flags->markdown ? print_markdown() : print_table(); });
}

}  // namespace vlcache
