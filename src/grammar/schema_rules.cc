#include "grammar/schema_rules.h"

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/error.h"
#include "grammar/json_rules.h"
#include "grammar/number_range.h"
#include "grammar/string_pattern.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

// OpenAI accepts 120,000 characters of names, descriptions and values.
constexpr size_t kMaxSchemaBytes = 1 << 20;
// After a comma all of them are possible at once, down to the next required one; each costs time at every byte.
constexpr int kMaxOptionalInARow = 128;
// Limits states that accept nearly every token, whose masks are large and slow to make.
constexpr size_t kMaxUnlikeBytes = 256;

constexpr std::array<std::string_view, 14> kAnnotations = {
    "title",     "description", "default", "examples", "example", "deprecated",  "readOnly",
    "writeOnly", "$schema",     "$id",     "$comment", "$defs",   "definitions", "$anchor"};

using Keywords = std::initializer_list<std::string_view>;

std::string shortened(std::string text) { return text.size() <= 60 ? text : text.substr(0, 57) + "..."; }

std::string pointer_part(std::string name) {
  for (const auto& [from, to] : {std::pair{"~", "~0"}, std::pair{"/", "~1"}}) {
    for (size_t at = name.find(from); at != name.npos; at = name.find(from, at + 2)) name.replace(at, 1, to);
  }
  return shortened(std::move(name));
}

class SchemaRules {
 public:
  SchemaRules(Automaton& automaton, const OrderedJson& root, const std::string& where)
      : a_(automaton), root_(root), where_(where) {}

  int32_t compile() {
    const int32_t rule = referenced("", root_);
    // Referenced schemas are compiled one after the other, not recursively: a chain of them may be long.
    while (!waiting_.empty()) {
      const Referenced next = waiting_.front();
      waiting_.pop_front();
      fill(next.rule, *next.schema, "#" + next.pointer);
    }
    if (!a_.trim(rule)) {
      throw Error(ErrorCode::kInput, where_ + ": no answer can satisfy it: every value would contain itself");
    }
    return rule;
  }

 private:
  struct Referenced {
    int32_t rule;
    const OrderedJson* schema;
    std::string pointer;
  };

  [[noreturn]] void fail(const std::string& path, const std::string& what, ErrorCode code = ErrorCode::kInput) const {
    throw Error(code, where_ + ": at " + path + ": " + what);
  }

  static const OrderedJson* find(const OrderedJson& schema, const char* key) {
    const auto at = schema.find(key);
    return at == schema.end() ? nullptr : &*at;
  }

  void only(const OrderedJson& schema, const std::string& path, Keywords known) const {
    for (const auto& [key, value] : schema.items()) {
      if (std::ranges::find(known, key) != known.end()) continue;
      if (std::ranges::find(kAnnotations, key) != kAnnotations.end()) continue;
      if (key == "uniqueItems" && value == false) continue;
      if (key == "strict") continue;  // part of a function, which some clients repeat here
      fail(path, "\"" + pointer_part(key) + "\" is not supported here (supported: " + joined(known) + ")",
           ErrorCode::kUnsupported);
    }
  }
  static std::string joined(Keywords words) {
    std::string out;
    for (const std::string_view word : words) out += (out.empty() ? "" : ", ") + std::string(word);
    return out;
  }

  int32_t referenced(const std::string& pointer, const OrderedJson& schema) {
    const auto known = rules_.find(pointer);
    if (known != rules_.end()) return known->second;
    const int32_t rule = a_.add_rule();
    waiting_.push_back({rule, &schema, pointer});
    return rules_[pointer] = rule;
  }

  void fill(int32_t rule, const OrderedJson& schema, const std::string& path) {
    const int32_t end = a_.add_state();
    a_.end(end);
    value(schema, path, a_.start(rule), end);
  }

  int32_t rule_of(const OrderedJson& schema, const std::string& path) {
    const int32_t rule = a_.add_rule();
    fill(rule, schema, path);
    return rule;
  }

  // Connects the states `from` and `to` by all values that the schema allows.
  void value(const OrderedJson& schema, const std::string& path, int32_t from, int32_t to) {
    if (schema == true) {
      a_.call(from, kJsonValue, to);
    } else if (!schema.is_object()) {
      fail(path, schema == false ? "a schema that allows nothing" : "expected a schema, an object");
    } else if (find(schema, "$ref") != nullptr) {
      reference(schema, path, from, to);
    } else if (find(schema, "anyOf") != nullptr) {
      any_of(schema, path, from, to);
    } else if (find(schema, "enum") != nullptr || find(schema, "const") != nullptr) {
      values(schema, path, from, to);
    } else {
      typed(schema, path, from, to);
    }
  }

