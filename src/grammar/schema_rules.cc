#include "grammar/schema_rules.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/request_limits.h"
#include "grammar/json_rules.h"
#include "grammar/matcher.h"
#include "grammar/schema_compiler.h"
#include "grammar/string_format.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr int64_t kMaxUniqueValues = 8;  // in any order: a state for each subset

}  // namespace

SchemaCompiler::SchemaCompiler(Automaton& automaton, const OrderedJson& root, const SchemaOptions& options)
    : a_(automaton),
      root_(root),
      options_(options),
      cases_(
          root,
          [this](const OrderedJson& schema, const std::string& keyword, const std::string& why) {
            cannot(schema, keyword, why);
          },
          [this] { a_.check_time(); }) {}

std::vector<int32_t> SchemaCompiler::compile(const PlainSchemas& schemas) {
  std::vector<int32_t> rules;
  for (const OrderedJson* s : schemas) rules.push_back(rule_of({s}));
  compile_waiting();
  const std::vector<bool> ends = a_.trim(rules);
  for (size_t i = 0; i < rules.size(); ++i) {
    if (!ends[i]) {
      throw Error(ErrorCode::kInput, "at " + cases_.place(*schemas[i]) + ": no value that can be written satisfies it");
    }
  }
  return rules;
}

void SchemaCompiler::fail(const OrderedJson& schema, const std::string& keyword, const std::string& what,
                          ErrorCode code) const {
  throw Error(code, "at " + cases_.place(schema) + (keyword.empty() ? "" : "/" + keyword) + ": " + what);
}

void SchemaCompiler::cannot(const OrderedJson& schema, const std::string& keyword, const std::string& why) {
  if (options_.widened == nullptr) {
    fail(schema, "", "\"" + keyword + "\": " + why + " cannot be held", ErrorCode::kUnsupported);
  }
  options_.widened->push_back({keyword, cases_.place(schema), why});
}

int32_t SchemaCompiler::rule_of(const PlainSchemas& schemas) {
  PlainSchemas all;
  for (const OrderedJson* s : schemas) {
    s = cases_.resolved(s);
    if (*s == true || *s == OrderedJson::object()) continue;
    if (std::ranges::find(all, s) == all.end()) all.push_back(s);
  }
  if (all.empty()) return kJsonValue;
  if (all.size() == 1 && *all[0] == OrderedJson{{"type", "string"}}) return kJsonString;
  const auto known = rules_.find(all);
  if (known != rules_.end()) return known->second;
  const int32_t rule = a_.add_rule();
  waiting_.push_back({rule, all});
  return rules_[all] = rule;
}

void SchemaCompiler::value(const PlainSchemas& schemas, int32_t from, int32_t to) {
  unsigned types = SchemaCases::kEvery, meant = 0;
  bool typed = false;
  for (const OrderedJson* s : schemas) {
    types &= cases_.types(*s);
    typed = typed || s->contains("type");
    const auto says = [&](const char* key) {
      const OrderedJson* value = schema_member(*s, key);
      return value != nullptr && !value->empty();
    };
    if (says("properties") || says("required") || says("patternProperties") ||
        has_keyword(*s, {"additionalProperties", "minProperties", "maxProperties", "propertyNames"})) {
      meant |= SchemaCases::kObject;
    }
    if (has_keyword(*s, {"items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains"})) {
      meant |= SchemaCases::kArray;
    }
    if (has_keyword(*s, {"minLength", "maxLength", "pattern", SchemaCases::kNotPattern})) meant |= SchemaCases::kString;
    if (has_keyword(*s, {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})) {
      meant |= SchemaCases::kInteger | SchemaCases::kFraction;
    }
  }
  if (std::ranges::any_of(schemas, [](const OrderedJson* s) { return has_keyword(*s, {"enum", "const"}); })) {
    values(schemas, types, from, to);
    return;
  }
  const auto forbidden = forbidden_values(schemas);
  const bool root = std::ranges::find(schemas, &root_) != schemas.end();
  if (!typed && meant != 0 && (root || options_.closed)) types &= meant;
  if (types == SchemaCases::kEvery && meant == 0 && forbidden.empty()) {
    a_.call(from, kJsonValue, to);
    return;
  }
  const auto is_forbidden = [&](const OrderedJson& v) {
    return std::ranges::any_of(forbidden, [&](const OrderedJson* f) { return SchemaCases::same(*f, v); });
  };
  const auto begin = [&] {
    const int32_t state = a_.add_state();
    a_.skip(from, state);
    return state;
  };
  if ((types & SchemaCases::kNull) != 0 && !is_forbidden(nullptr)) a_.text(from, "null", to);
  for (const bool b : {true, false}) {
    if ((types & SchemaCases::kBoolean) != 0 && !is_forbidden(b)) a_.text(from, b ? "true" : "false", to);
  }
  if ((types & SchemaCases::kInteger) != 0) numbers(schemas, (types & SchemaCases::kFraction) == 0, begin(), to);
  if ((types & SchemaCases::kString) != 0) strings(schemas, begin(), to);
  // Of objects and arrays, values cannot be left out, unless nothing else allows them.
  const auto any_of_type = [&](unsigned type) {
    std::vector<OrderedJson> of_type;
    for (const OrderedJson* f : forbidden) {
      if (SchemaCases::type_of(*f) == type) of_type.push_back(*f);
    }
    // The order of several properties may differ from that of the texts.
    if (std::ranges::any_of(of_type, [](const OrderedJson& f) { return f.size() > 1; })) return true;
    std::deque<OrderedJson> others;
    for (const OrderedJson* s : schemas) {
      others.push_back(*s);
      others.back().erase(SchemaCases::kNotValues);
    }
    if (!of_type.empty()) satisfying(others, of_type);
    return !of_type.empty();
  };
  if ((types & SchemaCases::kObject) != 0 && !any_of_type(SchemaCases::kObject)) object(schemas, begin(), to);
  if ((types & SchemaCases::kArray) != 0 && !any_of_type(SchemaCases::kArray)) array(schemas, begin(), to);
}

