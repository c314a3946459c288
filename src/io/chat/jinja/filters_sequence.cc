// Filters on sequences and mappings. Source of behaviour: jinja2 3.1 filters.py. Its generators are lazy here too.
#include <algorithm>
#include <unordered_set>

#include "io/chat/jinja/filters.h"
#include "io/chat/jinja/number.h"
#include "io/chat/jinja/text.h"

namespace vlcache::jinja {
namespace {

// "a.b.0" or an int, looked up step by step.
class AttributeGetter {
 public:
  AttributeGetter(Runtime& rt, const Value& attribute, bool fold_case, Value fallback = Value::none())
      : rt_(rt), fold_case_(fold_case), fallback_(std::move(fallback)) {
    if (attribute.is_missing() || attribute.is_none()) return;
    if (!attribute.is_string()) {
      parts_.push_back(attribute);
      return;
    }
    const std::string_view dot = ".";
    for (const std::string_view part : split(attribute.text(), &dot, -1)) {
      const bool number =
          !part.empty() && part.size() < 18 && part.find_first_not_of("0123456789") == std::string_view::npos;
      parts_.push_back(number ? Value::integer(std::stoll(std::string(part))) : Value::string(std::string(part)));
    }
  }

  Value operator()(const Value& item) const {
    Value value = item;
    for (const Value& part : parts_) {
      value = rt_.get_item(value, part);
      if (!fallback_.is_none() && value.is_undefined()) value = fallback_;
    }
    return fold_case_ && value.is_string() ? call_string_method(rt_, value, "lower", {}) : value;
  }

 private:
  Runtime& rt_;
  bool fold_case_;
  Value fallback_;
  std::vector<Value> parts_;
};

void sort_by_keys(Runtime& rt, std::vector<Value>& items, const std::function<Value(const Value&)>& key, bool reverse) {
  std::vector<std::pair<Value, Value>> keyed;
  keyed.reserve(items.size());
  for (const Value& item : items) keyed.emplace_back(key(item), item);
  // Python's reverse keeps the order of equal elements, which is what a stable sort with swapped operands does.
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    rt.charge_steps(1 + std::min(a.first.weight(), b.first.weight()));
    return reverse ? less(b.first, a.first) : less(a.first, b.first);
  });
  for (size_t i = 0; i < items.size(); ++i) items[i] = keyed[i].second;
}

Value do_default(Runtime&, const Value& v, const Args& args) {
  const Bound b("default", args, {"default_value", "boolean"});
  if (v.is_undefined() || (b.flag(1, false) && !truthy(v))) return b.get(0, Value::string(""));
  return v;
}

Value do_length(Runtime&, const Value& v, const Args& args) {
  Bound("length", args, {});
  return Value::integer(length(v));
}

Value do_list(Runtime& rt, const Value& v, const Args& args) {
  Bound("list", args, {});
  return rt.new_list(rt.collect(v));
}

Value do_first(Runtime&, const Value& v, const Args& args) {
  Bound("first", args, {});
  Value item;
  return iterate(v)(item) ? item : Value::undefined("No first item, sequence was empty.");
}

bool reversible(const Value& v) {
  return v.is_string() || v.is_list_or_tuple() || v.is_dict() || v.is(Type::kView) || v.is(Type::kRange);
}

Value do_last(Runtime& rt, const Value& v, const Args& args) {
  Bound("last", args, {});
  if (v.is_undefined()) fail_undefined(v);  // reversed() asks it for __getitem__
  if (!reversible(v)) fail("'" + type_name(v) + "' object is not reversible");
  if (v.is_string() || v.is_list_or_tuple()) {
    if (length(v) == 0) return Value::undefined("No last item, sequence was empty.");
    return rt.get_item(v, Value::integer(length(v) - 1));
  }
  const auto items = rt.collect(v);
  return items.empty() ? Value::undefined("No last item, sequence was empty.") : items.back();
}

Value do_reverse(Runtime& rt, const Value& v, const Args& args) {
  Bound("reverse", args, {});
  if (v.is_string()) return slice(v, {Value::none(), Value::none(), Value::integer(-1)});
  if (!is_iterable(v)) fail("argument must be iterable");
  std::vector<Value> items = rt.collect(v);
  std::reverse(items.begin(), items.end());
  Value list = rt.new_list(std::move(items));
  return reversible(v) ? make_iterator(iterate(list), list.depth()) : list;
}