  void reference(const OrderedJson& schema, const std::string& path, int32_t from, int32_t to) {
    only(schema, path, {"$ref"});
    const OrderedJson& ref = schema["$ref"];
    if (!ref.is_string() || !ref.get_ref<const std::string&>().starts_with("#")) {
      fail(path + "/$ref", "expected a place within the schema, such as \"#/$defs/name\"");
    }
    const std::string pointer = ref.get<std::string>().substr(1);
    const OrderedJson* target = nullptr;
    try {
      target = &root_.at(OrderedJson::json_pointer(pointer));
    } catch (const OrderedJson::exception&) {
      fail(path + "/$ref", "the schema has no " + shortened(ref.get<std::string>()));
    }
    a_.call(from, referenced(pointer, *target), to);
  }

  void any_of(const OrderedJson& schema, const std::string& path, int32_t from, int32_t to) {
    only(schema, path, {"anyOf"});
    const OrderedJson& choices = schema["anyOf"];
    if (!choices.is_array() || choices.empty()) fail(path + "/anyOf", "expected a list of schemas, at least one");
    for (size_t i = 0; i < choices.size(); ++i) {
      const int32_t begin = a_.add_state();
      a_.skip(from, begin);
      value(choices[i], path + "/anyOf/" + std::to_string(i), begin, to);
    }
  }

  // enum and const: their texts, with common beginnings merged.
  void values(const OrderedJson& schema, const std::string& path, int32_t from, int32_t to) {
    only(schema, path, {"enum", "const", "type"});
    const OrderedJson* list = find(schema, "enum");
    const OrderedJson* constant = find(schema, "const");
    if (list != nullptr && (!list->is_array() || list->empty())) {
      fail(path + "/enum", "expected a list of values, at least one");
    }
    const OrderedJson* type = find(schema, "type");
    const std::vector<std::string> types = type == nullptr ? std::vector<std::string>() : type_names(*type, path);
    std::map<std::pair<int32_t, char>, int32_t> known;
    const int32_t begin = a_.add_state();
    a_.skip(from, begin);
    bool any = false;
    for (const OrderedJson& value : list != nullptr ? *list : OrderedJson::array({*constant})) {
      if (constant != nullptr && value != *constant) continue;
      const auto is_it = [&](const std::string& name) { return has_type(value, name); };
      if (!types.empty() && !std::ranges::any_of(types, is_it)) continue;
      any = true;
      int32_t at = begin;
      for (const char c : value.dump()) {
        const auto [child, is_new] = known.try_emplace({at, c}, 0);
        if (is_new) child->second = a_.text(at, std::string_view(&c, 1));
        at = child->second;
      }
      a_.skip(at, to);
    }
    if (!any) fail(path, "none of the values of enum or const is of its type");
  }

  static bool has_type(const OrderedJson& value, const std::string& type) {
    if (type == "number") return value.is_number();
    if (type == "integer") return value.is_number_integer();
    return value.type_name() == type;
  }

  std::vector<std::string> type_names(const OrderedJson& type, const std::string& path) const {
    std::vector<std::string> names;
    const OrderedJson list = type.is_array() ? type : OrderedJson::array({type});
    for (const OrderedJson& name : list) {
      static const std::set<std::string> kTypes = {"string", "number", "integer", "boolean", "null", "object", "array"};
      if (!name.is_string() || !kTypes.contains(name.get<std::string>())) {
        fail(path + "/type", "expected string, number, integer, boolean, null, object or array, or a list of them");
      }
      names.push_back(name.get<std::string>());
    }
    if (names.empty()) fail(path + "/type", "expected at least one type");
    return names;
  }

  void typed(const OrderedJson& schema, const std::string& path, int32_t from, int32_t to) {
    only(schema, path,
         {"type", "properties", "required", "additionalProperties", "items", "minItems", "maxItems", "minimum",
          "maximum", "exclusiveMinimum", "exclusiveMaximum", "pattern", "format", "enum", "const", "anyOf", "$ref"});
    const OrderedJson* type = find(schema, "type");
    const bool has_members = find(schema, "properties") != nullptr || find(schema, "required") != nullptr ||
                             find(schema, "additionalProperties") != nullptr;
    if (type == nullptr && (has_members || find(schema, "items") != nullptr)) {
      // Strictly, a schema without a type also allows other values; that is never the intent.
      has_members ? object(schema, path, from, to) : array(schema, path, from, to);
      return;
    }
    if (type == nullptr) {
      only(schema, path, {});
      a_.call(from, kJsonValue, to);
      return;
    }
    const std::vector<std::string> names = type_names(*type, path);
    for (const std::string& name : names) {
      const int32_t begin = a_.add_state();
      a_.skip(from, begin);
      of_type(name, schema, path, begin, to);
    }
  }

