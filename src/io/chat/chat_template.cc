// Converts JSON to template values, prepares messages as transformers does, and adds the location to errors.
#include "io/chat/chat_template.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/exact_json.h"
#include "base/ordered_json.h"
#include "io/chat/jinja/ast.h"
#include "io/chat/jinja/interpreter.h"
#include "io/chat/jinja/lexer.h"
#include "io/chat/jinja/text.h"

namespace vlcache {
namespace {

constexpr size_t kMaxTemplateBytes = 4 << 20;  // the longest known template has 20 kB

using jinja::Value;

Value to_value(const OrderedJson& json) {
  switch (json.type()) {
    case OrderedJson::value_t::null:
    case OrderedJson::value_t::discarded:
      return Value::none();
    case OrderedJson::value_t::boolean:
      return Value::boolean(json.get<bool>());
    case OrderedJson::value_t::number_integer:
      return Value::integer(json.get<int64_t>());
    case OrderedJson::value_t::number_unsigned: {
      const auto u = json.get<uint64_t>();
      if (u > static_cast<uint64_t>(INT64_MAX)) return Value::digits(std::to_string(u));
      return Value::integer(static_cast<int64_t>(u));
    }
    case OrderedJson::value_t::number_float:
      return Value::real(json.get<double>());
    case OrderedJson::value_t::string: {
      const auto& text = json.get_ref<const std::string&>();
      if (!is_valid_utf8(text)) throw Error(ErrorCode::kInput, "chat: a text is not valid UTF-8");
      return Value::string(text);
    }
    case OrderedJson::value_t::binary:
      return Value::digits(exact_digits(json));
    case OrderedJson::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const OrderedJson& item : json) items.push_back(to_value(item));
      return Value::list(std::move(items));
    }
    case OrderedJson::value_t::object: {
      std::vector<std::pair<Value, Value>> entries;
      for (const auto& [key, item] : json.items()) entries.emplace_back(Value::string(key), to_value(item));
      return jinja::make_dict(std::move(entries));
    }
  }
  return Value::none();
}

constexpr const char* kReasoningFields[] = {"reasoning_content", "thinking", "reasoning"};

// transformers passes a message's reasoning under each name that templates use.
OrderedJson alias_reasoning(const OrderedJson& message) {
  const OrderedJson* reasoning = nullptr;
  for (const char* field : kReasoningFields) {
    const auto it = message.find(field);
    if (it == message.end() || it->is_null()) continue;
    reasoning = &*it;
    break;
  }
  if (reasoning == nullptr) return message;
  OrderedMembers aliased = {{"thinking", *reasoning}};
  for (const auto& [key, value] : message.items()) aliased.emplace_back(key, value);
  aliased.emplace_back("reasoning_content", *reasoning);
  return ordered_object(std::move(aliased));
}

constexpr std::string_view kContinueTag = "CONTINUE_FINAL_MESSAGE_TAG ";

// Marks the end of the last message's text; returns that text.
std::string tag_final_message(OrderedJson& messages) {
  if (messages.empty()) throw Error(ErrorCode::kInput, "chat: continue_final_message with no messages");
  OrderedJson& last = messages.back();
  const auto content = last.find("content");
  OrderedJson* text = nullptr;
  if (content != last.end() && content->is_string()) text = &*content;
  if (content != last.end() && content->is_array()) {
    for (auto block = content->rbegin(); block != content->rend() && text == nullptr; ++block) {
      if (block->is_object() && block->contains("text") && (*block)["text"].is_string()) text = &(*block)["text"];
    }
  }
  if (text == nullptr)
    throw Error(ErrorCode::kInput, "chat: continue_final_message, but the final message has no text to continue");
  const auto original = text->get<std::string>();
  *text = original + std::string(kContinueTag);
  return original;
}

std::string cut_at_tag(std::string rendered, const std::string& original) {
  const std::string bare(kContinueTag.substr(0, kContinueTag.size() - 1));
  const std::string wanted(jinja::strip(original, nullptr, jinja::Side::kBoth));
  const size_t at = rendered.rfind(bare);
  if (at == std::string::npos || rendered.find(wanted) == std::string::npos) {
    throw Error(ErrorCode::kInput,
                "chat: continue_final_message, but the template does not show the final message as it is");
  }
  const bool keeps_space = rendered.compare(at, kContinueTag.size(), kContinueTag) == 0;
  rendered.resize(at);
  return keeps_space ? rendered : std::string(jinja::strip(rendered, nullptr, jinja::Side::kRight));
}

