// Bodies of Anthropic's messages and OpenAI's responses: what templates are given, and the errors.
#include "server/protocol/messages_request.h"

#include <gtest/gtest.h>

#include <string>

#include "api/json_fields.h"
#include "base/error.h"
#include "base/json.h"
#include "server/protocol/responses_request.h"
#include "tests/testing.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

// An image of one byte per four letters of base64; nothing is decoded.
const ChatLimits& test_limits() {
  static const ChatLimits kLimits{.read_url = [](const std::string&, const std::string&, FileKind,
                                                 const auto&) { return std::vector<std::byte>(3); },
                                  .read_document =
                                      [](DocumentRequest request) {
                                        request.document.text = request.name + " " + request.pages;
                                        return std::vector{request.document};
                                      }};
  return kLimits;
}

ChatRequest messages(const std::string& body) { return read_messages_request(parse_body(body), {}, test_limits()); }
ChatRequest responses(const std::string& body) {
  ResponsesPlan tools;
  return read_responses_request(parse_body(body), {}, test_limits(), tools);
}
OrderedJson said(const ChatRequest& request) { return template_json(request.messages); }
OrderedJson parsed(const char* text) { return parse_ordered_json(text, "test"); }

std::string fault_of(const auto& read, const char* body) {
  return error_of([&] { read(body); });
}

// Fields of the table that no member of RequestFields holds.
TEST(MessagesRequest, FieldsOfAllBodiesActOnEveryEndpoint) {
  const std::string fields =
      R"("reasoning_effort": "low", "max_thinking_tokens": 4, "chat_template_kwargs": {"tone": "dry"},)"
      R"("typical_p": 1, )";
  const std::string image = R"({"type": "base64", "media_type": "image/png", "data": "AAAA"})";
  for (const ChatRequest& request :
       {messages("{" + fields + R"("max_tokens": 9, "messages": [{"role": "user", "content": "?"}]})"),
        responses("{" + fields + R"("input": "?"})")}) {
    EXPECT_EQ(request.max_thought_tokens, 4);
    EXPECT_EQ(request.template_variables["reasoning_effort"], "low");
    EXPECT_EQ(request.template_variables["enable_thinking"], true);
    EXPECT_EQ(request.template_variables["tone"], "dry");
  }
  EXPECT_EQ(responses(R"({"input": "?", "enable_thinking": false})").template_variables["enable_thinking"], false);
  const ChatRequest sized = messages(R"({"max_tokens": 9, "mm_processor_kwargs": {"max_pixels": 4096}, "messages": [)"
                                     R"({"role": "user", "content": [{"type": "image", "source": )" +
                                     image + "}]}]}");
  const auto& part = std::get<ImagePart>(sized.messages.at(0).parts.at(0));
  EXPECT_EQ(part.image.options.settings, R"({"max_pixels":4096})");
}

TEST(MessagesRequest, OutputFormatAndThinking) {
  const auto chat = [](const std::string& more) {
    return messages(R"({"max_tokens": 9, "messages": [{"role": "user", "content": "?"}], )" + more + "}");
  };
  const ChatRequest format =
      chat(R"("output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "integer"}}})");
  EXPECT_EQ(format.format.schema.dump(), R"({"type":"integer"})");
  EXPECT_EQ(format.format.field, "output_config.format.schema");
  EXPECT_TRUE(format.has_own_format);
  EXPECT_FALSE(chat(R"("output_config": {"effort": "low"})").has_own_format);
  for (const char* wrong : {R"("output_config": 3)", R"("output_config": {"format": {"type": "json_object"}})",
                            R"("output_config": {"format": {"type": "json_schema"}})"}) {
    EXPECT_THROW(chat(wrong), Error) << wrong;
  }
  EXPECT_EQ(chat(R"("thinking": {"type": "enabled", "budget_tokens": 5})").max_thought_tokens, 5);
  EXPECT_EQ(
      chat(R"("reasoning_effort": "high", "output_config": {"effort": "low"})").template_variables["reasoning_effort"],
      "low");
  EXPECT_EQ(chat(R"("output_config": {"effort": "low"})").template_variables["reasoning_effort"], "low");
}