std::vector<const OrderedJson*> SchemaCompiler::forbidden_values(const PlainSchemas& schemas) {
  std::vector<const OrderedJson*> out;
  for (const OrderedJson* s : schemas) {
    const OrderedJson* list = schema_member(*s, SchemaCases::kNotValues);
    if (list == nullptr || !list->is_array()) continue;
    for (const OrderedJson& v : *list) out.push_back(&v);
  }
  return out;
}

void SchemaCompiler::values(const PlainSchemas& schemas, unsigned types, int32_t from, int32_t to) {
  std::map<std::pair<int32_t, char>, int32_t> known;
  const int32_t begin = a_.add_state();
  a_.skip(from, begin);
  for (const OrderedJson& value : listed_values(schemas, types)) {
    int32_t at = begin;
    for (const char c : value.dump()) {
      const auto [child, is_new] = known.try_emplace({at, c}, 0);
      if (is_new) child->second = a_.text(at, std::string_view(&c, 1));
      at = child->second;
    }
    a_.skip(at, to);
  }
}

std::vector<OrderedJson> SchemaCompiler::listed_values(const PlainSchemas& schemas, unsigned types) {
  std::optional<std::vector<OrderedJson>> values;
  PlainSchemas others;
  std::deque<OrderedJson> kept;
  for (const OrderedJson* s : schemas) {
    for (const char* key : {"enum", "const"}) {
      const OrderedJson* own = schema_member(*s, key);
      if (own == nullptr) continue;
      const OrderedJson list = std::string(key) == "enum" ? *own : OrderedJson::array({*own});
      const auto among = [&](const OrderedJson& v) {
        a_.check_time();
        return std::ranges::any_of(list, [&](const OrderedJson& o) { return SchemaCases::same(o, v); });
      };
      if (values) {
        std::erase_if(*values, [&](const OrderedJson& v) { return !among(v); });
      } else {
        values.emplace(list.begin(), list.end());
      }
    }
    OrderedJson rest = *s;
    for (const char* key : {"enum", "const", "type", "format", "description", "title", "default", "examples"}) {
      rest.erase(key);
    }
    if (!rest.empty()) kept.push_back(std::move(rest));
  }
  std::erase_if(*values, [&](const OrderedJson& v) { return (SchemaCases::type_of(v) & types) == 0; });
  for (const OrderedJson* f : forbidden_values(schemas)) {
    a_.check_time();
    std::erase_if(*values, [&](const OrderedJson& v) { return SchemaCases::same(v, *f); });
  }
  const bool plain = std::ranges::none_of(kept, [](const OrderedJson& s) {
    return has_keyword(s, {"minLength",
                           "maxLength",
                           "pattern",
                           "minimum",
                           "maximum",
                           "exclusiveMinimum",
                           "exclusiveMaximum",
                           "multipleOf",
                           "properties",
                           "required",
                           "items",
                           "prefixItems",
                           "minItems",
                           "maxItems",
                           "uniqueItems",
                           "contains",
                           "additionalProperties",
                           "patternProperties",
                           "propertyNames",
                           "minProperties",
                           "maxProperties",
                           SchemaCases::kNotPattern});
  });
  if (!plain) satisfying(kept, *values);
  return *values;
}

