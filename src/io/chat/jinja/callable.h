// Defines values that can be called, the arguments of a call, and the `loop` object.
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "io/chat/jinja/value.h"

namespace vlcache::jinja {

class Runtime;
struct Statement;
struct Activation;

struct Args {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// Arguments matched to parameter names as in Python; throws TypeError's text for too many, unknown, double or missing
// arguments.
class Bound {
 public:
  Bound(std::string_view function, const Args& args, std::initializer_list<std::string_view> names,
        size_t n_required = 0);
  bool given(size_t i) const { return !values_[i].is_missing(); }
  Value get(size_t i, const Value& fallback) const { return given(i) ? values_[i] : fallback; }
  const Value& at(size_t i) const { return values_[i]; }
  int64_t integer(size_t i, int64_t fallback) const;  // throws unless an int
  bool flag(size_t i, bool fallback) const { return given(i) ? truthy(values_[i]) : fallback; }

 private:
  std::string function_;
  std::vector<Value> values_;
};

struct Callable : Object {
  std::string name;
  virtual Value call(Runtime& runtime, Args& args) = 0;
  virtual std::string kind_name() const { return "function"; }
};

struct Function : Callable {
  std::function<Value(Runtime&, Args&)> body;
  Value call(Runtime& runtime, Args& args) override { return body(runtime, args); }
};
Value make_function(std::string name, std::function<Value(Runtime&, Args&)> body, int depth = 0);

// A macro, or the `caller` of a call block. The activation lives as long as the rendering.
struct Macro : Callable {
  const Statement* node = nullptr;
  Activation* closure = nullptr;
  Value call(Runtime& runtime, Args& args) override;
  std::string kind_name() const override { return "Macro"; }
};

// jinja2's LoopContext.
struct Loop : Object, std::enable_shared_from_this<Loop> {
  Value iterable;  // for its length
  std::function<bool(Value&)> pull;
  int64_t index0 = -1;
  int64_t known_length = -1;
  int64_t depth0 = 0;
  Value before, current, after;  // missing at the ends
  Value last_changed;
  const Statement* recurse = nullptr;  // the recursive for statement
  Activation* closure = nullptr;

  bool next(Value& item);
  bool peek(Value& item);
  int64_t length();
};

}  // namespace vlcache::jinja
