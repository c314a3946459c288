#include "server/protocol/messages_request.h"

#include <algorithm>
#include <string>
#include <utility>

#include "api/json_fields.h"
#include "api/messages/any_part.h"
#include "api/peer_fields.h"
#include "api/request_builder.h"
#include "base/json_text.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

const OrderedJson& source_of(const OrderedJson& block, const std::string& at) {
  const OrderedJson* source = find_field(block, "source");
  if (source == nullptr || !source->is_object()) bad_field(at + ": expected an object");
  return *source;
}

bool is_block(const OrderedJson& block, std::string_view type) { return text_in(block, "type") == type; }
bool has_type_end(const OrderedJson& block, std::string_view end) { return text_in(block, "type").ends_with(end); }

// Of a client's tool, or of one that another server ran: web_search_tool_result, mcp_tool_result.
bool is_result(const OrderedJson& block) {
  return is_block(block, "tool_result") || has_type_end(block, "_tool_result");
}
bool is_call(const OrderedJson& block) { return is_block(block, "tool_use") || has_type_end(block, "_tool_use"); }

// Claude Code begins the system text with a line for Anthropic's accounts. A hash in it differs in every request, so no
// prefix after it would ever be found again, and it says nothing to the model: it is left out. True: nothing remains.
bool strip_billing(std::string& text) {
  if (!text.starts_with("x-anthropic-billing-header:")) return false;
  const size_t end = text.find('\n');
  text.erase(0, end == text.npos ? end : end + 1);
  return end == text.npos;
}

class BlockReader {
 public:
  explicit BlockReader(ImageParts& images) : images_(images) {}

  void add_turn(const OrderedJson& turn, const std::string& at) {
    if (!turn.is_object()) bad_field(at + ": expected an object");
    const std::string role = string_field(turn, "role", at);
    if (role != "user" && role != "assistant" && role != "system") {
      bad_field(at + ".role: expected \"user\", \"assistant\" or \"system\", found \"" + role + "\"");
    }
    const OrderedJson* content = find_field(turn, "content");
    if (content == nullptr || !content->is_array() || role == "system") {
      add_message(role, content, at + ".content");
    } else if (role == "user") {
      add_user(*content, at + ".content");
    } else {
      add_assistant(*content, at + ".content");
    }
  }

  void add_system(const OrderedJson& system) {
    Message& message = add_message("system", &system, "system");
    std::erase_if(message.parts, [&](Part& part) {
      auto* text = std::get_if<TextPart>(&part);
      return text != nullptr && strip_billing(text->text);
    });
  }

  std::vector<Message> take() { return std::move(messages_); }

 private:
  Message& add(const std::string& role, bool plain = false) {
    return messages_.emplace_back(Message{.role = role, .plain = plain});
  }

  // Of a text, or a list of blocks.
  Message& add_message(const std::string& role, const OrderedJson* content, const std::string& where) {
    Message& message = add(role, content == nullptr || content->is_string());
    add_blocks(content, where, message.parts);
    return message;
  }

  void add_image(const OrderedJson& block, const std::string& where, std::vector<Part>& parts) {
    const std::string at = where + ".source";
    const OrderedJson& source = source_of(block, at);
    const std::string type = string_field(source, "type", at);
    GivenImage image{.where = at, .id_where = where + ".uuid", .id = find_field(block, "uuid")};
    std::string media;
    if (type == "base64") {
      media = text_in(source, "media_type");
      image.data = base64_or_data_uri(text_field(source, "data", at), media);
    } else if (type == "url") {
      image.data = {.text = text_field(source, "url", at)};
    } else if (type == "file") {  // uploaded, or named by an earlier request
      text_field(source, "file_id", at);
      image.id_where = at + ".file_id";
      image.id = find_field(source, "file_id");
    } else {
      bad_field(at + ".type: expected \"base64\", \"url\" or \"file\", found \"" + type + "\"");
    }
    images_.add_image(image, parts);
  }

