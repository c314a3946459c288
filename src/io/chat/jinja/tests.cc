// The tests of jinja2: what may follow `is`.
#include <unordered_map>

#include "io/chat/jinja/filters.h"
#include "io/chat/jinja/number.h"
#include "io/chat/jinja/text.h"

namespace vlcache::jinja {
namespace {

bool modulo_is(Runtime& rt, const Value& v, const Value& divisor, int64_t remainder) {
  return equals(apply_binary(rt, BinaryOp::kMod, v, divisor), Value::integer(remainder));
}

bool is_odd(Runtime& rt, const Value& v, const Args&) { return modulo_is(rt, v, Value::integer(2), 1); }
bool is_even(Runtime& rt, const Value& v, const Args&) { return modulo_is(rt, v, Value::integer(2), 0); }
bool is_divisible(Runtime& rt, const Value& v, const Args& args) {
  return modulo_is(rt, v, Bound("divisibleby", args, {"num"}, 1).at(0), 0);
}
bool is_defined(Runtime&, const Value& v, const Args&) { return !v.is_undefined(); }
bool is_undefined(Runtime&, const Value& v, const Args&) { return v.is_undefined(); }
bool is_filter(Runtime&, const Value& v, const Args&) { return v.is_string() && find_filter(v.text()) != nullptr; }
bool is_test(Runtime&, const Value& v, const Args&) { return v.is_string() && find_test(v.text()) != nullptr; }
bool is_none(Runtime&, const Value& v, const Args&) { return v.is_none(); }
bool is_boolean(Runtime&, const Value& v, const Args&) { return v.is(Type::kBool); }
bool is_false(Runtime&, const Value& v, const Args&) { return v.is(Type::kBool) && v.as_int() == 0; }
bool is_true(Runtime&, const Value& v, const Args&) { return v.is(Type::kBool) && v.as_int() != 0; }
bool is_integer(Runtime&, const Value& v, const Args&) { return v.is(Type::kInt); }
bool is_float(Runtime&, const Value& v, const Args&) { return v.is(Type::kFloat); }
bool is_lower_text(Runtime&, const Value& v, const Args&) { return is_lower(to_str(v)); }
bool is_upper_text(Runtime&, const Value& v, const Args&) { return is_upper(to_str(v)); }
bool is_string(Runtime&, const Value& v, const Args&) { return v.is_string() && !v.is_digits(); }
bool is_mapping(Runtime&, const Value& v, const Args&) { return v.is_dict(); }
bool is_number(Runtime&, const Value& v, const Args&) { return v.is_number() || v.is_digits(); }
// Anything with len() and []: an undefined value has both.
bool is_sequence(Runtime&, const Value& v, const Args&) {
  return v.is_undefined() || v.is_string() || v.is_list_or_tuple() || v.is_dict() || v.is(Type::kRange);
}
bool is_iterable_value(Runtime&, const Value& v, const Args&) { return is_iterable(v); }
bool is_callable(Runtime&, const Value& v, const Args&) {
  return v.is(Type::kCallable) || v.is(Type::kLoop) || v.is(Type::kJoiner) || v.is_undefined();
}
bool is_same(Runtime&, const Value& v, const Args& args) {
  return same_object(v, Bound("sameas", args, {"other"}, 1).at(0));
}
bool is_escaped(Runtime&, const Value& v, const Args&) { return v.is_markup(); }

Value other(Runtime& rt, const Value& v, const Args& args, const char* name) {
  const Value b = Bound(name, args, {"b"}, 1).at(0);
  rt.charge_steps(std::min(v.weight(), b.weight()));
  return b;
}

bool is_in(Runtime& rt, const Value& v, const Args& args) {
  const Value sequence = Bound("in", args, {"seq"}, 1).at(0);
  rt.charge_steps(sequence.weight());
  return contains(sequence, v);
}
bool is_equal(Runtime& rt, const Value& v, const Args& args) { return equals(v, other(rt, v, args, "eq")); }
bool is_unequal(Runtime& rt, const Value& v, const Args& args) { return !equals(v, other(rt, v, args, "ne")); }
bool is_greater(Runtime& rt, const Value& v, const Args& args) { return less(other(rt, v, args, "gt"), v); }
bool is_less(Runtime& rt, const Value& v, const Args& args) { return less(v, other(rt, v, args, "lt")); }
bool is_greater_equal(Runtime& rt, const Value& v, const Args& args) {
  return compare_values(CompareOp::kGe, v, other(rt, v, args, "ge"));
}
bool is_less_equal(Runtime& rt, const Value& v, const Args& args) {
  return compare_values(CompareOp::kLe, v, other(rt, v, args, "le"));
}

}  // namespace

const TestFunction* find_test(std::string_view name) {
  static const std::unordered_map<std::string_view, TestFunction> table = {
      {"odd", is_odd},
      {"even", is_even},
      {"divisibleby", is_divisible},
      {"defined", is_defined},
      {"undefined", is_undefined},
      {"filter", is_filter},
      {"test", is_test},
      {"none", is_none},
      {"boolean", is_boolean},
      {"false", is_false},
      {"true", is_true},
      {"integer", is_integer},
      {"float", is_float},
      {"lower", is_lower_text},
      {"upper", is_upper_text},
      {"string", is_string},
      {"mapping", is_mapping},
      {"number", is_number},
      {"sequence", is_sequence},
      {"iterable", is_iterable_value},
      {"callable", is_callable},
      {"sameas", is_same},
      {"escaped", is_escaped},
      {"in", is_in},
      {"==", is_equal},
      {"eq", is_equal},
      {"equalto", is_equal},
      {"!=", is_unequal},
      {"ne", is_unequal},
      {">", is_greater},
      {"gt", is_greater},
      {"greaterthan", is_greater},
      {">=", is_greater_equal},
      {"ge", is_greater_equal},
      {"<", is_less},
      {"lt", is_less},
      {"lessthan", is_less},
      {"<=", is_less_equal},
      {"le", is_less_equal},
  };
  const auto it = table.find(name);
  return it == table.end() ? nullptr : &it->second;
}

}  // namespace vlcache::jinja