TEST(MessagesRequest, BecomesMessages) {
  const ChatRequest chat = messages(R"({"model": "m", "max_tokens": 9, "system": "Be brief.", "stop_sequences": ["x"],
    "thinking": {"type": "disabled"}, "metadata": {}, "temperature": 0.5, "messages": [
    {"role": "user", "content": [{"type": "text", "text": "Look", "cache_control": {"type": "ephemeral"}},
      {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}]},
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "I click"},
      {"type": "tool_use", "id": "t1", "name": "click", "input": {"x": 1}}]},
    {"role": "user", "content": [{"type": "text", "text": "and?"}, {"type": "tool_result", "tool_use_id": "t1",
      "content": [{"type": "image", "source": {"type": "url", "url": "https://a/b.png"}}]}]}]})");
  EXPECT_EQ(said(chat), parsed(R"([
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Look"}, {"type": "image"}]},
    {"role": "assistant", "content": [{"type": "text", "text": "I click"}], "reasoning_content": "hm", "tool_calls": [
      {"id": "t1", "type": "function", "function": {"name": "click", "arguments": {"x": 1}}}]},
    {"role": "tool", "content": [{"type": "image"}], "tool_call_id": "t1"},
    {"role": "user", "content": [{"type": "text", "text": "and?"}]}])"));
  EXPECT_EQ(chat.fields.max_tokens, 9);
  EXPECT_EQ(chat.fields.temperature, 0.5f);
  EXPECT_EQ(chat.fields.stop, std::vector<std::string>{"x"});
  EXPECT_EQ(chat.template_variables["enable_thinking"], false);
}

TEST(MessagesRequest, ToolsAndTheirChoice) {
  const auto chosen = [](const char* text) {
    return messages(std::string(R"({"max_tokens": 1, "messages": [{"role": "user", "content": "a"}],
      "tools": [{"name": "f", "input_schema": {}}], "tool_choice": )") +
                    text + "}")
        .tools;
  };
  EXPECT_EQ(chosen(R"({"type": "any", "disable_parallel_tool_use": true})").choice, ToolUse::Choice::kRequired);
  EXPECT_FALSE(chosen(R"({"type": "any", "disable_parallel_tool_use": true})").parallel);
  EXPECT_EQ(chosen(R"({"type": "auto"})").choice, ToolUse::Choice::kAuto);
  EXPECT_EQ(chosen(R"({"type": "tool", "name": "f"})").named, "f");
}

TEST(MessagesRequest, ErrorsNameTheField) {
  const std::pair<const char*, const char*> cases[] = {
      {R"([])", "the request's body: expected a JSON object"},
      {R"({"messages": [{"role": "user", "content": "a"}]})", "max_tokens: "},
      {R"({"max_tokens": 1})", "messages: "},
      {R"({"max_tokens": 1, "messages": [{"role": "tool", "content": "a"}]})", "messages[0].role: "},
      {R"({"max_tokens": 1, "messages": [{"role": "user", "content": [{"type": "audio"}]}]})",
       "messages[0].content[0].type: "},
      {R"({"max_tokens": 1, "messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "base64",
         "media_type": "image/png", "data": ""}}]}]})",
       "messages[0].content[0].source.media_type: expected \"application/pdf\" or \"image/tiff\", found"},
      {R"({"max_tokens": 1, "messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "base64",
         "media_type": "image/tiff", "data": "?"}}]}]})",
       "messages[0].content[0].source: expected base64 after the comma, found 'data:image/tiff;base64,?'"},
      {R"({"max_tokens": 1, "messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "x"}}]}]})",
       "messages[0].content[0].source.type: expected \"base64\", \"url\", "},
      {R"({"max_tokens": 1, "messages": [{"role": "user", "content": [{"type": "tool_result"}]}]})",
       "messages[0].content[0].tool_use_id: "},
      {R"({"max_tokens": 1, "tools": [{"name": "f"}], "messages": []})", "tools[0].input_schema: "},
      {R"({"max_tokens": 1, "tool_choice": {"type": "some"}, "messages": []})", "tool_choice.type: "},
      {R"({"max_tokens": 1, "stop_sequences": 3, "messages": []})", "stop_sequences: "},
      {R"({"max_tokens": 1, "tools": [{"name": "a b", "input_schema": {}}]})", "tools[0].name: expected 1 to 128"},
      {R"({"max_tokens": 1, "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image",
         "source": {"type": "base64", "media_type": "image/png", "data": "?"}}]}]})",
       "messages[0].content[1].source: expected base64 after the comma, found 'data:image/png;base64,?'"},
      {R"({"max_tokens": 1, "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": [
         {"type": "tool_use", "id": "1", "name": ""}]}]})",
       "messages[1].content[0].name: expected a name"},
      {R"({"max_tokens": 1, "output_config": {"format": {"type": "json_schema", "schema": 1}}, "messages": []})",
       "output_config.format.schema: expected a JSON schema"}};
  for (const auto& [body, begin] : cases) EXPECT_EQ(fault_of(messages, body).find(begin), 0u) << body;
}

