// Every field that a peer documents is applied, changes nothing, or is an error that names it: the table of
// api/peer_fields.h, row by row, on every endpoint.
#include "api/peer_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "base/json.h"
#include "server/protocol/completion.h"
#include "server/protocol/messages_request.h"
#include "server/protocol/responses_request.h"
#include "tests/testing.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;
using Use = PeerField::Use;
using testing::StartsWith;

OrderedJson base_body(char endpoint) {
  const char* text = "";
  switch (static_cast<PeerEndpoint>(endpoint)) {
    case PeerEndpoint::kChat:
      text = R"({"tools": [{"type": "function", "function": {"name": "f"}}], "messages": [
        {"role": "user", "content": [{"type": "text", "text": "q"},
          {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]},
        {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "r"},
        {"role": "assistant", "content": "a"}]})";
      break;
    case PeerEndpoint::kCompletions:
      text = R"({"prompt": "q"})";
      break;
    case PeerEndpoint::kMessages:
      text = R"({"max_tokens": 9, "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "auto"}, "messages": [{"role": "user", "content": [{"type": "text", "text": "q"},
          {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}]}]})";
      break;
    case PeerEndpoint::kResponses:
      text = R"({"tools": [{"type": "function", "name": "f"}], "input": [{"role": "user", "content": [
        {"type": "input_text", "text": "q"}, {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]}]})";
      break;
  }
  return OrderedJson::parse(text);
}

// The message that has such a field.
size_t message_with(const std::string& key) {
  const std::set<std::string> of_tools{"tool_call_id", "tool_name"}, of_users{"images", "name", "role", "tools"};
  return of_users.contains(key) ? 0 : of_tools.contains(key) ? 2 : 3;
}

// The body with the field set.
OrderedJson with_field(OrderedJson body, const PeerField& field, const OrderedJson& value) {
  std::string name = field.name;
  if (name.ends_with("*")) name.replace(name.size() - 1, 1, "other");
  OrderedJson* at = &body;
  for (size_t dot = name.find('.'); dot != name.npos; dot = name.find('.')) {
    const std::string key = name.substr(0, dot);
    name.erase(0, dot + 1);
    if (key.ends_with("[]")) {
      OrderedJson& list = body[key.substr(0, key.size() - 2)];
      at = &list[std::min(message_with(name), list.size() - 1)];
    } else {
      at = &(*at)[key];
    }
  }
  (*at)[name] = value;
  // Fields that act in company.
  const std::string_view full = field.name;
  if (full == "response_format.schema" || full == "response_format.value") (*at)["type"] = "json_object";
  if (full.starts_with("response_format.json_schema.") && !full.ends_with(".schema")) {
    (*at)["schema"] = {{"type", "integer"}};
  }
  if (full == "tool_choice.name") (*at)["type"] = "tool";
  if (full == "top_logprobs" && body.contains("messages") && !body.contains("max_tokens")) body["logprobs"] = true;
  if (full == "thinking.budget_tokens") (*at)["type"] = "enabled";
  if (full.starts_with("response_format.json_schema")) body["response_format"]["type"] = "json_schema";
  return body;
}

template <typename T>
void add_value(OrderedJson& json, const T& value) {
  json.push_back(value);
}
void add_value(OrderedJson& json, const Seed& seed) { json.push_back({seed.value, seed.fresh}); }
void add_value(OrderedJson& json, const BudgetText& budget) { json.push_back(budget.text); }
void add_value(OrderedJson& json, const std::vector<TokenBias>& biases) {
  for (const TokenBias& b : biases) json.push_back({b.token, b.bias});
}

