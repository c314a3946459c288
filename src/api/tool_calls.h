// Finds tool calls in the text of an answer, in the form of each family of models.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace vlcache {

// How calls are written. {...}: {"name": ..., "arguments": {...}}. Both forms of Mistral's are read where either is
// expected.
enum class CallSyntax {
  kQwenXml,  // <tool_call>\n<function=name>\n<parameter=key>\nvalue\n</parameter>\n</function>\n</tool_call>, each:
             // Qwen3-Coder, Qwen3.5. Strings as they are, other values as JSON
  kHermes,   // <tool_call>\n{...}\n</tool_call>, each: Qwen2.5, Qwen3, Hermes
  kMistral,  // [TOOL_CALLS] [{...}, {...}]: Mistral 7B v0.3, Nemo
  kMistralNamed,   // [TOOL_CALLS]name[ARGS]{arguments}, each: Devstral, Ministral 3
  kMistralWithId,  // [TOOL_CALLS]name[CALL_ID]nine letters or digits[ARGS]{arguments}, each: Mistral Small 3.2
  kLlama,          // {"name": ..., "parameters": {...}} as the whole answer, <|python_tag|> before it or not:
                   // Llama 3.1, 3.2, 3.3; Llama 4, also between <|python_start|> and <|python_end|>. Read as well:
  kPythonic,       // [name(key=value), ...] as the whole answer, between these marks or not: Llama 3.2, Llama 4
  kPlain,          // [{...}, {...}] as the whole answer: for models without a form of their own; a grammar enforces it
};

// Whether calls of a syntax begin with a mark that no other text has; others are the whole answer.
bool has_call_mark(CallSyntax syntax);

// The syntax in which the chat template shows calls of earlier messages.
CallSyntax call_syntax(const std::string& chat_template);
// Texts of a syntax that may be special tokens of a vocabulary; these must be shown for calls to be found.
std::vector<std::string> call_marks(CallSyntax syntax);

struct ToolCall {
  std::string name;
  std::string arguments;  // a JSON object
};

// By function: its parameters whose values are strings, which kQwenXml writes like any others.
using StringParameters = std::map<std::string, std::set<std::string>>;

// Reads an answer as it is generated. Text before a call is passed on at once, except for a possible beginning of a
// call, which is held until the call is complete. Text that is not a call after all, or calls a function not in
// `names`, remains text.
class ToolCallReader {
 public:
  // `forced`: a grammar makes the answer a call, so that one that does not end was cut: the calls before it are passed
  // on, and its text is left out.
  ToolCallReader(CallSyntax syntax, std::vector<std::string> names, bool forced = false, StringParameters strings = {});

  struct Piece {
    std::string text;
    std::vector<ToolCall> calls;
  };
  Piece push(std::string_view text);
  Piece finish();

 private:
  void read_text(Piece& piece);
  bool read_call(Piece& piece, bool ended);
  void give_up(Piece& piece, size_t n);

  CallSyntax syntax_;
  std::set<std::string> names_;
  bool forced_;
  StringParameters strings_;
  std::string held_;
  bool at_start_ = true;  // only white space so far
  bool in_call_ = false;  // held_ begins with a mark or its equivalent, after white space
  bool called_ = false;
};

// The calls that are complete in a text that ends within one.
std::vector<ToolCall> complete_calls(std::string_view text, const std::set<std::string>& names);

// Those of kQwenXml, without the marks around each; empty if the text has anything else.
std::vector<ToolCall> parse_xml_calls(std::string_view text, const std::set<std::string>& names,
                                      const StringParameters& strings);

// The calls that make up a text, with white space, commas and semicolons between them; empty if the text has anything
// else.
std::vector<ToolCall> parse_calls(std::string_view text, const std::set<std::string>& names);

}  // namespace vlcache