  void of_type(const std::string& name, const OrderedJson& schema, const std::string& path, int32_t from, int32_t to) {
    if (name == "string") string(schema, path, from, to);
    if (name == "number") number(schema, path, from, to);
    if (name == "integer") integer(schema, path, from, to);
    if (name == "null") a_.text(from, "null", to);
    if (name == "boolean") {
      a_.text(from, "true", to);
      a_.text(from, "false", to);
    }
    if (name == "object") object(schema, path, from, to);
    if (name == "array") array(schema, path, from, to);
  }

  void string(const OrderedJson& schema, const std::string& path, int32_t from, int32_t to) {
    const OrderedJson *pattern = find(schema, "pattern"), *format = find(schema, "format");
    if (pattern != nullptr && format != nullptr) fail(path, "pattern and format are not supported together");
    if (pattern == nullptr && format == nullptr) {
      a_.call(from, kJsonString, to);
      return;
    }
    const OrderedJson& given = pattern != nullptr ? *pattern : *format;
    const std::string at = path + (pattern != nullptr ? "/pattern" : "/format");
    if (!given.is_string()) fail(at, "expected a string");
    const std::string text =
        pattern != nullptr ? given.get<std::string>() : pattern_of_format(given.get<std::string>());
    if (text.empty() && format != nullptr) {
      fail(at,
           "\"" + shortened(given.get<std::string>()) + "\" is not supported (supported: date-time, time, date, " +
               "duration, email, hostname, ipv4, ipv6, uuid)",
           ErrorCode::kUnsupported);
    }
    try {
      strings_with(a_, text, from, to);
    } catch (const Error& e) {
      fail(at, e.what(), e.code());
    }
  }