// Everything that was read of a body, as text.
std::string digest(const ChatRequest& r) {
  OrderedJson json;
  for (const RequestField& field : request_fields()) {
    std::visit(
        [&](auto member) {
          if constexpr (!std::is_same_v<decltype(member), std::monostate> &&
                        !std::is_same_v<decltype(member), OrderedJson RequestFields::*>) {
            if (r.fields.*member) add_value(json[field.name] = OrderedJson::array(), *(r.fields.*member));
          }
        },
        field.member);
  }
  json["format"] = {static_cast<int>(r.format.kind), r.format.schema, r.format.choices, r.format.text};
  json["tools"] = {r.tools.tools, static_cast<int>(r.tools.choice), r.tools.named, r.tools.parallel, r.tools.strict};
  json["flags"] = {r.include_usage, r.continuous_usage, r.continue_final,
                   r.open_answer,   r.include_thoughts, r.split_thoughts};
  json["thoughts"] = r.max_thought_tokens.value_or(-1);
  json["variables"] = r.template_variables;
  json["messages"] = template_json(r.messages);
  for (const Message& message : r.messages) {
    for (const Part& part : message.parts) {
      const auto* image = std::get_if<ImagePart>(&part);
      if (image == nullptr) continue;
      const ImageOptions& o = image->image.options;
      json["images"].push_back({o.settings, o.min_tokens, o.max_tokens, o.least_detail});
    }
  }
  return json.dump();
}

std::string read(const OrderedJson& body, char endpoint) {
  const ChatLimits limits;
  ResponsesPlan tools;
  switch (static_cast<PeerEndpoint>(endpoint)) {
    case PeerEndpoint::kChat:
      return digest(read_chat_request(body, {}, limits));
    case PeerEndpoint::kCompletions: {
      const CompletionRequest r = read_completion_request(body.dump(), {}, limits);
      return digest(r.fields) + r.prompts[0].text +
             OrderedJson{r.echo, r.n_prompt_logprobs.value_or(-1), r.add_special_tokens}.dump();
    }
    case PeerEndpoint::kMessages:
      return digest(read_messages_request(body, {}, limits));
    case PeerEndpoint::kResponses:
      break;
  }
  return digest(read_responses_request(body, {}, limits, tools));
}

std::vector<OrderedJson> neutral_values(const PeerField& field) {
  std::vector<OrderedJson> values{nullptr};
  for (const OrderedJson& value : OrderedJson::parse(field.neutral)) values.push_back(value);
  if (field.strict) return values;
  for (const char* text : {"false", "0", "\"\"", "[]", "{}", "0.0"}) values.push_back(OrderedJson::parse(text));
  return values;
}

// plain: the digest of the base body.
void check_row(const PeerField& field, char endpoint, const OrderedJson& base, const std::string& plain) {
  if (*field.example == '\0') return;
  const auto with = [&](const OrderedJson& value) { return with_field(base, field, value); };
  const OrderedJson body = with(OrderedJson::parse(field.example));
  if (field.use == Use::kRefused) {
    std::string name = field.name;
    if (name.ends_with("*")) name.replace(name.size() - 1, 1, "other");
    if (const size_t item = name.find("[]"); item != name.npos) name.replace(item, 2, "[0]");
    EXPECT_THAT(vlcache::error_of([&] { read(body, endpoint); }), StartsWith(name + ": "));
    for (const OrderedJson& value : neutral_values(field)) {
      EXPECT_NO_THROW(check_peer_fields(with(value), static_cast<PeerEndpoint>(endpoint))) << value;
    }
    const OrderedJson neutral = neutral_values(field).back();
    EXPECT_EQ(read(with(neutral), endpoint), plain) << neutral;
    return;
  }
  std::string without = plain;
  const std::string_view name = field.name;
  if ((name.find('.') != name.npos && name.find('[') == name.npos) || name == "top_logprobs") {
    try {
      without = read(with(nullptr), endpoint);  // fields in its company are there
    } catch (const Error&) {                    // it must be there, too
    }
  }
  if (field.use == Use::kApplied) {
    EXPECT_NE(read(body, endpoint), without);
  } else {
    EXPECT_STRNE(field.says, "") << "the reason";
    EXPECT_EQ(read(body, endpoint), without);
  }
}

