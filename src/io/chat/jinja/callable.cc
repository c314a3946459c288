#include "io/chat/jinja/callable.h"

#include <algorithm>
#include <memory>

namespace vlcache::jinja {

Bound::Bound(std::string_view function, const Args& args, std::initializer_list<std::string_view> names,
             size_t n_required)
    : function_(function), values_(names.size()) {
  if (args.positional.size() > names.size()) {
    fail(function_ + "() takes at most " + std::to_string(names.size()) + " arguments (" +
         std::to_string(args.positional.size()) + " given)");
  }
  std::copy(args.positional.begin(), args.positional.end(), values_.begin());
  for (const auto& [name, value] : args.named) {
    const auto it = std::find(names.begin(), names.end(), name);
    if (it == names.end()) fail(function_ + "() got an unexpected keyword argument '" + name + "'");
    Value& slot = values_[static_cast<size_t>(it - names.begin())];
    if (!slot.is_missing()) fail(function_ + "() got multiple values for argument '" + name + "'");
    slot = value;
  }
  for (size_t i = 0; i < n_required; ++i) {
    if (values_[i].is_missing()) {
      fail(function_ + "() missing required argument: '" + std::string(names.begin()[i]) + "'");
    }
  }
}

int64_t Bound::integer(size_t i, int64_t fallback) const {
  if (!given(i)) return fallback;
  if (values_[i].is_undefined()) fail_undefined(values_[i]);
  if (!values_[i].is_integral()) {
    fail(function_ + "(): '" + type_name(values_[i]) + "' object cannot be interpreted as an integer");
  }
  return values_[i].as_int();
}

Value make_function(std::string name, std::function<Value(Runtime&, Args&)> body, int depth) {
  auto function = std::make_shared<Function>();
  function->name = std::move(name);
  function->body = std::move(body);
  function->depth = depth;
  return Value::object(Type::kCallable, std::move(function));
}

bool Loop::peek(Value& item) {
  if (after.is_missing() && !pull(after)) {
    after = Value();
    return false;
  }
  item = after;
  return true;
}

bool Loop::next(Value& item) {
  Value value = after;
  after = Value();
  if (value.is_missing() && !pull(value)) return false;
  ++index0;
  before = current;
  current = value;
  item = value;
  return true;
}

int64_t Loop::length() {
  if (known_length >= 0) return known_length;
  if (has_length(iterable) && !iterable.is(Type::kLoop)) return known_length = vlcache::jinja::length(iterable);
  std::vector<Value> rest;
  for (Value v; pull(v);) rest.push_back(v);
  known_length = static_cast<int64_t>(rest.size()) + index0 + 1 + (after.is_missing() ? 0 : 1);
  pull = [rest = std::move(rest), i = size_t{0}](Value& out) mutable {
    if (i >= rest.size()) return false;
    out = rest[i++];
    return true;
  };
  return known_length;
}

}  // namespace vlcache::jinja