void SchemaCompiler::satisfying(const std::deque<OrderedJson>& schemas, std::vector<OrderedJson>& values) {
  std::erase_if(values, [&](const OrderedJson& v) {
    for (const OrderedJson& s : schemas) {
      a_.check_time();
      Automaton automaton;
      add_json_rules(automaton);
      const int32_t rule = automaton.add_rule(), end = automaton.add_state();
      automaton.end(end);
      SchemaCompiler one(automaton, root_, options_);
      OrderedJson typed = s;
      typed["type"] = v.is_null() ? "null" : v.is_number() ? "number" : v.is_boolean() ? "boolean" : v.type_name();
      one.value({&typed}, automaton.start(rule), end);
      one.compile_waiting();
      Matcher matcher(automaton);
      matcher.begin(rule);
      for (const char c : v.dump()) {
        if (!matcher.push(static_cast<uint8_t>(c))) return true;
      }
      if (!matcher.may_end()) return true;
    }
    return false;
  });
}

void SchemaCompiler::compile_waiting() {
  while (!waiting_.empty()) {
    const Waiting next = std::move(waiting_.front());
    waiting_.pop_front();
    const int32_t end = a_.add_state();
    a_.end(end);
    a_.check_time();
    for (const PlainSchemas& one : cases_.of(next.schemas)) value(one, a_.start(next.rule), end);
  }
}

Decimal SchemaCompiler::decimal(const OrderedJson& schema, const char* key) const {
  const OrderedJson& bound = *schema_member(schema, key);
  if (!bound.is_number()) fail(schema, key, "expected a number");
  const std::optional<Decimal> value = Decimal::parse(bound.dump());
  if (!value) fail(schema, key, "expected a number of at most 400 digits");
  return *value;
}

void SchemaCompiler::numbers(const PlainSchemas& schemas, bool integers, int32_t from, int32_t to) {
  NumberRange range;
  std::vector<const OrderedJson*> multiples;
  for (const OrderedJson* s : schemas) {
    const auto exclusive = [&](const char* key) {  // draft 4 has a boolean beside the bound
      const OrderedJson* flag = schema_member(*s, key);
      return flag != nullptr && *flag == true;
    };
    const auto is_bound = [&](const char* key) {
      const OrderedJson* bound = schema_member(*s, key);
      return bound != nullptr && !bound->is_boolean();
    };
    if (is_bound("minimum")) range.at_least(decimal(*s, "minimum"), !exclusive("exclusiveMinimum"));
    if (is_bound("maximum")) range.at_most(decimal(*s, "maximum"), !exclusive("exclusiveMaximum"));
    if (is_bound("exclusiveMinimum")) range.at_least(decimal(*s, "exclusiveMinimum"), false);
    if (is_bound("exclusiveMaximum")) range.at_most(decimal(*s, "exclusiveMaximum"), false);
    if (schema_member(*s, "multipleOf") != nullptr) multiples.push_back(s);
  }
  std::vector<const OrderedJson*> excluded;
  for (const OrderedJson* f : forbidden_values(schemas)) {
    if (f->is_number()) excluded.push_back(f);
  }
  // Between two forbidden numbers each.
  std::vector<Decimal> points;
  for (const OrderedJson* f : excluded) {
    if (const std::optional<Decimal> x = Decimal::parse(f->dump())) points.push_back(*x);
  }
  std::ranges::sort(points);
  for (size_t i = 0; i <= points.size(); ++i) {
    NumberRange part = range;
    if (i > 0) part.at_least(points[i - 1], false);
    if (i < points.size()) part.at_most(points[i], false);
    const int32_t begin = a_.add_state();
    a_.skip(from, begin);
    numbers_in(part, multiples, integers, begin, to);
  }
}

