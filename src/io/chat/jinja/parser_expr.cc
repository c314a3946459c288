// Parses expressions, with the precedences of jinja2 (| and `is` bind tighter than **, unary minus tighter still).
#include <algorithm>

#include "io/chat/jinja/parser.h"

namespace vlcache::jinja {
namespace {

constexpr int kMaxNesting = 200;    // about 100 parentheses; Python's jinja2 gives up at about 80
constexpr int kMaxTreeDepth = 400;  // of a chain such as a + b + c ...

bool ends_tuple(const Token& t) {
  return t.type == TokenType::kVariableEnd || t.type == TokenType::kBlockEnd || t.is_operator(")");
}

const char* kind_name(Expr::Kind kind) {
  switch (kind) {
    case Expr::Kind::kConst:
      return "const";
    case Expr::Kind::kList:
      return "list";
    case Expr::Kind::kDict:
      return "dict";
    default:
      return "expression";
  }
}

bool can_assign(const Expr& e) {
  if (e.kind == Expr::Kind::kTuple) {
    return std::all_of(e.children.begin(), e.children.end(), [](const ExprPtr& c) { return can_assign(*c); });
  }
  return e.kind == Expr::Kind::kName || e.kind == Expr::Kind::kNamespaceRef;
}

void set_context(Expr& e, Expr::Context context) {
  e.context = context;
  for (const ExprPtr& child : e.children) set_context(*child, context);
}

}  // namespace

Parser::Nesting::Nesting(Parser& parser) : parser_(parser) {
  if (parser_.nesting_ >= kMaxNesting) {
    throw SyntaxError("nests deeper than " + std::to_string(kMaxNesting) + " levels", parser_.current().line);
  }
  ++parser_.nesting_;
}

ExprPtr Parser::make(Expr::Kind kind, int line) const {
  auto expr = std::make_unique<Expr>();
  expr->kind = kind;
  expr->line = line;
  return expr;
}

ExprPtr Parser::finish(ExprPtr expr) const {
  int depth = 0;
  const auto add = [&](const ExprPtr& e) {
    if (e) depth = std::max(depth, e->depth);
  };
  for (const ExprPtr& child : expr->children) add(child);
  for (const auto& [name, value] : expr->named) add(value);
  add(expr->star);
  add(expr->double_star);
  expr->depth = depth + 1;
  if (expr->depth > kMaxTreeDepth)
    fail_at("an expression of more than " + std::to_string(kMaxTreeDepth) + " chained operations", expr->line);
  return expr;
}

ExprPtr Parser::fold_left(ExprPtr left, ExprPtr right, Expr::Kind kind, int line, BinaryOp op) const {
  ExprPtr expr = make(kind, line);
  expr->binary = op;
  expr->children.push_back(std::move(left));
  expr->children.push_back(std::move(right));
  return finish(std::move(expr));
}

ExprPtr Parser::parse_expression(bool with_conditional) { return with_conditional ? parse_conditional() : parse_or(); }

ExprPtr Parser::parse_conditional() {
  const Nesting nesting(*this);
  int line = current().line;
  ExprPtr expr = parse_or();
  while (skip_name("if")) {
    ExprPtr conditional = make(Expr::Kind::kConditional, line);
    conditional->children.push_back(parse_or());
    conditional->children.push_back(std::move(expr));
    conditional->children.push_back(skip_name("else") ? parse_conditional() : nullptr);
    expr = finish(std::move(conditional));
    line = current().line;
  }
  return expr;
}

ExprPtr Parser::parse_or() {
  int line = current().line;
  ExprPtr left = parse_and();
  while (skip_name("or")) {
    left = fold_left(std::move(left), parse_and(), Expr::Kind::kOr, line);
    line = current().line;
  }
  return left;
}

ExprPtr Parser::parse_and() {
  int line = current().line;
  ExprPtr left = parse_not();
  while (skip_name("and")) {
    left = fold_left(std::move(left), parse_not(), Expr::Kind::kAnd, line);
    line = current().line;
  }
  return left;
}

ExprPtr Parser::parse_not() {
  if (!current().is_name("not")) return parse_compare();
  const Nesting nesting(*this);
  ExprPtr expr = make(Expr::Kind::kNot, take().line);
  expr->children.push_back(parse_not());
  return finish(std::move(expr));
}

ExprPtr Parser::parse_compare() {
  static constexpr std::pair<std::string_view, CompareOp> kOps[] = {
      {"==", CompareOp::kEq}, {"!=", CompareOp::kNe}, {"<", CompareOp::kLt},
      {"<=", CompareOp::kLe}, {">", CompareOp::kGt},  {">=", CompareOp::kGe},
  };
  ExprPtr compare = make(Expr::Kind::kCompare, current().line);
  compare->children.push_back(parse_sum());
  while (true) {
    const auto* op =
        std::find_if(std::begin(kOps), std::end(kOps), [&](const auto& o) { return current().is_operator(o.first); });
    if (op != std::end(kOps)) {
      take();
      compare->compares.push_back(op->second);
    } else if (skip_name("in")) {
      compare->compares.push_back(CompareOp::kIn);
    } else if (current().is_name("not") && ahead().is_name("in")) {
      take();
      take();
      compare->compares.push_back(CompareOp::kNotIn);
    } else {
      break;
    }
    compare->children.push_back(parse_sum());
  }
  if (compare->compares.empty()) return std::move(compare->children[0]);
  return finish(std::move(compare));
}

ExprPtr Parser::parse_sum() {
  int line = current().line;
  ExprPtr left = parse_concat();
  while (current().is_operator("+") || current().is_operator("-")) {
    const BinaryOp op = take().text == "+" ? BinaryOp::kAdd : BinaryOp::kSub;
    left = fold_left(std::move(left), parse_concat(), Expr::Kind::kBinary, line, op);
    line = current().line;
  }
  return left;
}

ExprPtr Parser::parse_concat() {
  ExprPtr concat = make(Expr::Kind::kConcat, current().line);
  concat->children.push_back(parse_product());
  while (skip_operator("~")) concat->children.push_back(parse_product());
  if (concat->children.size() == 1) return std::move(concat->children[0]);
  return finish(std::move(concat));
}

ExprPtr Parser::parse_product() {
  static constexpr std::pair<std::string_view, BinaryOp> kOps[] = {
      {"*", BinaryOp::kMul}, {"/", BinaryOp::kDiv}, {"//", BinaryOp::kFloorDiv}, {"%", BinaryOp::kMod}};
  int line = current().line;
  ExprPtr left = parse_power();
  while (true) {
    const auto* op =
        std::find_if(std::begin(kOps), std::end(kOps), [&](const auto& o) { return current().is_operator(o.first); });
    if (op == std::end(kOps)) return left;
    take();
    left = fold_left(std::move(left), parse_power(), Expr::Kind::kBinary, line, op->second);
    line = current().line;
  }
}

ExprPtr Parser::parse_power() {
  int line = current().line;
  ExprPtr left = parse_unary();
  while (skip_operator("**")) {
    left = fold_left(std::move(left), parse_unary(), Expr::Kind::kBinary, line, BinaryOp::kPow);
    line = current().line;
  }
  return left;
}

ExprPtr Parser::parse_unary(bool with_filter) {
  ExprPtr expr;
  if (current().is_operator("-") || current().is_operator("+")) {
    const Nesting nesting(*this);
    const Token& sign = take();
    expr = make(sign.text == "-" ? Expr::Kind::kNegative : Expr::Kind::kPositive, sign.line);
    expr->children.push_back(parse_unary(false));
    expr = finish(std::move(expr));
  } else {
    expr = parse_primary();
  }
  expr = parse_postfix(std::move(expr));
  return with_filter ? parse_filter_chain(std::move(expr)) : std::move(expr);
}

ExprPtr Parser::parse_primary(bool with_namespace) {
  const Token& token = current();
  ExprPtr expr = make(Expr::Kind::kConst, token.line);
  if (token.type == TokenType::kName) {
    take();
    const std::string& name = token.text;
    if (name == "true" || name == "false" || name == "True" || name == "False") {
      expr->value = Value::boolean(name == "true" || name == "True");
    } else if (name == "none" || name == "None") {
      expr->value = Value::none();
    } else {
      expr->kind = Expr::Kind::kName;
      expr->name = name;
      if (with_namespace && skip_operator(".")) {
        expr->kind = Expr::Kind::kNamespaceRef;
        expr->text = expect_name();
      }
    }
  } else if (token.type == TokenType::kString) {
    std::string text;
    while (current().type == TokenType::kString) text += take().text;
    expr->value = Value::string(std::move(text));
  } else if (token.type == TokenType::kInteger) {
    expr->value = Value::integer(take().integer);
  } else if (token.type == TokenType::kFloat) {
    expr->value = Value::real(take().real);
  } else if (skip_operator("(")) {
    const Nesting nesting(*this);
    TupleRules rules;
    rules.explicit_parentheses = true;
    expr = parse_tuple(rules);
    expect_operator(")");
  } else if (token.is_operator("[")) {
    return parse_list();
  } else if (token.is_operator("{")) {
    return parse_dict();
  } else {
    fail_at("unexpected '" + describe(token) + "'", token.line);
  }
  return expr;
}

ExprPtr Parser::parse_tuple(const TupleRules& rules) {
  ExprPtr tuple = make(Expr::Kind::kTuple, current().line);
  bool is_tuple = false;
  while (true) {
    if (!tuple->children.empty()) expect_operator(",");
    if (ends_tuple(current()) || (rules.extra_end != nullptr && rules.extra_end(current()))) break;
    tuple->children.push_back(rules.simplified ? parse_primary(rules.with_namespace)
                                               : parse_expression(rules.with_conditional));
    if (!current().is_operator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple) {
    if (!tuple->children.empty()) return std::move(tuple->children[0]);
    if (!rules.explicit_parentheses)
      fail_at("Expected an expression, got '" + describe(current()) + "'", current().line);
  }
  return finish(std::move(tuple));
}

ExprPtr Parser::parse_list() {
  ExprPtr list = make(Expr::Kind::kList, take().line);
  while (!current().is_operator("]")) {
    if (!list->children.empty()) expect_operator(",");
    if (current().is_operator("]")) break;
    list->children.push_back(parse_expression());
  }
  expect_operator("]");
  return finish(std::move(list));
}

ExprPtr Parser::parse_dict() {
  ExprPtr dict = make(Expr::Kind::kDict, take().line);
  while (!current().is_operator("}")) {
    if (!dict->children.empty()) expect_operator(",");
    if (current().is_operator("}")) break;
    dict->children.push_back(parse_expression());
    expect_operator(":");
    dict->children.push_back(parse_expression());
  }
  expect_operator("}");
  return finish(std::move(dict));
}

ExprPtr Parser::parse_postfix(ExprPtr expr) {
  while (true) {
    if (current().is_operator(".") || current().is_operator("[")) {
      expr = parse_subscript(std::move(expr));
    } else if (current().is_operator("(")) {
      expr = parse_call(std::move(expr));
    } else {
      return expr;
    }
  }
}

ExprPtr Parser::parse_filter_chain(ExprPtr expr) {
  while (true) {
    if (current().is_operator("|")) {
      expr = parse_filter(std::move(expr), false);
    } else if (current().is_name("is")) {
      expr = parse_test(std::move(expr));
    } else if (current().is_operator("(")) {
      expr = parse_call(std::move(expr));
    } else {
      return expr;
    }
  }
}

ExprPtr Parser::parse_subscript(ExprPtr expr) {
  const Token& token = take();
  ExprPtr item = make(Expr::Kind::kItem, token.line);
  item->children.push_back(std::move(expr));
  if (token.text == ".") {
    const Token& attribute = take();
    if (attribute.type == TokenType::kName) {
      item->kind = Expr::Kind::kAttribute;
      item->text = attribute.text;
    } else if (attribute.type == TokenType::kInteger) {
      ExprPtr index = make(Expr::Kind::kConst, attribute.line);
      index->value = Value::integer(attribute.integer);
      item->children.push_back(std::move(index));
    } else {
      fail_at("expected name or number", attribute.line);
    }
    return finish(std::move(item));
  }
  ExprPtr key = make(Expr::Kind::kTuple, token.line);
  while (!current().is_operator("]")) {
    if (!key->children.empty()) expect_operator(",");
    key->children.push_back(parse_subscript_item());
  }
  expect_operator("]");
  if (key->children.size() == 1) {
    key = std::move(key->children[0]);
  } else {
    for (const ExprPtr& part : key->children) {
      if (part->kind == Expr::Kind::kSlice)
        fail_at("a slice inside a tuple of subscripts is not supported", token.line);
    }
    key = finish(std::move(key));
  }
  item->children.push_back(std::move(key));
  return finish(std::move(item));
}

ExprPtr Parser::parse_subscript_item() {
  const int line = current().line;
  ExprPtr start;
  if (!current().is_operator(":")) {
    start = parse_expression();
    if (!current().is_operator(":")) return start;
  }
  take();
  ExprPtr slice = make(Expr::Kind::kSlice, line);
  slice->children.push_back(std::move(start));
  const auto ends = [&] { return current().is_operator("]") || current().is_operator(","); };
  slice->children.push_back(current().is_operator(":") || ends() ? nullptr : parse_expression());
  slice->children.push_back(skip_operator(":") && !ends() ? parse_expression() : nullptr);
  return finish(std::move(slice));
}

void Parser::parse_call_args(Expr& call) {
  const int line = current().line;
  expect_operator("(");
  const auto ensure = [&](bool ok) {
    if (!ok) fail_at("invalid syntax for function call expression", line);
  };
  bool first = true;
  while (!current().is_operator(")")) {
    if (!first) {
      expect_operator(",");
      if (current().is_operator(")")) break;
    }
    first = false;
    if (skip_operator("*")) {
      ensure(!call.star && !call.double_star);
      call.star = parse_expression();
    } else if (skip_operator("**")) {
      ensure(!call.double_star);
      call.double_star = parse_expression();
    } else if (current().type == TokenType::kName && ahead().is_operator("=")) {
      ensure(!call.double_star);
      const std::string name = take().text;
      take();
      for (const auto& [other, value] : call.named) {
        if (other == name) fail_at("keyword argument repeated: " + name, line);
      }
      call.named.emplace_back(name, parse_expression());
    } else {
      ensure(!call.star && !call.double_star && call.named.empty());
      call.children.push_back(parse_expression());
    }
  }
  expect_operator(")");
}

ExprPtr Parser::parse_call(ExprPtr callee) {
  ExprPtr call = make(Expr::Kind::kCall, current().line);
  call->children.push_back(std::move(callee));
  parse_call_args(*call);
  return finish(std::move(call));
}

ExprPtr Parser::parse_filter(ExprPtr input, bool start_inline) {
  while (start_inline || current().is_operator("|")) {
    if (!start_inline) take();
    start_inline = false;
    ExprPtr filter = make(Expr::Kind::kFilter, current().line);
    filter->text = expect_name();
    while (skip_operator(".")) filter->text += "." + expect_name();
    filter->children.push_back(std::move(input));
    if (current().is_operator("(")) parse_call_args(*filter);
    input = finish(std::move(filter));
  }
  return input;
}

ExprPtr Parser::parse_test(ExprPtr expr) {
  const int line = take().line;
  const bool negated = skip_name("not");
  ExprPtr test = make(Expr::Kind::kTest, line);
  test->text = expect_name();
  while (skip_operator(".")) test->text += "." + expect_name();
  test->children.push_back(std::move(expr));
  const Token& next = current();
  const bool starts_operand = next.type == TokenType::kName || next.type == TokenType::kString ||
                              next.type == TokenType::kInteger || next.type == TokenType::kFloat ||
                              next.is_operator("[") || next.is_operator("{");
  if (next.is_operator("(")) {
    parse_call_args(*test);
  } else if (starts_operand && !next.is_name("else") && !next.is_name("or") && !next.is_name("and")) {
    if (next.is_name("is")) fail_at("You cannot chain multiple tests with is", next.line);
    test->children.push_back(parse_postfix(parse_primary()));
  }
  test = finish(std::move(test));
  if (!negated) return test;
  ExprPtr negation = make(Expr::Kind::kNot, line);
  negation->children.push_back(std::move(test));
  return finish(std::move(negation));
}

ExprPtr Parser::parse_target(const TupleRules& rules) {
  ExprPtr target = parse_tuple(rules);
  if (!can_assign(*target)) fail_at(std::string("can't assign to '") + kind_name(target->kind) + "'", target->line);
  set_context(*target, Expr::Context::kStore);
  return target;
}

ExprPtr Parser::parse_name_target(Expr::Context context) {
  ExprPtr target = make(Expr::Kind::kName, current().line);
  target->name = expect_name();
  for (const std::string_view constant : {"true", "false", "none", "True", "False", "None"}) {
    if (target->name == constant) fail_at("can't assign to 'name'", target->line);
  }
  target->context = context;
  return target;
}

}  // namespace vlcache::jinja
