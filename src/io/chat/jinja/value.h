// Value: a Python value as templates see it. Lists, tuples and dicts never change once created (the sandbox forbids
// it), so values share them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/keyed_hash.h"

namespace vlcache::jinja {

// An error that Python would have raised. The interpreter turns it into an Error with the line.
struct RenderError : std::runtime_error {
  enum class Kind { kError, kRaised /* raise_exception */, kUnsupported, kLimit };
  explicit RenderError(const std::string& message, Kind k = Kind::kError) : std::runtime_error(message), kind(k) {}
  Kind kind;
};
[[noreturn]] void fail(const std::string& message);
[[noreturn]] void fail_unsupported(const std::string& what);
[[noreturn]] void fail_left_out(const std::string& what);  // Jinja has it, this program does not
[[noreturn]] void fail_limit(const std::string& what);

enum class Type : uint8_t {
  kMissing,  // a variable that was never set; never seen by an expression
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,
  kTuple,
  kDict,
  kView,  // dict.keys(), .values(), .items()
  kRange,
  kIterator,  // generators: map, select, reverse, ...
  kNamespace,
  kCallable,  // builtin functions, bound methods, macros
  kLoop,
  kJoiner,
};

// Heap part of a value. `depth` is how deep containers nest below it and `weight` how many values a walk over it visits
// (shared ones count each time), so that recursion and work over values stay bounded.
struct Object {
  virtual ~Object() = default;
  int depth = 0;
  int64_t weight = 1;
};
using ObjectPtr = std::shared_ptr<Object>;

struct String;
struct Sequence;
struct Dict;
struct View;
struct Range;
struct Iterator;
struct Namespace;
struct Callable;
struct Loop;
struct Joiner;
struct UndefinedInfo;

// size: a maker and a question for each type that templates know.
class Value {
 public:
  Value() = default;  // kMissing
  static Value none();
  static Value boolean(bool b);
  static Value integer(int64_t i);
  static Value real(double d);
  static Value string(std::string text, bool markup = false);
  // An integer beyond 64 bits: its digits, printed as a number.
  static Value digits(std::string digits);
  static Value list(std::vector<Value> items);
  static Value tuple(std::vector<Value> items);
  static Value undefined(std::string message);
  static Value object(Type type, ObjectPtr object);

  Type type() const { return type_; }
  bool is(Type t) const { return type_ == t; }
  bool is_missing() const { return type_ == Type::kMissing; }
  bool is_undefined() const { return type_ == Type::kUndefined; }
  bool is_none() const { return type_ == Type::kNone; }
  bool is_string() const { return type_ == Type::kString; }
  bool is_markup() const;
  bool is_digits() const;
  bool is_dict() const { return type_ == Type::kDict; }
  bool is_list_or_tuple() const { return type_ == Type::kList || type_ == Type::kTuple; }
  bool is_integral() const { return type_ == Type::kInt || type_ == Type::kBool; }
  bool is_number() const { return is_integral() || type_ == Type::kFloat; }

  int64_t as_int() const { return int_; }  // kInt, kBool
  double as_double() const { return type_ == Type::kFloat ? double_ : static_cast<double>(int_); }
  const std::string& text() const;
  const std::vector<Value>& items() const;  // kList, kTuple
  template <class T>
  T& as() const {
    return static_cast<T&>(*object_);
  }
  const Object* identity() const { return object_.get(); }
  int depth() const { return object_ ? object_->depth : 0; }
  int64_t weight() const { return object_ ? object_->weight : 1; }

 private:
  Type type_ = Type::kMissing;
  union {
    int64_t int_ = 0;
    double double_;
  };
  ObjectPtr object_;
};

struct String : Object {
  std::string text;
  int64_t n_code_points = 0;
  bool markup = false;  // markupsafe.Markup: escapes what is added to it
  bool digits = false;  // an integer beyond 64 bits
  bool ascii() const { return n_code_points == static_cast<int64_t>(text.size()); }
};

struct Sequence : Object {
  std::vector<Value> items;
  bool is_group = false;  // a groupby tuple: .grouper and .list
};

struct UndefinedInfo : Object {
  std::string message;
};

// Keeps insertion order; keys follow Python's equality (1 == 1.0 == True).
struct Dict : Object {
  std::vector<std::pair<Value, Value>> entries;
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  void set(const Value& key, const Value& value);  // throws for an unhashable key

 private:
  int64_t position(const Value& key) const;
  std::unordered_multimap<size_t, size_t> index_;
};

struct View : Object {
  enum class Part { kKeys, kValues, kItems };
  Part part;
  Value dict;
};

struct Range : Object {
  int64_t start, stop, step, size;
  Value at(int64_t i) const { return Value::integer(start + i * step); }
};

// A Python iterator: consumed once. `pull` returns false at the end.
struct Iterator : Object {
  std::function<bool(Value&)> pull;
};

struct Namespace : Object {
  Value attributes;  // kDict, copied on write
  void set(const std::string& name, const Value& value);
};

struct Joiner : Object {
  Value separator;
  bool used = false;
};

// By name.
using Variables = std::unordered_map<std::string, Value, KeyedHash>;

std::string type_name(const Value& v);  // Python's type(v).__name__
bool truthy(const Value& v);
bool equals(const Value& a, const Value& b);
bool same_object(const Value& a, const Value& b);  // Python's `is`
size_t hash_of(const Value& v);                    // throws TypeError's text for list and dict
bool hashable(const Value& v);
bool less(const Value& a, const Value& b);  // throws for types that have no order
std::string to_str(const Value& v);         // str(v)
std::string to_repr(const Value& v);
bool is_iterable(const Value& v);
bool has_length(const Value& v);
int64_t length(const Value& v);  // len(v); throws
bool contains(const Value& container, const Value& item);
Value make_dict(std::vector<std::pair<Value, Value>> entries);
// An iterator over v; throws if v is not iterable. An Iterator value is itself consumed.
std::function<bool(Value&)> iterate(const Value& v);
std::vector<Value> to_vector(const Value& v);
Value make_iterator(std::function<bool(Value&)> pull, int depth);
// Slices resolve as Python's slice.indices(); none = absent.
struct SliceBounds {
  Value start = Value::none(), stop = Value::none(), step = Value::none();
};
Value slice(const Value& v, const SliceBounds& bounds);
// Raises the error that any use of an undefined value raises.
[[noreturn]] void fail_undefined(const Value& undefined);

}  // namespace vlcache::jinja