// Parts in the spellings of other APIs, on both endpoints; any_part_test.cc has them all.
TEST(MessagesRequest, PartsOfOtherApis) {
  const auto content = [](const std::string& part) {
    return said(messages(R"({"max_tokens": 1, "messages": [{"role": "user", "content": [)" + part +
                         "]}]}"))[0]["content"]
        .dump();
  };
  const std::string image = R"([{"type":"image"}])", text = R"([{"type":"text","text":"t"}])";
  for (const char* part : {R"({"type": "image_url", "image_url": {"url": "https://a/b.png"}})",
                           R"({"type": "input_image", "image_url": "https://a/b.png"})",
                           R"({"type": "image", "image": "https://a/b.png"})", R"({"image_url": "https://a/b.png"})",
                           R"({"type": "image", "source": {"type": "base64", "data": "data:image/png;base64,AAAA"}})",
                           R"({"type": "image", "source": {"type": "base64", "media_type": "None", "data": "AAAA"}})",
                           R"({"type": "image", "source": {"type": "base64", "data": "AAAA"}})",
                           R"({"type": "file", "file": {"file_data": "AAAA"}})"}) {
    EXPECT_EQ(content(part).substr(0, 17), image.substr(0, 17)) << part;
  }
  for (const char* part : {R"("t")", R"({"type": "input_text", "text": "t"})", R"({"text": "t"})"}) {
    EXPECT_EQ(content(part), text) << part;
  }
  EXPECT_EQ(fault_of(messages, R"({"max_tokens": 1, "messages": [{"role": "user", "content": [{"type": "image",
      "source": {"type": "base64", "data": "https://a/b.png"}}]}]})")
                .find("messages[0].content[0].source: expected base64"),
            0u);
  EXPECT_EQ(said(messages(R"({"max_tokens": 1, "messages": [{"role": "user", "content": [{"type": "tool_result",
      "tool_use_id": "1", "content": []}]}]})"))[0]["content"],
            "");
}

