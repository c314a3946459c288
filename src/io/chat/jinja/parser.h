// Parser: recursive descent, split in two files: expressions and statements.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "io/chat/jinja/ast.h"
#include "io/chat/jinja/lexer.h"

namespace vlcache::jinja {

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}
  Block parse();

 private:
  // Nesting is bounded here because each level costs a dozen C++ frames, in the parser and later in the interpreter.
  class Nesting {
   public:
    explicit Nesting(Parser& parser);
    ~Nesting() { --parser_.nesting_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    Parser& parser_;
  };

  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  const Token& take();
  bool skip_operator(std::string_view op);
  bool skip_name(std::string_view name);
  void expect_operator(std::string_view op);
  std::string expect_name();
  void expect_name(std::string_view name);
  void expect(TokenType type);
  [[noreturn]] void fail_expected(const std::string& what) const;
  [[noreturn]] void fail_at(const std::string& message, int line) const { throw SyntaxError(message, line); }

  // Expressions (parser_expr.cc).
  using EndTest = bool (*)(const Token&);
  ExprPtr make(Expr::Kind kind, int line) const;
  ExprPtr finish(ExprPtr expr) const;  // computes and checks the depth
  ExprPtr parse_expression(bool with_conditional = true);
  ExprPtr parse_conditional();
  ExprPtr parse_or();
  ExprPtr parse_and();
  ExprPtr parse_not();
  ExprPtr parse_compare();
  ExprPtr parse_sum();
  ExprPtr parse_concat();
  ExprPtr parse_product();
  ExprPtr parse_power();
  ExprPtr parse_unary(bool with_filter = true);
  ExprPtr parse_primary(bool with_namespace = false);
  struct TupleRules {
    bool simplified = false;  // names and literals only
    bool with_conditional = true;
    bool explicit_parentheses = false;
    bool with_namespace = false;
    EndTest extra_end = nullptr;
  };
  ExprPtr parse_tuple(const TupleRules& rules);
  ExprPtr parse_list();
  ExprPtr parse_dict();
  ExprPtr parse_postfix(ExprPtr expr);
  ExprPtr parse_filter_chain(ExprPtr expr);
  ExprPtr parse_subscript(ExprPtr expr);
  ExprPtr parse_subscript_item();
  ExprPtr parse_call(ExprPtr callee);
  void parse_call_args(Expr& call);
  ExprPtr parse_filter(ExprPtr input, bool start_inline);
  ExprPtr parse_test(ExprPtr expr);
  ExprPtr parse_target(const TupleRules& rules);
  ExprPtr parse_name_target(Expr::Context context);
  ExprPtr fold_left(ExprPtr left, ExprPtr right, Expr::Kind kind, int line, BinaryOp op = BinaryOp::kAdd) const;

  // Statements (parser.cc).
  using Ends = std::initializer_list<std::string_view>;
  Block parse_block(Ends ends);  // up to one of the end tags, which becomes current
  Block parse_body(Ends ends);
  StatementPtr make_statement(Statement::Kind kind, int line) const;
  StatementPtr parse_statement();
  StatementPtr parse_set();
  StatementPtr parse_for();
  StatementPtr parse_if();
  StatementPtr parse_with();
  StatementPtr parse_macro();
  StatementPtr parse_call_block();
  StatementPtr parse_filter_block();
  StatementPtr parse_generation();
  StatementPtr parse_print();
  void parse_signature(Statement& macro);
  [[noreturn]] void fail_unknown_tag(const Token& token) const;

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int nesting_ = 0;
  std::vector<std::string> open_tags_;
};

}  // namespace vlcache::jinja
