// Calls of tools in the text of an answer, in the form in which each family of models writes them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace vlcache {

// How calls are written. {...}: {"name": ..., "arguments": {...}}. Both forms of Mistral's are read where either is.
enum class CallSyntax {
  kHermes,         // <tool_call>\n{...}\n</tool_call>, each: Qwen2.5, Qwen3, Hermes
  kMistral,        // [TOOL_CALLS] [{...}, {...}]: Mistral 7B v0.3, Nemo
  kMistralNamed,   // [TOOL_CALLS]name[ARGS]{arguments}, each: Devstral, Ministral 3
  kMistralWithId,  // [TOOL_CALLS]name[CALL_ID]nine letters or digits[ARGS]{arguments}, each: Mistral Small 3.2
  kLlama,          // {"name": ..., "parameters": {...}} as the whole answer, <|python_tag|> before it or not:
                   // Llama 3.1, 3.2, 3.3
  kPlain,          // [{...}, {...}] as the whole answer: for models that have no form, which a grammar has them write
};

// As the chat template shows calls of messages before.
CallSyntax call_syntax(const std::string& chat_template);
// Texts of a syntax that may be special tokens of a vocabulary, which then must be shown to be found.
std::vector<std::string> call_marks(CallSyntax syntax);

struct ToolCall {
  std::string name;
  std::string arguments;  // a JSON object
};

// Reads an answer as it comes. Text before a call is passed on at once, but for what may be the beginning of one; from
// there on it is held until the call is whole. What turns out to be none, or calls what is not among `names`, is text.
class ToolCallReader {
 public:
  ToolCallReader(CallSyntax syntax, std::vector<std::string> names);

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
  std::string held_;
  bool at_start_ = true;  // nothing but white space has come
  bool in_call_ = false;  // held_ begins with a mark, or with what stands for one, behind white space
  bool called_ = false;
};

// The calls that a text consists of, white space, commas and semicolons between them; none if it is anything else.
std::vector<ToolCall> parse_calls(std::string_view text, const std::set<std::string>& names);

}  // namespace vlcache
