// Answers as models write them, split into pieces of every size.
#include "api/tool_calls.h"

#include <gtest/gtest.h>

namespace vlcache {
namespace {

struct Read {
  std::string text, calls;  // name(arguments) ...

  bool operator==(const Read&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Read& read) { return out << read.text << " | " << read.calls; }

Read read(CallSyntax syntax, const std::string& answer, size_t piece) {
  ToolCallReader reader(syntax, {"look", "go_to"});
  Read out;
  const auto add = [&](const ToolCallReader::Piece& p) {
    out.text += p.text;
    for (const ToolCall& call : p.calls) out.calls += call.name + "(" + call.arguments + ")";
  };
  for (size_t i = 0; i < answer.size(); i += piece) add(reader.push(answer.substr(i, piece)));
  add(reader.finish());
  return out;
}

TEST(ToolCalls, FormsOfTheFamilies) {
  const struct {
    CallSyntax syntax;
    std::string answer;
    Read expected;
  } cases[] = {
      {CallSyntax::kHermes,
       "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"x\": 1}}\n</tool_call>",
       {"", "look({\"x\":1})"}},
      {CallSyntax::kHermes,
       "I look.\n<tool_call>\n{\"name\": \"look\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"name\": "
       "\"go_to\", "
       "\"arguments\": {\"a\": \"</b>\"}}\n</tool_call>\n",
       {"I look.", "look({})go_to({\"a\":\"</b>\"})"}},
      {CallSyntax::kHermes, "<tool_call>\n{\"name\": \"look\", \"arguments\": {}}", {"", "look({})"}},  // cut off
      {CallSyntax::kHermes, "<tool_call>{\"name\": \"look\", \"argu", {"<tool_call>{\"name\": \"look\", \"argu", ""}},
      {CallSyntax::kHermes,
       "a <tool_call>{\"name\": \"other\", \"arguments\": {}}</tool_call> b",
       {"a <tool_call>{\"name\": \"other\", \"arguments\": {}}</tool_call> b", ""}},
      {CallSyntax::kHermes, "x <tool <tool_cal", {"x <tool <tool_cal", ""}},
      {CallSyntax::kHermes, "{\"name\": \"look\"}", {"{\"name\": \"look\"}", ""}},
      {CallSyntax::kHermes, " plain text \n", {" plain text \n", ""}},
      {CallSyntax::kHermes, "", {"", ""}},
      {CallSyntax::kMistral,
       "[TOOL_CALLS] [{\"name\": \"look\", \"arguments\": {\"x\": [1, 2]}}, {\"name\": \"go_to\", \"arguments\": {}}]",
       {"", "look({\"x\":[1,2]})go_to({})"}},
      {CallSyntax::kMistral,
       "[TOOL_CALLS]look[ARGS]{\"x\": 1}[TOOL_CALLS]go_to[ARGS]{}",
       {"", "look({\"x\":1})go_to({})"}},
      {CallSyntax::kMistralWithId,
       "I look.[TOOL_CALLS]look[CALL_ID]a1b2c3d4e[ARGS]{\"x\": \"[ARGS]\"}[TOOL_CALLS]go_to[CALL_ID]aaaaaaaaa[ARGS]{}",
       {"I look.", "look({\"x\":\"[ARGS]\"})go_to({})"}},
      {CallSyntax::kMistralNamed, "[TOOL_CALLS]other[ARGS]{}", {"[TOOL_CALLS]other[ARGS]{}", ""}},
      {CallSyntax::kMistral, "Yes [1].", {"Yes [1].", ""}},
      {CallSyntax::kMistral, "[TOOL_CALLS] no", {"[TOOL_CALLS] no", ""}},
      {CallSyntax::kLlama, "{\"name\": \"look\", \"parameters\": {\"x\": \"1\"}}", {"", "look({\"x\":\"1\"})"}},
      {CallSyntax::kLlama,
       "<|python_tag|>{\"name\": \"look\", \"parameters\": {}}; {\"name\": \"go_to\", \"parameters\": {}}",
       {"", "look({})go_to({})"}},
      {CallSyntax::kLlama, "\n{\"name\": \"look\", \"arguments\": \"{\\\"x\\\": 1}\"}", {"", "look({\"x\":1})"}},
      {CallSyntax::kLlama,
       "<|python_start|>{\"name\": \"look\", \"parameters\": {}}<|python_end|>{\"name\": \"go_to\", \"parameters\": "
       "{}}",
       {"", "look({})go_to({})"}},
      {CallSyntax::kPythonic,
       "[look(x=1, s='it\\'s \"ü\" \\u00e9\\n', ok=True, none=None), go_to()]",
       {"", "look({\"x\":1,\"s\":\"it's \\\"ü\\\" é\\n\",\"ok\":true,\"none\":null})go_to({})"}},
      {CallSyntax::kPythonic,
       "<|python_start|>[ look ( l=[1, -2.5e3, .5, (7,),], d={'a': {\"b\": false}}, n=12345678901234567890123 ), ]"
       "<|python_end|>\n",
       {"", "look({\"l\":[1,-2500.0,0.5,[7]],\"d\":{\"a\":{\"b\":false}},\"n\":12345678901234567890123})"}},
      {CallSyntax::kLlama, "[look(x=\"a)]\"), go_to()]", {"", "look({\"x\":\"a)]\"})go_to({})"}},
      {CallSyntax::kPythonic, "{\"name\": \"look\", \"parameters\": {}}", {"", "look({})"}},
      {CallSyntax::kPythonic, "[1] says (look)", {"[1] says (look)", ""}},
      {CallSyntax::kPythonic, "[look at this]", {"[look at this]", ""}},
      {CallSyntax::kPythonic, "[other(x=1)]", {"[other(x=1)]", ""}},
      {CallSyntax::kPythonic, "[look(x=1), other()]", {"[look(x=1), other()]", ""}},
      {CallSyntax::kPythonic, "[look(x=y)]", {"[look(x=y)]", ""}},
      {CallSyntax::kPythonic, "[look(1)]", {"[look(1)]", ""}},
      {CallSyntax::kPythonic, "[look(x=01)]", {"[look(x=01)]", ""}},
      {CallSyntax::kPythonic, "[look()] and more", {"[look()] and more", ""}},
      {CallSyntax::kPythonic, "[look(x=1)", {"[look(x=1)", ""}},
      {CallSyntax::kPythonic, "I call [look()]", {"I call [look()]", ""}},
      {CallSyntax::kLlama, "<|python", {"<|python", ""}},
      {CallSyntax::kLlama, "<|python_start|>1 + 1<|python_end|>", {"<|python_start|>1 + 1<|python_end|>", ""}},
      {CallSyntax::kLlama, "{\"answer\": 3}", {"{\"answer\": 3}", ""}},
      {CallSyntax::kLlama, "It is {\"name\": \"look\"}", {"It is {\"name\": \"look\"}", ""}},
      {CallSyntax::kPlain,
       "[{\"name\": \"look\", \"arguments\": {}}, {\"name\": \"look\", \"arguments\": {}}]",
       {"", "look({})look({})"}},
      {CallSyntax::kPlain, "[1] says", {"[1] says", ""}},
      {CallSyntax::kQwenXml,
       "I look.\n<tool_call>\n<function=look>\n<parameter=x>\n1\n</parameter>\n<parameter=y>\na\nb <c>\n</parameter>\n"
       "</function>\n</tool_call>\n<tool_call>\n<function=go_to>\n</function>\n</tool_call>",
       {"I look.", "look({\"x\":1,\"y\":\"a\\nb <c>\"})go_to({})"}},
      {CallSyntax::kQwenXml, "<tool_call>\n{\"name\": \"look\", \"arguments\": {}}\n</tool_call>", {"", "look({})"}},
      {CallSyntax::kQwenXml,
       "<tool_call>\n<function=other>\n</function>\n</tool_call>",
       {"<tool_call>\n<function=other>\n</function>\n</tool_call>", ""}},
  };
  for (const auto& c : cases) {
    for (const size_t piece : {size_t{1}, size_t{2}, size_t{7}, size_t{1000}}) {
      EXPECT_EQ(read(c.syntax, c.answer, piece), c.expected) << c.answer << " by " << piece;
    }
  }
}

TEST(ToolCalls, TextBeforeACallIsStreamedImmediately) {
  ToolCallReader reader(CallSyntax::kHermes, {"look"});
  EXPECT_EQ(reader.push("I will").text, "I will");
  EXPECT_EQ(reader.push(" look").text, " look");
  EXPECT_EQ(reader.push(" <").text, "");  // perhaps a call
  EXPECT_EQ(reader.push("b").text, " <b");
  EXPECT_EQ(reader.push("<tool_call>{\"name\": \"look\", ").text, "");
  const ToolCallReader::Piece call = reader.push("\"arguments\": {}}</tool_call>");
  EXPECT_EQ(call.text, "");
  ASSERT_EQ(call.calls.size(), 1u);  // when the call is complete, not at the answer's end
}

// What cannot become a call is passed on at once.
TEST(ToolCalls, TextInBracketsIsStreamed) {
  ToolCallReader reader(CallSyntax::kPythonic, {"look"});
  EXPECT_EQ(reader.push("[lo").text, "");
  EXPECT_EQ(reader.push("ng").text, "[long");
  EXPECT_EQ(reader.push(" text").text, " text");
}

TEST(ToolCalls, StringsInXmlStayStrings) {
  const std::vector<ToolCall> calls =
      parse_xml_calls("<function=f>\n<parameter=s>\n12\n</parameter>\n<parameter=n>\n12\n</parameter>\n</function>",
                      {"f"}, {{"f", {"s"}}});
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_EQ(calls[0].arguments, R"({"s":"12","n":12})");
}

// Of calls that a grammar forces, what is cut is no text, and what is complete is a call.
TEST(ToolCalls, CutForcedCalls) {
  const struct {
    CallSyntax syntax;
    std::string answer;
    size_t n_calls;
  } cases[] = {
      {CallSyntax::kHermes, "<tool_c", 0},
      {CallSyntax::kHermes, "<tool_call>\n{\"name\": \"look\", \"argu", 0},
      {CallSyntax::kHermes, "<tool_call>\n{\"name\": \"look\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"na",
       1},
      {CallSyntax::kMistral, "[TOOL_CALLS] [{\"name\": \"look\", \"arguments\": {}}, {\"name\": \"lo", 1},
      {CallSyntax::kMistralNamed, "[TOOL_CALLS]look[ARGS]{}[TOOL_CALLS]look[ARGS]{\"x\": ", 1},
      {CallSyntax::kPlain, "[{\"name\": \"look\", \"arguments\": {\"x\": \"}\"}}, {\"name\"", 1},
      {CallSyntax::kLlama, "{\"name\": \"look\", \"param", 0},
      {CallSyntax::kPythonic, "[look(x=1), look(x=", 1},
      {CallSyntax::kPythonic, "[lo", 0},
      {CallSyntax::kQwenXml, "<tool_call>\n<function=look>\n<parameter=x>\nab", 0},
  };
  for (const auto& c : cases) {
    ToolCallReader reader(c.syntax, {"look"}, /*forced=*/true);
    ToolCallReader::Piece all = reader.push(c.answer);
    const ToolCallReader::Piece rest = reader.finish();
    EXPECT_EQ(all.text + rest.text, "") << c.answer;
    EXPECT_EQ(all.calls.size() + rest.calls.size(), c.n_calls) << c.answer;
  }
}

TEST(ToolCalls, SyntaxOfATemplate) {
  EXPECT_EQ(call_syntax("<tool_call> '<function=' + name '<parameter='"), CallSyntax::kQwenXml);
  EXPECT_EQ(call_syntax("{{ '<tool_call>' }}"), CallSyntax::kHermes);
  EXPECT_EQ(call_syntax("{{ '[TOOL_CALLS]' }}"), CallSyntax::kMistral);
  EXPECT_EQ(call_syntax("{{ '[TOOL_CALLS]' + name + '[ARGS]' }}"), CallSyntax::kMistralNamed);
  EXPECT_EQ(call_syntax("{{ '[TOOL_CALLS]' + name + '[CALL_ID]' + id + '[ARGS]' }}"), CallSyntax::kMistralWithId);
  EXPECT_EQ(call_syntax("{{ '<|python_tag|>' }}"), CallSyntax::kLlama);
  EXPECT_EQ(call_syntax("{{ 'Environment: ipython' }}{{ '\"parameters\": ' }}"), CallSyntax::kLlama);
  EXPECT_EQ(call_syntax("Use [func_name1(param1=value1)] {{ '<|python_start|>' }}"), CallSyntax::kPythonic);
  EXPECT_EQ(call_syntax("{{ tool_call.name + '(' }}"), CallSyntax::kPythonic);
  EXPECT_EQ(call_syntax("{{ messages }}"), CallSyntax::kPlain);
}

}  // namespace
}  // namespace vlcache
