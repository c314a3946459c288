#include "cli/flags/environment.h"

#include <unistd.h>

#include <algorithm>
#include <array>

#include "base/nearest.h"

namespace vlcache {
namespace {

constexpr std::string_view kPrefix = "VLCACHE_";

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// "_8080_TCP", "_53_UDP_ADDR".
bool is_protocol_of_port(std::string_view text) {
  if (!text.starts_with('_')) return false;
  text.remove_prefix(1);
  const size_t n_digits = static_cast<size_t>(std::ranges::find_if_not(text, is_digit) - text.begin());
  if (n_digits == 0) return false;
  text.remove_prefix(n_digits);
  for (const std::string_view protocol : {"_TCP", "_UDP", "_SCTP"}) {
    if (!text.starts_with(protocol)) continue;
    const std::string_view rest = text.substr(protocol.size());
    return rest.empty() || rest == "_PROTO" || rest == "_PORT" || rest == "_ADDR";
  }
  return false;
}

// Variables that tests, tools and the build read.
bool is_of_tools(std::string_view name) {
  constexpr std::array<std::string_view, 3> kBeginnings{"VLCACHE_TEST_", "VLCACHE_SOAK_", "VLCACHE_SANDBOX_"};
  constexpr std::array<std::string_view, 10> kNames{
      "VLCACHE_UPDATE_DOCS", "VLCACHE_MAX_ISA",  "VLCACHE_TEMPLATES_DIR", "VLCACHE_SHOTS", "VLCACHE_KATEX",
      "VLCACHE_SOURCE_DIR",  "VLCACHE_REF_ONLY", "VLCACHE_SANITIZE",      "VLCACHE_BENCH", "VLCACHE_VERSION"};
  return std::ranges::find(kNames, name) != kNames.end() ||
         std::ranges::any_of(kBeginnings, [&](std::string_view begin) { return name.starts_with(begin); });
}

// The known variable that differs by a command's name: VLCACHE_PORT for VLCACHE_SERVE_PORT, or the reverse.
std::string of_other_command(std::string_view name, std::span<const std::string> known) {
  const std::string_view rest = name.substr(kPrefix.size() - 1);  // "_PORT"
  const std::string* nearest = nullptr;
  for (const std::string& candidate : known) {
    const bool shorter = nearest == nullptr || candidate.size() < nearest->size();
    if (candidate.ends_with(rest) && shorter) nearest = &candidate;
  }
  if (nearest != nullptr) return *nearest;
  const std::string_view after = rest.substr(std::min(rest.find('_', 1), rest.size()));
  for (const std::string& candidate : known) {
    if (!after.empty() && candidate.substr(kPrefix.size() - 1) == after) return candidate;
  }
  return "";
}

bool is_name_char(char c) { return is_digit(c) || c == '-' || c == '_' || (c >= 'a' && c <= 'z'); }

// Whether the message has the name as a word.
bool names(std::string_view message, std::string_view name) {
  for (size_t at = message.find(name); at != message.npos; at = message.find(name, at + 1)) {
    const size_t end = at + name.size();
    const bool begins = at == 0 || !is_name_char(message[at - 1]);
    if (begins && (end == message.size() || !is_name_char(message[end]))) return true;
  }
  return false;
}

}  // namespace

std::vector<Variable> own_variables() {
  std::vector<Variable> variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t sign = text.find('=');
    if (!text.starts_with(kPrefix) || sign == text.npos || sign + 1 == text.size()) continue;
    variables.push_back({std::string(text.substr(0, sign)), std::string(text.substr(sign + 1))});
  }
  return variables;
}

bool is_of_kubernetes(const Variable& variable) {
  const std::string_view name = variable.name;
  if (name.ends_with("_SERVICE_HOST") || name.ends_with("_SERVICE_PORT")) return true;
  if (name.find("_SERVICE_PORT_") != name.npos) return true;
  if (name.ends_with("_PORT") && variable.value.find("://") != std::string::npos) return true;
  for (size_t at = name.find("_PORT_"); at != name.npos; at = name.find("_PORT_", at + 1)) {
    if (is_protocol_of_port(name.substr(at + 5))) return true;
  }
  return false;
}

std::vector<std::string> unknown_variables(std::span<const Variable> variables, std::span<const std::string> known) {
  std::vector<std::string> lines;
  for (const Variable& variable : variables) {
    const std::string& name = variable.name;
    if (std::ranges::find(known, name) != known.end() || is_of_kubernetes(variable) || is_of_tools(name)) continue;
    const std::string meant = of_other_command(name, known);
    lines.push_back(name + " is not the variable of a flag" +
                    (meant.empty() ? did_you_mean(name, known) : " (did you mean '" + meant + "'?)"));
  }
  return lines;
}

std::string origin_of_error(std::string_view message, std::span<const FlagVariable> set) {
  const auto has = [&](const std::string& text) { return message.find(text) != message.npos; };
  const auto is_shown = [&](const std::string& value) {  // a short one within quotes: "auto" stands in many messages
    const bool telling = value.size() >= 6 || value.find('/') != std::string::npos;
    return telling ? has(value) : has("'" + value + "'") || has('"' + value + '"');
  };
  std::string list;
  for (const auto& [flag, variable] : set) {
    std::string field = flag.substr(2);
    std::ranges::replace(field, '-', '_');
    const bool named = message.find(variable.name) == message.npos &&
                       (names(message, flag) || message.starts_with(field + ":") || is_shown(variable.value));
    if (named) list += (list.empty() ? "" : ", ") + variable.name;
  }
  return list.empty() ? "" : " (set by " + list + ")";
}

}  // namespace vlcache
