#include "server/protocol/responses_request.h"

#include <algorithm>
#include <string>
#include <utility>

#include "api/json_fields.h"
#include "api/messages/any_part.h"
#include "api/peer_fields.h"
#include "api/request_builder.h"
#include "base/json_text.h"
#include "base/ordered_json.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Collects the messages of items.
class ItemReader {
 public:
  ItemReader(ImageParts& images, std::vector<Message> before) : images_(images), messages_(std::move(before)) {}

  void add(const OrderedJson& item, const std::string& where) {
    if (!item.is_object()) bad_field(where + ": expected an object");
    const std::string type = find_field(item, "type") == nullptr ? "message" : string_field(item, "type", where);
    if (type == "message") return add_item_message(item, where);
    if (type == "reasoning" || type == "agent_reasoning") return add_thought(item);
    if (type == "agent_message") {  // what one agent writes to another
      add_message("user", find_field(item, "content"), where + ".content");
      return;
    }
    // Nothing to be shown: what they refer to is elsewhere, or can be read by the server that wrote them alone.
    if (type == "item_reference" || type == "compaction" || type == "compaction_summary" ||
        type == "context_compaction" || type == "additional_tools" || type == "mcp_list_tools") {
      return;
    }
    if (type == "function_call") {
      return add_call(read_call(id_of(item), name_of(item, where), find_field(item, "arguments"), where + ".arguments"),
                      where);
    }
    if (type == "custom_tool_call") {
      const OrderedJson* input = find_field(item, "input");
      return add_call({id_of(item), name_of(item, where), {{"input", input == nullptr ? OrderedJson("") : *input}}},
                      where);
    }
    if (type.ends_with("_output") || type == "mcp_approval_response") return add_output(item, where);
    if (type.ends_with("_call") || type == "mcp_approval_request") return add_other_call(item, type, where);
    bad_field(where + ".type: expected a message, a call, its output or reasoning, found \"" + type + "\"");
  }

  std::vector<Message> take() { return std::move(messages_); }

 private:
  void add_part(const OrderedJson& part, const std::string& where, std::vector<Part>& parts) {
    if (part.is_string()) return static_cast<void>(read_any_part(part, where, images_, parts));
    if (!part.is_object()) bad_field(where + ": expected an object");
    if (find_field(part, "type") == nullptr && read_any_part(part, where, images_, parts)) return;
    const std::string type = string_field(part, "type", where);
    const OrderedJson* url = find_field(part, "image_url");
    if (type == "input_text" || type == "output_text" || type == "text" || type == "summary_text" ||
        type == "reasoning_text") {
      text_of_part(part, where);  // for its errors
      parts.emplace_back(TextPart{string_field(part, "text", where)});
      // Agents of Codex write to each other so: a server that cannot encrypt has given it the text itself.
    } else if (type == "encrypted_content" || type == "refusal") {
      parts.emplace_back(TextPart{string_field(part, type.c_str(), where)});
    } else if ((type == "input_image" || type == "computer_screenshot") && (url == nullptr || !url->is_object())) {
      add_image(part, where, parts);
    } else if (type == "input_video") {  // not OpenAI's
      images_.add_video(part, where, parts);
    } else if (type == "input_file") {
      images_.add_openai_file(part, where, part, where, parts);
    } else if (!read_any_part(part, where, images_, parts)) {
      bad_field(where + ".type: expected input_text, input_image, input_file, input_video or output_text, found \"" +
                type + "\"");
    }
  }

  void add_image(const OrderedJson& part, const std::string& where, std::vector<Part>& parts) {
    GivenImage image{.where = where + ".image_url", .id_where = where + ".uuid", .id = find_field(part, "uuid")};
    image.least_detail = wants_least_detail(part, where);
    if (find_field(part, "image_url") == nullptr && find_field(part, "file_id") != nullptr) {  // uploaded, or named
      text_field(part, "file_id", where);
      image.id_where = where + ".file_id";
      image.id = find_field(part, "file_id");
    } else {
      image.data = {.text = text_field(part, "image_url", where)};
    }
    images_.add_image(image, parts);
  }

  // Of a text, or a list of parts.
  Message& add_message(std::string role, const OrderedJson* content, const std::string& where) {
    const bool plain = content == nullptr || content->is_string();
    Message& message = messages_.emplace_back(Message{.role = std::move(role), .plain = plain});
    if (plain) {
      message.parts.emplace_back(TextPart{content == nullptr ? "" : content->get<std::string>()});
      return message;
    }
    if (!content->is_array()) bad_field(where + ": expected a string or a list of parts");
    for (size_t i = 0; i < content->size(); ++i) add_part((*content)[i], item_name(where, i), message.parts);
    return message;
  }

