// Probes a template with conversations of marked turns.
#include "io/chat/turn_forms.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/json_text.h"

namespace vlcache {
namespace {

// Plain letters, so that nothing a template does to a text changes them.
constexpr std::string_view kA = "vlcacheturna", kB = "vlcacheturnb", kC = "vlcacheturnc", kS = "vlcacheturns",
                           kT = "vlcacheturnt";

OrderedJson turn(const char* role, std::string_view text) { return {{"role", role}, {"content", text}}; }
OrderedJson user_turn(std::string_view text) { return turn("user", text); }
OrderedJson assistant_turn(std::string_view text) { return turn("assistant", text); }
OrderedJson system_turn(std::string_view text) { return turn("system", text); }

bool is_role(const OrderedJson& message, std::string_view role) { return text_in(message, "role") == role; }

bool is_empty(const OrderedJson& content) {
  return content.is_null() || (content.is_string() && content.get_ref<const std::string&>().empty()) ||
         (content.is_array() && content.empty());
}

OrderedJson text_of(std::string_view text) { return {{"type", "text"}, {"text", text}}; }

bool is_text(const OrderedJson& part) { return text_in(part, "type") == "text"; }

// Adds a content to another, with a blank line between their texts. In place: many may follow one another.
void add_content(OrderedJson& content, const OrderedJson& more) {
  constexpr std::string_view kBetween = "\n\n";
  if (is_empty(more)) return;
  if (is_empty(content)) {
    content = more;
    return;
  }
  if (content.is_string() && more.is_string()) {
    content.get_ref<std::string&>().append(kBetween).append(more.get_ref<const std::string&>());
    return;
  }
  if (!content.is_array()) content = OrderedJson::array({text_of(content.get<std::string>())});
  const OrderedJson parts = more.is_array() ? more : OrderedJson::array({text_of(more.get<std::string>())});
  // Templates may show images before all texts, so any two texts need it.
  if (std::ranges::any_of(content, is_text) && std::ranges::any_of(parts, is_text)) {
    content.push_back(text_of(kBetween));
  }
  for (const OrderedJson& part : parts) content.push_back(part);
}

OrderedJson content_of(const OrderedJson& message) { return message.value("content", OrderedJson("")); }

// Adds the second message, of the same role, to the first.
void join(OrderedJson& message, const OrderedJson& next) {
  add_content(message["content"], content_of(next));
  for (const auto& [key, value] : next.items()) {
    if (key == "role" || key == "content" || value.is_null()) continue;
    OrderedJson& own = message[key];
    if (own.is_array() && value.is_array()) {
      for (const OrderedJson& item : value) own.push_back(item);
    } else if (own.is_null()) {
      own = value;
    } else if (key == "reasoning_content" && own.is_string() && value.is_string()) {
      add_content(own, value);
    }
  }
}

}  // namespace

// Whether the texts appear, each once, in this order.
bool TurnForms::shows(const OrderedJson& messages, std::initializer_list<std::string_view> texts) {
  try {
    const std::string rendered = render_(messages);
    size_t at = 0;
    for (const std::string_view text : texts) {
      const size_t found = rendered.find(text);
      if (found == rendered.npos || found < at || rendered.find(text, found + 1) != rendered.npos) return false;
      at = found;
    }
    return true;
  } catch (const Error&) {
    return false;
  }
}

const TurnForms::Takes& TurnForms::takes() {
  if (takes_) return *takes_;
  Takes takes;
  takes.system = shows({system_turn(kS), user_turn(kA)}, {kS, kA});
  if (takes.system) {
    takes.systems = shows({system_turn(kS), system_turn(kT), user_turn(kA)}, {kS, kT, kA});
    takes.system_alone = shows(OrderedJson::array({system_turn(kS)}), {kS});
    takes.late_system = shows({system_turn(kS), user_turn(kA), assistant_turn(kB), system_turn(kT), user_turn(kC)},
                              {kS, kA, kB, kT, kC}) &&
                        shows({user_turn(kA), assistant_turn(kB), user_turn(kC), system_turn(kT)}, {kA, kB, kC, kT}) &&
                        shows({user_turn(kA), system_turn(kT), assistant_turn(kB), user_turn(kC)}, {kA, kT, kB, kC});
  }
  takes.users = shows({user_turn(kA), user_turn(kB)}, {kA, kB});
  takes.assistants = shows({user_turn(kA), assistant_turn(kB), assistant_turn(kC), user_turn(kT)}, {kA, kB, kC, kT});
  takes.assistant_first = shows({assistant_turn(kA), user_turn(kB)}, {kA, kB});
  OrderedJson call = assistant_turn("");
  call["tool_calls"] =
      OrderedJson::array({{{"id", "probe1234"},
                           {"type", "function"},
                           {"function", {{"name", "vlcacheturnf"}, {"arguments", OrderedJson::object()}}}}});
  const OrderedJson result = {{"role", "tool"}, {"tool_call_id", "probe1234"}, {"name", "f"}, {"content", kB}};
  takes.user_after_result = shows({user_turn(kA), call, result, user_turn(kC)}, {kA, kB, kC});
  takes_ = takes;
  return *takes_;
}

OrderedJson TurnForms::place_systems(const OrderedJson& messages) {
  const Takes& can = takes();
  OrderedJson out = OrderedJson::array();
  OrderedJson waiting;  // the texts of system messages that the next turn of the user takes
  bool leading = true;
  for (const OrderedJson& message : messages) {
    if (!is_role(message, "system")) {
      leading = false;
      out.push_back(message);
      if (!is_role(message, "user") || waiting.is_null()) continue;
      add_content(waiting, content_of(message));
      out.back()["content"] = std::exchange(waiting, nullptr);
    } else if (leading && can.system && !out.empty() && !can.systems) {
      join(out.back(), message);
    } else if (leading ? can.system : can.late_system) {
      out.push_back(message);
    } else {
      add_content(waiting, content_of(message));
    }
  }
  const auto is_user = [](const OrderedJson& message) { return is_role(message, "user"); };
  if (!waiting.is_null()) {
    const auto last = std::find_if(out.rbegin(), out.rend(), is_user);
    if (last == out.rend()) {
      out.push_back({{"role", "user"}, {"content", waiting}});
    } else {
      add_content((*last)["content"], waiting);
    }
  }
  const bool alone = std::ranges::all_of(out, [](const OrderedJson& m) { return is_role(m, "system"); });
  if (alone && !can.system_alone) {
    for (OrderedJson& message : out) message["role"] = "user";
  }
  return out;
}

OrderedJson TurnForms::join_neighbours(OrderedJson messages) {
  const Takes& can = takes();
  OrderedJson out = OrderedJson::array();
  for (OrderedJson& message : messages) {
    const OrderedJson* before = out.empty() ? nullptr : &out.back();
    const bool first = before == nullptr || is_role(*before, "system");
    const auto follows = [&](const char* role) { return before != nullptr && is_role(*before, role); };
    if ((is_role(message, "user") && follows("user") && !can.users) ||
        (is_role(message, "assistant") && follows("assistant") && !can.assistants)) {
      join(out.back(), message);
      continue;
    }
    if (is_role(message, "assistant") && first && !can.assistant_first) out.push_back(user_turn(""));
    if (is_role(message, "user") && follows("tool") && !can.user_after_result) out.push_back(assistant_turn(""));
    out.push_back(std::move(message));
  }
  return out;
}

OrderedJson TurnForms::fit(const OrderedJson& messages) {
  if (!messages.is_array()) return messages;
  return join_neighbours(place_systems(messages));
}

}  // namespace vlcache
