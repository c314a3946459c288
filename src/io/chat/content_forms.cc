// Probes a template with marked messages.
#include "io/chat/content_forms.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace vlcache {
namespace {

// Plain letters, so that nothing a template does to a text (trimming, escaping) changes them.
constexpr std::string_view kFirst = "vlcacheprobefirst", kSecond = "vlcacheprobesecond";
// A key in probing parts, which only a template that prints the list itself, brackets and all, shows.
constexpr const char* kKey = "vlcacheprobekey";

OrderedJson text_part(std::string_view text) { return {{"type", "text"}, {"text", text}}; }

bool is_text_part(const OrderedJson& part) {
  if (!part.is_object()) return false;
  const auto type = part.find("type"), text = part.find("text");
  return type != part.end() && *type == "text" && text != part.end() && text->is_string();
}

OrderedJson probing_parts(std::initializer_list<std::string_view> texts) {
  OrderedJson parts = OrderedJson::array();
  for (std::string_view text : texts) {
    parts.push_back(text_part(text));
    parts.back()[kKey] = true;
  }
  return parts;
}

// Roles whose messages every template should show.
bool is_plain_role(std::string_view role) { return role == "system" || role == "user" || role == "assistant"; }

OrderedJson message(const std::string& role, OrderedJson content) {
  return {{"role", role}, {"content", std::move(content)}};
}

}  // namespace

// Whether a message of the role with this content, in a valid conversation, makes the template print `wanted`.
bool ContentForms::shows(const std::string& role, OrderedJson content, std::string_view wanted, std::string& problem) {
  OrderedJson messages = OrderedJson::array();
  if (role == "user") {
    messages.push_back(message(role, std::move(content)));
  } else {
    const Reads user = reads("user");
    const OrderedJson question = user.string || !user.parts ? OrderedJson("a") : OrderedJson::array({text_part("a")});
    if (role != "system") messages.push_back(message("user", question));
    messages.push_back(message(role, std::move(content)));
    messages.push_back(message("user", question));
  }
  try {
    const std::string text = render_(messages);
    return text.find(wanted) != std::string::npos && text.find(kKey) == std::string::npos;
  } catch (const ChatTemplateError& e) {
    problem = e.what();
    return false;
  }
}

ContentForms::Reads ContentForms::probe(const std::string& role) {
  Reads r;
  r.string = shows(role, std::string(kFirst), kFirst, r.problem);
  r.parts = shows(role, probing_parts({kFirst}), kFirst, r.problem);
  r.all_parts = r.parts && shows(role, probing_parts({kFirst, kSecond}), kSecond, r.problem);
  return r;
}

ContentForms::Reads ContentForms::reads(const std::string& role) {
  const auto found = roles_.find(role);
  if (found != roles_.end()) return found->second;
  Reads r = probe(role);
  if (is_plain_role(role)) roles_[role] = r;
  return r;
}

OrderedJson ContentForms::fit_content(const OrderedJson& content, const std::string& role) {
  const Reads r = reads(role);
  if (!r.string && !r.parts) {
    // An empty text cannot vanish, and the rules for messages of other roles (tool) are not known here.
    if (content == "" || content.empty() || !is_plain_role(role)) return content;
    throw Error(ErrorCode::kInput, "the chat template does not show messages of role '" + role +
                                       "', neither as a string nor as a list of parts" +
                                       (r.problem.empty() ? "" : " (" + r.problem + ")"));
  }
  if (content.is_string()) return r.string ? content : OrderedJson::array({text_part(content.get<std::string>())});

  const auto n_texts = std::ranges::count_if(content, is_text_part);
  if (r.parts && (r.all_parts || n_texts < 2)) return content;
  if (n_texts < static_cast<int64_t>(content.size())) {
    if (r.parts) return content;
    throw Error(ErrorCode::kInput, "the chat template takes messages of role '" + role +
                                       "' as a string, with no place for an image or another part that is not text");
  }
  std::string joined;
  for (const OrderedJson& part : content) joined += part["text"].get<std::string>();
  return r.parts ? OrderedJson::array({text_part(joined)}) : OrderedJson(joined);
}

std::string ContentForms::description() {
  std::string out;
  for (const char* role : {"system", "user", "assistant"}) {
    const Reads r = reads(role);
    out += (out.empty() ? "" : ", ") + std::string(role) + " as " +
           (r.string && r.all_parts ? "text or parts"
            : r.string              ? "text"
            : r.all_parts           ? "parts"
            : r.parts               ? "one part"
                                    : "nothing");
  }
  return out;
}

OrderedJson ContentForms::fit(const OrderedJson& messages) {
  OrderedJson out = messages;
  if (!out.is_array()) return out;
  for (OrderedJson& m : out) {
    if (!m.is_object() || !m.contains("role") || !m["role"].is_string() || !m.contains("content")) continue;
    OrderedJson& content = m["content"];
    if (content.is_string() || content.is_array()) content = fit_content(content, m["role"].get<std::string>());
  }
  return out;
}

}  // namespace vlcache
