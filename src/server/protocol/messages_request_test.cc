// Other endpoints' bodies, translated to chat completions.
#include "server/protocol/messages_request.h"

#include <gtest/gtest.h>

#include <string>

#include "api/json_fields.h"
#include "base/error.h"
#include "base/json.h"
#include "server/protocol/responses_request.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson messages(const char* body) { return chat_of_messages(parse_body(body)); }
OrderedJson responses(const char* body) {
  ResponsesPlan tools;
  return chat_of_responses(parse_body(body), tools);
}

std::string error_of(const auto& read, const char* body) {
  try {
    read(body);
  } catch (const Error& e) {
    return e.what();
  }
  return "none";
}

TEST(MessagesRequest, OutputFormatIsTranslated) {
  const auto chat = [](const std::string& more) {
    return messages((R"({"max_tokens": 9, "messages": [{"role": "user", "content": "?"}], )" + more + "}").c_str());
  };
  const OrderedJson format =
      chat(R"("output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "integer"}}})");
  EXPECT_EQ(format["response_format"].dump(), R"({"type":"json_schema","json_schema":{"schema":{"type":"integer"}}})");
  EXPECT_FALSE(chat(R"("output_config": {"effort": "low"})").contains("response_format"));
  for (const char* wrong : {R"("output_config": 3)", R"("output_config": {"format": {"type": "json_object"}})",
                            R"("output_config": {"format": {"type": "json_schema"}})"}) {
    EXPECT_THROW(chat(wrong), Error) << wrong;
  }
  EXPECT_EQ(chat(R"("thinking": {"type": "enabled", "budget_tokens": 5})")["thinking"].dump(),
            R"({"type":"enabled","budget_tokens":5})");
  EXPECT_EQ(chat(R"("output_config": {"effort": "low"})")["reasoning_effort"], "low");
}

TEST(MessagesRequest, BecomesAChatCompletion) {
  const OrderedJson chat = messages(R"({"model": "m", "max_tokens": 9, "system": "Be brief.", "stop_sequences": ["x"],
    "thinking": {"type": "disabled"}, "metadata": {}, "temperature": 0.5, "messages": [
    {"role": "user", "content": [{"type": "text", "text": "Look", "cache_control": {"type": "ephemeral"}},
      {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}]},
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "I click"},
      {"type": "tool_use", "id": "t1", "name": "click", "input": {"x": 1}}]},
    {"role": "user", "content": [{"type": "text", "text": "and?"}, {"type": "tool_result", "tool_use_id": "t1",
      "content": [{"type": "image", "source": {"type": "url", "url": "https://a/b.png"}}]}]}]})");
  EXPECT_EQ(chat, parse_ordered_json(R"({"max_tokens": 9, "model": "m", "temperature": 0.5, "stop": ["x"],
    "thinking": {"type": "disabled"}, "messages": [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Look"},
      {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]},
    {"role": "assistant", "content": [{"type": "text", "text": "I click"}], "tool_calls": [
      {"id": "t1", "type": "function", "function": {"name": "click", "arguments": "{\"x\":1}"}}],
      "reasoning_content": "hm"},
    {"role": "tool", "tool_call_id": "t1", "content": [
      {"type": "image_url", "image_url": {"url": "https://a/b.png"}}]},
    {"role": "user", "content": [{"type": "text", "text": "and?"}]}]})",
                                     "test"));
}

TEST(MessagesRequest, ToolsAndTheirChoice) {
  const auto choice = [](const char* text) {
    return messages(
        (std::string(R"({"max_tokens": 1, "messages": [{"role": "user", "content": "a"}], "tool_choice": )") + text +
         "}")
            .c_str());
  };
  EXPECT_EQ(choice(R"({"type": "any", "disable_parallel_tool_use": true})")["tool_choice"], "required");
  EXPECT_EQ(choice(R"({"type": "any", "disable_parallel_tool_use": true})")["parallel_tool_calls"], false);
  EXPECT_EQ(choice(R"({"type": "auto"})")["tool_choice"], "auto");
  EXPECT_EQ(choice(R"({"type": "tool", "name": "f"})")["tool_choice"]["function"]["name"], "f");
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
       "messages[0].content[0].source.media_type: expected \"application/pdf\""},
      {R"({"max_tokens": 1, "messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "x"}}]}]})",
       "messages[0].content[0].source.type: expected \"base64\", \"url\", "},
      {R"({"max_tokens": 1, "messages": [{"role": "user", "content": [{"type": "tool_result"}]}]})",
       "messages[0].content[0].tool_use_id: "},
      {R"({"max_tokens": 1, "tools": [{"name": "f"}], "messages": []})", "tools[0].input_schema: "},
      {R"({"max_tokens": 1, "tool_choice": {"type": "some"}, "messages": []})", "tool_choice.type: "}};
  for (const auto& [body, begin] : cases) EXPECT_EQ(error_of(messages, body).find(begin), 0u) << body;
}

