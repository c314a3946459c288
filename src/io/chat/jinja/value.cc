// Constructs values and implements Python's data model: truth, equality, order, hash, length, iteration.
#include "io/chat/jinja/value.h"

#include <algorithm>
#include <cmath>

#include "io/chat/jinja/callable.h"
#include "io/chat/jinja/text.h"

namespace vlcache::jinja {
namespace {

constexpr int kMaxDepth = 300;  // JSON from a request nests at most 256 deep

constexpr int64_t kMaxWeight = 20'000'000;

// Counts `item` as part of `owner`.
void add_part(Object& owner, const Value& item) {
  owner.depth = std::max(owner.depth, item.depth() + 1);
  owner.weight += item.weight();
  if (owner.depth > kMaxDepth) fail_limit("a value nests deeper than " + std::to_string(kMaxDepth) + " levels");
  if (owner.weight > kMaxWeight) fail_limit("a value holds more than " + std::to_string(kMaxWeight) + " others");
}

size_t mix(size_t seed, size_t h) { return seed ^ (h + 0x9E3779B97F4A7C15ULL + (seed << 6) + (seed >> 2)); }

// -1, 0, 1; NaN compares as neither, reported by `ordered`.
int compare_numbers(const Value& a, const Value& b, bool& ordered) {
  ordered = true;
  if (a.is_integral() && b.is_integral()) return a.as_int() < b.as_int() ? -1 : a.as_int() > b.as_int();
  // long double holds every int64 exactly on x86; elsewhere large ints compare as doubles do.
  const auto wide = [](const Value& v) {
    return v.is(Type::kFloat) ? static_cast<long double>(v.as_double()) : static_cast<long double>(v.as_int());
  };
  const long double x = wide(a);
  const long double y = wide(b);
  if (std::isnan(x) || std::isnan(y)) {
    ordered = false;
    return 0;
  }
  return x < y ? -1 : x > y;
}

bool equal_items(const std::vector<Value>& a, const std::vector<Value>& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), equals);
}

bool equal_dicts(const Dict& a, const Dict& b) {
  if (a.entries.size() != b.entries.size()) return false;
  for (const auto& [key, value] : a.entries) {
    const Value* other = b.find(key);
    if (other == nullptr || !equals(value, *other)) return false;
  }
  return true;
}

std::vector<Value> view_items(const View& view) {
  std::vector<Value> items;
  for (const auto& [key, value] : view.dict.as<Dict>().entries) {
    switch (view.part) {
      case View::Part::kKeys:
        items.push_back(key);
        break;
      case View::Part::kValues:
        items.push_back(value);
        break;
      case View::Part::kItems:
        items.push_back(Value::tuple({key, value}));
        break;
    }
  }
  return items;
}

}  // namespace

void fail(const std::string& message) { throw RenderError(message); }
void fail_unsupported(const std::string& what) {
  throw RenderError(what + " is not supported", RenderError::Kind::kUnsupported);
}
void fail_left_out(const std::string& what) {
  throw RenderError("Jinja has " + what + ", this program does not", RenderError::Kind::kUnsupported);
}
void fail_limit(const std::string& what) { throw RenderError(what, RenderError::Kind::kLimit); }
void fail_undefined(const Value& undefined) { fail(undefined.as<UndefinedInfo>().message); }

Value Value::none() {
  Value v;
  v.type_ = Type::kNone;
  return v;
}

Value Value::boolean(bool b) {
  Value v;
  v.type_ = Type::kBool;
  v.int_ = b;
  return v;
}

Value Value::integer(int64_t i) {
  Value v;
  v.type_ = Type::kInt;
  v.int_ = i;
  return v;
}

Value Value::real(double d) {
  Value v;
  v.type_ = Type::kFloat;
  v.double_ = d;
  return v;
}

Value Value::object(Type type, ObjectPtr object) {
  Value v;
  v.type_ = type;
  v.object_ = std::move(object);
  return v;
}

Value Value::string(std::string text, bool markup) {
  auto s = std::make_shared<String>();
  s->text = std::move(text);
  s->n_code_points = count_code_points(s->text);
  s->weight = 1 + static_cast<int64_t>(s->text.size() / 32);
  s->markup = markup;
  return object(Type::kString, std::move(s));
}

Value Value::digits(std::string digits) {
  Value v = string(std::move(digits));
  v.as<String>().digits = true;
  return v;
}

Value Value::list(std::vector<Value> items) {
  auto s = std::make_shared<Sequence>();
  for (const Value& item : items) add_part(*s, item);
  s->items = std::move(items);
  return object(Type::kList, std::move(s));
}

