// Statements: everything between {% and %}.
#include "io/chat/jinja/parser.h"

#include <algorithm>

namespace vlcache::jinja {
namespace {

bool one_of(const Token& token, std::initializer_list<std::string_view> names) {
  return token.type == TokenType::kName && std::find(names.begin(), names.end(), token.text) != names.end();
}

ExprPtr clone_target(const Expr& target) {
  auto copy = std::make_unique<Expr>();
  copy->kind = target.kind;
  copy->context = target.context;
  copy->line = target.line;
  copy->name = target.name;
  copy->text = target.text;
  for (const ExprPtr& child : target.children) copy->children.push_back(clone_target(*child));
  return copy;
}

}  // namespace

const Token& Parser::take() {
  const Token& token = tokens_[at_];
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

bool Parser::skip_operator(std::string_view op) {
  if (!current().is_operator(op)) return false;
  take();
  return true;
}

bool Parser::skip_name(std::string_view name) {
  if (!current().is_name(name)) return false;
  take();
  return true;
}

void Parser::fail_expected(const std::string& what) const {
  if (current().type == TokenType::kEnd)
    fail_at("unexpected end of template, expected '" + what + "'.", current().line);
  fail_at("expected token '" + what + "', got '" + describe(current()) + "'", current().line);
}

void Parser::expect_operator(std::string_view op) {
  if (!skip_operator(op)) fail_expected(std::string(op));
}

std::string Parser::expect_name() {
  if (current().type != TokenType::kName) fail_expected("name");
  return take().text;
}

void Parser::expect_name(std::string_view name) {
  if (!skip_name(name)) fail_expected(std::string(name));
}

void Parser::expect(TokenType type) {
  if (current().type != type) {
    Token wanted;
    wanted.type = type;
    fail_expected(describe(wanted));
  }
  take();
}

StatementPtr Parser::make_statement(Statement::Kind kind, int line) const {
  auto statement = std::make_unique<Statement>();
  statement->kind = kind;
  statement->line = line;
  return statement;
}

Block Parser::parse() { return parse_block({}); }

Block Parser::parse_block(Ends ends) {
  Block block;
  const auto output = [&]() -> Statement& {
    if (block.empty() || block.back()->kind != Statement::Kind::kOutput) {
      block.push_back(make_statement(Statement::Kind::kOutput, current().line));
    }
    return *block.back();
  };
  while (current().type != TokenType::kEnd) {
    if (current().type == TokenType::kData) {
      ExprPtr data = make(Expr::Kind::kConst, current().line);
      Statement& out = output();
      data->value = Value::string(take().text);
      out.exprs.push_back(std::move(data));
    } else if (current().type == TokenType::kVariableBegin) {
      Statement& out = output();
      take();
      out.exprs.push_back(parse_tuple({}));
      expect(TokenType::kVariableEnd);
    } else {
      expect(TokenType::kBlockBegin);
      if (one_of(current(), ends)) return block;
      StatementPtr statement = parse_statement();
      block.push_back(std::move(statement));
      expect(TokenType::kBlockEnd);
    }
  }
  if (ends.size() > 0) {
    std::string wanted;
    for (const std::string_view end : ends) wanted += (wanted.empty() ? "'" : " or '") + std::string(end) + "'";
    fail_at("Unexpected end of template. Jinja was looking for the following tags: " + wanted +
                ". The innermost block that needs to be closed is '" + (open_tags_.empty() ? "" : open_tags_.back()) +
                "'.",
            current().line);
  }
  return block;
}

Block Parser::parse_body(Ends ends) {
  skip_operator(":");
  expect(TokenType::kBlockEnd);
  return parse_block(ends);
}

void Parser::fail_unknown_tag(const Token& token) const {
  const std::string tag = "'" + token.text + "'";
  if (one_of(token, {"block", "extends", "include", "import", "from", "autoescape"})) {
    throw SyntaxError("the statement " + tag + " is not supported", token.line);
  }
  std::string message = "Encountered unknown tag " + tag + ".";
  if (!open_tags_.empty()) message += " The innermost block that needs to be closed is '" + open_tags_.back() + "'.";
  fail_at(message, token.line);
}

StatementPtr Parser::parse_statement() {
  const Nesting nesting(*this);
  const Token& token = current();
  if (token.type != TokenType::kName) fail_at("tag name expected", token.line);
  using Parse = StatementPtr (Parser::*)();
  static constexpr std::pair<std::string_view, Parse> kTags[] = {
      {"set", &Parser::parse_set},
      {"for", &Parser::parse_for},
      {"if", &Parser::parse_if},
      {"with", &Parser::parse_with},
      {"macro", &Parser::parse_macro},
      {"call", &Parser::parse_call_block},
      {"print", &Parser::parse_print},
      {"filter", &Parser::parse_filter_block},
      {"generation", &Parser::parse_generation},
  };
  if (one_of(token, {"break", "continue"})) {
    take();
    return make_statement(token.text == "break" ? Statement::Kind::kBreak : Statement::Kind::kContinue, token.line);
  }
  for (const auto& [tag, parse] : kTags) {
    if (token.text != tag) continue;
    open_tags_.push_back(token.text);
    StatementPtr statement = (this->*parse)();
    open_tags_.pop_back();
    return statement;
  }
  fail_unknown_tag(token);
}

StatementPtr Parser::parse_set() {
  StatementPtr set = make_statement(Statement::Kind::kAssign, take().line);
  TupleRules rules;
  rules.simplified = true;
  rules.with_namespace = true;
  set->target = parse_target(rules);
  if (skip_operator("=")) {
    set->expr = parse_tuple({});
    return set;
  }
  set->kind = Statement::Kind::kAssignBlock;
  set->expr = parse_filter(nullptr, false);
  set->body = parse_body({"endset"});
  take();
  return set;
}

StatementPtr Parser::parse_for() {
  StatementPtr loop = make_statement(Statement::Kind::kFor, take().line);
  TupleRules target_rules;
  target_rules.simplified = true;
  target_rules.extra_end = [](const Token& t) { return t.is_name("in"); };
  loop->target = parse_target(target_rules);
  expect_name("in");
  TupleRules iter_rules;
  iter_rules.with_conditional = false;
  iter_rules.extra_end = [](const Token& t) { return t.is_name("recursive"); };
  loop->expr = parse_tuple(iter_rules);
  if (skip_name("if")) {
    loop->test = parse_expression();
    loop->test_target = clone_target(*loop->target);
  }
  loop->recursive = skip_name("recursive");
  loop->body = parse_body({"endfor", "else"});
  if (take().text == "else") {
    loop->else_body = parse_body({"endfor"});
    take();
  }
  return loop;
}

StatementPtr Parser::parse_if() {
  StatementPtr result = make_statement(Statement::Kind::kIf, current().line);
  Statement* node = result.get();
  TupleRules rules;
  rules.with_conditional = false;
  take();
  while (true) {
    node->expr = parse_tuple(rules);
    node->body = parse_body({"elif", "else", "endif"});
    const std::string tag = take().text;
    if (tag == "elif") {
      result->elifs.push_back(make_statement(Statement::Kind::kIf, current().line));
      node = result->elifs.back().get();
      continue;
    }
    if (tag == "else") {
      result->else_body = parse_body({"endif"});
      take();
    }
    return result;
  }
}

StatementPtr Parser::parse_with() {
  StatementPtr with = make_statement(Statement::Kind::kWith, take().line);
  while (current().type != TokenType::kBlockEnd) {
    if (!with->exprs.empty()) expect_operator(",");
    ExprPtr target = parse_primary();
    if (target->kind != Expr::Kind::kName) fail_at("can't assign to 'with' target", target->line);
    target->context = Expr::Context::kParam;
    with->exprs.push_back(std::move(target));
    expect_operator("=");
    with->defaults.push_back(parse_expression());
  }
  with->body = parse_body({"endwith"});
  take();
  return with;
}

void Parser::parse_signature(Statement& macro) {
  expect_operator("(");
  while (!current().is_operator(")")) {
    if (!macro.exprs.empty()) expect_operator(",");
    ExprPtr parameter = parse_name_target(Expr::Context::kParam);
    for (const ExprPtr& other : macro.exprs) {
      if (other->name == parameter->name)
        fail_at("duplicate argument '" + other->name + "' in function definition", parameter->line);
    }
    if (skip_operator("=")) {
      macro.defaults.push_back(parse_expression());
    } else if (!macro.defaults.empty()) {
      fail_at("non-default argument follows default argument", current().line);
    }
    macro.exprs.push_back(std::move(parameter));
  }
  expect_operator(")");
}

StatementPtr Parser::parse_macro() {
  StatementPtr macro = make_statement(Statement::Kind::kMacro, take().line);
  macro->target = parse_name_target(Expr::Context::kStore);
  macro->name = macro->target->name;
  parse_signature(*macro);
  macro->body = parse_body({"endmacro"});
  take();
  return macro;
}

StatementPtr Parser::parse_call_block() {
  StatementPtr block = make_statement(Statement::Kind::kCallBlock, take().line);
  if (current().is_operator("(")) parse_signature(*block);
  block->expr = parse_expression();
  if (block->expr->kind != Expr::Kind::kCall) fail_at("expected call", block->line);
  block->body = parse_body({"endcall"});
  take();
  return block;
}

// transformers marks the assistant's text with this; when no mask is requested it only prints its body.
StatementPtr Parser::parse_generation() {
  StatementPtr block = make_statement(Statement::Kind::kCallBlock, take().line);
  block->body = parse_body({"endgeneration"});
  take();
  return block;
}

StatementPtr Parser::parse_filter_block() {
  StatementPtr block = make_statement(Statement::Kind::kFilterBlock, take().line);
  block->expr = parse_filter(nullptr, true);
  block->body = parse_body({"endfilter"});
  take();
  return block;
}

StatementPtr Parser::parse_print() {
  StatementPtr print = make_statement(Statement::Kind::kOutput, take().line);
  while (current().type != TokenType::kBlockEnd) {
    if (!print->exprs.empty()) expect_operator(",");
    print->exprs.push_back(parse_expression());
  }
  return print;
}

TemplateTree parse_template(std::string_view source) {
  TemplateTree tree;
  tree.body = Parser(tokenize(source)).parse();
  resolve_scopes(tree);
  return tree;
}

}  // namespace vlcache::jinja