  void add_pdf(const OrderedJson& block, const OrderedJson& source, const std::string& where,
               std::vector<Part>& parts) {
    const std::string at = where + ".source", type = string_field(source, "type", at);
    GivenFile file{.where = at,
                   .data_where = at,
                   .choice_where = where + ".vlcache",
                   .id = type == "file" ? find_field(source, "file_id") : nullptr,
                   .name = text_in(block, "title"),
                   .choice = find_field(block, "vlcache")};
    if (type == "base64") {
      const std::string media = text_in(source, "media_type"), &data = text_field(source, "data", at);
      file.data = base64_or_data_uri(data, media == "image/tiff" ? "image/tiff" : "application/pdf");
      if (file.data.is_base64 && !may_be(FileKind::kPdf, media, data)) {
        bad_field(at + ".media_type: expected \"application/pdf\" or \"image/tiff\", found \"" + media + "\"");
      }
    } else if (type == "url") {
      file.data = {.text = text_field(source, "url", at)};
    } else if (type != "file") {
      bad_field(at + ".type: expected \"base64\", \"url\", \"file\", \"text\" or \"content\", found \"" + type + "\"");
    }
    images_.add_file(file, parts);
  }

  // The text or the pages of a document, after its title and what is said about it.
  void add_document(const OrderedJson& block, const std::string& where, std::vector<Part>& parts) {
    const std::string at = where + ".source";
    const OrderedJson& source = source_of(block, at);
    const std::string type = string_field(source, "type", at);
    std::string before;
    for (const char* key : {"title", "context"}) {
      if (const std::string text = text_in(block, key); !text.empty()) before += text + "\n";
    }
    if (!before.empty()) parts.emplace_back(TextPart{before});
    if (type == "file") text_field(source, "file_id", at);
    const std::optional<std::string> uploaded =
        type == "file" ? images_.uploaded_text(source["file_id"], at + ".file_id") : std::nullopt;
    if (type == "text" || uploaded) {
      parts.emplace_back(TextPart{uploaded ? *uploaded : string_field(source, "data", at)});
    } else if (type == "content") {
      add_blocks(find_field(source, "content"), at + ".content", parts);
    } else {
      add_pdf(block, source, where, parts);
    }
  }

  // The parts of a block that is said: text, an image, a document, a search result.
  void add_block(const OrderedJson& block, const std::string& where, std::vector<Part>& parts) {
    if (block.is_string()) return static_cast<void>(read_any_part(block, where, images_, parts));
    if (!block.is_object()) bad_field(where + ": expected an object");
    if (find_field(block, "type") == nullptr && read_any_part(block, where, images_, parts)) return;
    const std::string type = string_field(block, "type", where);
    if (type == "text") {
      text_of_part(block, where);  // for its errors
      parts.emplace_back(TextPart{string_field(block, "text", where)});
    } else if (type == "image" && find_field(block, "source") != nullptr) {
      add_image(block, where, parts);
    } else if (type == "document" && find_field(block, "source") != nullptr) {
      add_document(block, where, parts);
    } else if (type == "search_result") {
      parts.emplace_back(TextPart{text_in(block, "title") + "\n" + text_in(block, "source") + "\n"});
      add_blocks(find_field(block, "content"), where + ".content", parts);
    } else if (type == "tool_reference") {
      parts.emplace_back(TextPart{"Tool: " + text_in(block, "tool_name") + "\n"});
    } else if (!read_any_part(block, where, images_, parts)) {
      bad_field(where + ".type: expected text, image, document, search_result or tool_reference, found \"" + type +
                "\"");
    }
  }

  void add_blocks(const OrderedJson* content, const std::string& where, std::vector<Part>& parts) {
    if (content == nullptr) return;
    if (content->is_string()) {
      parts.emplace_back(TextPart{content->get<std::string>()});
      return;
    }
    if (!content->is_array()) bad_field(where + ": expected a string or a list of blocks");
    for (size_t i = 0; i < content->size(); ++i) add_block((*content)[i], item_name(where, i), parts);
  }

  static CallPart call_of(const OrderedJson& block, const std::string& where) {
    const OrderedJson* input = find_field(block, "input");
    if (input != nullptr && !input->is_object()) bad_field(where + ".input: expected an object");
    CallPart call = read_call(string_field(block, "id", where), string_field(block, "name", where), input, where);
    if (call.name.empty()) bad_field(where + ".name: expected a name");
    return call;
  }

