// Probing with a tool, a call and a result.
#include "io/chat/tool_forms.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace vlcache {
namespace {

// Plain letters, so that nothing a template does to a text changes them.
constexpr const char* kTool = "vlcacheprobetool";
constexpr const char* kResult = "vlcacheproberesult";
constexpr const char* kCallId = "probe1234";  // Mistral's templates want nine letters or digits

OrderedJson text_part(const std::string& text) { return {{"type", "text"}, {"text", text}}; }

bool calls_tools(const OrderedJson& message) {
  const auto calls = message.find("tool_calls");
  return calls != message.end() && calls->is_array() && !calls->empty();
}

bool is_result(const OrderedJson& message) { return message.value("role", "") == "tool"; }

// Texts and the rest of a content, parts in their order.
struct Content {
  std::string text;
  OrderedJson others = OrderedJson::array();
};

Content split(const OrderedJson& message) {
  Content out;
  const OrderedJson content = message.value("content", OrderedJson(""));
  if (content.is_string()) out.text = content.get<std::string>();
  for (const OrderedJson& part : content.is_array() ? content : OrderedJson::array()) {
    if (part.value("type", "") == "text") {
      out.text += part.value("text", "");
    } else {
      out.others.push_back(part);
    }
  }
  return out;
}

OrderedJson parts_of(const OrderedJson& message) {
  const OrderedJson content = message.value("content", OrderedJson(""));
  if (content.is_array()) return content;
  return OrderedJson::array({text_part(content.is_string() ? content.get<std::string>() : "")});
}

// Adds parts to a user's turn at the end, which is made if there is none.
void add_to_user(OrderedJson& messages, const OrderedJson& parts) {
  if (messages.empty() || messages.back()["role"] != "user") {
    messages.push_back({{"role", "user"}, {"content", OrderedJson::array()}});
  }
  OrderedJson& content = messages.back()["content"];
  content = parts_of(messages.back());
  for (const OrderedJson& part : parts) content.push_back(part);
}

// {"name", "arguments"} as a model without a form of its own would write it.
std::string call_text(const OrderedJson& call) {
  const OrderedJson function = call.value("function", OrderedJson::object());
  const OrderedJson arguments = function.value("arguments", OrderedJson::object());
  const std::string text = arguments.is_string() ? arguments.get<std::string>() : arguments.dump();
  return "{\"name\": " + OrderedJson(function.value("name", "")).dump() + ", \"arguments\": " + text + "}";
}

// What a message without tools would be for a template that has no place for them.
void spell_out(const OrderedJson& message, OrderedJson& out, bool& behind_result) {
  if (is_result(message)) {
    const Content content = split(message);
    OrderedJson parts = OrderedJson::array({text_part((behind_result ? "\n" : "") + content.text)});
    for (const OrderedJson& part : content.others) parts.push_back(part);
    add_to_user(out, parts);
    behind_result = true;
    return;
  }
  if (calls_tools(message)) {
    std::string text = split(message).text;
    for (const OrderedJson& call : message["tool_calls"]) text += (text.empty() ? "" : "\n") + call_text(call);
    out.push_back({{"role", "assistant"}, {"content", text}});
  } else if (behind_result && message.value("role", "") == "user") {
    add_to_user(out, OrderedJson::array({text_part("\n")}));
    add_to_user(out, parts_of(message));
  } else {
    out.push_back(message);
  }
  behind_result = false;
}

void with_arguments(OrderedJson& message, bool as_text) {
  if (!calls_tools(message)) return;
  for (OrderedJson& call : message["tool_calls"]) {
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object()) continue;
    OrderedJson& arguments = call["function"]["arguments"];
    if (as_text && !arguments.is_string()) arguments = arguments.dump();
    if (as_text || !arguments.is_string()) continue;
    OrderedJson read = OrderedJson::parse(arguments.get<std::string>(), nullptr, /*allow_exceptions=*/false);
    if (read.is_object()) arguments = std::move(read);  // else the model's own slip: it is shown as it was
  }
}

}  // namespace

bool ToolForms::shows_tools() {
  if (shows_tools_) return *shows_tools_;
  const OrderedJson tools = OrderedJson::array(
      {{{"type", "function"},
        {"function",
         {{"name", kTool},
          {"description", "a"},
          {"parameters",
           {{"type", "object"}, {"properties", {{"a", {{"type", "string"}, {"description", "a"}}}}}}}}}}});
  const OrderedJson messages = OrderedJson::array({{{"role", "user"}, {"content", "a"}}});
  try {
    shows_tools_ = render_(messages, &tools).find(kTool) != std::string::npos;
  } catch (const Error&) {
    shows_tools_ = false;
  }
  return *shows_tools_;
}

bool ToolForms::shows_calls(bool as_text) {
  const OrderedJson arguments = as_text ? OrderedJson("{\"a\": 1}") : OrderedJson{{"a", 1}};
  const OrderedJson call = {
      {"id", kCallId}, {"type", "function"}, {"function", {{"name", kTool}, {"arguments", arguments}}}};
  const OrderedJson messages =
      OrderedJson::array({{{"role", "user"}, {"content", "a"}},
                          {{"role", "assistant"}, {"content", ""}, {"tool_calls", OrderedJson::array({call})}},
                          {{"role", "tool"}, {"tool_call_id", kCallId}, {"name", kTool}, {"content", kResult}}});
  try {
    const std::string text = render_(messages, nullptr);
    return text.find(kTool) != std::string::npos && text.find(kResult) != std::string::npos;
  } catch (const Error&) {
    return false;
  }
}

ToolForms::Calls ToolForms::calls() {
  if (!calls_) {
    calls_ = shows_calls(/*as_text=*/false)  ? Calls::kAsObjects
             : shows_calls(/*as_text=*/true) ? Calls::kAsText
                                             : Calls::kNotAtAll;
  }
  return *calls_;
}

OrderedJson ToolForms::fit(const OrderedJson& messages) {
  if (!messages.is_array() || !std::ranges::any_of(messages, [](const OrderedJson& m) {
        return m.is_object() && (calls_tools(m) || is_result(m));
      })) {
    return messages;
  }
  OrderedJson out = OrderedJson::array();
  const Calls form = calls();
  bool behind_result = false;
  OrderedJson pictures = OrderedJson::array();
  for (const OrderedJson& message : messages) {
    if (form == Calls::kNotAtAll) {
      spell_out(message, out, behind_result);
      continue;
    }
    if (!is_result(message) && !pictures.empty()) {
      out.push_back({{"role", "user"}, {"content", std::exchange(pictures, OrderedJson::array())}});
      if (message.value("role", "") == "user") {
        add_to_user(out, parts_of(message));
        continue;
      }
    }
    out.push_back(message);
    with_arguments(out.back(), form == Calls::kAsText);
    if (!is_result(message)) continue;
    const Content content = split(message);
    out.back()["content"] = content.text;
    for (const OrderedJson& part : content.others) pictures.push_back(part);
  }
  if (!pictures.empty()) out.push_back({{"role", "user"}, {"content", pictures}});
  return out;
}

}  // namespace vlcache