[[noreturn]] void rethrow(const std::string& where, int line, const jinja::RenderError& e) {
  const std::string message = e.what();
  ErrorCode code = ErrorCode::kInput;
  if (e.kind == jinja::RenderError::Kind::kUnsupported) code = ErrorCode::kUnsupported;
  if (e.kind == jinja::RenderError::Kind::kLimit) code = ErrorCode::kMemory;
  throw ChatTemplateError(code, where + ": line " + std::to_string(line) + ": " + message, line, message,
                          e.kind == jinja::RenderError::Kind::kRaised);
}

}  // namespace

struct ChatTemplate::Impl {
  std::string source;
  std::string where;
  jinja::TemplateTree tree;

  std::string render(jinja::Variables variables, const std::optional<std::tm>& now) const {
    jinja::Interpreter interpreter(jinja::Limits{}, now, std::move(variables));
    try {
      return interpreter.render(tree);
    } catch (const jinja::RenderError& e) {
      rethrow(where, interpreter.line(), e);
    }
  }
};

ChatTemplate::ChatTemplate(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

const std::string& ChatTemplate::source() const { return impl_->source; }

ChatTemplate ChatTemplate::parse(std::string source, std::string where) {
  if (source.size() > kMaxTemplateBytes) {
    throw Error(ErrorCode::kInput, where + ": a chat template of " + std::to_string(source.size()) +
                                       " bytes, expected at most " + std::to_string(kMaxTemplateBytes));
  }
  if (!is_valid_utf8(source)) throw Error(ErrorCode::kInput, where + ": the chat template is not valid UTF-8");
  auto impl = std::make_unique<Impl>();
  impl->source = std::move(source);
  impl->where = std::move(where);
  try {
    impl->tree = jinja::parse_template(impl->source);
  } catch (const jinja::SyntaxError& e) {
    rethrow(impl->where, e.line, e);
  }
  return ChatTemplate(std::move(impl));
}

std::string ChatTemplate::render_variables(const OrderedJson& variables, const std::optional<std::tm>& now) const {
  jinja::Variables values;
  try {
    for (const auto& [name, value] : variables.items()) values[name] = to_value(value);
  } catch (const jinja::RenderError& e) {
    throw Error(ErrorCode::kInput, std::string("chat: ") + e.what());
  }
  return impl_->render(std::move(values), now);
}

std::string ChatTemplate::render(const OrderedJson& messages, const ChatOptions& options) const {
  if (!messages.is_array())
    throw Error(ErrorCode::kInput, std::string("chat: messages: expected an array, found ") + messages.type_name());
  OrderedJson prepared = OrderedJson::array();
  for (const OrderedJson& message : messages) {
    if (!message.is_object()) {
      throw Error(ErrorCode::kInput, std::string("chat: a message: expected an object, found ") + message.type_name());
    }
    prepared.push_back(alias_reasoning(message));
  }
  const auto check_array = [](const OrderedJson* json, const char* name) {
    if (json == nullptr || json->is_null()) return;
    const bool ok =
        json->is_array() && std::all_of(json->begin(), json->end(), [](const auto& i) { return i.is_object(); });
    if (!ok) throw Error(ErrorCode::kInput, std::string("chat: ") + name + ": expected an array of objects");
  };
  check_array(options.tools, "tools");
  check_array(options.documents, "documents");
  std::string original;
  if (options.continue_final_message) original = tag_final_message(prepared);

  OrderedJson variables = options.variables != nullptr ? *options.variables : OrderedJson::object();
  if (!variables.is_object()) throw Error(ErrorCode::kInput, "chat: template variables: expected an object");
  variables["messages"] = std::move(prepared);
  variables["tools"] = options.tools != nullptr ? *options.tools : OrderedJson();
  variables["documents"] = options.documents != nullptr ? *options.documents : OrderedJson();
  variables["add_generation_prompt"] = options.add_generation_prompt;
  std::string rendered = render_variables(variables, options.now);
  return options.continue_final_message ? cut_at_tag(std::move(rendered), original) : rendered;
}

}  // namespace vlcache