  void add_item_message(const OrderedJson& item, const std::string& where) {
    add_message(read_role(string_field(item, "role", where), where), find_field(item, "content"), where + ".content");
    take_thought();
  }

  void add_thought(const OrderedJson& item) {
    for (const char* key : {"content", "summary"}) {
      const OrderedJson* parts = find_field(item, key);
      std::string text = parts == nullptr ? text_in(item, "text") : "";
      for (const OrderedJson& part : parts != nullptr && parts->is_array() ? *parts : OrderedJson::array()) {
        if (part.is_object() && part.contains("text") && part["text"].is_string()) {
          text += (text.empty() ? "" : "\n") + part["text"].get<std::string>();
        }
      }
      if (text.empty()) continue;
      thought_ += (thought_.empty() ? "" : "\n\n") + text;
      return;
    }
  }

  // A thought belongs to the assistant's next message.
  void take_thought() {
    if (thought_.empty() || messages_.back().role != "assistant") return;
    messages_.back().parts.emplace_back(ThoughtPart{std::exchange(thought_, "")});
  }

  static std::string id_of(const OrderedJson& item) {
    for (const char* key : {"call_id", "id"}) {
      const OrderedJson* id = find_field(item, key);
      if (id != nullptr && id->is_string()) return id->get<std::string>();
    }
    return "";
  }

  // That of the function which the tool became.
  static std::string name_of(const OrderedJson& item, const std::string& where) {
    const std::string space = text_in(item, "namespace"), name = string_field(item, "name", where);
    return space.empty() ? name : space + "__" + name;
  }

  // Consecutive calls, and the assistant's text before them, are one message.
  void add_call(CallPart call, const std::string& where) {
    if (call.name.empty()) bad_field(where + ".name: expected a name");
    const bool follows = !messages_.empty() && messages_.back().role == "assistant" && thought_.empty();
    if (!follows) messages_.push_back({.role = "assistant", .plain = true});
    take_thought();
    messages_.back().parts.emplace_back(std::move(call));
  }

  // Calls of tools that other servers run: their fields are the arguments, and what came of them is in the same item.
  void add_other_call(const OrderedJson& item, const std::string& type, const std::string& where) {
    OrderedJson arguments = OrderedJson::object(), result;
    for (const auto& [key, value] : item.items()) {
      if (key == "id" || key == "type" || key == "call_id" || key == "status" || key == "name" || value.is_null())
        continue;
      if (key == "output" || key == "outputs" || key == "results" || key == "result" || key == "error") {
        result = value;
      } else {
        append_member(arguments, key, value);
      }
    }
    const OrderedJson* name = find_field(item, "name");
    const std::string kind = type.ends_with("_call") ? type.substr(0, type.size() - 5) : type;
    const OrderedJson* own = find_field(item, "arguments");
    const bool alone = own != nullptr && arguments.size() == 1;
    add_call(read_call(id_of(item), name != nullptr && name->is_string() ? name->get<std::string>() : kind,
                       alone ? own : &arguments, where + ".arguments"),
             where);
    if (find_field(item, "call_id") != nullptr && result.is_null()) return;  // its output is an item of its own
    if (result.is_null()) result = text_in(item, "status").empty() ? "completed" : text_in(item, "status");
    if (type == "image_generation_call") result = "an image";
    add_result(item) = text_of_output(result);
  }

  // A tool's message of one text, which is to be set.
  std::string& add_result(const OrderedJson& item) {
    messages_.push_back(text_message("tool", ""));
    messages_.back().call_id = id_of(item);
    return std::get<TextPart>(messages_.back().parts[0]).text;
  }

  static std::string text_of_output(const OrderedJson& output) {
    return output.is_string() ? output.get<std::string>() : output.dump();
  }

