#include "api/tool_calls.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "api/pythonic_calls.h"
#include "base/error.h"
#include "base/exact_json.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::string_view kOpen = "<tool_call>", kClose = "</tool_call>";
constexpr std::string_view kFunction = "<function=", kParameter = "<parameter=";
constexpr std::string_view kFunctionEnd = "</function>", kParameterEnd = "</parameter>";
constexpr std::string_view kCalls = "[TOOL_CALLS]", kCallId = "[CALL_ID]", kArguments = "[ARGS]";
constexpr std::string_view kPython = "<|python_tag|>";
constexpr std::string_view kPythonStart = "<|python_start|>", kPythonEnd = "<|python_end|>";  // Llama 4
constexpr std::string_view kSpace = " \t\r\n";

std::string_view mark_of(CallSyntax syntax) {
  switch (syntax) {
    case CallSyntax::kQwenXml:
    case CallSyntax::kHermes:
      return kOpen;
    case CallSyntax::kMistral:
    case CallSyntax::kMistralNamed:
    case CallSyntax::kMistralWithId:
      return kCalls;
    case CallSyntax::kLlama:
    case CallSyntax::kPythonic:
      return kPython;
    case CallSyntax::kPlain:
      break;
  }
  return {};
}

// Forms of Llama's, which are read alike.
bool is_llama(CallSyntax syntax) { return syntax == CallSyntax::kLlama || syntax == CallSyntax::kPythonic; }

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

// Where the object or list that begins at `begin` ends; npos: it does not end.
size_t value_end(std::string_view text, size_t begin) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = begin; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if ((c == '}' || c == ']') && --depth == 0) {
      return i + 1;
    }
  }
  return text.npos;
}

std::optional<OrderedJson> parse(std::string_view text) {
  try {
    return parse_exact_json(text, "");
  } catch (const Error&) {
    return std::nullopt;
  }
}

// {"name", "arguments" or "parameters"}: objects, or objects as text.
bool read_object(const OrderedJson& call, const std::set<std::string>& names, std::vector<ToolCall>& calls) {
  if (!call.is_object() || !call.contains("name") || !call["name"].is_string()) return false;
  const auto name = call["name"].get<std::string>();
  const char* key = call.contains("arguments") ? "arguments" : "parameters";
  std::optional<OrderedJson> arguments = call.value(key, OrderedJson::object());
  if (arguments->is_string()) arguments = parse(arguments->get_ref<const std::string&>());
  if (!names.contains(name) || !arguments || !arguments->is_object()) return false;
  calls.push_back({name, dump_exact_json(*arguments)});
  return true;
}

// name[ARGS]{...} or name[CALL_ID]id[ARGS]{...}, in newer Mistral models; or name{...}.
size_t read_named(std::string_view text, size_t at, const std::set<std::string>& names, std::vector<ToolCall>& calls) {
  const size_t brace = text.find('{', at);
  if (brace == text.npos) return text.npos;
  std::string_view name = text.substr(at, brace - at);
  if (name.ends_with(kArguments)) name.remove_suffix(kArguments.size());
  name = name.substr(0, name.find(kCallId));
  const size_t end = value_end(text, brace);
  if (end == text.npos || !names.contains(std::string(trimmed(name)))) return text.npos;
  const std::optional<OrderedJson> arguments = parse(text.substr(brace, end - brace));
  if (!arguments || !arguments->is_object()) return text.npos;
  calls.push_back({std::string(trimmed(name)), dump_exact_json(*arguments)});
  return end;
}

// Llama 4 may write each call between marks.
std::string without_marks(std::string_view text) {
  std::string out(text);
  for (const std::string_view mark : {kPythonStart, kPythonEnd}) {
    for (size_t at = out.find(mark); at != out.npos; at = out.find(mark, at)) out.erase(at, mark.size());
  }
  return out;
}

}  // namespace

bool has_call_mark(CallSyntax syntax) { return !is_llama(syntax) && syntax != CallSyntax::kPlain; }

CallSyntax call_syntax(const std::string& chat_template) {
  const auto has = [&](std::string_view text) { return chat_template.find(text) != std::string::npos; };
  if (has(kCalls) && has(kArguments)) return has(kCallId) ? CallSyntax::kMistralWithId : CallSyntax::kMistralNamed;
  if (has(kCalls)) return CallSyntax::kMistral;
  if (has(kOpen) && has(kFunction) && has(kParameter)) return CallSyntax::kQwenXml;
  if (has(kOpen)) return CallSyntax::kHermes;
  if (has("func_name1(") || has("name + '('") || has("name ~ '('")) return CallSyntax::kPythonic;
  if (has(kPython) || has(kPythonStart) || (has("\"parameters\"") && has("ipython"))) return CallSyntax::kLlama;
  return CallSyntax::kPlain;
}