TEST(PeerFields, EachIsAppliedOrChangesNothingOrIsAnError) {
  for (const char endpoint : std::string("ctmr")) {
    const OrderedJson base = base_body(endpoint);
    const std::string plain = read(base, endpoint);
    for (const PeerField& field : peer_fields()) {
      if (std::string_view(field.endpoints).find(endpoint) == std::string_view::npos) continue;
      SCOPED_TRACE(std::string(field.name) + " on " + endpoint);
      EXPECT_NO_THROW(check_row(field, endpoint, base, plain));
    }
  }
}

TEST(PeerFields, NamesAreUnique) {
  std::set<std::string> seen;
  std::map<char, int> n_of_peers;
  for (const PeerField& field : peer_fields()) {
    for (const char endpoint : std::string(field.endpoints)) {
      EXPECT_TRUE(seen.insert(std::string(field.name) + " on " + endpoint).second) << field.name;
    }
    for (const char peer : std::string(field.peers)) ++n_of_peers[peer];
  }
  for (const char peer : std::string("OAVSLTM")) EXPECT_GT(n_of_peers[peer], 15) << peer;
}

// Every field that a request may set is in the table, or is our own.
TEST(PeerFields, HasOurFields) {
  const std::set<std::string> ours{"timeout",         "max_image_tokens",    "min_image_tokens",
                                   "enable_thinking", "max_thinking_tokens", "stream_options"};
  std::set<std::string> names;
  for (const PeerField& field : peer_fields()) names.insert(field.name);
  for (const RequestField& field : request_fields()) {
    if (field.body == RequestField::Body::kVlcache || ours.contains(field.name)) continue;
    EXPECT_TRUE(names.contains(field.name)) << field.name;
  }
}

TEST(PeerFields, ErrorsSayWhatIsPossible) {
  const auto error = [](const char* text) {
    return vlcache::error_of([&] { check_peer_fields(OrderedJson::parse(text), PeerEndpoint::kChat); });
  };
  EXPECT_EQ(error(R"({"best_of": 3})"), "best_of: expected what n is; others are not supported by this server");
  EXPECT_EQ(error(R"({"best_of": 3, "n": 3})"), "no error");
  EXPECT_EQ(error(R"({"mirostat": 2})"), "mirostat: not supported by this server");
  EXPECT_EQ(error(R"({"typical_p": 0})"), "typical_p: expected 1; others are not supported");
  EXPECT_EQ(error(R"({"typical_p": 1.0, "repeat_last_n": 64, "detokenize": true, "unknown": 5})"), "no error");
  EXPECT_EQ(error(R"({"options": {"mirostat": 1, "unknown": 5}})"), "options.mirostat: not supported by this server");
  EXPECT_EQ(error(R"({"vllm_xargs": {"debug": false, "ngram_size": 30}})"),
            "vllm_xargs.ngram_size: not supported by this server; no_repeat_ngram_size is");
  EXPECT_EQ(error(R"({"messages": [{}, {"tools": [1]}]})"),
            "messages[1].tools: not supported by this server; tools beside messages are");
  // Objects of another type than the table's are for the readers.
  EXPECT_EQ(error(R"({"options": [1], "vllm_xargs": 5, "messages": {"tools": [1]}, "response_format": "x"})"),
            "no error");
}

