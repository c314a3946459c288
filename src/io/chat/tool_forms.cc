// Probes a template with a tool, a call and a result.
#include "io/chat/tool_forms.h"

#include <algorithm>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "base/exact_json.h"
#include "base/json_text.h"

namespace vlcache {
namespace {

// Plain letters, so that nothing a template does to a text changes them.
constexpr const char* kTool = "vlcacheprobetool";
constexpr const char* kResult = "vlcacheproberesult";
constexpr const char* kCallId = "probe1234";  // Mistral's templates require nine letters or digits
constexpr size_t kShortId = 9;
constexpr const char* kLongCallId = "call_vlcacheprobe";
constexpr const char* kShortCallId = "0";

OrderedJson text_part(const std::string& text) { return {{"type", "text"}, {"text", text}}; }

bool calls_tools(const OrderedJson& message) {
  const auto calls = message.find("tool_calls");
  return calls != message.end() && calls->is_array() && !calls->empty();
}

bool is_result(const OrderedJson& message) { return text_in(message, "role") == "tool"; }

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
    if (text_in(part, "type") == "text") {
      out.text += text_in(part, "text");
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

// Adds parts to a user's turn at the end of the messages; appends a turn if the last one is not the user's.
void add_to_user(OrderedJson& messages, const OrderedJson& parts) {
  if (messages.empty() || messages.back()["role"] != "user") {
    messages.push_back({{"role", "user"}, {"content", OrderedJson::array()}});
  }
  OrderedJson& content = messages.back()["content"];
  if (!content.is_array()) content = parts_of(messages.back());  // else in place: many results may follow one another
  for (const OrderedJson& part : parts) content.push_back(part);
}

// {"name", "arguments"} as a model without a call format of its own would write it.
std::string call_text(const OrderedJson& call) {
  const OrderedJson function = call.value("function", OrderedJson::object());
  const OrderedJson arguments = function.value("arguments", OrderedJson::object());
  const std::string text = arguments.is_string() ? arguments.get<std::string>() : dump_exact_json(arguments);
  return "{\"name\": " + OrderedJson(text_in(function, "name")).dump() + ", \"arguments\": " + text + "}";
}

// Rewrites a message about tools for a template without a form for them.
void spell_out(const OrderedJson& message, OrderedJson& out, bool& after_result) {
  if (is_result(message)) {
    const Content content = split(message);
    OrderedJson parts = OrderedJson::array({text_part((after_result ? "\n" : "") + content.text)});
    for (const OrderedJson& part : content.others) parts.push_back(part);
    add_to_user(out, parts);
    after_result = true;
    return;
  }
  if (calls_tools(message)) {
    std::string text = split(message).text;
    for (const OrderedJson& call : message["tool_calls"]) text += (text.empty() ? "" : "\n") + call_text(call);
    out.push_back({{"role", "assistant"}, {"content", text}});
  } else if (after_result && text_in(message, "role") == "user") {
    add_to_user(out, OrderedJson::array({text_part("\n")}));
    add_to_user(out, parts_of(message));
  } else {
    out.push_back(message);
  }
  after_result = false;
}

// Arguments as an object or as its text. What is no object becomes a field of one where the template takes objects
// alone: `as_any` says that it also takes a text.
void with_arguments(OrderedJson& message, bool as_text, bool as_any) {
  if (!calls_tools(message)) return;
  for (OrderedJson& call : message["tool_calls"]) {
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object()) continue;
    OrderedJson& arguments = call["function"]["arguments"];
    const bool blank = arguments.is_string() &&
                       arguments.get_ref<const std::string&>().find_first_not_of(" \t\r\n") == std::string::npos;
    if (arguments.is_null() || blank) arguments = OrderedJson::object();
    if (as_text && !arguments.is_string()) arguments = dump_exact_json(arguments);
    if (as_text || !arguments.is_string()) continue;
    OrderedJson read;
    try {
      read = parse_exact_json(arguments.get_ref<const std::string&>(), "arguments");
    } catch (const Error&) {  // invalid JSON from a model
    }
    if (read.is_object()) {
      arguments = std::move(read);
    } else if (!as_any) {
      arguments = {{"input", arguments}};
    }
  }
}

// Splits a message with several calls into one message per call, each followed by the results with its id.
OrderedJson one_call_each(const OrderedJson& messages) {
  OrderedJson out = OrderedJson::array();
  for (size_t i = 0; i < messages.size(); ++i) {
    const OrderedJson& message = messages[i];
    if (!calls_tools(message) || message["tool_calls"].size() < 2) {
      out.push_back(message);
      continue;
    }
    const size_t first = i + 1;
    std::map<std::string, std::vector<size_t>> answers;  // the results of each call, by its id
    while (i + 1 < messages.size() && is_result(messages[i + 1])) {
      answers[text_in(messages[i + 1], "tool_call_id")].push_back(i + 1);
      ++i;
    }
    std::vector<bool> placed(i + 1 - first);
    // What is said and thought belongs to the first.
    OrderedJson one = {{"role", "assistant"}, {"content", ""}};
    for (const OrderedJson& call : message["tool_calls"]) {
      if (&call == &message["tool_calls"].front()) {
        out.push_back(OrderedJson::object());
        for (const auto& [key, value] : message.items()) {
          out.back()[key] = key == "tool_calls" ? OrderedJson::array({call}) : value;
        }
      } else {
        one["tool_calls"] = OrderedJson::array({call});
        out.push_back(one);
      }
      for (const size_t result : answers[text_in(call, "id")]) {
        placed[result - first] = true;
        out.push_back(messages[result]);
      }
      answers.erase(text_in(call, "id"));
    }
    for (size_t k = 0; k < placed.size(); ++k) {  // results without a call in this message
      if (!placed[k]) out.push_back(messages[first + k]);
    }
  }
  return out;
}

// Gives ids to calls that have none, and to results without one those of the calls before them, in their order.
void add_ids(OrderedJson& messages) {
  std::deque<std::string> open;    // ids of calls, those with a result at the front left out
  std::set<std::string> answered;  // those of them that have a result
  size_t n_calls = 0;
  for (OrderedJson& message : messages) {
    if (calls_tools(message)) {
      open.clear();
      answered.clear();
      for (OrderedJson& call : message["tool_calls"]) {
        if (!call.is_object()) continue;
        ++n_calls;
        if (text_in(call, "id").empty()) call["id"] = "call_" + std::to_string(n_calls);
        open.push_back(text_in(call, "id"));
      }
    } else if (is_result(message)) {
      const std::string id = text_in(message, "tool_call_id");
      if (!id.empty()) {
        answered.insert(id);
      } else {
        while (!open.empty() && answered.contains(open.front())) open.pop_front();
        if (open.empty()) continue;
        message["tool_call_id"] = open.front();
        open.pop_front();
      }
    }
  }
}

// Gives calls and results ids of nine letters and digits: other ids become numbers, in the order in which they occur,
// so that the beginning of a growing conversation does not change.
void number_ids(OrderedJson& messages) {
  std::map<std::string, std::string> numbered;
  const auto replace = [&](OrderedJson& of, const char* field) {
    if (!of.is_object() || !of.contains(field) || !of[field].is_string()) return;
    const auto id = of[field].get<std::string>();
    const auto letter = [](char c) {
      return ('0' <= c && c <= '9') || ('A' <= c && c <= 'Z') || ('a' <= c && c <= 'z');
    };
    if (id.size() == kShortId && std::ranges::all_of(id, letter)) return;
    std::string number = std::to_string(numbered.size());
    number.insert(0, kShortId - std::min(kShortId, number.size()), '0');
    of[field] = numbered.try_emplace(id, std::move(number)).first->second;
  };
  for (OrderedJson& message : messages) {
    if (calls_tools(message)) {
      for (OrderedJson& call : message["tool_calls"]) replace(call, "id");
    } else if (is_result(message)) {
      replace(message, "tool_call_id");
    }
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

bool ToolForms::shows_calls(bool as_text, int n_calls, const char* id) {
  const OrderedJson arguments = as_text ? OrderedJson("{\"a\": 1}") : OrderedJson{{"a", 1}};
  const OrderedJson call = {
      {"id", id}, {"type", "function"}, {"function", {{"name", kTool}, {"arguments", arguments}}}};
  const OrderedJson result = {{"role", "tool"}, {"tool_call_id", id}, {"name", kTool}, {"content", kResult}};
  OrderedJson messages = OrderedJson::array({{{"role", "user"}, {"content", "a"}}});
  messages.push_back({{"role", "assistant"}, {"content", ""}, {"tool_calls", OrderedJson::array()}});
  for (int i = 0; i < n_calls; ++i) {
    messages[1]["tool_calls"].push_back(call);
    messages.push_back(result);
  }
  try {
    const std::string text = render_(messages, nullptr);
    return text.find(kTool) != std::string::npos && text.find(kResult) != std::string::npos;
  } catch (const Error&) {
    return false;
  }
}

ToolForms::Calls ToolForms::calls() {
  if (calls_) return *calls_;
  calls_ = shows_calls(/*as_text=*/false, 1, kCallId)  ? Calls::kAsObjects
           : shows_calls(/*as_text=*/true, 1, kCallId) ? Calls::kAsText
                                                       : Calls::kNotAtAll;
  if (calls_ != Calls::kNotAtAll) {
    takes_several_ = shows_calls(calls_ == Calls::kAsText, 2, kCallId);
    takes_any_id_ =
        shows_calls(calls_ == Calls::kAsText, 1, kLongCallId) && shows_calls(calls_ == Calls::kAsText, 1, kShortCallId);
    takes_any_text_ = calls_ == Calls::kAsText || shows_calls(/*as_text=*/true, 1, kCallId);
  }
  return *calls_;
}

std::string ToolForms::description() {
  const Calls form = calls();
  std::string out = shows_tools() ? "shown" : "no place for them";
  if (form == Calls::kNotAtAll) return out + "; calls and results become texts of assistant and user";
  out += form == Calls::kAsText ? "; arguments of calls as text" : "; arguments of calls as objects";
  if (!takes_several_) out += ", one call a message";
  if (!takes_any_id_) out += ", ids of nine letters or digits";
  return out;
}

OrderedJson ToolForms::fit(const OrderedJson& messages) {
  if (!messages.is_array() || !std::ranges::any_of(messages, [](const OrderedJson& m) {
        return m.is_object() && (calls_tools(m) || is_result(m));
      })) {
    return messages;
  }
  OrderedJson with_ids = messages;
  add_ids(with_ids);
  OrderedJson out = OrderedJson::array();
  const Calls form = calls();
  bool after_result = false;
  OrderedJson images = OrderedJson::array();
  for (const OrderedJson& message : takes_several_ ? with_ids : one_call_each(with_ids)) {
    if (form == Calls::kNotAtAll) {
      spell_out(message, out, after_result);
      continue;
    }
    if (!is_result(message) && !images.empty()) {
      out.push_back({{"role", "user"}, {"content", std::exchange(images, OrderedJson::array())}});
      if (text_in(message, "role") == "user") {
        add_to_user(out, parts_of(message));
        continue;
      }
    }
    out.push_back(message);
    with_arguments(out.back(), form == Calls::kAsText, takes_any_text_);
    if (!is_result(message)) continue;
    const Content content = split(message);
    out.back()["content"] = content.text;
    for (const OrderedJson& part : content.others) images.push_back(part);
  }
  if (!images.empty()) out.push_back({{"role", "user"}, {"content", images}});
  if (!takes_any_id_) number_ids(out);
  return out;
}

}  // namespace vlcache