  void add_output(const OrderedJson& item, const std::string& where) {
    const OrderedJson* output = find_field(item, "output");
    const auto has_type =
        [](const OrderedJson& part) {  // or is a part without one, but no list of the tool's own texts
          return part.is_object() && (part.contains("type") || kind_of_part(part) != PartKind::kUnknown);
        };
    const bool screenshot = output != nullptr && text_in(*output, "type") == "computer_screenshot";
    if (screenshot || (output != nullptr && output->is_array() && std::ranges::all_of(*output, has_type))) {
      const OrderedJson none = OrderedJson::array();
      Message& message = add_message("tool", screenshot ? &none : output, where + ".output");
      message.call_id = id_of(item);
      if (screenshot) add_part(*output, where + ".output", message.parts);
    } else if (output != nullptr) {
      add_result(item) = text_of_output(*output);
    } else {
      OrderedJson rest = item;
      for (const char* key : {"type", "id", "call_id", "status"}) rest.erase(key);
      add_result(item) = rest.empty() ? text_in(item, "status") : rest.dump();
    }
  }

  ImageParts& images_;
  std::vector<Message> messages_;
  std::string thought_;  // of the assistant's next message
};

std::vector<Message> messages_of_items(const OrderedJson& body, ImageParts& images) {
  std::vector<Message> said;
  if (find_field(body, "instructions") != nullptr) {
    said.push_back(text_message("system", string_field(body, "instructions", "the request")));
  }
  const OrderedJson* input = find_field(body, "input");
  if (input == nullptr || (!input->is_string() && !input->is_array()))
    bad_field("input: expected a text or a list of items");
  if (input->is_string()) {
    said.push_back(text_message("user", input->get<std::string>()));
    return said;
  }
  check_n_messages(input->size(), "input");
  ItemReader reader(images, std::move(said));
  for (size_t i = 0; i < input->size(); ++i) reader.add((*input)[i], item_name("input", i));
  return reader.take();
}

// The function that a tool of one free text becomes.
OrderedJson custom_function(const OrderedJson& tool) {
  std::string description = text_in(tool, "description");
  const OrderedJson* format = find_field(tool, "format");
  if (format != nullptr && format->is_object() && format->contains("definition")) {
    description += "\nThe input follows this grammar:\n" + text_in(*format, "definition");
  }
  return {{"description", description},
          {"parameters",
           {{"type", "object"},
            {"properties", {{"input", {{"type", "string"}}}}},
            {"required", OrderedJson::array({"input"})},
            {"additionalProperties", false}}}};
}

// The name of the function that a tool, or a reference to one, is.
std::string flat_name(const OrderedJson& tool) {
  const std::string name = text_in(tool, "name"), space = text_in(tool, "namespace");
  return space.empty() ? name : space + "__" + name;
}

// Collects the functions that tools become.
class ToolReader {
 public:
  // choice: null: none. Of allowed_tools, the others are left out.
  ToolReader(const OrderedJson* choice, ResponsesPlan& known) : known_(known) {
    if (choice == nullptr || text_in(*choice, "type") != "allowed_tools") return;
    allowed_.emplace();
    const OrderedJson* tools = find_field(*choice, "tools");
    for (const OrderedJson& tool : tools != nullptr && tools->is_array() ? *tools : OrderedJson::array()) {
      if (tool.is_object()) allowed_->insert(flat_name(tool));
    }
  }

  void add(const OrderedJson& tool, const std::string& at, const std::string& space = "") {
    if (!tool.is_object()) bad_field(at + ": expected an object");
    const std::string type = string_field(tool, "type", at);
    if (type == "namespace") {
      const OrderedJson* members = find_field(tool, "tools");
      if (members == nullptr || !members->is_array()) bad_field(at + ".tools: expected a list");
      for (size_t i = 0; i < members->size(); ++i) {
        add((*members)[i], item_name(at + ".tools", i), string_field(tool, "name", at));
      }
      return;
    }
    if (type != "function" && type != "custom") return;  // other servers run it
    const bool nested = find_field(tool, "function") != nullptr;
    const std::string where = nested ? at + ".function" : at;
    const OrderedJson& function = nested ? tool["function"] : tool;
    const std::string name = string_field(function, "name", at), flat = space.empty() ? name : space + "__" + name;
    if (!known_.names.insert(flat).second) return;
    if (!space.empty()) known_.namespaced[flat] = {space, name};
    if (type == "custom") known_.custom.insert(flat);
    if (allowed_ && !allowed_->contains(flat)) return;
    if (type == "custom") {
      use_.add(flat, custom_function(tool), "parameters", {at, at});
    } else {
      use_.add(flat, function, "parameters", {where, where + ".parameters"});
      if (bool_field(function, "strict", false)) use_.strict.insert(flat);
    }
  }