void SchemaCompiler::numbers_in(const NumberRange& range, const std::vector<const OrderedJson*>& multiples,
                                bool integers, int32_t from, int32_t to) {
  int64_t divisor = 1;
  std::optional<size_t> n_fraction;  // digits, of multiples of 0.1, 0.01, ...
  for (const OrderedJson* s : multiples) {
    const Decimal m = decimal(*s, "multipleOf");
    if (m.negative || m.is_zero()) fail(*s, "multipleOf", "expected a number above 0");
    const std::string digits = m.whole == "0" ? m.fraction : m.whole + m.fraction;
    if (digits.size() > 15) {
      cannot(*s, "multipleOf", "so many digits");
      continue;
    }
    const int64_t scaled = std::stoll(digits);
    if (scaled == 1 && m.whole == "0" && !integers) {
      n_fraction = std::min(n_fraction.value_or(m.fraction.size()), m.fraction.size());
      continue;
    }
    // Of multiples of another fraction such as 2.5, the integers.
    int64_t unit = 1;
    for (size_t i = 0; i < m.fraction.size(); ++i) unit *= 10;
    divisor = std::min<int64_t>(std::lcm(divisor, scaled / std::gcd(scaled, unit)), 1'000'000'000);
    n_fraction = 0;
  }
  if (divisor > 1) {
    const int32_t whole = a_.add_state();
    const std::optional<bool> held = multiples_within(a_, range, divisor, from, whole);
    if (held) {
      a_.skip(whole, to);
      if (!integers) a_.text(whole, ".0", to);
      return;
    }
    cannot(*multiples[0], "multipleOf", "a divisor above 2000");
  }
  if (n_fraction && !integers) {
    const int32_t whole = a_.add_state();
    if (*n_fraction == 0) {
      integers_within(a_, range, from, whole);
      a_.text(whole, ".0", to);
    } else {  // as far as a double holds all digits
      NumberRange small = range;
      const Decimal most{
          .negative = false, .whole = std::string(15 - std::min<size_t>(14, *n_fraction), '9'), .fraction = ""};
      small.at_least(-most, true);
      small.at_most(most, true);
      numbers_within(a_, small, from, whole, static_cast<int>(*n_fraction));
    }
    a_.skip(whole, to);
    return;
  }
  if (!range.bounded()) {
    a_.call(from, integers ? kJsonInteger : kJsonNumber, to);
  } else {
    integers ? integers_within(a_, range, from, to) : numbers_within(a_, range, from, to);
  }
}

int64_t SchemaCompiler::count(const OrderedJson& schema, const char* key, int64_t fallback) const {
  const OrderedJson* value = schema_member(schema, key);
  if (value == nullptr) return fallback;
  const bool whole =
      value->is_number_integer() || (value->is_number_float() && SchemaCases::type_of(*value) == SchemaCases::kInteger);
  if (!whole || *value < 0) fail(schema, key, "expected an integer, at least 0");
  return *value > INT32_MAX ? INT32_MAX : value->get<int64_t>();
}

StringSet SchemaCompiler::string_set(const PlainSchemas& schemas) {
  StringSet set;
  const auto add = [&](const OrderedJson& schema, const char* key, const char* name, std::vector<StringPattern>& to) {
    const OrderedJson* pattern = schema_member(schema, key);
    if (pattern == nullptr) return;
    if (!pattern->is_string()) fail(schema, name, "expected a string");
    try {
      to.push_back(parse_pattern(pattern->get_ref<const std::string&>()));
    } catch (const Error& e) {
      cannot(schema, name, e.what());
    }
  };
  std::string format;
  for (const OrderedJson* s : schemas) {
    add(*s, "pattern", "pattern", set.all);
    add(*s, SchemaCases::kNotPattern, "pattern", set.none);
    set.least = std::max(set.least, count(*s, "minLength", 0));
    const int64_t most = count(*s, "maxLength", -1);
    if (most >= 0 && most < INT32_MAX) set.most = set.most < 0 ? most : std::min(set.most, most);
    const OrderedJson* named = schema_member(*s, "format");
    if (named != nullptr && named->is_string()) format = pattern_of_format(named->get_ref<const std::string&>());
  }
  if (set.all.empty() && !format.empty()) set.all.push_back(parse_pattern(format));
  for (const OrderedJson* f : forbidden_values(schemas)) {
    if (f->is_string()) set.without.insert(f->get<std::string>());
  }
  return set;
}

void SchemaCompiler::strings(const PlainSchemas& schemas, int32_t from, int32_t to) {
  const StringSet set = string_set(schemas);
  try {
    strings_of(a_, set, from, to);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kUnsupported) throw;
    const auto with = [&](const char* key) {
      return std::ranges::any_of(schemas, [&](const OrderedJson* s) { return s->contains(key); });
    };
    // A format is an annotation where it is not held.
    if (with("pattern") || !set.none.empty() || !set.without.empty()) {
      cannot(*schemas[0], with("pattern") ? "pattern" : "not", e.what());
    }
    StringSet wider;
    wider.least = set.least;
    wider.most = set.most;
    strings_of(a_, wider, from, to);
  }
}

