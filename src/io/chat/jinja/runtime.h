// Runtime: gives filters, tests, methods and globals what they need of the interpreter: limits, calls, attribute
// access.
#pragma once

#include <cstdint>
#include <ctime>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/chat/jinja/callable.h"
#include "io/chat/jinja/value.h"

namespace vlcache::jinja {

// Bounds on what one rendering may cost. A template comes with a checkpoint and is not trusted.
struct Limits {
  int64_t max_steps = 50'000'000;                  // nodes evaluated and items visited
  int64_t max_output_bytes = int64_t{64} << 20;    // the rendered text, and any one string
  int64_t max_allocated_bytes = int64_t{2} << 30;  // all strings and lists created, alive or not
  int max_depth = 800;                             // nested evaluations: macros calling macros
  int64_t max_closures = 100'000;                  // namespaces and scopes kept until the end
};

class Runtime {
 public:
  Runtime(const Limits& limits, std::optional<std::tm> now) : limits_(limits), now_(now) {}
  virtual ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  // Charges n units of work, or n bytes to be allocated, in advance. Throws kLimit.
  void charge_steps(int64_t n) {
    if ((steps_ += n) > limits_.max_steps)
      fail_limit("the template does more than " + std::to_string(limits_.max_steps) + " steps");
  }
  void charge_bytes(int64_t n);
  Value new_string(std::string text, bool markup = false);
  Value new_list(std::vector<Value> items);
  // Objects that may refer to themselves are emptied when the rendering ends.
  void track(ObjectPtr object);

  // Charges each item, since a template may create an iterator without end.
  std::vector<Value> collect(const Value& iterable);

  Value call(const Value& callee, Args& args);
  Value call_filter(const std::string& name, const Value& value, const Args& args);
  bool call_test(const std::string& name, const Value& value, const Args& args);
  Value get_attribute(const Value& object, const std::string& name);  // a.b
  Value get_item(const Value& object, const Value& key);              // a[b]
  virtual Value call_macro(const Macro& macro, Args& args) = 0;
  virtual Value call_loop(Loop& loop, const Value& iterable) = 0;

  const Limits& limits() const { return limits_; }
  const std::optional<std::tm>& now() const { return now_; }

 protected:
  Limits limits_;

 private:
  std::optional<std::tm> now_;
  int64_t steps_ = 0;
  int64_t bytes_ = 0;
  std::vector<ObjectPtr> tracked_;
};

using FilterFunction = Value (*)(Runtime&, const Value&, const Args&);
using TestFunction = bool (*)(Runtime&, const Value&, const Args&);
const FilterFunction* find_filter(std::string_view name);  // null: no such filter
const TestFunction* find_test(std::string_view name);

// The method or property `name` of `object`: missing if it has none.
Value find_method(const Value& object, const std::string& name);
// str.<name>(...): throws for an unknown method.
bool is_string_method(std::string_view name);
Value call_string_method(Runtime& runtime, const Value& self, const std::string& name, const Args& args);

// range, dict, namespace, joiner, raise_exception, strftime_now, and those of Jinja that are left out, which throw when
// they are called; missing if it is none of them.
Value find_global(std::string_view name);
// Throws for a name that a namespace rejects (a leading underscore).
void check_namespace_name(const std::string& name);

enum class BinaryOp { kAdd, kSub, kMul, kDiv, kFloorDiv, kMod, kPow };
Value apply_binary(Runtime& runtime, BinaryOp op, const Value& left, const Value& right);
enum class CompareOp { kEq, kNe, kLt, kLe, kGt, kGe, kIn, kNotIn };
bool compare_values(CompareOp op, const Value& a, const Value& b);
Value apply_negative(const Value& v);
Value apply_positive(const Value& v);
Value concat_strings(Runtime& runtime, const Value& left, const Value& right);  // str + str, Markup's rules

// "%s" % args and "{}".format(...).
Value format_percent(Runtime& runtime, const Value& format, const Value& args);
Value format_braces(Runtime& runtime, const Value& format, const Args& args);
// format(value, spec)
std::string format_value(const Value& value, std::string_view spec);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  bool pretty = false;
  std::string indent;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
// json.dumps(value)
std::string dump_json(Runtime& runtime, const Value& value, const JsonStyle& style);

}  // namespace vlcache::jinja
