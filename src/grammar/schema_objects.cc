// Properties of objects: which there may be, in which order, and how many.
#include <algorithm>

#include "grammar/json_rules.h"
#include "grammar/matcher.h"
#include "grammar/schema_compiler.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

// After a comma all of them are possible at once, down to the next required one; each costs time at every byte.
constexpr int kMaxOptionalInARow = 2000;
// Names that other properties must not have: each byte is a state. Beyond, an object has no others.
constexpr size_t kMaxUnlikeBytes = 20'000;
constexpr size_t kMaxNamePatterns = 4;

const OrderedJson kNoProperties = OrderedJson::object();

}  // namespace

bool SchemaCompiler::matches(const StringPattern& regex, const std::string& name) {
  Automaton automaton;
  add_json_rules(automaton);
  const int32_t rule = automaton.add_rule(), end = automaton.add_state();
  automaton.end(end);
  StringSet set;
  set.all.push_back(regex);
  if (!strings_of(automaton, set, automaton.start(rule), end)) return false;
  Matcher matcher(automaton);
  matcher.begin(rule);
  const std::string text = OrderedJson(name).dump();
  return std::ranges::all_of(text, [&](char c) { return matcher.push(static_cast<uint8_t>(c)); }) && matcher.may_end();
}

std::vector<SchemaCompiler::NamePattern> SchemaCompiler::name_patterns(const PlainSchemas& schemas) {
  std::vector<NamePattern> out;
  std::map<std::string, size_t> numbers;  // by pattern, in `out`
  for (const OrderedJson* s : schemas) {
    const OrderedJson* all = schema_member(*s, "patternProperties");
    if (all == nullptr) continue;
    if (!all->is_object()) fail(*s, "patternProperties", "expected an object");
    for (const auto& [text, schema] : all->items()) {
      a_.check_time();
      const auto [known, is_new] = numbers.try_emplace(text, out.size());
      if (is_new) {
        try {
          out.push_back({text, parse_pattern(text), {}, {}});
        } catch (const Error& e) {
          numbers.erase(known);
          cannot(*s, "patternProperties", e.what());
          continue;
        }
      }
      out[known->second].schemas.push_back(&schema);
      out[known->second].owners.insert(s);
    }
  }
  return out;
}

PlainSchemas SchemaCompiler::schemas_of(const std::string& name, const PlainSchemas& schemas,
                                        const std::vector<NamePattern>& patterns) {
  PlainSchemas out;
  std::set<const OrderedJson*> covered;
  for (const OrderedJson* s : schemas) {
    const OrderedJson* own = cases_.member(cases_.member(s, "properties"), name);
    if (own == nullptr) continue;
    out.push_back(own);
    covered.insert(s);
  }
  for (const NamePattern& p : patterns) {
    a_.check_time();
    if (!matches(p.regex, name)) continue;
    out.insert(out.end(), p.schemas.begin(), p.schemas.end());
    covered.insert(p.owners.begin(), p.owners.end());
  }
  for (const OrderedJson* s : schemas) {
    const OrderedJson* extra = cases_.member(s, "additionalProperties");
    if (extra != nullptr && !covered.contains(s)) out.push_back(extra);
  }
  return out;
}

bool SchemaCompiler::may_have_name(const std::string& name, const PlainSchemas& names) {
  if (names.empty()) return true;
  const auto known = name_rules_.try_emplace(names);
  std::optional<Automaton>& automaton = known.first->second.first;
  if (!automaton) {
    automaton.emplace();
    add_json_rules(*automaton);
    const int32_t rule = known.first->second.second = automaton->add_rule(), end = automaton->add_state();
    automaton->end(end);
    const StringSet set = name_set(names);
    if (listed_names_) {
      for (const std::string& text : *listed_names_)
        automaton->text(automaton->start(rule), OrderedJson(text).dump(), end);
    } else {
      strings_of(*automaton, set, automaton->start(rule), end);
    }
  }
  Matcher matcher(*automaton);
  matcher.begin(known.first->second.second);
  const std::string text = OrderedJson(name).dump();
  return std::ranges::all_of(text, [&](char c) { return matcher.push(static_cast<uint8_t>(c)); }) && matcher.may_end();
}

StringSet SchemaCompiler::name_set(const PlainSchemas& names) {
  listed_names_.reset();
  const auto cases = cases_.of(names);
  if (cases.empty()) return {.all = {}, .none = {}, .without = {}, .least = 1, .most = 0};
  if (cases.size() > 1) {
    cannot(*names[0], "propertyNames", "alternatives");
    return {};
  }
  if (std::ranges::any_of(cases[0], [](const OrderedJson* s) { return has_keyword(*s, {"enum", "const"}); })) {
    listed_names_.emplace();
    for (const OrderedJson& v : listed_values(cases[0], SchemaCases::kString)) listed_names_->push_back(v);
    return {};
  }
  return string_set(cases[0]);
}