SchemaCompiler::ArrayShape SchemaCompiler::array_shape(const PlainSchemas& schemas) {
  ArrayShape shape;
  for (const OrderedJson* s : schemas) {
    const OrderedJson *prefix = schema_member(*s, "prefixItems"), *items = schema_member(*s, "items"), *rest = items;
    if (items != nullptr && items->is_array()) {  // drafts before 2020
      prefix = items;
      rest = schema_member(*s, "additionalItems");
    }
    const size_t n = prefix == nullptr ? 0 : prefix->size();
    if (prefix != nullptr && !prefix->is_array()) fail(*s, "prefixItems", "expected a list of schemas");
    while (shape.first.size() < n) shape.first.push_back(shape.rest);
    for (size_t i = 0; i < shape.first.size(); ++i) {
      if (i < n) shape.first[i].push_back(&(*prefix)[i]);
      if (i >= n && rest != nullptr) shape.first[i].push_back(rest);
    }
    if (rest != nullptr) shape.rest.push_back(rest);
    shape.least = std::max(shape.least, count(*s, "minItems", 0));
    const int64_t most = count(*s, "maxItems", -1);
    if (most >= 0) shape.most = shape.most < 0 ? most : std::min(shape.most, most);
    const OrderedJson* unique = schema_member(*s, "uniqueItems");
    shape.unique = shape.unique || (unique != nullptr && *unique == true);
    if (schema_member(*s, "contains") != nullptr && count(*s, "minContains", 1) > 0) {
      cannot(*s, "contains", "items of which one must satisfy a schema");
    }
  }
  // Items that nothing satisfies end the array.
  const auto nothing = [](const PlainSchemas& all) {
    return std::ranges::any_of(all, [](const OrderedJson* s) { return *s == false; });
  };
  for (size_t i = 0; i < shape.first.size(); ++i) {
    if (!nothing(shape.first[i])) continue;
    shape.first.resize(i);
    shape.ends = true;
  }
  shape.ends = shape.ends || nothing(shape.rest);
  return shape;
}

void SchemaCompiler::array(const PlainSchemas& schemas, int32_t from, int32_t to) {
  ArrayShape shape = array_shape(schemas);
  if (shape.ends) {
    const auto n = std::ssize(shape.first);
    shape.most = shape.most < 0 ? n : std::min<int64_t>(shape.most, n);
  }
  if (shape.most >= 0 && shape.least > shape.most) return;
  if (shape.unique && (shape.most < 0 || shape.most > 1)) {
    if (unique_items(shape, from, to)) return;
    for (const OrderedJson* s : schemas) {
      if (s->contains("uniqueItems")) cannot(*s, "uniqueItems", "items other than those of an enum");
    }
  }
  if (shape.first.empty() && (shape.least > 1 || shape.most > 1)) {
    if (shape.least == 0) a_.text(from, "[]", to);
    const int64_t most = shape.most < 0 ? Automaton::Count::kUnlimited : shape.most - 1;
    a_.call(from, counted_list(rule_of(shape.rest)), to,
            {static_cast<int32_t>(std::max<int64_t>(shape.least - 1, 0)), static_cast<int32_t>(most)});
    return;
  }
  const int32_t rest = shape.most >= 0 && shape.most <= std::ssize(shape.first) ? 0 : rule_of(shape.rest);
  int32_t at = a_.text(from, "[");
  for (int64_t n = 0;; ++n) {  // after n items
    if (n >= shape.least) a_.text(at, "]", to);
    if (n == shape.most) return;
    const int32_t begin = n == 0 ? at : json_spaced(a_, at, ',');
    const bool from_here_on = shape.most < 0 && n >= std::max<int64_t>({shape.least, 1, std::ssize(shape.first)});
    const int32_t after = from_here_on ? at : a_.add_state();
    a_.call(begin, n < std::ssize(shape.first) ? rule_of(shape.first[static_cast<size_t>(n)]) : rest, after);
    if (from_here_on) return;
    at = after;
  }
}