  void add_result(const OrderedJson& block, const std::string& where) {
    const OrderedJson* content = find_field(block, "content");
    const bool reads = content == nullptr || is_block(block, "tool_result") || is_block(block, "mcp_tool_result");
    const OrderedJson said = reads ? OrderedJson() : OrderedJson(content->dump());
    Message& message = add_message("tool", reads ? content : &said, where + ".content");
    if (bool_field(block, "is_error", false)) {  // which templates have no place for
      message.parts.insert(message.parts.begin(), TextPart{"Error: "});
    }
    message.call_id = string_field(block, "tool_use_id", where);
  }

  // The user's text comes after the results of the tools in the same message. Adds one message at least.
  void add_user(const OrderedJson& blocks, const std::string& where) {
    Message said{.role = "user"};
    const size_t n_before = messages_.size();
    for (size_t i = 0; i < blocks.size(); ++i) {
      const std::string at = item_name(where, i);
      is_result(blocks[i]) ? add_result(blocks[i], at) : add_block(blocks[i], at, said.parts);
    }
    if (!said.parts.empty() || messages_.size() == n_before) messages_.push_back(std::move(said));
  }

  void add_assistant(const OrderedJson& blocks, const std::string& where) {
    Message said{.role = "assistant"};
    for (size_t i = 0; i < blocks.size(); ++i) {
      const OrderedJson& block = blocks[i];
      const std::string at = item_name(where, i);
      if (is_block(block, "redacted_thinking")) continue;
      if (is_block(block, "thinking")) {
        if (std::string text = text_in(block, "thinking"); !text.empty()) said.parts.emplace_back(ThoughtPart{text});
      } else if (is_call(block)) {
        said.parts.emplace_back(call_of(block, at));
      } else if (is_result(block)) {  // of a tool that another server ran while it answered
        if (said.has_calls() || said.has_content()) {
          messages_.push_back(std::exchange(said, {.role = "assistant"}));
        }
        add_result(block, at);
      } else {
        add_block(block, at, said.parts);
      }
    }
    const bool ends_in_result = !messages_.empty() && messages_.back().role == "tool" && !blocks.empty();
    if (!ends_in_result || !said.parts.empty()) messages_.push_back(std::move(said));
  }

  ImageParts& images_;
  std::vector<Message> messages_;
};

std::vector<Message> messages_of(const OrderedJson& body, ImageParts& images) {
  BlockReader reader(images);
  if (const OrderedJson* system = find_field(body, "system")) reader.add_system(*system);
  const OrderedJson* turns = find_field(body, "messages");
  if (turns == nullptr || !turns->is_array() || turns->empty()) {
    bad_field("messages: expected a list of messages, at least one");
  }
  check_n_messages(turns->size(), "messages");
  for (size_t i = 0; i < turns->size(); ++i) reader.add_turn((*turns)[i], item_name("messages", i));
  return reader.take();
}

// Tools that Anthropic's servers run, or that its own models know, are left out. Returns whether there were some.
bool add_tools(const OrderedJson& tools, ToolUse& use) {
  if (!tools.is_array()) bad_field("tools: expected a list");
  for (size_t i = 0; i < tools.size(); ++i) {
    const OrderedJson& tool = tools[i];
    const std::string at = item_name("tools", i);
    if (!tool.is_object()) bad_field(at + ": expected an object");
    const OrderedJson* type = find_field(tool, "type");
    if (type != nullptr && *type != "custom") continue;
    const std::string name = string_field(tool, "name", at);
    if (find_field(tool, "description") != nullptr) string_field(tool, "description", at);
    const OrderedJson* schema = find_field(tool, "input_schema");
    if (schema == nullptr || !schema->is_object()) bad_field(at + ".input_schema: expected an object");
    use.add(name, tool, "input_schema", {at, at + ".input_schema"});
  }
  return use.tools.size() < tools.size();
}