Value do_join(Runtime& rt, const Value& v, const Args& args) {
  const Bound b("join", args, {"d", "attribute"});
  const std::string separator = to_str(b.get(0, Value::string("")));
  const Value attribute = b.get(1, Value::none());
  const AttributeGetter getter(rt, attribute, false);
  std::string out;
  const auto next = iterate(v);
  bool first = true;
  for (Value item; next(item); first = false) {
    if (!first) out += separator;
    out += to_str(attribute.is_none() ? item : getter(item));
    rt.charge_steps(1);
    if (static_cast<int64_t>(out.size()) > rt.limits().max_output_bytes) fail_limit("join makes too long a text");
  }
  return rt.new_string(std::move(out));
}

Value do_items(Runtime&, const Value& v, const Args& args) {
  Bound("items", args, {});
  const auto pull = [v, i = size_t{0}](Value& out) mutable {
    if (v.is_undefined()) return false;
    if (!v.is_dict()) fail("Can only get item pairs from a mapping.");
    const auto& entries = v.as<Dict>().entries;
    if (i >= entries.size()) return false;
    out = Value::tuple({entries[i].first, entries[i].second});
    ++i;
    return true;
  };
  return make_iterator(pull, v.depth() + 1);
}

Value do_dictsort(Runtime& rt, const Value& v, const Args& args) {
  const Bound b("dictsort", args, {"case_sensitive", "by", "reverse"});
  const std::string by = to_str(b.get(1, Value::string("key")));
  if (by != "key" && by != "value") fail("You can only sort by either \"key\" or \"value\"");
  if (v.is_undefined()) fail_undefined(v);
  if (!v.is_dict()) fail("'" + type_name(v) + "' object has no attribute 'items'");
  std::vector<Value> pairs;
  for (const auto& [key, value] : v.as<Dict>().entries) pairs.push_back(Value::tuple({key, value}));
  const AttributeGetter getter(rt, Value::integer(by == "key" ? 0 : 1), !b.flag(0, false));
  sort_by_keys(rt, pairs, getter, b.flag(2, false));
  return rt.new_list(std::move(pairs));
}

Value do_sort(Runtime& rt, const Value& v, const Args& args) {
  const Bound b("sort", args, {"reverse", "case_sensitive", "attribute"});
  std::vector<Value> items = rt.collect(v);
  const bool fold_case = !b.flag(1, false);
  const Value attribute = b.get(2, Value::none());
  std::vector<AttributeGetter> getters;
  if (attribute.is_string()) {
    const std::string_view comma = ",";
    for (const std::string_view part : split(attribute.text(), &comma, -1)) {
      getters.emplace_back(rt, Value::string(std::string(part)), fold_case);
    }
  } else {
    getters.emplace_back(rt, attribute, fold_case);
  }
  const auto key = [&](const Value& item) {
    std::vector<Value> keys;
    for (const AttributeGetter& getter : getters) keys.push_back(getter(item));
    return Value::list(std::move(keys));
  };
  sort_by_keys(rt, items, key, b.flag(0, false));
  return rt.new_list(std::move(items));
}

Value do_unique(Runtime& rt, const Value& v, const Args& args) {
  const Bound b("unique", args, {"case_sensitive", "attribute"});
  auto seen = std::make_shared<Dict>();
  const AttributeGetter getter(rt, b.get(1, Value::none()), !b.flag(0, false));
  const auto pull = [&rt, v, seen, getter, next = std::function<bool(Value&)>()](Value& out) mutable {
    if (!next) next = iterate(v);
    while (next(out)) {
      rt.charge_steps(1);
      const Value key = getter(out);
      if (seen->find(key) != nullptr) continue;
      seen->set(key, Value::none());
      return true;
    }
    return false;
  };
  return make_iterator(pull, v.depth() + 1);
}

Value min_or_max(Runtime& rt, const char* name, const Value& v, const Args& args, bool largest) {
  const Bound b(name, args, {"case_sensitive", "attribute"});
  const AttributeGetter getter(rt, b.get(1, Value::none()), !b.flag(0, false));
  const std::vector<Value> items = rt.collect(v);
  if (items.empty()) return Value::undefined("No aggregated item, sequence was empty.");
  size_t best = 0;
  Value best_key = getter(items[0]);
  for (size_t i = 1; i < items.size(); ++i) {
    const Value key = getter(items[i]);
    rt.charge_steps(1 + std::min(key.weight(), best_key.weight()));
    if (largest ? less(best_key, key) : less(key, best_key)) {
      best = i;
      best_key = key;
    }
  }
  return items[best];
}