int32_t SchemaCompiler::counted_list(int32_t item) {
  const auto [known, is_new] = lists_.try_emplace(item, 0);
  if (!is_new) return known->second;
  const int32_t rule = known->second = a_.add_rule(), begin = a_.text(a_.start(rule), "["), after = a_.add_state(),
                comma = a_.add_state(), spaced = a_.text(comma, " "), end = a_.add_state();
  a_.end(end);
  a_.call(begin, item, after);
  a_.bytes(after, ',', ',', comma, Automaton::Guard::kCounts);
  a_.bytes(after, ']', ']', end, Automaton::Guard::kCloses);
  a_.skip(comma, spaced);
  a_.call(spaced, item, after);
  for (const int32_t state : {a_.start(rule), begin, after, comma, spaced}) a_.set_counted(state);
  return rule;
}

bool SchemaCompiler::unique_items(const ArrayShape& shape, int32_t from, int32_t to) {
  if (!shape.first.empty()) return false;
  const auto cases = cases_.of(shape.rest);
  std::vector<std::string> texts;
  for (const PlainSchemas& one : cases) {
    unsigned types = SchemaCases::kEvery;
    for (const OrderedJson* s : one) types &= cases_.types(*s);
    const bool listed = std::ranges::any_of(one, [](const OrderedJson* s) {
      return has_keyword(*s, {"enum", "const"});
    });
    if (!listed && (types & ~(SchemaCases::kBoolean | SchemaCases::kNull)) != 0) return false;
    std::vector<OrderedJson> values = {false, true, nullptr};
    if (listed) values = listed_values(one, types);
    if (!listed) std::erase_if(values, [&](const OrderedJson& v) { return (SchemaCases::type_of(v) & types) == 0; });
    for (const OrderedJson& v : values) {
      if (std::ranges::find(texts, v.dump()) == texts.end()) texts.push_back(v.dump());
    }
  }
  const auto n = std::ssize(texts);
  const int64_t most = shape.most < 0 ? n : std::min<int64_t>(shape.most, n);
  const auto item = [&](int32_t state, int64_t i, int32_t next) {
    a_.text(state, texts[static_cast<size_t>(i)], next);
  };
  const int32_t open = a_.text(from, "[");
  if (shape.least == 0) a_.text(open, "]", to);
  // A state after each subset of the values; or after each value and number of values.
  std::map<std::pair<int64_t, int64_t>, int32_t> states;
  std::deque<std::pair<int64_t, int64_t>> found;
  const bool any_order = n <= kMaxUniqueValues;
  const auto state_of = [&](int64_t what, int64_t size) {
    const auto [at, is_new] = states.try_emplace({what, size}, 0);
    if (is_new) {
      at->second = a_.add_state();
      found.emplace_back(what, size);
    }
    return at->second;
  };
  const auto go_on = [&](int32_t begin, int64_t what, int64_t size) {
    for (int64_t i = any_order ? 0 : what; i < n && size < most; ++i) {
      if (any_order && (what >> i & 1) != 0) continue;
      item(begin, i, state_of(any_order ? what | int64_t{1} << i : i + 1, size + 1));
    }
  };
  go_on(open, 0, 0);
  while (!found.empty()) {
    const auto [what, size] = found.front();
    found.pop_front();
    const int32_t state = states[{what, size}];
    if (size >= shape.least) a_.text(state, "]", to);
    if (size < most) go_on(json_spaced(a_, state, ','), what, size);
  }
  return true;
}

int32_t add_schema(Automaton& automaton, const OrderedJson& schema, const std::string& where,
                   const SchemaOptions& options) {
  return add_schemas_within(automaton, schema, {&schema}, where, options)[0];
}

std::vector<int32_t> add_schemas_within(Automaton& automaton, const OrderedJson& schema, const PlainSchemas& schemas,
                                        const std::string& where, const SchemaOptions& options) {
  if (!schema.is_object()) throw Error(ErrorCode::kInput, where + ": expected a JSON schema, an object");
  if (const size_t n = schema.dump().size(); n > kMaxSchemaBytes) {
    throw Error(ErrorCode::kInput, where + ": a schema of " + std::to_string(n) + " bytes, expected at most " +
                                       std::to_string(kMaxSchemaBytes));
  }
  try {
    return SchemaCompiler(automaton, schema, options).compile(schemas);
  } catch (const Error& e) {
    throw Error(e.code(), where + ": " + e.what());
  }
}

}  // namespace vlcache