ToolUse read_tools(const OrderedJson& body) {
  ToolUse use;
  const OrderedJson* tools = find_field(body, "tools");
  const bool left_out = tools != nullptr && add_tools(*tools, use);
  const OrderedJson* choice = find_field(body, "tool_choice");
  if (choice == nullptr) return use;
  if (!choice->is_object()) bad_field("tool_choice: expected an object");
  const std::string type = string_field(*choice, "type", "tool_choice");
  if (left_out && (use.tools.empty() || (type == "tool" && !use.places.contains(text_in(*choice, "name"))))) {
    use.choose(ToolUse::Choice::kAuto);  // none, if there are none
  } else if (type == "tool") {
    use.choose(ToolUse::Choice::kNamed, string_field(*choice, "name", "tool_choice"));
  } else if (type == "auto") {
    use.choose(ToolUse::Choice::kAuto);
  } else if (type == "none") {
    use.choose(ToolUse::Choice::kNone);
  } else if (type == "any") {
    use.choose(ToolUse::Choice::kRequired);
  } else {
    bad_field("tool_choice.type: expected auto, any, tool or none, found \"" + type + "\"");
  }
  use.parallel = !bool_field(*choice, "disable_parallel_tool_use", false);
  return use;
}

// output_config.format, which holds its schema directly; output_format, as it was called before.
std::optional<AnswerFormat> read_format(const OrderedJson& body) {
  const OrderedJson* config = find_field(body, "output_config");
  if (config != nullptr && !config->is_object()) bad_field("output_config: expected an object");
  const OrderedJson* format = config == nullptr ? nullptr : find_field(*config, "format");
  const std::string where = format == nullptr ? "output_format" : "output_config.format";
  if (format == nullptr) format = find_field(body, "output_format");
  if (format == nullptr) return std::nullopt;
  if (!format->is_object()) bad_field(where + ": expected an object");
  if (const std::string type = string_field(*format, "type", where); type != "json_schema") {
    bad_field(where + ".type: expected \"json_schema\", found \"" + type + "\"");
  }
  if (find_field(*format, "schema") == nullptr) bad_field(where + ".schema: expected an object");
  return read_flat_format(*format, where);
}

// Thinking, or else the effort that clients send beside the format.
void read_thinking(const OrderedJson& body, ChatRequest& request) {
  ThinkingReader reader(request);
  reader.read_common_fields(body);
  const OrderedJson *thinking = find_field(body, "thinking"), *config = find_field(body, "output_config");
  if (thinking != nullptr && !thinking->is_object()) bad_field("thinking: expected an object");
  if (thinking != nullptr) {
    reader.read_thinking(*thinking);
  } else if (std::string effort = config != nullptr ? text_in(*config, "effort") : ""; !effort.empty()) {
    reader.set_effort(std::move(effort));
  }
  reader.finish();
}

// An answer that has begun goes on: the last turn is the assistant's and calls no tools.
void read_continuation(ChatRequest& request) {
  const Message& last = request.messages.back();
  request.continue_final = last.role == "assistant" && !last.has_calls() && (last.plain || last.has_content());
  if (request.continue_final && (request.format.kind != AnswerFormat::Kind::kText || request.tools.must_call())) {
    bad_field(
        "messages: expected the last not to be the assistant's together with output_config.format or a forced call");
  }
}

}  // namespace

ChatRequest read_messages_request(const OrderedJson& body, const RequestFields& defaults, const ChatLimits& limits,
                                  bool counting) {
  check_peer_fields(body, PeerEndpoint::kMessages);
  if (find_field(body, "max_tokens") == nullptr && !counting) bad_field("max_tokens: expected an integer");
  ToolUse tools = read_tools(body);
  std::optional<AnswerFormat> format = read_format(body);
  RequestFields own;
  own.max_tokens = counting ? 1 : read_max_tokens(body, "max_tokens");
  read_as("stop_sequences", request_field("stop"), body, own);
  ChatRequest request = read_shared_fields(body, std::move(own), std::move(format), defaults);
  request.set_tools(std::move(tools));
  read_thinking(body, request);
  ImageParts images(limits, read_shared_media_options(body, request.fields), request.fields);
  request.messages = messages_of(body, images);
  read_continuation(request);
  drop_empty_messages(request.messages, "messages");
  request.named = images.take_named();
  return request;
}

}  // namespace vlcache