SchemaCompiler::ObjectShape SchemaCompiler::object_shape(const PlainSchemas& schemas) {
  ObjectShape shape;
  PlainSchemas names;
  std::vector<std::string> order;
  std::set<std::string> known, needed;
  bool any_named = false;
  const auto add = [&](const std::string& name) {
    if (known.insert(name).second) order.push_back(name);
  };
  for (const OrderedJson* s : schemas) {
    const OrderedJson* properties = schema_member(*s, "properties");
    if (properties != nullptr && !properties->is_object()) fail(*s, "properties", "expected an object");
    if (properties != nullptr) any_named = true;
    for (const auto& [name, property] : (properties == nullptr ? kNoProperties : *properties).items()) add(name);
    shape.least = std::max(shape.least, count(*s, "minProperties", 0));
    const int64_t most = count(*s, "maxProperties", -1);
    if (most >= 0) shape.most = shape.most < 0 ? most : std::min(shape.most, most);
    if (const OrderedJson* schema = schema_member(*s, "propertyNames"); schema != nullptr) names.push_back(schema);
  }
  for (const OrderedJson* s : schemas) {
    const OrderedJson* list = schema_member(*s, "required");
    if (list == nullptr || list->is_boolean()) continue;  // draft 3's
    if (!list->is_array()) fail(*s, "required", "expected a list of names");
    for (const OrderedJson& name : *list) {
      if (!name.is_string()) fail(*s, "required", "expected a list of names");
      add(name);
      needed.insert(name);
    }
  }
  const std::vector<NamePattern> patterns = name_patterns(schemas);
  if (const std::vector<std::string>* listed = listed_by(names)) {
    for (const std::string& name : *listed) add(name);
  }
  for (const std::string& name : order) {
    a_.check_time();
    Property property{name, schemas_of(name, schemas, patterns), needed.contains(name)};
    const bool never = std::ranges::any_of(property.schemas, [](const OrderedJson* s) { return *s == false; });
    if (never || !may_have_name(name, names)) {
      if (property.required) shape.most = -2;  // none
      continue;
    }
    shape.properties.push_back(std::move(property));
  }
  if (listed_by(names) == nullptr) add_others(schemas, patterns, names, known, any_named, shape);
  return shape;
}

const std::vector<std::string>* SchemaCompiler::listed_by(const PlainSchemas& names) {
  if (names.empty()) return nullptr;
  may_have_name("", names);
  const auto [at, is_new] = name_lists_.try_emplace(names, listed_names_);
  return at->second ? &*at->second : nullptr;
}

void SchemaCompiler::add_others(const PlainSchemas& schemas, const std::vector<NamePattern>& patterns,
                                const PlainSchemas& names, const std::set<std::string>& known, bool any_named,
                                ObjectShape& shape) {
  if (patterns.size() > kMaxNamePatterns) {
    cannot(*schemas[0], "patternProperties", "more than " + std::to_string(kMaxNamePatterns) + " patterns");
    return;
  }
  const bool said = std::ranges::any_of(schemas, [](const OrderedJson* s) {
    return has_keyword(*s, {"additionalProperties", "patternProperties"});
  });
  if (options_.closed && any_named && !said) return;
  size_t n_bytes = 0;
  for (const std::string& name : known) n_bytes += name.size();
  n_unlike_bytes_ += n_bytes;
  const bool too_many = n_unlike_bytes_ > kMaxUnlikeBytes;
  if (too_many && !std::ranges::any_of(schemas, [](const OrderedJson* s) {
        const OrderedJson* extra = schema_member(*s, "additionalProperties");
        return extra != nullptr && extra->is_object() && !extra->empty();
      })) {
    return;
  }
  for (size_t which = 0; which < size_t{1} << patterns.size(); ++which) {
    Others others;
    std::set<const OrderedJson*> covered;
    for (size_t i = 0; i < patterns.size(); ++i) {
      const NamePattern& p = patterns[i];
      const bool matched = (which >> i & 1) != 0;
      (matched ? others.names.all : others.names.none).push_back(p.regex);
      if (!matched) continue;
      others.schemas.insert(others.schemas.end(), p.schemas.begin(), p.schemas.end());
      covered.insert(p.owners.begin(), p.owners.end());
    }
    bool never = false;
    for (const OrderedJson* s : schemas) {
      const OrderedJson* extra = schema_member(*s, "additionalProperties");
      if (extra != nullptr && !covered.contains(s)) others.schemas.push_back(extra);
    }
    for (const OrderedJson* s : others.schemas) never = never || *s == false;
    if (never) continue;
    if (options_.closed && any_named && others.names.all.empty() && others.schemas.empty()) continue;
    others.names.without = known;
    if (!names.empty()) {
      StringSet allowed = name_set(names);
      others.names.all.insert(others.names.all.end(), allowed.all.begin(), allowed.all.end());
      others.names.none.insert(others.names.none.end(), allowed.none.begin(), allowed.none.end());
      others.names.without.insert(allowed.without.begin(), allowed.without.end());
      others.names.least = allowed.least;
      others.names.most = allowed.most;
    }
    shape.others.push_back(std::move(others));
  }
}