// The given forms of fields that changed nothing before.
TEST(PeerFields, ValuesOfPeers) {
  const auto chat = [](const char* more) {
    OrderedJson body = OrderedJson::parse(R"({"messages": [{"role": "user", "content": "q"}]})");
    body.update(OrderedJson::parse(more));
    return read_chat_request(body, {}, {});
  };
  for (const char* form :
       {R"({"type": "json", "value": {"type": "integer"}})", R"({"type": "json_object", "value": {"type": "integer"}})",
        R"({"type": "json_object", "schema": {"type": "integer"}})",
        R"({"type": "json_schema", "value": {"name": "n", "schema": {"type": "integer"}}})",
        R"({"type": "json_object", "json_schema": {"name": "n", "schema": {"type": "integer"}}})",
        R"({"type": "json_object", "value": "{\"type\": \"integer\"}"})"}) {
    const ChatRequest r = chat((R"({"response_format": )" + std::string(form) + "}").c_str());
    EXPECT_EQ(r.format.kind, AnswerFormat::Kind::kJsonSchema) << form;
    EXPECT_EQ(r.format.schema.dump(), R"({"type":"integer"})") << form;
  }
  EXPECT_EQ(chat(R"({"response_format": {"type": "regex", "value": "x+"}})").format.text, "x+");
  EXPECT_EQ(chat(R"({"response_format": {"type": "json_object", "value": {}}})").format.kind,
            AnswerFormat::Kind::kJsonObject);
  EXPECT_THAT(vlcache::error_of([&] { chat(R"({"response_format": {"type": "json", "value": 5}})"); }),
              StartsWith("response_format.value: "));
  const ChatRequest options = chat(R"({"temperature": 0.5, "options": {"temperature": 2, "num_predict": -1}})");
  EXPECT_EQ(options.fields.temperature, 0.5f);
  EXPECT_EQ(options.fields.max_tokens, INT32_MAX);
  EXPECT_THAT(vlcache::error_of([&] { chat(R"({"options": {"top_p": 3}})"); }), StartsWith("options.top_p: "));
  const ChatRequest xargs = chat(R"({"skip_special_tokens": true, "vllm_xargs": {"no_repeat_ngram_size": 100}})");
  EXPECT_EQ(xargs.fields.no_repeat_ngram_size, 100);
}

TEST(PeerFields, ImagesBesideTheText) {
  const auto chat = [](const std::string& message) {
    return read_chat_request(OrderedJson::parse(R"({"messages": [)" + message + "]}"), {}, {});
  };
  const ChatRequest r = chat(R"({"role": "user", "content": "q", "images": ["AAAA", "data:image/png;base64,AAAA"]})");
  EXPECT_EQ(template_json(r.messages).dump(),
            R"([{"role":"user","content":[{"type":"image"},{"type":"image"},{"type":"text","text":"q"}]}])");
  for (const char* none : {"null", "[]", "false", "\"\"", "0", "{}"}) {
    const ChatRequest plain = chat(R"({"role": "user", "content": "q", "images": )" + std::string(none) + "}");
    EXPECT_EQ(template_json(plain.messages).dump(), R"([{"role":"user","content":"q"}])") << none;
  }
  const auto error = [&](const std::string& images, const char* role = "user") {
    return vlcache::error_of(
        [&] { chat(R"({"role": ")" + std::string(role) + R"(", "content": "q", "images": )" + images + "}"); });
  };
  EXPECT_THAT(error("5"), StartsWith("messages[0].images: expected a list of images"));
  EXPECT_THAT(error("\"AAAA\""), StartsWith("messages[0].images: expected a list of images"));
  EXPECT_THAT(error("[5]"), StartsWith("messages[0].images[0]: expected an image"));
  EXPECT_THAT(error("[\"\"]"), StartsWith("messages[0].images[0]: expected an image"));
  EXPECT_THAT(error(R"(["AAAA", "a.png"])"), StartsWith("messages[0].images[1]: expected base64"));
  EXPECT_THAT(error(R"(["file:///etc/passwd"])"), StartsWith("messages[0].images[0]: expected a data URI"));
  EXPECT_THAT(error(R"(["AAAA"])", "system"), StartsWith("messages[0].images: expected none"));
  std::string many = "[\"AAAA\"";
  for (int i = 0; i < 64; ++i) many += ",\"AAAA\"";
  EXPECT_THAT(error(many + "]"), StartsWith("messages: expected at most 64 images"));
}

}  // namespace
}  // namespace vlcache