std::vector<std::string> call_marks(CallSyntax syntax) {
  switch (syntax) {
    case CallSyntax::kQwenXml:
    case CallSyntax::kHermes:
      return {std::string(kOpen), std::string(kClose)};
    case CallSyntax::kMistral:
    case CallSyntax::kMistralNamed:
    case CallSyntax::kMistralWithId:
      return {std::string(kCalls), std::string(kCallId), std::string(kArguments)};
    case CallSyntax::kLlama:
    case CallSyntax::kPythonic:
      return {std::string(kPython), std::string(kPythonStart), std::string(kPythonEnd)};
    case CallSyntax::kPlain:
      break;
  }
  return {};
}

std::vector<ToolCall> parse_calls(std::string_view text, const std::set<std::string>& names) {
  std::vector<ToolCall> calls;
  for (size_t at = 0; at < text.size();) {
    at = text.find_first_not_of(" \t\r\n,;", at);
    if (at == text.npos) break;
    if (text.substr(at).starts_with(kCalls)) {
      at += kCalls.size();
    } else if (text[at] == '{' || text[at] == '[') {
      const size_t end = value_end(text, at);
      const std::optional<OrderedJson> value = end == text.npos ? std::nullopt : parse(text.substr(at, end - at));
      if (!value) return {};
      const OrderedJson list = value->is_array() ? *value : OrderedJson::array({*value});
      if (!std::ranges::all_of(list, [&](const OrderedJson& call) { return read_object(call, names, calls); }))
        return {};
      at = end;
    } else {
      at = read_named(text, at, names, calls);
      if (at == text.npos) return {};
    }
  }
  return calls;
}

std::vector<ToolCall> complete_calls(std::string_view text, const std::set<std::string>& names) {
  std::vector<ToolCall> calls;
  for (size_t at = 0; at < text.size();) {
    if (text.substr(at).starts_with(kCalls)) {
      at += kCalls.size();
    } else if (text[at] == '{') {
      const size_t end = value_end(text, at);
      const std::optional<OrderedJson> value = end == text.npos ? std::nullopt : parse(text.substr(at, end - at));
      if (!value || !read_object(*value, names, calls)) break;
      at = end;
    } else if (text[at] == '[' || text[at] == ']' || text[at] == ',' || text[at] == ';' ||
               kSpace.find(text[at]) != kSpace.npos) {
      ++at;
    } else {
      at = read_named(text, at, names, calls);
    }
  }
  return calls;
}

std::vector<ToolCall> parse_xml_calls(std::string_view text, const std::set<std::string>& names,
                                      const StringParameters& strings) {
  // Takes "<word=NAME>" and returns the name; nullopt: there is none.
  const auto opened = [&](std::string_view word) -> std::optional<std::string> {
    text = trimmed(text);
    const size_t end = text.find('>');
    if (!text.starts_with(word) || end == text.npos) return std::nullopt;
    const std::string name(trimmed(text.substr(word.size(), end - word.size())));
    text.remove_prefix(end + 1);
    return name;
  };
  std::vector<ToolCall> calls;
  while (!trimmed(text).empty()) {
    const std::optional<std::string> name = opened(kFunction);
    if (!name || !names.contains(*name)) return {};
    OrderedJson arguments = OrderedJson::object();
    while (const std::optional<std::string> key = opened(kParameter)) {
      const size_t end = text.find(kParameterEnd);
      if (end == text.npos) return {};
      std::string_view value = text.substr(0, end);
      if (value.starts_with('\n')) value.remove_prefix(1);
      if (value.ends_with('\n')) value.remove_suffix(1);
      text.remove_prefix(end + kParameterEnd.size());
      const auto known = strings.find(*name);
      const bool is_string = known != strings.end() && known->second.contains(*key);
      const std::optional<OrderedJson> read = is_string ? std::nullopt : parse(value);
      arguments[*key] = read ? *read : OrderedJson(value);
    }
    text = trimmed(text);
    if (!text.starts_with(kFunctionEnd)) return {};
    text.remove_prefix(kFunctionEnd.size());
    calls.push_back({*name, arguments.dump()});
  }
  return calls;
}