Value do_min(Runtime& rt, const Value& v, const Args& args) { return min_or_max(rt, "min", v, args, false); }
Value do_max(Runtime& rt, const Value& v, const Args& args) { return min_or_max(rt, "max", v, args, true); }

Value do_sum(Runtime& rt, const Value& v, const Args& args) {
  const Bound b("sum", args, {"attribute", "start"});
  Value total = b.get(1, Value::integer(0));
  if (total.is_string()) fail("sum() can't sum strings [use ''.join(seq) instead]");
  const AttributeGetter getter(rt, b.get(0, Value::none()), false);
  const auto next = iterate(v);
  for (Value item; next(item);) {
    rt.charge_steps(1);
    total = apply_binary(rt, BinaryOp::kAdd, total, getter(item));
  }
  return total;
}

Value do_groupby(Runtime& rt, const Value& v, const Args& args) {
  const Bound b("groupby", args, {"attribute", "default", "case_sensitive"}, 1);
  const Value fallback = b.get(1, Value::none());
  const AttributeGetter key(rt, b.at(0), !b.flag(2, false), fallback);
  const AttributeGetter shown(rt, b.at(0), false, fallback);
  std::vector<Value> items = rt.collect(v);
  sort_by_keys(rt, items, key, false);
  std::vector<Value> groups;
  for (size_t i = 0; i < items.size();) {
    const Value group_key = key(items[i]);
    std::vector<Value> members;
    const size_t first = i;
    for (; i < items.size() && equals(key(items[i]), group_key); ++i) members.push_back(items[i]);
    if (i == first) members.push_back(items[i++]);  // a key that differs from itself (NaN)
    Value group = Value::tuple({shown(members[0]), Value::list(members)});
    group.as<Sequence>().is_group = true;
    groups.push_back(std::move(group));
  }
  return rt.new_list(std::move(groups));
}

Value do_slice(Runtime& rt, const Value& v, const Args& args) {
  const Bound b("slice", args, {"slices", "fill_with"}, 1);
  const int64_t n_slices = b.integer(0, 1);
  const Value fill = b.get(1, Value::none());
  if (n_slices == 0) fail("integer division or modulo by zero");
  const std::vector<Value> items = rt.collect(v);
  rt.charge_steps(std::max<int64_t>(n_slices, 0));
  const auto n = static_cast<int64_t>(items.size());
  const int64_t per_slice = floor_div(n, n_slices);
  const int64_t n_extra = floor_mod(n, n_slices);
  std::vector<Value> slices;
  int64_t begin = 0;
  for (int64_t i = 0; i < n_slices; ++i) {
    const int64_t size = per_slice + (i < n_extra ? 1 : 0);
    std::vector<Value> part(items.begin() + begin, items.begin() + begin + size);
    if (!fill.is_none() && i >= n_extra) part.push_back(fill);
    slices.push_back(Value::list(std::move(part)));
    begin += size;
  }
  const Value list = rt.new_list(std::move(slices));
  return make_iterator(iterate(list), list.depth());
}

Value do_batch(Runtime& rt, const Value& v, const Args& args) {
  const Bound b("batch", args, {"linecount", "fill_with"}, 1);
  const int64_t size = b.integer(0, 1);
  const Value fill = b.get(1, Value::none());
  std::vector<Value> batches;
  std::vector<Value> row;
  for (const Value& item : rt.collect(v)) {
    if (static_cast<int64_t>(row.size()) == size) batches.push_back(Value::list(std::exchange(row, {})));
    row.push_back(item);
  }
  if (!row.empty()) {
    const int64_t missing = size - static_cast<int64_t>(row.size());
    if (!fill.is_none() && missing > 0) {
      rt.charge_bytes(checked_mul(missing, static_cast<int64_t>(sizeof(Value))));
      if (missing > 10'000'000) fail_limit("batch() with too long a line");
      row.insert(row.end(), static_cast<size_t>(missing), fill);
    }
    batches.push_back(Value::list(std::move(row)));
  }
  const Value list = rt.new_list(std::move(batches));
  return make_iterator(iterate(list), list.depth());
}

