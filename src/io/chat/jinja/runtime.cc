#include "io/chat/jinja/runtime.h"

#include <algorithm>
#include <unordered_map>

#include "io/chat/jinja/filters.h"

namespace vlcache::jinja {

Runtime::~Runtime() {
  // Namespaces and loops may hold themselves; emptied one by one, nothing nests when they are freed.
  for (const ObjectPtr& object : tracked_) {
    if (auto* ns = dynamic_cast<Namespace*>(object.get())) ns->attributes = Value();
    if (auto* loop = dynamic_cast<Loop*>(object.get())) loop->last_changed = Value();
  }
}

void Runtime::charge_bytes(int64_t n) {
  if (n > limits_.max_output_bytes)
    fail_limit("a value of more than " + std::to_string(limits_.max_output_bytes) + " bytes");
  bytes_ += n;
  if (bytes_ > limits_.max_allocated_bytes) {
    fail_limit("the template makes more than " + std::to_string(limits_.max_allocated_bytes) + " bytes of values");
  }
}

Value Runtime::new_string(std::string text, bool markup) {
  charge_bytes(static_cast<int64_t>(text.size()));
  return Value::string(std::move(text), markup);
}

Value Runtime::new_list(std::vector<Value> items) {
  charge_bytes(static_cast<int64_t>(items.size() * sizeof(Value)));
  return Value::list(std::move(items));
}

void Runtime::track(ObjectPtr object) {
  if (static_cast<int64_t>(tracked_.size()) >= limits_.max_closures) {
    fail_limit("the template makes more than " + std::to_string(limits_.max_closures) + " namespaces");
  }
  tracked_.push_back(std::move(object));
}

std::vector<Value> Runtime::collect(const Value& iterable) {
  if (iterable.is_list_or_tuple()) {
    charge_steps(length(iterable));
    return iterable.items();
  }
  std::vector<Value> items;
  const auto next = iterate(iterable);
  for (Value item; next(item);) {
    charge_steps(1);
    items.push_back(item);
  }
  charge_bytes(static_cast<int64_t>(items.size() * sizeof(Value)));
  return items;
}

Value Runtime::call(const Value& callee, Args& args) {
  charge_steps(1);
  switch (callee.type()) {
    case Type::kCallable:
      return callee.as<Callable>().call(*this, args);
    case Type::kUndefined:
      fail_undefined(callee);
    case Type::kLoop:
      return call_loop(callee.as<Loop>(), Bound("loop", args, {"iterable"}, 1).at(0));
    case Type::kJoiner: {
      Bound("joiner", args, {});
      Joiner& joiner = callee.as<Joiner>();
      return std::exchange(joiner.used, true) ? joiner.separator : Value::string("");
    }
    default:
      fail("'" + type_name(callee) + "' object is not callable");
  }
}

const FilterFunction* find_filter(std::string_view name) {
  static const auto table = [] {
    std::unordered_map<std::string_view, FilterFunction> map;
    for (const FilterEntry& entry : text_filters()) map.emplace(entry.name, entry.function);
    for (const FilterEntry& entry : sequence_filters()) map.emplace(entry.name, entry.function);
    return map;
  }();
  const auto it = table.find(name);
  return it == table.end() ? nullptr : &it->second;
}

Value Runtime::call_filter(const std::string& name, const Value& value, const Args& args) {
  charge_steps(1);
  const FilterFunction* filter = find_filter(name);
  if (filter == nullptr) fail("No filter named '" + name + "'.");
  return (*filter)(*this, value, args);
}

bool Runtime::call_test(const std::string& name, const Value& value, const Args& args) {
  charge_steps(1);
  const TestFunction* test = find_test(name);
  if (test == nullptr) fail("No test named '" + name + "'.");
  return (*test)(*this, value, args);
}

}  // namespace vlcache::jinja
