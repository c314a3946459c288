// Applies + - * / // % ** to values, with Python's types and errors.
#include <cmath>

#include "base/escape_html.h"
#include "io/chat/jinja/number.h"
#include "io/chat/jinja/runtime.h"
#include "io/chat/jinja/text.h"

namespace vlcache::jinja {
namespace {

const char* symbol(BinaryOp op) {
  switch (op) {
    case BinaryOp::kAdd:
      return "+";
    case BinaryOp::kSub:
      return "-";
    case BinaryOp::kMul:
      return "*";
    case BinaryOp::kDiv:
      return "/";
    case BinaryOp::kFloorDiv:
      return "//";
    case BinaryOp::kMod:
      return "%";
    case BinaryOp::kPow:
      return "** or pow()";
  }
  return "?";
}

Value int_power(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) fail("0.0 cannot be raised to a negative power");
    return Value::real(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  if (base == 0 || base == 1 || base == -1) {
    const int64_t sign = base == -1 && exponent % 2 != 0 ? -1 : 1;
    return Value::integer(exponent == 0 ? 1 : base == 0 ? 0 : sign);
  }
  int64_t result = 1;
  for (int64_t i = 0; i < exponent; ++i) result = checked_mul(result, base);  // overflows within 63 steps
  return Value::integer(result);
}

Value int_op(BinaryOp op, int64_t a, int64_t b) {
  switch (op) {
    case BinaryOp::kAdd:
      return Value::integer(checked_add(a, b));
    case BinaryOp::kSub:
      return Value::integer(checked_sub(a, b));
    case BinaryOp::kMul:
      return Value::integer(checked_mul(a, b));
    case BinaryOp::kPow:
      return int_power(a, b);
    default:
      break;
  }
  if (b == 0)
    fail(op == BinaryOp::kDiv   ? "division by zero"
         : op == BinaryOp::kMod ? "integer modulo by zero"
                                : "integer division or modulo by zero");
  if (op == BinaryOp::kDiv)
    return Value::real(static_cast<double>(static_cast<long double>(a) / static_cast<long double>(b)));
  return Value::integer(op == BinaryOp::kFloorDiv ? floor_div(a, b) : floor_mod(a, b));
}

double float_mod(double a, double b) {
  double r = std::fmod(a, b);
  if (r == 0) return std::copysign(0.0, b);
  return (r < 0) != (b < 0) ? r + b : r;
}

Value float_op(BinaryOp op, double a, double b) {
  switch (op) {
    case BinaryOp::kAdd:
      return Value::real(a + b);
    case BinaryOp::kSub:
      return Value::real(a - b);
    case BinaryOp::kMul:
      return Value::real(a * b);
    case BinaryOp::kPow: {
      if (a == 0 && b < 0) fail("0.0 cannot be raised to a negative power");
      if (a < 0 && std::isfinite(b) && b != std::floor(b))
        fail_unsupported("a complex number (negative base, fractional power)");
      const double r = std::pow(a, b);
      if (std::isinf(r) && std::isfinite(a) && std::isfinite(b)) fail("(34, 'Numerical result out of range')");
      return Value::real(r);
    }
    default:
      break;
  }
  if (b == 0)
    fail(op == BinaryOp::kDiv   ? "float division by zero"
         : op == BinaryOp::kMod ? "float modulo"
                                : "float floor division by zero");
  if (op == BinaryOp::kDiv) return Value::real(a / b);
  if (op == BinaryOp::kMod) return Value::real(float_mod(a, b));
  return Value::real(std::round((a - float_mod(a, b)) / b));
}

Value repeat(Runtime& runtime, const Value& v, int64_t times) {
  times = std::max<int64_t>(times, 0);
  if (v.is_string()) {
    const auto size = static_cast<int64_t>(v.text().size());
    if (size != 0 && times > runtime.limits().max_output_bytes / size) fail_limit("a repeated text is too long");
    runtime.charge_bytes(size * times);
    std::string out;
    out.reserve(static_cast<size_t>(size * times));
    if (size != 0) {
      for (int64_t i = 0; i < times; ++i) out += v.text();
    }
    return Value::string(std::move(out), v.is_markup());
  }
  const auto size = static_cast<int64_t>(v.items().size());
  if (size != 0 && times > 10'000'000 / size) fail_limit("a repeated list is too long");
  runtime.charge_bytes(size * times * static_cast<int64_t>(sizeof(Value)));
  std::vector<Value> items;
  if (size != 0) {
    for (int64_t i = 0; i < times; ++i) items.insert(items.end(), v.items().begin(), v.items().end());
  }
  return v.is(Type::kTuple) ? Value::tuple(std::move(items)) : Value::list(std::move(items));
}

}  // namespace

Value concat_strings(Runtime& runtime, const Value& left, const Value& right) {
  const bool markup = left.is_markup() || right.is_markup();
  const auto part = [&](const Value& v) { return markup && !v.is_markup() ? escape_html(v.text()) : v.text(); };
  runtime.charge_bytes(static_cast<int64_t>(left.text().size() + right.text().size()));
  std::string out = part(left);
  out += part(right);
  return runtime.new_string(std::move(out), markup);
}

Value apply_binary(Runtime& runtime, BinaryOp op, const Value& left, const Value& right) {
  if (left.is_integral() && right.is_integral()) return int_op(op, left.as_int(), right.as_int());
  if (left.is_number() && right.is_number()) return float_op(op, left.as_double(), right.as_double());
  if (op == BinaryOp::kMod && left.is_string()) return format_percent(runtime, left, right);
  if (left.is_undefined()) fail_undefined(left);
  if (right.is_undefined()) fail_undefined(right);
  if (op == BinaryOp::kAdd) {
    if (left.is_string() && right.is_string()) return concat_strings(runtime, left, right);
    if (left.type() == right.type() && left.is_list_or_tuple()) {
      runtime.charge_bytes(static_cast<int64_t>((left.items().size() + right.items().size()) * sizeof(Value)));
      std::vector<Value> items = left.items();
      items.insert(items.end(), right.items().begin(), right.items().end());
      return left.is(Type::kTuple) ? Value::tuple(std::move(items)) : Value::list(std::move(items));
    }
    if (left.is_string() || left.is_list_or_tuple()) {
      const std::string name = type_name(left) == "Markup" ? "str" : type_name(left);
      fail("can only concatenate " + name + " (not \"" + type_name(right) + "\") to " + name);
    }
  }
  if (op == BinaryOp::kMul) {
    if (right.is_integral() && (left.is_string() || left.is_list_or_tuple()))
      return repeat(runtime, left, right.as_int());
    if (left.is_integral() && (right.is_string() || right.is_list_or_tuple()))
      return repeat(runtime, right, left.as_int());
    if (left.is_string() || left.is_list_or_tuple()) {
      fail("can't multiply sequence by non-int of type '" + type_name(right) + "'");
    }
  }
  fail(std::string("unsupported operand type(s) for ") + symbol(op) + ": '" + type_name(left) + "' and '" +
       type_name(right) + "'");
}

bool compare_values(CompareOp op, const Value& a, const Value& b) {
  switch (op) {
    case CompareOp::kEq:
      return equals(a, b);
    case CompareOp::kNe:
      return !equals(a, b);
    case CompareOp::kLt:
      return less(a, b);
    case CompareOp::kGt:
      return less(b, a);
    case CompareOp::kLe:
      return less(a, b) || equals(a, b);
    case CompareOp::kGe:
      return less(b, a) || equals(a, b);
    case CompareOp::kIn:
      return contains(b, a);
    case CompareOp::kNotIn:
      return !contains(b, a);
  }
  return false;
}

Value apply_negative(const Value& v) {
  if (v.is_undefined()) fail_undefined(v);
  if (v.is(Type::kFloat)) return Value::real(-v.as_double());
  if (!v.is_integral()) fail("bad operand type for unary -: '" + type_name(v) + "'");
  return Value::integer(checked_sub(0, v.as_int()));
}

Value apply_positive(const Value& v) {
  if (v.is_undefined()) fail_undefined(v);
  if (!v.is_number()) fail("bad operand type for unary +: '" + type_name(v) + "'");
  return v.is(Type::kBool) ? Value::integer(v.as_int()) : v;
}

}  // namespace vlcache::jinja