TEST(MessagesRequest, DocumentsBecomeFiles) {
  const auto part = [](const std::string& block) {
    const std::string body =
        R"({"max_tokens": 1, "messages": [{"role": "user", "content": [{"type": "document", )" + block + "}]}]}";
    return messages(body.c_str())["messages"][0]["content"];
  };
  EXPECT_EQ(part(R"("title": "T", "source": {"type": "base64", "media_type": "application/pdf", "data": "AAAA"},
                    "vlcache": {"pages": "2"}, "citations": {"enabled": true})"),
            parse_ordered_json(R"([{"type": "text", "text": "T\n"}, {"type": "file", "file": {
              "file_data": "data:application/pdf;base64,AAAA", "filename": "T"}, "vlcache": {"pages": "2"}}])",
                               "test"));
  EXPECT_EQ(part(R"("source": {"type": "url", "url": "https://a/b.pdf"})")[0]["file"]["file_url"], "https://a/b.pdf");
  EXPECT_EQ(part(R"("source": {"type": "file", "file_id": "f"})")[0]["file"]["file_id"], "f");
  EXPECT_EQ(part(R"("source": {"type": "content", "content": [{"type": "text", "text": "a"}]})")[0]["text"], "a");
}

TEST(ResponsesRequest, BecomesAChatCompletion) {
  const OrderedJson chat = responses(R"({"model": "m", "instructions": "Be brief.", "max_output_tokens": 9,
    "store": true, "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
    "tools": [{"type": "function", "name": "f", "parameters": {}, "strict": true}],
    "tool_choice": {"type": "function", "name": "f"}, "input": [
    {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "data:x"}]},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b", "annotations": []}]},
    {"type": "reasoning"}, {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
    {"type": "function_call", "call_id": "2", "name": "g", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "1", "output": "c"}]})");
  EXPECT_EQ(chat, parse_ordered_json(R"({"model": "m", "max_tokens": 9,
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {}, "strict": true}}],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
    "messages": [{"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:x"}}]},
    {"role": "assistant", "content": [{"type": "text", "text": "b"}], "tool_calls": [
      {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
      {"id": "2", "type": "function", "function": {"name": "g", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "1", "content": "c"}]})",
                                     "test"));
  EXPECT_EQ(responses(R"({"input": "Hi"})")["messages"], OrderedJson({{{"role", "user"}, {"content", "Hi"}}}));
}

TEST(MessagesRequest, ToolsOfOtherServersAreLeftOut) {
  const OrderedJson chat = messages(R"({"max_tokens": 1, "messages": [{"role": "user", "content": "a"}],
    "tools": [{"type": "bash_20250124", "name": "bash"}, {"name": "f", "input_schema": {}}],
    "tool_choice": {"type": "tool", "name": "bash"}})");
  EXPECT_EQ(chat["tools"].size(), 1u);
  EXPECT_EQ(chat["tool_choice"], "auto");
}

TEST(ResponsesRequest, ToolsAndTheirChoice) {
  const auto chat = [](const std::string& choice) {
    return responses((R"({"input": "a", "tools": [{"type": "web_search"}, {"type": "custom", "name": "p"},
      {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]}], "tool_choice": )" +
                      choice + "}")
                         .c_str());
  };
  EXPECT_EQ(chat("\"auto\"")["tools"].size(), 2u);
  EXPECT_EQ(chat("\"auto\"")["tools"][0]["function"]["parameters"]["required"].dump(), R"(["input"])");
  EXPECT_EQ(chat(R"({"type": "function", "namespace": "n", "name": "f"})")["tool_choice"]["function"]["name"], "n__f");
  EXPECT_EQ(chat(R"({"type": "web_search"})")["tool_choice"], "auto");
  const OrderedJson allowed =
      chat(R"({"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "p"}]})");
  EXPECT_EQ(allowed["tools"].size(), 1u);
  EXPECT_EQ(allowed["tool_choice"], "required");
  EXPECT_EQ(responses(R"({"input": "a", "tools": [{"type": "web_search"}], "tool_choice": "required"})")["tool_choice"],
            "none");
}