Value Value::tuple(std::vector<Value> items) {
  Value v = list(std::move(items));
  v.type_ = Type::kTuple;
  return v;
}

Value Value::undefined(std::string message) {
  auto info = std::make_shared<UndefinedInfo>();
  info->message = std::move(message);
  return object(Type::kUndefined, std::move(info));
}

bool Value::is_markup() const { return is_string() && as<String>().markup; }
bool Value::is_digits() const { return is_string() && as<String>().digits; }
const std::string& Value::text() const { return as<String>().text; }
const std::vector<Value>& Value::items() const { return as<Sequence>().items; }

int64_t Dict::position(const Value& key) const {
  const auto [begin, end] = index_.equal_range(hash_of(key));
  for (auto it = begin; it != end; ++it) {
    if (equals(entries[it->second].first, key)) return static_cast<int64_t>(it->second);
  }
  return -1;
}

const Value* Dict::find(const Value& key) const {
  const int64_t at = position(key);
  return at < 0 ? nullptr : &entries[static_cast<size_t>(at)].second;
}

const Value* Dict::find(std::string_view key) const { return find(Value::string(std::string(key))); }

void Dict::set(const Value& key, const Value& value) {
  add_part(*this, key);
  add_part(*this, value);
  const int64_t at = position(key);
  if (at >= 0) {
    entries[static_cast<size_t>(at)].second = value;
    return;
  }
  index_.emplace(hash_of(key), entries.size());
  entries.emplace_back(key, value);
}

void Namespace::set(const std::string& name, const Value& value) {
  // No other object may refer to this dict: it never leaves the namespace.
  attributes.as<Dict>().set(Value::string(name), value);
}

Value make_dict(std::vector<std::pair<Value, Value>> entries) {
  auto dict = std::make_shared<Dict>();
  for (auto& [key, value] : entries) dict->set(key, value);
  return Value::object(Type::kDict, std::move(dict));
}

std::string type_name(const Value& v) {
  switch (v.type()) {
    case Type::kMissing:
      return "missing";
    case Type::kUndefined:
      return "Undefined";
    case Type::kNone:
      return "NoneType";
    case Type::kBool:
      return "bool";
    case Type::kInt:
      return "int";
    case Type::kFloat:
      return "float";
    case Type::kString:
      return v.is_markup() ? "Markup" : "str";
    case Type::kList:
      return "list";
    case Type::kTuple:
      return v.as<Sequence>().is_group ? "_GroupTuple" : "tuple";
    case Type::kDict:
      return "dict";
    case Type::kView: {
      const auto part = v.as<View>().part;
      return part == View::Part::kKeys ? "dict_keys" : part == View::Part::kValues ? "dict_values" : "dict_items";
    }
    case Type::kRange:
      return "range";
    case Type::kIterator:
      return "generator";
    case Type::kNamespace:
      return "TemplateNamespace";
    case Type::kCallable:
      return v.as<Callable>().kind_name();
    case Type::kLoop:
      return "LoopContext";
    case Type::kJoiner:
      return "Joiner";
  }
  return "object";
}

bool truthy(const Value& v) {
  switch (v.type()) {
    case Type::kMissing:
    case Type::kUndefined:
    case Type::kNone:
      return false;
    case Type::kBool:
    case Type::kInt:
      return v.as_int() != 0;
    case Type::kFloat:
      return v.as_double() != 0;
    default:
      return !has_length(v) || length(v) != 0;
  }
}

bool equals(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    bool ordered;
    return compare_numbers(a, b, ordered) == 0 && ordered;
  }
  if (a.type() != b.type()) return false;
  switch (a.type()) {
    case Type::kUndefined:
    case Type::kNone:
      return true;
    case Type::kString:
      return a.text() == b.text();
    case Type::kList:
    case Type::kTuple:
      return a.identity() == b.identity() || equal_items(a.items(), b.items());
    case Type::kDict:
      return a.identity() == b.identity() || equal_dicts(a.as<Dict>(), b.as<Dict>());
    case Type::kRange:
      return equal_items(to_vector(a), to_vector(b));
    case Type::kView: {
      if (a.identity() == b.identity()) return true;
      const View& x = a.as<View>();
      const View& y = b.as<View>();
      if (x.part == View::Part::kValues || y.part == View::Part::kValues) return false;
      const auto items = view_items(x);
      return length(a) == length(b) &&
             std::all_of(items.begin(), items.end(), [&](const Value& i) { return contains(b, i); });
    }
    default:
      return a.identity() == b.identity();
  }
}

