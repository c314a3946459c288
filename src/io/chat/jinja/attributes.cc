// a.b and a[b]: methods and properties of every type, the sandbox's rules, undefined results.
#include <algorithm>
#include <cmath>

#include "io/chat/jinja/runtime.h"

namespace vlcache::jinja {
namespace {

Value method(std::string name, const Value& self, std::function<Value(Runtime&, Args&)> body) {
  return make_function(std::move(name), std::move(body), self.depth() + 1);
}

bool one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Methods that would change a list or dict: the sandbox forbids calling them.
bool modifies(const Value& object, std::string_view name) {
  if (object.is_dict()) return one_of(name, {"clear", "pop", "popitem", "setdefault", "update"});
  if (object.is(Type::kList))
    return one_of(name, {"append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"});
  return false;
}

Value dict_view(const Value& dict, View::Part part) {
  auto view = std::make_shared<View>();
  view->part = part;
  view->dict = dict;
  view->depth = dict.depth() + 1;
  view->weight = dict.weight();
  return Value::object(Type::kView, std::move(view));
}

Value dict_method(const Value& self, const std::string& name) {
  if (name == "get") {
    return method(name, self, [self](Runtime&, Args& args) {
      const Bound b("get", args, {"key", "default"}, 1);
      const Value* found = self.as<Dict>().find(b.at(0));
      return found != nullptr ? *found : b.get(1, Value::none());
    });
  }
  if (one_of(name, {"items", "keys", "values"})) {
    const auto part = name == "items" ? View::Part::kItems : name == "keys" ? View::Part::kKeys : View::Part::kValues;
    return method(name, self, [self, part, name](Runtime&, Args& args) {
      Bound(name, args, {});
      return dict_view(self, part);
    });
  }
  if (name == "copy") {
    return method(name, self, [self](Runtime& runtime, Args& args) {
      Bound("copy", args, {});
      runtime.charge_bytes(length(self) * static_cast<int64_t>(2 * sizeof(Value)));
      return make_dict(self.as<Dict>().entries);
    });
  }
  if (name == "fromkeys") fail_unsupported("the method dict.fromkeys()");
  return {};
}

Value sequence_method(const Value& self, const std::string& name) {
  if (self.is(Type::kTuple) && self.as<Sequence>().is_group) {
    if (name == "grouper") return self.items()[0];
    if (name == "list") return self.items()[1];
  }
  if (name == "count") {
    return method(name, self, [self](Runtime& runtime, Args& args) {
      const Bound b("count", args, {"value"}, 1);
      runtime.charge_steps(self.weight());
      int64_t n = 0;
      for (const Value& item : to_vector(self)) n += equals(item, b.at(0));
      return Value::integer(n);
    });
  }
  if (name == "index") {
    return method(name, self, [self](Runtime& runtime, Args& args) {
      const Bound b("index", args, {"value", "start", "stop"}, 1);
      runtime.charge_steps(self.weight());
      const auto items = to_vector(self);
      const auto n = static_cast<int64_t>(items.size());
      const auto clamp = [n](int64_t i) { return std::clamp<int64_t>(i < 0 ? (i < -n ? 0 : i + n) : i, 0, n); };
      const int64_t stop = clamp(b.integer(2, n));
      for (int64_t i = clamp(b.integer(1, 0)); i < stop; ++i) {
        if (equals(items[static_cast<size_t>(i)], b.at(0))) return Value::integer(i);
      }
      fail(to_repr(b.at(0)) + " is not in list");
    });
  }
  if (name == "copy" && self.is(Type::kList)) {
    return method(name, self, [self](Runtime& runtime, Args& args) {
      Bound("copy", args, {});
      return runtime.new_list(self.items());
    });
  }
  return {};
}

Value range_attribute(const Value& self, const std::string& name) {
  const Range& r = self.as<Range>();
  if (name == "start") return Value::integer(r.start);
  if (name == "stop") return Value::integer(r.stop);
  if (name == "step") return Value::integer(r.step);
  return one_of(name, {"count", "index"}) ? sequence_method(self, name) : Value();
}

Value loop_changed(const Value& self) {
  return method("changed", self, [self](Runtime& runtime, Args& args) {
    if (!args.named.empty()) fail("changed() got an unexpected keyword argument '" + args.named[0].first + "'");
    Loop& loop = self.as<Loop>();
    const Value now = Value::tuple(args.positional);
    runtime.charge_steps(now.weight());
    if (!loop.last_changed.is_missing() && equals(loop.last_changed, now)) return Value::boolean(false);
    if (loop.last_changed.is_missing()) runtime.track(std::static_pointer_cast<Object>(loop.shared_from_this()));
    loop.last_changed = now;
    return Value::boolean(true);
  });
}

Value loop_attribute(const Value& self, const std::string& name) {
  Loop& loop = self.as<Loop>();
  Value item;
  if (name == "index") return Value::integer(loop.index0 + 1);
  if (name == "index0") return Value::integer(loop.index0);
  if (name == "first") return Value::boolean(loop.index0 == 0);
  if (name == "last") return Value::boolean(!loop.peek(item));
  if (name == "length") return Value::integer(loop.length());
  if (name == "revindex") return Value::integer(loop.length() - loop.index0);
  if (name == "revindex0") return Value::integer(loop.length() - loop.index0 - 1);
  if (name == "depth") return Value::integer(loop.depth0 + 1);
  if (name == "depth0") return Value::integer(loop.depth0);
  if (name == "previtem") return loop.index0 == 0 ? Value::undefined("there is no previous item") : loop.before;
  if (name == "nextitem") return loop.peek(item) ? item : Value::undefined("there is no next item");
  if (name == "changed") return loop_changed(self);
  if (name == "cycle") {
    return method(name, self, [self](Runtime&, Args& args) {
      if (args.positional.empty()) fail("no items for cycling given");
      const auto n = static_cast<int64_t>(args.positional.size());
      return args.positional[static_cast<size_t>(std::max<int64_t>(self.as<Loop>().index0, 0) % n)];
    });
  }
  return {};
}

Value number_attribute(const Value& self, const std::string& name) {
  if (self.is(Type::kFloat)) {
    if (name == "is_integer") {
      return method(name, self, [self](Runtime&, Args& args) {
        Bound("is_integer", args, {});
        return Value::boolean(std::isfinite(self.as_double()) && std::floor(self.as_double()) == self.as_double());
      });
    }
  } else {
    if (one_of(name, {"real", "numerator"})) return Value::integer(self.as_int());
    if (name == "imag") return Value::integer(0);
    if (name == "denominator") return Value::integer(1);
  }
  if (one_of(name, {"as_integer_ratio", "bit_length", "bit_count", "conjugate", "to_bytes", "from_bytes", "hex",
                    "fromhex"}) ||
      (self.is(Type::kFloat) && one_of(name, {"real", "imag"}))) {
    fail_unsupported("the attribute " + type_name(self) + "." + name);
  }
  return {};
}

std::string type_in_message(const Value& v) { return v.is_none() ? "None" : type_name(v) + " object"; }

Value no_attribute(const Value& object, const Value& key) {
  if (key.is_string()) return Value::undefined("'" + type_in_message(object) + "' has no attribute " + to_repr(key));
  return Value::undefined(type_in_message(object) + " has no element " + to_repr(key));
}

Value unsafe_attribute(const Value& object, const std::string& name) {
  return Value::undefined("access to attribute '" + name + "' of '" + type_name(object) + "' object is unsafe.");
}

// object[key] as Python does it; missing where it raises TypeError or LookupError.
Value subscript(const Value& object, const Value& key) {
  if (object.is_dict()) {
    if (!hashable(key)) return {};
    const Value* found = object.as<Dict>().find(key);
    return found != nullptr ? *found : Value();
  }
  if (!key.is_integral()) return {};
  if (!object.is_string() && !object.is_list_or_tuple() && !object.is(Type::kRange)) return {};
  const int64_t n = length(object);
  int64_t i = key.as_int();
  if (i < 0 && i >= -n) i += n;
  if (i < 0 || i >= n) return {};
  if (object.is_list_or_tuple()) return object.items()[static_cast<size_t>(i)];
  if (object.is(Type::kRange)) return object.as<Range>().at(i);
  return slice(object, {Value::integer(i), Value::integer(i + 1), Value::none()});
}

}  // namespace

Value find_method(const Value& object, const std::string& name) {
  switch (object.type()) {
    case Type::kString:
      if (!is_string_method(name)) return {};
      return method(name, object,
                    [object, name](Runtime& r, Args& args) { return call_string_method(r, object, name, args); });
    case Type::kDict:
      return dict_method(object, name);
    case Type::kList:
    case Type::kTuple:
      return sequence_method(object, name);
    case Type::kRange:
      return range_attribute(object, name);
    case Type::kLoop:
      return loop_attribute(object, name);
    case Type::kNamespace: {
      const Value* found = object.as<Namespace>().attributes.as<Dict>().find(name);
      return found != nullptr ? *found : Value();
    }
    case Type::kBool:
    case Type::kInt:
    case Type::kFloat:
      return number_attribute(object, name);
    case Type::kCallable:
      return name == "name" ? Value::string(object.as<Callable>().name) : Value();
    default:
      return {};
  }
}

Value Runtime::get_attribute(const Value& object, const std::string& name) {
  charge_steps(1);
  if (object.is_undefined()) fail_undefined(object);
  if (modifies(object, name)) return unsafe_attribute(object, name);
  if (name.rfind("__", 0) != 0) {
    const Value found = find_method(object, name);
    if (!found.is_missing()) return found;
  }
  const Value key = Value::string(name);
  const Value item = subscript(object, key);
  if (!item.is_missing()) return item;
  if (name.rfind("__", 0) == 0) return unsafe_attribute(object, name);
  return no_attribute(object, key);
}

Value Runtime::get_item(const Value& object, const Value& key) {
  charge_steps(1);
  if (object.is_undefined()) fail_undefined(object);
  charge_steps(key.weight());
  const Value item = subscript(object, key);
  if (!item.is_missing()) return item;
  if (key.is_string()) {
    if (modifies(object, key.text()) || key.text().rfind("__", 0) == 0) return unsafe_attribute(object, key.text());
    const Value found = find_method(object, key.text());
    if (!found.is_missing()) return found;
  }
  return no_attribute(object, key);
}

}  // namespace vlcache::jinja