TEST(ResponsesRequest, PartsOfOtherApis) {
  const auto content = [](const std::string& part) {
    return said(responses(R"({"input": [{"role": "user", "content": [)" + part + "]}]}"))[0]["content"].dump();
  };
  for (const char* part :
       {R"({"type": "image_url", "image_url": {"url": "https://a/b.png"}})",
        R"({"type": "input_image", "image_url": {"url": "https://a/b.png"}})",
        R"({"type": "image", "image": "https://a/b.png"})", R"({"image_url": "https://a/b.png"})",
        R"({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}})"}) {
    EXPECT_EQ(content(part), R"([{"type":"image"}])") << part;
  }
  for (const char* part : {R"("t")", R"({"text": "t"})"}) {
    EXPECT_EQ(content(part), R"([{"type":"text","text":"t"}])") << part;
  }
  const auto output = [](const std::string& output) {
    return said(responses(R"({"input": [{"type": "function_call_output", "call_id": "1", "output": )" + output +
                          "}]}"))[0]["content"]
        .dump();
  };
  EXPECT_EQ(output("[]"), R"("")");
  EXPECT_EQ(output(R"([{"image_url": "https://a/b.png"}])"), R"([{"type":"image"}])");
  EXPECT_EQ(output(R"(["a"])"), R"("[\"a\"]")");  // a tool's own list
}

TEST(MessagesRequest, DocumentsBecomePages) {
  const auto content = [](const std::string& block) {
    return said(messages(R"({"max_tokens": 1, "messages": [{"role": "user", "content": [{"type": "document", )" +
                         block + "}]}]}"))[0]["content"];
  };
  EXPECT_EQ(content(R"("title": "T", "source": {"type": "base64", "media_type": "application/pdf", "data": "AAAA"},
                       "vlcache": {"pages": "2"}, "citations": {"enabled": true})"),
            parsed(R"([{"type": "text", "text": "T\n"}, {"type": "image"}, {"type": "text", "text": "T 2"}])"));
  EXPECT_EQ(content(R"("source": {"type": "url", "url": "https://a/b.pdf"})")[0]["type"], "image");
  EXPECT_THROW(content(R"("source": {"type": "file", "file_id": "f"})"), Error);
  EXPECT_EQ(content(R"("source": {"type": "content", "content": [{"type": "text", "text": "a"}]})")[0]["text"], "a");
}

TEST(ResponsesRequest, BecomesMessages) {
  const ChatRequest chat = responses(R"({"model": "m", "instructions": "Be brief.", "max_output_tokens": 9,
    "store": true, "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
    "tools": [{"type": "function", "name": "f", "parameters": {}, "strict": true}],
    "tool_choice": {"type": "function", "name": "f"}, "input": [
    {"role": "user", "content": [{"type": "input_text", "text": "a"},
      {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b", "annotations": []}]},
    {"type": "reasoning"}, {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
    {"type": "function_call", "call_id": "2", "name": "g", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "1", "output": "c"}]})");
  EXPECT_EQ(said(chat), parsed(R"([{"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}]},
    {"role": "assistant", "content": [{"type": "text", "text": "b"}], "tool_calls": [
      {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
      {"id": "2", "type": "function", "function": {"name": "g", "arguments": "{}"}}]},
    {"role": "tool", "content": "c", "tool_call_id": "1"}])"));
  EXPECT_EQ(chat.fields.max_tokens, 9);
  EXPECT_EQ(chat.tools.named, "f");
  EXPECT_EQ(chat.tools.strict, std::set<std::string>{"f"});
  EXPECT_EQ(chat.format.field, "text.format.schema");
  EXPECT_EQ(said(responses(R"({"input": "Hi"})")), parsed(R"([{"role": "user", "content": "Hi"}])"));
}

TEST(MessagesRequest, ToolsOfOtherServersAreLeftOut) {
  const ChatRequest chat = messages(R"({"max_tokens": 1, "messages": [{"role": "user", "content": "a"}],
    "tools": [{"type": "bash_20250124", "name": "bash"}, {"name": "f", "input_schema": {}}],
    "tool_choice": {"type": "tool", "name": "bash"}})");
  EXPECT_EQ(chat.tools.names(), std::vector<std::string>{"f"});
  EXPECT_EQ(chat.tools.choice, ToolUse::Choice::kAuto);
  EXPECT_EQ(chat.tools.places.at("f").schema, "tools[1].input_schema");
}

TEST(ResponsesRequest, ToolsAndTheirChoice) {
  const auto use = [](const std::string& choice) {
    return responses(R"({"input": "a", "tools": [{"type": "web_search"}, {"type": "custom", "name": "p"},
      {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]}], "tool_choice": )" +
                     choice + "}")
        .tools;
  };
  EXPECT_EQ(use("\"auto\"").tools.size(), 2u);
  EXPECT_EQ(use("\"auto\"").tools[0]["function"]["parameters"]["required"].dump(), R"(["input"])");
  EXPECT_EQ(use(R"({"type": "function", "namespace": "n", "name": "f"})").named, "n__f");
  EXPECT_EQ(use(R"({"type": "web_search"})").choice, ToolUse::Choice::kAuto);
  const ToolUse allowed =
      use(R"({"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "p"}]})");
  EXPECT_EQ(allowed.names(), std::vector<std::string>{"p"});
  EXPECT_EQ(allowed.choice, ToolUse::Choice::kRequired);
  EXPECT_EQ(responses(R"({"input": "a", "tools": [{"type": "web_search"}], "tool_choice": "required"})").tools.choice,
            ToolUse::Choice::kNone);
}

