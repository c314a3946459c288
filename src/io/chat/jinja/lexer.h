// Splits template text into tokens, as jinja2's lexer does with trim_blocks and lstrip_blocks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/chat/jinja/value.h"

namespace vlcache::jinja {

enum class TokenType : uint8_t {
  kData,
  kBlockBegin,
  kBlockEnd,
  kVariableBegin,
  kVariableEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenType type = TokenType::kEnd;
  int line = 1;
  std::string text;  // data, name, operator, or the string with its escapes resolved
  int64_t integer = 0;
  double real = 0;

  bool is_operator(std::string_view op) const { return type == TokenType::kOperator && text == op; }
  bool is_name(std::string_view name) const { return type == TokenType::kName && text == name; }
};

// A template that Python's jinja2 would not compile.
struct SyntaxError : RenderError {
  SyntaxError(const std::string& message, int at) : RenderError(message), line(at) {}
  int line;
};

// Throws SyntaxError. The source must be valid UTF-8.
std::vector<Token> tokenize(std::string_view source);
// The token's name in error messages.
std::string describe(const Token& token);

}  // namespace vlcache::jinja
