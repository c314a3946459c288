// Fuzzes answers that are searched for calls: however the text is split, the same calls and the same text are found.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iterator>

#include "api/tool_calls.h"
#include "base/fuzz_target.h"

namespace {

using vlcache::CallSyntax;

constexpr CallSyntax kSyntaxes[] = {CallSyntax::kHermes, CallSyntax::kMistral, CallSyntax::kLlama,
                                    CallSyntax::kPlain};  // Mistral's others are read alike

std::string read(CallSyntax syntax, const std::string& answer, size_t piece) {
  vlcache::ToolCallReader reader(syntax, {"a", "look"});
  std::string out, calls;
  const auto add = [&](const vlcache::ToolCallReader::Piece& p) {
    out += p.text;
    for (const vlcache::ToolCall& call : p.calls) calls += call.name + call.arguments;
  };
  for (size_t i = 0; i < answer.size(); i += piece) add(reader.push(answer.substr(i, piece)));
  add(reader.finish());
  if (calls.empty() && out != answer) std::abort();  // all text is returned
  return out + "\n" + calls;
}

}  // namespace

FUZZ_TARGET(tool_calls) {
  if (size < 2 || size > 4096) return 0;
  const CallSyntax syntax = kSyntaxes[data[0] % std::size(kSyntaxes)];
  const std::string answer(reinterpret_cast<const char*>(data) + 2, size - 2);
  if (read(syntax, answer, 1 + data[1] % 16) != read(syntax, answer, answer.size() + 1)) std::abort();
  return 0;
}
