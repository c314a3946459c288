#include <algorithm>

#include "io/chat/jinja/interpreter.h"

namespace vlcache::jinja {

Value Interpreter::eval(const Expr& e, Activation* a) {
  switch (e.kind) {
    case Expr::Kind::kConst:
      return e.value;
    case Expr::Kind::kName:
      return eval_name(e, a);
    default:
      break;
  }
  const Depth depth(*this);
  charge_steps(1);
  switch (e.kind) {
    case Expr::Kind::kTuple:
      return Value::tuple(eval_all(e.children, 0, a));
    case Expr::Kind::kList:
      return new_list(eval_all(e.children, 0, a));
    case Expr::Kind::kDict:
      return eval_dict(e, a);
    case Expr::Kind::kAttribute: {
      const Value object = eval(*e.children[0], a);
      line_ = e.line;
      return get_attribute(object, e.text);
    }
    case Expr::Kind::kItem:
      return eval_item(e, a);
    case Expr::Kind::kCall:
      return eval_call(e, a, nullptr);
    case Expr::Kind::kFilter:
      return eval_filter(e, a, nullptr);
    default:
      return eval_operation(e, a);
  }
}

Value Interpreter::eval_operation(const Expr& e, Activation* a) {
  switch (e.kind) {
    case Expr::Kind::kTest: {
      const Value value = eval(*e.children[0], a);
      Args args{eval_all(e.children, 1, a), {}};
      Args more = eval_args(e, a);
      args.positional.insert(args.positional.end(), more.positional.begin(), more.positional.end());
      args.named = std::move(more.named);
      line_ = e.line;
      if (find_test(e.text) == nullptr) fail("No test named '" + e.text + "' found.");
      return Value::boolean(call_test(e.text, value, args));
    }
    case Expr::Kind::kNegative:
      return apply_negative(eval(*e.children[0], a));
    case Expr::Kind::kPositive:
      return apply_positive(eval(*e.children[0], a));
    case Expr::Kind::kNot:
      return Value::boolean(!truthy(eval(*e.children[0], a)));
    case Expr::Kind::kBinary: {
      const Value left = eval(*e.children[0], a);
      const Value right = eval(*e.children[1], a);
      line_ = e.line;
      return apply_binary(*this, e.binary, left, right);
    }
    case Expr::Kind::kConcat:
      return eval_concat(e, a);
    case Expr::Kind::kAnd: {
      const Value left = eval(*e.children[0], a);
      return truthy(left) ? eval(*e.children[1], a) : left;
    }
    case Expr::Kind::kOr: {
      const Value left = eval(*e.children[0], a);
      return truthy(left) ? left : eval(*e.children[1], a);
    }
    case Expr::Kind::kCompare:
      return Value::boolean(eval_compare(e, a));
    case Expr::Kind::kConditional:
      if (truthy(eval(*e.children[0], a))) return eval(*e.children[1], a);
      if (e.children[2]) return eval(*e.children[2], a);
      return Value::undefined("the inline if-expression on line " + std::to_string(e.line) +
                              " evaluated to false and no else section was defined.");
    default:
      fail("a slice outside of brackets");
  }
}

Value Interpreter::eval_name(const Expr& e, Activation* a) {
  const Value& value = slot(a, e.ref);
  return value.is_missing() ? Value::undefined("'" + e.name + "' is undefined") : value;
}

Value Interpreter::eval_item(const Expr& e, Activation* a) {
  const Value object = eval(*e.children[0], a);
  const Expr& key = *e.children[1];
  if (key.kind != Expr::Kind::kSlice) {
    const Value k = eval(key, a);
    line_ = e.line;
    return get_item(object, k);
  }
  const auto bound = [&](size_t i) { return key.children[i] ? eval(*key.children[i], a) : Value::none(); };
  const SliceBounds bounds{bound(0), bound(1), bound(2)};
  line_ = e.line;
  if (!object.is_undefined() && has_length(object) && !object.is(Type::kLoop))
    charge_bytes(object.is_string() ? static_cast<int64_t>(object.text().size()) : length(object) * 16);
  return slice(object, bounds);
}

std::vector<Value> Interpreter::eval_all(const std::vector<ExprPtr>& list, size_t from, Activation* a) {
  std::vector<Value> values;
  for (size_t i = from; i < list.size(); ++i) values.push_back(eval(*list[i], a));
  return values;
}

// The named, * and ** arguments of a call, filter or test.
Args Interpreter::eval_args(const Expr& e, Activation* a) {
  Args args;
  for (const auto& [name, value] : e.named) args.named.emplace_back(name, eval(*value, a));
  if (e.star) {
    const Value star = eval(*e.star, a);
    if (!is_iterable(star)) fail("argument after * must be an iterable, not " + type_name(star));
    args.positional = collect(star);
  }
  if (e.double_star) {
    const Value named = eval(*e.double_star, a);
    if (!named.is_dict()) fail("argument after ** must be a mapping, not " + type_name(named));
    for (const auto& [key, value] : named.as<Dict>().entries) {
      if (!key.is_string()) fail("keywords must be strings");
      for (const auto& [other, unused] : args.named) {
        if (other == key.text()) fail("got multiple values for keyword argument '" + other + "'");
      }
      args.named.emplace_back(key.text(), value);
    }
  }
  return args;
}

Value Interpreter::eval_call(const Expr& e, Activation* a, const Value* caller) {
  const Value callee = eval(*e.children[0], a);
  Args args{eval_all(e.children, 1, a), {}};
  Args more = eval_args(e, a);
  args.positional.insert(args.positional.end(), more.positional.begin(), more.positional.end());
  args.named = std::move(more.named);
  if (caller != nullptr) args.named.emplace_back("caller", *caller);
  line_ = e.line;
  return call(callee, args);
}

Value Interpreter::eval_filter(const Expr& e, Activation* a, const Value* input) {
  const Value value = e.children[0] == nullptr ? *input
                      : input != nullptr && e.children[0]->kind == Expr::Kind::kFilter
                          ? eval_filter(*e.children[0], a, input)
                          : eval(*e.children[0], a);
  Args args{eval_all(e.children, 1, a), {}};
  Args more = eval_args(e, a);
  args.positional.insert(args.positional.end(), more.positional.begin(), more.positional.end());
  args.named = std::move(more.named);
  line_ = e.line;
  if (find_filter(e.text) == nullptr) fail("No filter named '" + e.text + "' found.");
  return call_filter(e.text, value, args);
}

Value Interpreter::eval_dict(const Expr& e, Activation* a) {
  std::vector<std::pair<Value, Value>> entries;
  for (size_t i = 0; i + 1 < e.children.size(); i += 2) {
    Value key = eval(*e.children[i], a);
    entries.emplace_back(std::move(key), eval(*e.children[i + 1], a));
  }
  charge_bytes(static_cast<int64_t>(entries.size() * 2 * sizeof(Value)));
  return make_dict(std::move(entries));
}

bool Interpreter::eval_compare(const Expr& e, Activation* a) {
  Value left = eval(*e.children[0], a);
  for (size_t i = 0; i < e.compares.size(); ++i) {
    Value right = eval(*e.children[i + 1], a);
    line_ = e.line;
    const bool membership = e.compares[i] == CompareOp::kIn || e.compares[i] == CompareOp::kNotIn;
    charge_steps(membership ? right.weight() : std::min(left.weight(), right.weight()));
    if (!compare_values(e.compares[i], left, right)) return false;
    left = std::move(right);
  }
  return true;
}

Value Interpreter::eval_concat(const Expr& e, Activation* a) {
  std::string out;
  for (const ExprPtr& part : e.children) {
    out += to_str(eval(*part, a));
    if (static_cast<int64_t>(out.size()) > limits_.max_output_bytes) fail_limit("~ makes too long a text");
  }
  return new_string(std::move(out));
}

}  // namespace vlcache::jinja