TEST(ResponsesRequest, LogProbabilities) {
  EXPECT_FALSE(responses(R"({"input": "Hi", "include": ["reasoning.encrypted_content"]})").fields.logprobs);
  EXPECT_EQ(responses(R"({"input": "Hi", "include": ["message.output_text.logprobs"]})").fields.logprobs, 0);
  EXPECT_EQ(responses(R"({"input": "Hi", "top_logprobs": 3})").fields.logprobs, 3);
  EXPECT_EQ(responses(R"({"input": "Hi", "top_logprobs": 0})").fields.logprobs, -1);
}

TEST(ResponsesRequest, ErrorsNameTheField) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({})", "input: "},
      {R"({"input": "a", "background": true})", "background: "},
      {R"({"input": [{"type": "screen"}]})", "input[0].type: "},
      {R"({"input": [{"role": "user", "content": [{"type": "input_audio"}]}]})", "input[0].content[0].type: "},
      {R"({"input": "a", "tools": [{"type": "function"}]})", "tools[0].name: "},
      {R"({"input": "a", "include": "all"})", "include: "},
      {R"({"input": "a", "max_output_tokens": "9"})", "max_output_tokens: "},
      {R"({"input": [{"role": "x", "content": ""}]})", "input[0].role: "},
      {R"({"input": [{"type": "function_call", "name": "f", "arguments": 1}]})", "input[0].arguments: "},
      {R"({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:x"}]}]})",
       "input[0].content[0].image_url: "},
      {R"({"input": "a", "text": {"format": {"type": "json_schema"}}})", "text.format.schema: "}};
  for (const auto& [body, begin] : cases) EXPECT_EQ(fault_of(responses, body).find(begin), 0u) << body;
}

TEST(MessagesRequest, BillingLinesAreLeftOut) {
  const auto system_of = [](const std::string& system) {
    return said(messages(R"({"max_tokens": 9, "messages": [{"role": "user", "content": "?"}], "system": )" + system +
                         "}"))[0]["content"]
        .dump();
  };
  const std::string line = "x-anthropic-billing-header: cc_version=2.1.1; cch=eb6c6;";
  EXPECT_EQ(system_of("\"" + line + "\\nBe brief.\""), R"("Be brief.")");
  EXPECT_EQ(system_of(R"([{"type": "text", "text": ")" + line + R"("}, {"type": "text", "text": "Be brief."}])"),
            R"([{"type":"text","text":"Be brief."}])");
  EXPECT_EQ(system_of("\"About " + line + "\""), "\"About " + line + "\"");
}

TEST(ResponsesRequest, ItemsOfAgents) {
  const ChatRequest chat = responses(R"({"input": [
    {"type": "agent_message", "author": "/root", "recipient": "/root/w", "content":
      [{"type": "input_text", "text": "Do this: "}, {"type": "encrypted_content", "encrypted_content": "count"}]},
    {"type": "agent_reasoning", "text": "hm"},
    {"type": "custom_tool_call", "call_id": "c", "namespace": "functions", "name": "exec", "input": "1"},
    {"type": "custom_tool_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "one"}]},
    {"type": "tool_search_call", "call_id": "s", "execution": "client", "arguments": {"query": "q"}},
    {"type": "tool_search_output", "call_id": "s", "execution": "client", "status": "completed",
     "tools": [{"type": "namespace", "name": "mcp", "tools": [{"type": "function", "name": "go", "parameters": {}}]}]},
    {"type": "context_compaction", "encrypted_content": "x"}]})");
  const OrderedJson messages = said(chat);
  ASSERT_EQ(messages.size(), 5u);
  EXPECT_EQ(messages[0]["role"], "user");
  EXPECT_EQ(messages[0]["content"][1]["text"], "count");
  EXPECT_EQ(messages[1]["reasoning_content"], "hm");
  EXPECT_EQ(messages[1]["tool_calls"][0]["function"]["name"], "functions__exec");
  EXPECT_EQ(messages[2]["content"][0]["text"], "one");
  EXPECT_EQ(messages[3]["tool_calls"][0]["function"]["name"], "tool_search");
  EXPECT_EQ(messages[4]["role"], "tool");
  EXPECT_EQ(chat.tools.names(), std::vector<std::string>{"mcp__go"});
}

}  // namespace
}  // namespace vlcache