TEST(ResponsesRequest, LogProbabilities) {
  EXPECT_FALSE(responses(R"({"input": "Hi", "include": ["reasoning.encrypted_content"]})").contains("logprobs"));
  EXPECT_EQ(responses(R"({"input": "Hi", "include": ["message.output_text.logprobs"]})")["logprobs"], true);
  const OrderedJson chat = responses(R"({"input": "Hi", "top_logprobs": 3})");
  EXPECT_EQ(chat["logprobs"], true);
  EXPECT_EQ(chat["top_logprobs"], 3);
  EXPECT_EQ(responses(R"({"input": "Hi", "top_logprobs": 0})")["logprobs"], false);
}

TEST(ResponsesRequest, ErrorsNameTheField) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({})", "input: "},
      {R"({"input": "a", "background": true})", "background: "},
      {R"({"input": [{"type": "screen"}]})", "input[0].type: "},
      {R"({"input": [{"role": "user", "content": [{"type": "input_audio"}]}]})", "input[0].content[0].type: "},
      {R"({"input": "a", "tools": [{"type": "function"}]})", "tools[0].name: "},
      {R"({"input": "a", "include": "all"})", "include: "}};
  for (const auto& [body, begin] : cases) EXPECT_EQ(error_of(responses, body).find(begin), 0u) << body;
}

TEST(MessagesRequest, BillingLinesAreLeftOut) {
  const auto system_of = [](const std::string& system) {
    return messages((R"({"max_tokens": 9, "messages": [{"role": "user", "content": "?"}], "system": )" + system + "}")
                        .c_str())["messages"][0]["content"]
        .dump();
  };
  const std::string line = "x-anthropic-billing-header: cc_version=2.1.1; cch=eb6c6;";
  EXPECT_EQ(system_of("\"" + line + "\\nBe brief.\""), R"("Be brief.")");
  EXPECT_EQ(system_of(R"([{"type": "text", "text": ")" + line + R"("}, {"type": "text", "text": "Be brief."}])"),
            R"([{"type":"text","text":"Be brief."}])");
  EXPECT_EQ(system_of("\"About " + line + "\""), "\"About " + line + "\"");
}

TEST(ResponsesRequest, ItemsOfAgents) {
  const OrderedJson chat = responses(R"({"input": [
    {"type": "agent_message", "author": "/root", "recipient": "/root/w", "content":
      [{"type": "input_text", "text": "Do this: "}, {"type": "encrypted_content", "encrypted_content": "count"}]},
    {"type": "agent_reasoning", "text": "hm"},
    {"type": "custom_tool_call", "call_id": "c", "namespace": "functions", "name": "exec", "input": "1"},
    {"type": "custom_tool_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "one"}]},
    {"type": "tool_search_call", "call_id": "s", "execution": "client", "arguments": {"query": "q"}},
    {"type": "tool_search_output", "call_id": "s", "execution": "client", "status": "completed",
     "tools": [{"type": "namespace", "name": "mcp", "tools": [{"type": "function", "name": "go", "parameters": {}}]}]},
    {"type": "context_compaction", "encrypted_content": "x"}]})");
  const OrderedJson& said = chat["messages"];
  ASSERT_EQ(said.size(), 5u);
  EXPECT_EQ(said[0]["role"], "user");
  EXPECT_EQ(said[0]["content"][1]["text"], "count");
  EXPECT_EQ(said[1]["reasoning_content"], "hm");
  EXPECT_EQ(said[1]["tool_calls"][0]["function"]["name"], "functions__exec");
  EXPECT_EQ(said[2]["content"][0]["text"], "one");
  EXPECT_EQ(said[3]["tool_calls"][0]["function"]["name"], "tool_search");
  EXPECT_EQ(said[4]["role"], "tool");
  EXPECT_EQ(chat["tools"][0]["function"]["name"], "mcp__go");
}

}  // namespace
}  // namespace vlcache