bool same_object(const Value& a, const Value& b) {
  if (a.type() != b.type()) return false;
  if (a.is_number() || a.is_none() || a.is_string()) return equals(a, b);
  return a.identity() == b.identity();
}

bool hashable(const Value& v) {
  if (v.is(Type::kList) || v.is(Type::kDict) || v.is(Type::kView)) return false;
  return !v.is(Type::kTuple) || std::all_of(v.items().begin(), v.items().end(), hashable);
}

size_t hash_of(const Value& v) {
  if (!hashable(v)) fail("unhashable type: '" + type_name(v) + "'");
  switch (v.type()) {
    case Type::kBool:
    case Type::kInt:
      return std::hash<double>()(static_cast<double>(v.as_int()));
    case Type::kFloat:
      return std::hash<double>()(v.as_double());
    case Type::kString:
      return keyed_hash(v.text());
    case Type::kTuple: {
      size_t h = 7;
      for (const Value& item : v.items()) h = mix(h, hash_of(item));
      return h;
    }
    case Type::kNone:
    case Type::kUndefined:
      return static_cast<size_t>(v.type());
    default:
      return std::hash<const void*>()(v.identity());
  }
}

bool less(const Value& a, const Value& b) {
  if (a.is_undefined()) fail_undefined(a);
  if (b.is_undefined()) fail_undefined(b);
  if (a.is_number() && b.is_number()) {
    bool ordered;
    return compare_numbers(a, b, ordered) < 0;
  }
  if (a.is_string() && b.is_string()) return a.text() < b.text();  // UTF-8 sorts as its code points do
  if (a.type() == b.type() && a.is_list_or_tuple()) {
    const auto& x = a.items();
    const auto& y = b.items();
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (!equals(x[i], y[i])) return less(x[i], y[i]);
    }
    return x.size() < y.size();
  }
  fail("'<' not supported between instances of '" + type_name(a) + "' and '" + type_name(b) + "'");
}

bool is_iterable(const Value& v) {
  switch (v.type()) {
    case Type::kUndefined:
    case Type::kString:
    case Type::kList:
    case Type::kTuple:
    case Type::kDict:
    case Type::kView:
    case Type::kRange:
    case Type::kIterator:
    case Type::kLoop:
      return true;
    default:
      return false;
  }
}

bool has_length(const Value& v) { return is_iterable(v) && !v.is(Type::kIterator); }

int64_t length(const Value& v) {
  switch (v.type()) {
    case Type::kUndefined:
      return 0;
    case Type::kString:
      return v.as<String>().n_code_points;
    case Type::kList:
    case Type::kTuple:
      return static_cast<int64_t>(v.items().size());
    case Type::kDict:
      return static_cast<int64_t>(v.as<Dict>().entries.size());
    case Type::kView:
      return length(v.as<View>().dict);
    case Type::kRange:
      return v.as<Range>().size;
    case Type::kLoop:
      return v.as<Loop>().length();
    default:
      fail("object of type '" + type_name(v) + "' has no len()");
  }
}

std::function<bool(Value&)> iterate(const Value& v) {
  switch (v.type()) {
    case Type::kUndefined:
      return [](Value&) { return false; };
    case Type::kString:
      return [v, pos = size_t{0}](Value& out) mutable {
        const std::string& text = v.text();
        if (pos >= text.size()) return false;
        const size_t begin = pos;
        next_code_point(text, pos);
        out = Value::string(text.substr(begin, pos - begin));
        return true;
      };
    case Type::kList:
    case Type::kTuple:
      return [v, i = size_t{0}](Value& out) mutable {
        if (i >= v.items().size()) return false;
        out = v.items()[i++];
        return true;
      };
    case Type::kDict:
      return [v, i = size_t{0}](Value& out) mutable {
        if (i >= v.as<Dict>().entries.size()) return false;
        out = v.as<Dict>().entries[i++].first;
        return true;
      };
    case Type::kView:
      return [items = view_items(v.as<View>()), i = size_t{0}](Value& out) mutable {
        if (i >= items.size()) return false;
        out = items[i++];
        return true;
      };
    case Type::kRange:
      return [v, i = int64_t{0}](Value& out) mutable {
        if (i >= v.as<Range>().size) return false;
        out = v.as<Range>().at(i++);
        return true;
      };
    case Type::kIterator:
      return [v](Value& out) { return v.as<Iterator>().pull(out); };
    case Type::kLoop:
      return [v](Value& out) {
        if (!v.as<Loop>().next(out)) return false;
        out = Value::tuple({out, v});
        return true;
      };
    default:
      fail("'" + type_name(v) + "' object is not iterable");
  }
}