  void choose(const OrderedJson& choice) {
    if (allowed_) {
      const bool required = text_in(choice, "mode") == "required" && !use_.tools.empty();
      use_.choose(required ? ToolUse::Choice::kRequired : ToolUse::Choice::kAuto);
    } else if (choice.is_object() && find_field(choice, "name") != nullptr) {
      use_.choose(ToolUse::Choice::kNamed, flat_name(choice));
    } else if (choice.is_object() && find_field(choice, "function") != nullptr) {
      read_tool_choice(choice, use_);
    } else if (known_.names.empty() || choice.is_object()) {  // of tools that were left out
      use_.choose(ToolUse::Choice::kAuto);
    } else {
      read_tool_choice(choice, use_);
    }
  }

  ToolUse take() { return std::move(use_); }

 private:
  ResponsesPlan& known_;
  std::optional<std::set<std::string>> allowed_;
  ToolUse use_;
};

ToolUse read_tools(const OrderedJson& body, ResponsesPlan& known) {
  const OrderedJson* choice = find_field(body, "tool_choice");
  ToolReader reader(choice, known);
  const auto add_all = [&](const OrderedJson* tools, const std::string& where) {
    for (size_t i = 0; tools != nullptr && tools->is_array() && i < tools->size(); ++i) {
      reader.add((*tools)[i], item_name(where, i));
    }
  };
  const OrderedJson *tools = find_field(body, "tools"), *input = find_field(body, "input");
  if (tools != nullptr && !tools->is_array()) bad_field("tools: expected a list");
  add_all(tools, "tools");
  for (size_t i = 0; input != nullptr && input->is_array() && i < input->size(); ++i) {
    const std::string type = text_in((*input)[i], "type");
    if (type != "additional_tools" && type != "tool_search_output") continue;  // what a search found may be called
    add_all(find_field((*input)[i], "tools"), item_name("input", i) + ".tools");
  }
  if (choice != nullptr) reader.choose(*choice);
  ToolUse use = reader.take();
  use.parallel = bool_field(body, "parallel_tool_calls", true);
  return use;
}

// What the answer includes besides its text: of all options, log probabilities alone are supported.
std::optional<int32_t> read_logprobs(const OrderedJson& body, const ChatLimits& limits) {
  const int32_t n_top = read_top_logprobs(body, limits);
  const OrderedJson* include = find_field(body, "include");
  if (include != nullptr && !include->is_array()) bad_field("include: expected an array");
  const auto is_it = [](const OrderedJson& item) { return item == "message.output_text.logprobs"; };
  const bool included = include != nullptr && std::ranges::any_of(*include, is_it);
  if (included || n_top > 0) return n_top;
  // 0: the value in answers if none were requested
  return find_field(body, "top_logprobs") != nullptr ? std::optional(-1) : std::nullopt;
}

// text.format, where the schema is beside its name.
std::optional<AnswerFormat> read_text_format(const OrderedJson& body) {
  const OrderedJson* text = find_field(body, "text");
  const OrderedJson* format = text != nullptr && text->is_object() ? find_field(*text, "format") : nullptr;
  if (format == nullptr) return std::nullopt;
  if (!format->is_object()) bad_field("text.format: expected an object");
  string_field(*format, "type", "text.format");
  return read_flat_format(*format, "text.format");
}

}  // namespace

ChatRequest read_responses_request(const OrderedJson& body, const RequestFields& defaults, const ChatLimits& limits,
                                   ResponsesPlan& tools) {
  check_peer_fields(body, PeerEndpoint::kResponses);
  ToolUse use = read_tools(body, tools);
  std::optional<AnswerFormat> format = read_text_format(body);
  RequestFields own;
  own.max_tokens = read_max_tokens(body, "max_output_tokens");
  own.logprobs = read_logprobs(body, limits);
  ChatRequest request = read_shared_fields(body, std::move(own), std::move(format), defaults);
  request.set_tools(std::move(use));
  ThinkingReader thinking(request);
  thinking.read_common_fields(body);
  if (const OrderedJson* reasoning = find_field(body, "reasoning")) thinking.read_reasoning(*reasoning);
  thinking.finish();
  ImageParts images(limits, read_shared_media_options(body, request.fields), request.fields, "input");
  request.messages = messages_of_items(body, images);
  drop_empty_messages(request.messages, "input");
  request.named = images.take_named();
  return request;
}

}  // namespace vlcache