ToolCallReader::ToolCallReader(CallSyntax syntax, std::vector<std::string> names, bool forced, StringParameters strings)
    : syntax_(syntax), names_(names.begin(), names.end()), forced_(forced), strings_(std::move(strings)) {}

ToolCallReader::Piece ToolCallReader::push(std::string_view text) {
  held_ += text;
  Piece piece;
  do {
    if (!in_call_) read_text(piece);
  } while (in_call_ && read_call(piece, /*ended=*/false));
  return piece;
}

ToolCallReader::Piece ToolCallReader::finish() {
  Piece piece = push("");
  if (in_call_) read_call(piece, /*ended=*/true);
  // White space between calls and after them belongs to their form; so does the beginning of a mark that was cut.
  if (forced_ || (called_ && trimmed(held_).empty())) held_.clear();
  give_up(piece, held_.size());
  return piece;
}

// Passes text on up to where a call begins or may begin.
void ToolCallReader::read_text(Piece& piece) {
  const std::string_view mark = mark_of(syntax_);
  const size_t first = held_.find_first_not_of(kSpace);
  const bool whole_answer = !has_call_mark(syntax_);
  if (at_start_ && whole_answer) {
    if (first == held_.npos) return;
    const std::string_view begun = std::string_view(held_).substr(first);
    if (is_llama(syntax_) && kPythonStart.starts_with(begun.substr(0, kPythonStart.size()))) {
      in_call_ = begun.size() >= kPythonStart.size();
      return;
    }
    if (is_llama(syntax_) && begun[0] == '[' && may_be_pythonic_calls(begun, names_)) {
      in_call_ = begun.find('(') != begun.npos;
      return;
    }
    in_call_ = held_[first] == '{' || (syntax_ == CallSyntax::kPlain && held_[first] == '[');
    if (in_call_) return;
  }
  if (mark.empty()) return give_up(piece, held_.size());
  size_t n = held_.find(mark);
  in_call_ = n != held_.npos;
  if (!in_call_) {
    n = held_.size();
    for (size_t k = std::min(mark.size() - 1, n); k > 0; --k) {
      if (!held_.ends_with(mark.substr(0, k))) continue;
      n -= k;
      break;
    }
  }
  // White space before a call belongs to the call.
  while (n > 0 && kSpace.find(held_[n - 1]) != kSpace.npos) --n;
  give_up(piece, n);
}

// Returns true if a call has ended and more may follow.
bool ToolCallReader::read_call(Piece& piece, bool ended) {
  const std::string_view mark = mark_of(syntax_);
  std::string_view body = held_;
  body.remove_prefix(std::min(body.find_first_not_of(kSpace), body.size()));
  if (body.starts_with(mark)) body.remove_prefix(mark.size());
  const std::string without = is_llama(syntax_) ? without_marks(body) : "";
  const bool closed = syntax_ == CallSyntax::kHermes || syntax_ == CallSyntax::kQwenXml;
  const size_t close = closed ? body.find(kClose) : body.npos;
  if (close == body.npos && !ended) return false;
  const size_t n_held = close == body.npos ? held_.size() : held_.size() - body.size() + close + kClose.size();
  const std::string_view inside = is_llama(syntax_) ? std::string_view(without) : body.substr(0, close);
  const bool pythonic = is_llama(syntax_) && trimmed(inside).starts_with('[');
  bool complete = true;
  std::vector<ToolCall> calls = pythonic                          ? parse_pythonic_calls(inside, names_, complete)
                                : syntax_ == CallSyntax::kQwenXml ? parse_xml_calls(inside, names_, strings_)
                                                                  : parse_calls(inside, names_);
  if (!complete && !forced_) calls.clear();
  if (calls.empty() && syntax_ == CallSyntax::kQwenXml) calls = parse_calls(inside, names_);  // as older models write
  in_call_ = false;
  if (calls.empty() && ended && forced_) {
    const std::vector<ToolCall> before = complete_calls(body, names_);
    piece.calls.insert(piece.calls.end(), before.begin(), before.end());
    held_.clear();
    return false;
  }
  if (calls.empty()) {
    give_up(piece, n_held);
    return !ended;
  }
  called_ = true;
  piece.calls.insert(piece.calls.end(), calls.begin(), calls.end());
  held_.erase(0, n_held);
  at_start_ = false;
  return !ended;
}

// The first n bytes are text.
void ToolCallReader::give_up(Piece& piece, size_t n) {
  if (n == 0) return;
  piece.text += held_.substr(0, n);
  held_.erase(0, n);
  at_start_ = false;
}

}  // namespace vlcache
