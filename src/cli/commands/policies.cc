// `vlcache policies`: every policy for KV, with its parameters, source and cost.
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/flags/command.h"

namespace vlcache {
namespace {

std::string_view title(PolicyInfo::Kind kind) {
  switch (kind) {
    case PolicyInfo::Kind::kPolicy:
      return "Policies";
    case PolicyInfo::Kind::kScorer:
      return "Scorers: what stays (NAME, or NAME+ALLOCATOR)";
    case PolicyInfo::Kind::kAllocator:
      return "Allocators: how many slots each layer and head gets";
    case PolicyInfo::Kind::kRule:
      return "Decode rules: what goes while an answer grows (NAME/RULE; without one it comes on top)";
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

void print_table() {
  std::optional<PolicyInfo::Kind> kind;
  for (const PolicyInfo& p : policy_infos()) {
    if (kind != p.kind) std::printf("%s%s\n", kind ? "\n" : "", std::string(title(p.kind)).c_str());
    kind = p.kind;
    const auto text = [](std::string_view s) { return std::string(s); };
    std::printf("  %-15s %s%s\n", text(p.name).c_str(), text(p.meaning).c_str(),
                p.source.empty() ? "" : (" (" + text(p.source) + ")").c_str());
    if (!p.parameters.empty()) std::printf("  %-15s parameters: %s\n", "", text(p.parameters).c_str());
    if (p.cost != "none") std::printf("  %-15s cost: %s\n", "", text(p.cost).c_str());
  }
  std::printf(
      "\nA policy is written SCORER[@PRESET][:key=value,..][+ALLOCATOR[:key=value,..]][/RULE[:key=value,..]],\n"
      "for example\n"
      "  --kv vlcache --kv-budget 0.1\n"
      "  --kv snapkv:w=16+pyramid:beta=10 --kv-budget 200\n"
      "  --kv vlcache/periodic:every=64 --kv-budget 0.1\n"
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
  const Command command = app.add_command("policies", "list the ways of keeping KV (--kv)");
  command.add("--json", flags->json, "as JSON");
  command.add("--markdown", flags->markdown, "as the tables of docs/policies.md");
  command.run([flags] { flags->json ? print_json() : flags->markdown ? print_markdown() : print_table(); });
}

}  // namespace vlcache