std::vector<Value> to_vector(const Value& v) {
  if (v.is_list_or_tuple()) return v.items();
  std::vector<Value> items;
  const auto next = iterate(v);
  for (Value item; next(item);) items.push_back(item);
  return items;
}

Value make_iterator(std::function<bool(Value&)> pull, int depth) {
  auto iterator = std::make_shared<Iterator>();
  if (depth >= kMaxDepth) fail_limit("iterators nest deeper than " + std::to_string(kMaxDepth) + " levels");
  iterator->depth = depth + 1;
  iterator->pull = std::move(pull);
  return Value::object(Type::kIterator, std::move(iterator));
}

bool contains(const Value& container, const Value& item) {
  switch (container.type()) {
    case Type::kString:
      if (item.is_undefined()) fail("'in <string>' requires string as left operand, not Undefined");
      if (!item.is_string()) fail("'in <string>' requires string as left operand, not " + type_name(item));
      return container.text().find(item.text()) != std::string::npos;
    case Type::kDict:
      return container.as<Dict>().find(item) != nullptr;
    case Type::kView: {
      const View& view = container.as<View>();
      if (view.part == View::Part::kKeys) return contains(view.dict, item);
      break;
    }
    case Type::kRange: {
      const Range& r = container.as<Range>();
      if (!item.is_number() || item.as_double() != std::floor(item.as_double()) || r.size == 0) return false;
      const auto i = static_cast<int64_t>(item.as_double());
      return (i - r.start) % r.step == 0 && (i - r.start) / r.step >= 0 && (i - r.start) / r.step < r.size;
    }
    default:
      break;
  }
  if (!is_iterable(container)) fail("argument of type '" + type_name(container) + "' is not iterable");
  const auto next = iterate(container);
  for (Value candidate; next(candidate);) {
    if (equals(candidate, item)) return true;
  }
  return false;
}

namespace {

int64_t slice_index(const Value& v, int64_t absent) {
  if (v.is_none()) return absent;
  if (!v.is_integral()) fail("slice indices must be integers or None or have an __index__ method");
  return v.as_int();
}

}  // namespace

Value slice(const Value& v, const SliceBounds& bounds) {
  if (v.is_undefined()) fail_undefined(v);
  if (!v.is_string() && !v.is_list_or_tuple() && !v.is(Type::kRange)) {
    if (v.is_dict()) fail("unhashable type: 'slice'");
    fail("'" + type_name(v) + "' object is not subscriptable");
  }
  const int64_t n = length(v);
  const int64_t step = slice_index(bounds.step, 1);
  if (step == 0) fail("slice step cannot be zero");
  const auto clamp = [&](int64_t i) {
    if (i < 0) i = i < -n ? -1 : i + n;
    return step > 0 ? std::clamp<int64_t>(i, 0, n) : std::clamp<int64_t>(i, -1, n - 1);
  };
  const int64_t start = bounds.start.is_none() ? (step > 0 ? 0 : n - 1) : clamp(slice_index(bounds.start, 0));
  const int64_t stop = bounds.stop.is_none() ? (step > 0 ? n : -1) : clamp(slice_index(bounds.stop, 0));
  if (v.is_string() && step == 1) {
    const String& s = v.as<String>();
    if (start >= stop) return Value::string("", s.markup);
    const size_t from = s.ascii() ? static_cast<size_t>(start) : byte_offset(s.text, start);
    const std::string_view rest = std::string_view(s.text).substr(from);
    const size_t bytes = s.ascii() ? static_cast<size_t>(stop - start) : byte_offset(rest, stop - start);
    return Value::string(std::string(rest.substr(0, bytes)), s.markup);
  }
  std::vector<int64_t> picks;
  // Steps are added only while the next index stays inside, so a huge step cannot overflow.
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    picks.push_back(i);
    if (step > 0 ? step >= stop - i : step <= stop - i) break;
    i += step;
  }
  if (v.is_string()) {
    const String& s = v.as<String>();
    const std::u32string all = decode(s.text);
    std::string out;
    for (const int64_t i : picks) append_utf8(out, all[static_cast<size_t>(i)]);
    return Value::string(std::move(out), s.markup);
  }
  std::vector<Value> items;
  for (const int64_t i : picks) {
    items.push_back(v.is(Type::kRange) ? v.as<Range>().at(i) : v.items()[static_cast<size_t>(i)]);
  }
  return v.is(Type::kTuple) ? Value::tuple(std::move(items)) : Value::list(std::move(items));
}

}  // namespace vlcache::jinja