Value do_attr(Runtime& rt, const Value& v, const Args& args) {
  const Bound b("attr", args, {"name"}, 1);
  if (!b.at(0).is_string()) fail("attr(): attribute name must be string, not '" + type_name(b.at(0)) + "'");
  if (v.is_undefined()) fail_undefined(v);
  const std::string& name = b.at(0).text();
  if (v.is_dict() && find_method(v, name).is_missing() && rt.get_attribute(make_dict({}), name).is_undefined()) {
    return rt.get_attribute(make_dict({}), name);  // attributes only, never keys
  }
  return rt.get_attribute(v, name);
}

int depth_of(const Value& v, const Args& args) {
  int depth = v.depth();
  for (const Value& a : args.positional) depth = std::max(depth, a.depth());
  for (const auto& [name, a] : args.named) depth = std::max(depth, a.depth());
  return depth + 1;
}

Value do_map(Runtime& rt, const Value& v, const Args& args) {
  using Transform = std::function<Value(const Value&)>;
  const auto prepare = [&rt, args]() -> Transform {
    if (args.positional.empty()) {
      const Bound b("map", args, {"attribute", "default"});
      if (!b.given(0)) fail("map requires a filter argument");
      return AttributeGetter(rt, b.at(0), false, b.get(1, Value::none()));
    }
    Args rest = args;
    const Value name = rest.positional[0];
    rest.positional.erase(rest.positional.begin());
    return [&rt, name, rest](const Value& item) { return rt.call_filter(to_str(name), item, rest); };
  };
  const auto pull = [&rt, v, prepare, next = std::function<bool(Value&)>(),
                     transform = Transform()](Value& out) mutable {
    if (!next) {
      if (!truthy(v)) return false;
      transform = prepare();
      next = iterate(v);
    }
    if (!next(out)) return false;
    rt.charge_steps(1);
    out = transform(out);
    return true;
  };
  return make_iterator(pull, depth_of(v, args));
}

// select, reject, selectattr, rejectattr.
Value choose(Runtime& rt, const Value& v, const Args& args, bool wanted, bool by_attribute) {
  using Predicate = std::function<bool(const Value&)>;
  const auto prepare = [&rt, args, by_attribute]() -> Predicate {
    Args rest = args;
    Value attribute;
    if (by_attribute) {
      if (rest.positional.empty()) fail("Missing parameter for attribute name");
      attribute = rest.positional[0];
      rest.positional.erase(rest.positional.begin());
    }
    const AttributeGetter getter(rt, attribute, false);
    if (rest.positional.empty()) return [getter](const Value& item) { return truthy(getter(item)); };
    const std::string name = to_str(rest.positional[0]);
    rest.positional.erase(rest.positional.begin());
    return [&rt, getter, name, rest](const Value& item) { return rt.call_test(name, getter(item), rest); };
  };
  const auto pull = [&rt, v, prepare, wanted, next = std::function<bool(Value&)>(),
                     accept = Predicate()](Value& out) mutable {
    if (!next) {
      if (!truthy(v)) return false;
      accept = prepare();
      next = iterate(v);
    }
    while (next(out)) {
      rt.charge_steps(1);
      if (accept(out) == wanted) return true;
    }
    return false;
  };
  return make_iterator(pull, depth_of(v, args));
}

Value do_select(Runtime& rt, const Value& v, const Args& args) { return choose(rt, v, args, true, false); }
Value do_reject(Runtime& rt, const Value& v, const Args& args) { return choose(rt, v, args, false, false); }
Value do_selectattr(Runtime& rt, const Value& v, const Args& args) { return choose(rt, v, args, true, true); }
Value do_rejectattr(Runtime& rt, const Value& v, const Args& args) { return choose(rt, v, args, false, true); }

}  // namespace

std::initializer_list<FilterEntry> sequence_filters() {
  static const std::initializer_list<FilterEntry> table = {
      {"attr", do_attr},       {"batch", do_batch},     {"count", do_length},
      {"d", do_default},       {"default", do_default}, {"dictsort", do_dictsort},
      {"first", do_first},     {"groupby", do_groupby}, {"items", do_items},
      {"join", do_join},       {"last", do_last},       {"length", do_length},
      {"list", do_list},       {"map", do_map},         {"max", do_max},
      {"min", do_min},         {"reject", do_reject},   {"rejectattr", do_rejectattr},
      {"reverse", do_reverse}, {"select", do_select},   {"selectattr", do_selectattr},
      {"slice", do_slice},     {"sort", do_sort},       {"sum", do_sum},
      {"unique", do_unique},
  };
  return table;
}

}  // namespace vlcache::jinja