  // Inclusive and exclusive bounds, whichever is tighter.
  NumberRange range(const OrderedJson& schema, const std::string& path) const {
    NumberRange range;
    for (const char* key : {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"}) {
      const OrderedJson* bound = find(schema, key);
      if (bound == nullptr) continue;
      if (!bound->is_number()) fail(path + "/" + key, "expected a number");
      const std::optional<Decimal> value = Decimal::parse(bound->dump());
      if (!value)
        fail(path + "/" + key, "expected a number from -10^15 to 10^15 with at most 15 digits after the point");
      const std::string_view name = key;
      const bool inclusive = !name.starts_with("exclusive");
      name.ends_with("inimum") ? range.at_least(*value, inclusive) : range.at_most(*value, inclusive);
    }
    return range;
  }

  void number(const OrderedJson& schema, const std::string& path, int32_t from, int32_t to) {
    const NumberRange bounds = range(schema, path);
    if (!bounds.bounded()) {
      a_.call(from, kJsonNumber, to);
      return;
    }
    if (!numbers_within(a_, bounds, from, to)) fail(path, "no number lies between its bounds");
  }

  void integer(const OrderedJson& schema, const std::string& path, int32_t from, int32_t to) {
    const NumberRange bounds = range(schema, path);
    if (!bounds.bounded()) {
      a_.call(from, kJsonInteger, to);
      return;
    }
    if (!integers_within(a_, bounds, from, to)) fail(path, "no integer lies between its bounds");
  }

  int64_t count(const OrderedJson& schema, const std::string& path, const char* key, int64_t fallback) const {
    const OrderedJson* value = find(schema, key);
    if (value == nullptr) return fallback;
    if (!value->is_number_integer() || *value < 0) fail(path + "/" + key, "expected an integer, at least 0");
    return *value > Automaton::kMaxStates ? Automaton::kMaxStates : value->get<int64_t>();
  }

  void array(const OrderedJson& schema, const std::string& path, int32_t from, int32_t to) {
    const int64_t least = count(schema, path, "minItems", 0), most = count(schema, path, "maxItems", -1);
    if (most >= 0 && least > most) fail(path, "minItems is more than maxItems");
    const OrderedJson* items = find(schema, "items");
    const int32_t item = items == nullptr ? static_cast<int32_t>(kJsonValue) : rule_of(*items, path + "/items");
    int32_t at = a_.text(from, "[");
    for (int64_t n = 0;; ++n) {  // after n items
      if (n >= least) a_.text(at, "]", to);
      if (n == most) return;
      const int32_t begin = n == 0 ? at : json_spaced(a_, at, ',');
      const bool from_here_on = most < 0 && n >= std::max<int64_t>(least, 1);
      const int32_t after = from_here_on ? at : a_.add_state();
      a_.call(begin, item, after);
      if (from_here_on) return;
      at = after;
    }
  }

  std::set<std::string> required(const OrderedJson& schema, const std::string& path, const OrderedJson& named) const {
    std::set<std::string> out;
    const OrderedJson* list = find(schema, "required");
    for (const OrderedJson& name : list == nullptr ? OrderedJson::array() : *list) {
      if (!list->is_array() || !name.is_string()) fail(path + "/required", "expected a list of names");
      if (!named.contains(name.get<std::string>())) {
        fail(path + "/required", "\"" + pointer_part(name) + "\" is not among the properties");
      }
      out.insert(name.get<std::string>());
    }
    if (list != nullptr && !list->is_array()) fail(path + "/required", "expected a list of names");
    return out;
  }

  // Two paths through the properties: without any property so far, or with some, so that the next needs a comma.
  void object(const OrderedJson& schema, const std::string& path, int32_t from, int32_t to) {
    const OrderedJson* properties = find(schema, "properties");
    if (properties != nullptr && !properties->is_object()) fail(path + "/properties", "expected an object");
    const OrderedJson& named = properties == nullptr ? kEmpty : *properties;
    const std::set<std::string> needed = required(schema, path, named);
    int32_t nothing = a_.text(from, "{"), something = a_.add_state();
    int n_optional = 0;
    for (const auto& [name, property] : named.items()) {
      const bool optional = !needed.contains(name);
      n_optional = optional ? n_optional + 1 : 0;
      if (n_optional > kMaxOptionalInARow) {
        fail(path, "more than " + std::to_string(kMaxOptionalInARow) + " properties in a row that are not required");
      }
      const int32_t key = a_.add_state(), after = a_.add_state();
      a_.skip(nothing, key);
      a_.skip(json_spaced(a_, something, ','), key);
      const int32_t text = a_.text(key, OrderedJson(name).dump());
      value(property, path + "/properties/" + pointer_part(name), json_spaced(a_, text, ':'), after);
      const int32_t none = a_.add_state();  // unreachable if this property is required
      if (optional) a_.skip(nothing, none);
      if (optional) a_.skip(something, after);
      nothing = none;
      something = after;
    }
    others(schema, path, named, {nothing, something});
    a_.text(nothing, "}", to);
    a_.text(something, "}", to);
  }

  struct Ways {
    int32_t nothing, something;
  };
  void others(const OrderedJson& schema, const std::string& path, const OrderedJson& named, Ways at) {
    const OrderedJson* extra = find(schema, "additionalProperties");
    const bool any = extra == nullptr || *extra == true || *extra == OrderedJson::object();
    if (extra != nullptr && *extra == false) return;
    // JSON Schema allows others beside named properties, but without a schema for them they are left out.
    if (any && (!named.empty() || (extra == nullptr && find(schema, "properties") != nullptr))) return;
    const int32_t rule = any ? static_cast<int32_t>(kJsonValue) : rule_of(*extra, path + "/additionalProperties");
    const int32_t key = a_.add_state(), after = a_.add_state();
    a_.skip(at.nothing, key);
    a_.skip(json_spaced(a_, at.something, ','), key);
    if (named.empty()) {
      a_.call(key, kJsonString, after);
    } else {
      std::set<std::string> names;
      for (const auto& [name, property] : named.items()) {
        n_unlike_bytes_ += name.size();
        names.insert(name);
      }
      if (n_unlike_bytes_ > kMaxUnlikeBytes) {
        fail(path, "additionalProperties beside properties whose names are longer than " +
                       std::to_string(kMaxUnlikeBytes) + " bytes in all: give one or the other");
      }
      json_string_unlike(a_, key, names, after);
    }
    a_.call(json_spaced(a_, after, ':'), rule, at.something);
  }

  static inline const OrderedJson kEmpty = OrderedJson::object();

  Automaton& a_;
  const OrderedJson& root_;
  const std::string& where_;
  std::map<std::string, int32_t> rules_;  // by pointer
  std::deque<Referenced> waiting_;
  size_t n_unlike_bytes_ = 0;
};

}  // namespace

int32_t add_schema(Automaton& automaton, const OrderedJson& schema, const std::string& where) {
  if (!schema.is_object()) throw Error(ErrorCode::kInput, where + ": expected a JSON schema, an object");
  if (schema.dump().size() > kMaxSchemaBytes) {
    throw Error(ErrorCode::kInput, where + ": a schema of " + std::to_string(schema.dump().size()) +
                                       " bytes, expected at most " + std::to_string(kMaxSchemaBytes));
  }
  return SchemaRules(automaton, schema, where).compile();
}

}  // namespace vlcache