void SchemaCompiler::object(const PlainSchemas& schemas, int32_t from, int32_t to) {
  ObjectShape shape = object_shape(schemas);
  const auto n_named = std::ssize(shape.properties);
  if (shape.most >= n_named && shape.others.empty()) shape.most = -1;
  if (shape.most == -2 || (shape.most >= 0 && shape.least > shape.most)) return;
  const bool limited = shape.most >= 0;
  if (shape.least > n_named && shape.others.empty()) return;
  if (std::max(shape.least, shape.most) > Automaton::kMaxStates) {  // each of them needs a state at least
    fail(*schemas[0], shape.least > shape.most ? "minProperties" : "maxProperties",
         "expected at most " + std::to_string(Automaton::kMaxStates));
  }
  const auto levels = static_cast<size_t>(limited ? shape.most : std::max<int64_t>(1, shape.least)) + 1;
  std::vector<int32_t> at(levels, -1);  // by number of properties, the last also for more if unlimited
  at[0] = a_.text(from, "{");
  int n_optional = 0;
  for (const Property& property : shape.properties) {
    n_optional = property.required ? 0 : n_optional + 1;
    if (n_optional > kMaxOptionalInARow) {
      fail(*schemas[0], "",
           "more than " + std::to_string(kMaxOptionalInARow) + " properties in a row that are not required");
    }
    const int32_t rule = rule_of(property.schemas);
    const std::string key = OrderedJson(property.name).dump();
    std::vector<int32_t> after(levels, -1);
    const auto state = [&](size_t level) {
      if (after[level] < 0) after[level] = a_.add_state();
      return after[level];
    };
    // The levels that lead to the same one share the key's states.
    std::map<size_t, int32_t> keys;
    for (size_t level = 0; level < levels; ++level) {
      if (at[level] < 0) continue;
      const size_t next = std::min(level + 1, levels - 1);
      if (!property.required) a_.skip(at[level], state(level));
      if (limited && level + 1 == levels) continue;
      const auto [begin, is_new] = keys.try_emplace(next, 0);
      if (is_new) {
        begin->second = a_.add_state();
        a_.call(json_spaced(a_, a_.text(begin->second, key), ':'), rule, state(next));
      }
      a_.skip(level == 0 ? at[level] : json_spaced(a_, at[level], ','), begin->second);
    }
    at = std::move(after);
  }
  others(shape, limited, at);
  for (size_t level = static_cast<size_t>(shape.least); level < levels; ++level) {
    if (at[level] >= 0) a_.text(at[level], "}", to);
  }
}

void SchemaCompiler::others(const ObjectShape& shape, bool limited, std::vector<int32_t>& at) {
  const size_t levels = at.size();
  for (const Others& other : shape.others) {
    // The key as a rule, so that the levels share its states.
    const int32_t key = a_.add_rule(), end = a_.add_state();
    a_.end(end);
    try {
      if (!strings_of(a_, other.names, a_.start(key), end)) continue;
    } catch (const Error& e) {
      if (e.code() != ErrorCode::kUnsupported) throw;
      continue;  // an object has no such properties
    }
    const int32_t rule = rule_of(other.schemas);
    for (size_t level = 0; level < levels; ++level) {
      if (at[level] < 0 || (limited && level + 1 == levels)) continue;
      const size_t next = std::min(level + 1, levels - 1);
      if (at[next] < 0) at[next] = a_.add_state();
      const int32_t after = a_.add_state();
      a_.call(level == 0 ? at[level] : json_spaced(a_, at[level], ','), key, after);
      a_.call(json_spaced(a_, after, ':'), rule, at[next]);
    }
  }
}

}  // namespace vlcache
