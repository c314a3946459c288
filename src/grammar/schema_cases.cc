#include "grammar/schema_cases.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/error.h"
#include "base/format.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr size_t kMaxCases = 1000;
constexpr int kMaxNesting = 100;
constexpr size_t kMaxIdBytes = 2048;  // of a $id, which stands before the names of all anchors within

bool allows_all(const OrderedJson& schema) { return schema == true || schema == OrderedJson::object(); }

std::string pointer_part(std::string_view name) {
  constexpr size_t kMost = 60;
  const std::string part = with_replaced(with_replaced(name.substr(0, kMost + 1), "~", "~0"), "/", "~1");
  return part.size() <= kMost ? part : part.substr(0, kMost - 3) + "...";
}

std::string percent_decoded(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const std::string digits = text.substr(i + 1, 2);
    if (text[i] == '%' && digits.size() == 2 && digits.find_first_not_of("0123456789abcdefABCDEF") == digits.npos) {
      out += static_cast<char>(std::stoi(digits, nullptr, 16));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

using Places = std::unordered_map<const OrderedJson*, std::pair<const OrderedJson*, std::string>>;

// Notes where all parts of a schema stand.
void note_places(const OrderedJson& in, Places& places) {
  if (!in.is_structured()) return;
  size_t i = 0;
  for (const auto& [key, value] : in.items()) {
    places[&value] = {&in, in.is_array() ? std::to_string(i++) : pointer_part(key)};
    note_places(value, places);
  }
}

}  // namespace

const OrderedJson* schema_member(const OrderedJson& schema, const char* key) {
  if (!schema.is_object()) return nullptr;
  const auto at = schema.find(key);
  return at == schema.end() ? nullptr : &*at;
}

bool has_keyword(const OrderedJson& schema, std::initializer_list<const char*> keys) {
  return std::ranges::any_of(keys, [&](const char* key) { return schema.contains(key); });
}

SchemaCases::SchemaCases(const Json& root, Cannot cannot, std::function<void()> check_time)
    : root_(root), cannot_(std::move(cannot)), check_time_(std::move(check_time)) {
  const Json* version = schema_member(root, "$schema");
  if (version != nullptr && version->is_string()) {
    for (const char* draft : {"draft-03", "draft-04", "draft-05", "draft-06", "draft-07"}) {
      if (version->get_ref<const std::string&>().find(draft) != std::string::npos) ref_is_alone_ = true;
    }
  }
  collect_anchors(root, "");
}

void SchemaCases::collect_anchors(const Json& schema, const std::string& base) {
  std::optional<std::string> own;
  if (schema.is_object()) {
    for (const char* key : {"$id", "id"}) {
      const Json* id = schema_member(schema, key);
      if (id == nullptr || !id->is_string() || id->get_ref<const std::string&>().size() > kMaxIdBytes) continue;
      std::string name = *id;
      if (name.starts_with("#")) {
        anchors_.try_emplace(base + name, &schema);
        anchors_.try_emplace(name, &schema);
        continue;
      }
      while (name.ends_with("#")) name.pop_back();
      if (name.find("://") == name.npos && base.rfind('/') != base.npos)
        name = base.substr(0, base.rfind('/') + 1) + name;
      own = name;
      anchors_.try_emplace(name, &schema);
    }
    for (const char* key : {"$anchor", "$dynamicAnchor"}) {
      const Json* anchor = schema_member(schema, key);
      if (anchor == nullptr || !anchor->is_string()) continue;
      const std::string& here = own ? *own : base;
      anchors_.try_emplace("#" + anchor->get<std::string>(), &schema);
      anchors_.try_emplace(here + "#" + anchor->get<std::string>(), &schema);
    }
  }
  if (!schema.is_structured()) return;
  for (const auto& [key, value] : schema.items()) {
    if (schema.is_object() && (key == "enum" || key == "const" || key == "default" || key == "examples")) continue;
    collect_anchors(value, own ? *own : base);
  }
}

std::string SchemaCases::place(const Json& schema) const {
  const Json* at = &schema;
  for (auto origin = origin_.find(at); origin != origin_.end(); origin = origin_.find(at)) at = origin->second;
  if (places_.empty()) note_places(root_, places_);
  std::string path;
  for (auto part = places_.find(at); part != places_.end(); part = places_.find(part->second.first)) {
    path.insert(0, "/" + part->second.second);
  }
  return "#" + path;
}

const SchemaCases::Json* SchemaCases::member(const Json* schema, const std::string& name) {
  constexpr size_t kFew = 32;
  if (schema == nullptr) return nullptr;
  if (!schema->is_object() || schema->size() <= kFew) return schema_member(*schema, name.c_str());
  return indices_.try_emplace(schema, *schema).first->second.find(name);
}

// By a JSON pointer; null: there is no such part.
const SchemaCases::Json* SchemaCases::part_at(const Json* base, const std::string& pointer) {
  if (!pointer.empty() && pointer[0] != '/') return nullptr;
  for (size_t at = 0; base != nullptr && at < pointer.size();) {
    const size_t end = std::min(pointer.find('/', at + 1), pointer.size());
    std::string name;
    for (size_t i = at + 1; i < end; ++i) {
      const bool escaped = pointer[i] == '~' && i + 1 < end && (pointer[i + 1] == '0' || pointer[i + 1] == '1');
      if (pointer[i] == '~' && !escaped) return nullptr;
      name += escaped ? (pointer[++i] == '0' ? '~' : '/') : pointer[i];
    }
    at = end;
    if (!base->is_array()) {
      base = member(base, name);
      continue;
    }
    size_t index = 0;
    const auto [last, error] = std::from_chars(name.data(), name.data() + name.size(), index);
    const bool good = error == std::errc() && last == name.data() + name.size() && (name[0] != '0' || name.size() == 1);
    base = good && index < base->size() ? &(*base)[index] : nullptr;
  }
  return base;
}

void SchemaCases::fail(const Json& schema, const std::string& keyword, const std::string& what) const {
  throw Error(ErrorCode::kInput, "at " + place(schema) + (keyword.empty() ? "" : "/" + keyword) + ": " + what);
}

const SchemaCases::Json* SchemaCases::make(Json schema, const Json& origin) {
  made_.push_back(std::move(schema));
  origin_[&made_.back()] = &origin;
  return &made_.back();
}

const SchemaCases::Json& SchemaCases::list(const Json& schema, const char* key) const {
  const Json& value = *schema_member(schema, key);
  if (!value.is_array() || value.empty()) fail(schema, key, "expected a list of schemas, at least one");
  return value;
}

// The schema that $ref names; nullptr after cannot().
const SchemaCases::Json* SchemaCases::target(const Json& schema) {
  check_time_();
  const Json* ref = schema_member(schema, "$ref");
  for (const char* key : {"$dynamicRef", "$recursiveRef"}) {
    if (ref == nullptr) ref = schema_member(schema, key);
  }
  if (!ref->is_string()) fail(schema, "$ref", "expected a place within the schema, such as \"#/$defs/name\"");
  const std::string name = *ref;
  if (name == "#" || name.empty()) return &root_;
  const auto known = anchors_.find(name);
  if (known != anchors_.end()) return known->second;
  const size_t hash = std::min(name.find('#'), name.size());
  const Json* base = &root_;
  if (hash > 0) {  // another document, unless a part of this one has that $id
    const std::string document = name.substr(0, hash);
    base = nullptr;
    for (const auto& [id, part] : anchors_) {
      if (id == document || id.ends_with("/" + document)) base = part;
    }
    if (base == nullptr) {
      cannot_(schema, "$ref", "another document, \"" + pointer_part(name) + "\"; expected a place within the schema");
      return nullptr;
    }
  }
  const std::string pointer = hash < name.size() ? percent_decoded(name.substr(hash + 1)) : "";
  const Json* part = part_at(base, pointer);
  if (part == nullptr) fail(schema, "$ref", "the schema has no \"" + name.substr(0, 60) + "\"");
  return part;
}

const SchemaCases::Json* SchemaCases::resolved(const Json* schema) {
  std::set<const Json*> seen;
  while (schema->is_object() && schema->contains("$ref")) {
    if (!seen.insert(schema).second) return schema;
    if (!ref_is_alone_ && schema->size() > 1) {
      for (const auto& [key, value] : schema->items()) {
        if (key != "$ref" && key != "description" && key != "title" && key != "default" && key != "examples")
          return schema;
      }
    }
    const Json* next = target(*schema);
    if (next == nullptr) return schema;
    schema = next;
  }
  return schema;
}

unsigned SchemaCases::type_of(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return kNull;
    case Json::value_t::boolean:
      return kBoolean;
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
      return kInteger;
    case Json::value_t::number_float: {
      const auto x = value.get<double>();
      return x == static_cast<double>(static_cast<int64_t>(std::clamp(x, -9e18, 9e18))) || x >= 9e18 || x <= -9e18
                 ? kInteger
                 : kFraction;
    }
    case Json::value_t::string:
      return kString;
    case Json::value_t::object:
      return kObject;
    default:
      return kArray;
  }
}

bool SchemaCases::same(const Json& a, const Json& b) { return a == b; }

unsigned SchemaCases::types(const Json& schema) {
  static const std::map<std::string, unsigned> kNames = {
      {"null", kNull},     {"boolean", kBoolean}, {"integer", kInteger}, {"number", kInteger | kFraction},
      {"string", kString}, {"object", kObject},   {"array", kArray}};
  const Json* type = schema_member(schema, "type");
  if (type == nullptr) return kEvery;
  unsigned out = 0;
  for (const Json& name : type->is_array() ? *type : Json::array({*type})) {
    if (name == "any") return kEvery;  // draft 3
    const auto known = name.is_string() ? kNames.find(name.get<std::string>()) : kNames.end();
    if (known == kNames.end()) {
      fail(schema, "type", "expected string, number, integer, boolean, null, object or array, or a list of them");
    }
    out |= known->second;
  }
  if (out == 0) fail(schema, "type", "expected at least one type");
  const Json* nullable = schema_member(schema, "nullable");  // OpenAPI 3.0's
  if (nullable != nullptr && *nullable == true) out |= kNull;
  return out;
}

// Whether a value may satisfy all of them; true if that is not plain to see.
bool SchemaCases::possible(const PlainSchemas& schemas, int depth) {
  unsigned mask = kEvery;
  std::vector<const Json*> values;
  bool listed = false;
  for (const Json* s : schemas) {
    if (*s == false) return false;
    if (!s->is_object()) continue;
    mask &= types(*s);
    const Json* constant = schema_member(*s, "const");
    const Json* choice = schema_member(*s, "enum");
    std::vector<const Json*> own;
    if (constant != nullptr) {
      own.push_back(constant);
    } else if (choice != nullptr && choice->is_array()) {
      for (const Json& v : *choice) own.push_back(&v);
    } else {
      continue;
    }
    if (listed) {
      std::erase_if(values, [&](const Json* v) {
        check_time_();
        return std::ranges::none_of(own, [&](const Json* o) { return same(*v, *o); });
      });
    } else {
      values = std::move(own);
      listed = true;
    }
  }
  for (const Json* s : schemas) {
    const Json* forbidden = schema_member(*s, kNotValues);
    if (forbidden == nullptr) continue;
    std::erase_if(values, [&](const Json* v) {
      check_time_();
      return std::ranges::any_of(*forbidden, [&](const Json& f) { return same(*v, f); });
    });
  }
  if (listed) std::erase_if(values, [&](const Json* v) { return (type_of(*v) & mask) == 0; });
  if (mask == 0 || (listed && values.empty())) return false;
  if (listed || mask != kObject || depth == 0) return true;
  for (const Json* s : schemas) {
    const Json* needed = schema_member(*s, "required");
    if (needed == nullptr || !needed->is_array()) continue;
    for (const Json& name : *needed) {
      if (!name.is_string()) continue;
      const std::string& key = name.get_ref<const std::string&>();
      PlainSchemas property;
      check_time_();
      for (const Json* other : schemas) {
        const Json* own = member(member(other, "properties"), key);
        const Json* extra = member(other, "additionalProperties");
        if (own != nullptr) {
          property.push_back(resolved(own));
        } else if (extra != nullptr && *extra == false && member(other, "patternProperties") == nullptr) {
          return false;
        }
      }
      if (!property.empty() && !possible(property, depth - 1)) return false;
    }
  }
  return true;
}

SchemaCases::Cases SchemaCases::both(const Cases& a, const Cases& b) {
  Cases out;
  for (const PlainSchemas& x : a) {
    for (const PlainSchemas& y : b) {
      check_time_();
      PlainSchemas all = x;
      for (const Json* s : y) {
        if (std::ranges::find(all, s) == all.end()) all.push_back(s);
      }
      if (!possible(all, 2)) continue;
      if (std::ranges::find(out, all) == out.end()) out.push_back(std::move(all));
      if (out.size() > kMaxCases) {
        throw Error(ErrorCode::kUnsupported, "its alternatives (anyOf, oneOf, not, if) multiply to more than " +
                                                 std::to_string(kMaxCases) + " cases");
      }
    }
  }
  return out;
}

std::vector<PlainSchemas> SchemaCases::of(const PlainSchemas& schemas) {
  Cases cases = {{}};
  for (const Json* s : schemas) cases = both(cases, expand(*s));
  return cases;
}

SchemaCases::Cases SchemaCases::expand(const Json& schema) {
  if (schema == true) return {{}};
  if (schema == false) return {};
  if (!schema.is_object()) fail(schema, "", "expected a schema, an object");
  if (depth_ > kMaxNesting)
    fail(schema, "", "more than " + std::to_string(kMaxNesting) + " schemas within one another");
  // A schema that refers to itself at the same place allows nothing by that.
  if (!open_.insert(&schema).second) return {};
  struct Leave {
    std::set<const Json*>& open;
    const Json* schema;
    int& depth;
    ~Leave() {
      open.erase(schema);
      --depth;
    }
  } leave{open_, &schema, ++depth_};

  if (const Json* choice = schema_member(schema, "enum");
      choice != nullptr && (!choice->is_array() || choice->empty())) {
    fail(schema, "enum", "expected a list of values, at least one");
  }
  Cases cases = {{&schema}};
  if (!possible({&schema}, 0)) return {};
  const bool refers = schema_member(schema, "$ref") != nullptr || schema_member(schema, "$dynamicRef") != nullptr ||
                      schema_member(schema, "$recursiveRef") != nullptr;
  if (refers) {
    const Json* to = target(schema);
    const Cases meant = to == nullptr ? Cases{{}} : expand(*resolved(to));
    if (ref_is_alone_) return meant;
    cases = both(cases, meant);
  }
  if (schema_member(schema, "allOf") != nullptr) {
    for (const Json& part : list(schema, "allOf")) cases = both(cases, expand(part));
  }
  if (schema_member(schema, "anyOf") != nullptr) {
    Cases any;
    for (const Json& part : list(schema, "anyOf")) {
      Cases of_part = expand(part);
      any.insert(any.end(), of_part.begin(), of_part.end());
    }
    cases = both(cases, any);
  }
  if (schema_member(schema, "oneOf") != nullptr) cases = both(cases, one_of(schema, list(schema, "oneOf")));
  if (const Json* forbidden = schema_member(schema, "not"); forbidden != nullptr) {
    Cases other;
    PlainSchemas beside = cases.empty() ? PlainSchemas() : cases[0];
    other = negated(*forbidden, beside);
    const Cases left = both(cases, other);
    if (left.empty() && !cases.empty() && !allows_all(*forbidden) && other.empty()) {
      cannot_(schema, "not", "the opposite of such a schema");
    } else {
      cases = left;
    }
  }
  if (const Json* condition = schema_member(schema, "if"); condition != nullptr) {
    const Json *then = schema_member(schema, "then"), *otherwise = schema_member(schema, "else");
    if (then != nullptr || otherwise != nullptr) {
      const Cases yes = both(expand(*condition), then == nullptr ? Cases{{}} : expand(*then));
      const Cases no = both(negated(*condition, cases.empty() ? PlainSchemas() : cases[0]),
                            otherwise == nullptr ? Cases{{}} : expand(*otherwise));
      Cases either = yes;
      either.insert(either.end(), no.begin(), no.end());
      cases = both(cases, either);
    }
  }
  cases = dependencies(schema, std::move(cases));
  add_unevaluated(schema, cases);
  return cases;
}

SchemaCases::Cases SchemaCases::dependencies(const Json& schema, Cases cases) {
  for (const char* key : {"dependentRequired", "dependentSchemas", "dependencies"}) {
    const Json* all = schema_member(schema, key);
    if (all == nullptr) continue;
    if (!all->is_object()) fail(schema, key, "expected an object");
    for (const auto& [name, needs] : all->items()) {
      Cases either = {{make({{"type", {"null", "boolean", "number", "string", "array"}}}, schema)},
                      {make({{"type", "object"}, {"properties", {{name, false}}}}, schema)}};
      Json required = Json::array({name});
      if (needs.is_string()) required.push_back(needs);
      if (needs.is_array()) required.insert(required.end(), needs.begin(), needs.end());
      const Json* with = make({{"type", "object"}, {"required", required}}, schema);
      Cases then = needs.is_array() || needs.is_string() ? Cases{{with}} : both({{with}}, expand(needs));
      either.insert(either.end(), then.begin(), then.end());
      cases = both(cases, either);
    }
  }
  return cases;
}

// Values of exactly one choice: of a choice and, unless that is plain to see, of none of the others.
SchemaCases::Cases SchemaCases::one_of(const Json& schema, const Json& choices) {
  std::vector<Cases> expanded;
  for (const Json& choice : choices) expanded.push_back(expand(choice));
  Cases out;
  bool exact = true;
  const auto own = [&] {
    // The keywords beside oneOf may tell its choices apart, too.
    Cases beside = {{&schema}};
    for (size_t i = 0; i < expanded.size(); ++i) {
      Cases cases = both(beside, expanded[i]);
      for (size_t k = 0; k < expanded.size(); ++k) {
        if (k == i) continue;
        Cases apart, together;
        for (const PlainSchemas& one : cases) (both({one}, expanded[k]).empty() ? apart : together).push_back(one);
        for (const PlainSchemas& one : together) {
          const Cases left = both({one}, negated(choices[k], one));
          apart.insert(apart.end(), left.begin(), left.end());
        }
        cases = std::move(apart);
      }
      out.insert(out.end(), cases.begin(), cases.end());
    }
  };
  try {
    own();
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kUnsupported) throw;
    exact = false;
  }
  const bool any_choice = std::ranges::any_of(expanded, [](const Cases& c) { return !c.empty(); });
  if (exact && (!out.empty() || !any_choice)) return out;
  cannot_(schema, "oneOf", "choices that cannot be told apart");
  out.clear();
  for (Cases& cases : expanded) out.insert(out.end(), cases.begin(), cases.end());
  return out;
}

// Cases of values that do not satisfy the schema: not all of them, where that cannot be said by a plain schema.
// `beside`: what they are known to satisfy.
SchemaCases::Cases SchemaCases::negated(const Json& schema, const PlainSchemas& beside) {
  if (allows_all(schema)) return {};
  if (schema == false) return {{}};
  if (!schema.is_object()) fail(schema, "", "expected a schema, an object");
  if (depth_ > kMaxNesting)
    fail(schema, "", "more than " + std::to_string(kMaxNesting) + " schemas within one another");
  struct Leave {
    int& depth;
    ~Leave() { --depth; }
  } leave{++depth_};
  Cases out;
  const auto add = [&](Json plain) { out.push_back({make(std::move(plain), schema)}); };
  const auto join = [&](const Cases& cases) { out.insert(out.end(), cases.begin(), cases.end()); };
  if (schema_member(schema, "$ref") != nullptr) {
    const Json* to = target(schema);
    if (to != nullptr) join(negated(*to, beside));
    if (ref_is_alone_) return out;
  }
  if (schema_member(schema, "type") != nullptr) {
    const unsigned rest = kEvery & ~types(schema);
    Json names = Json::array();
    const std::pair<unsigned, const char*> all[] = {{kNull, "null"},     {kBoolean, "boolean"}, {kInteger, "number"},
                                                    {kString, "string"}, {kObject, "object"},   {kArray, "array"}};
    for (const auto& [bit, name] : all) {
      if ((rest & bit) != 0) names.push_back(name);
    }
    if (!names.empty()) add({{"type", names}});
  }
  for (const char* key : {"enum", "const"}) {
    const Json* value = schema_member(schema, key);
    if (value != nullptr) add({{kNotValues, std::string(key) == "enum" ? *value : Json::array({*value})}});
  }
  if (const Json* needed = schema_member(schema, "required"); needed != nullptr && needed->is_array()) {
    for (const Json& name : *needed) {
      if (name.is_string()) add({{"type", "object"}, {"properties", {{name.get<std::string>(), false}}}});
    }
  }
  const Json* properties = schema_member(schema, "properties");
  if (properties != nullptr && properties->is_object()) {
    for (const auto& [name, property] : properties->items()) {
      if (allows_all(property)) continue;
      add({{"type", "object"}, {"required", {name}}, {"properties", {{name, {{"not", property}}}}}});
    }
  }
  const Json* extra = schema_member(schema, "additionalProperties");
  if (extra != nullptr && *extra == false && schema_member(schema, "patternProperties") == nullptr) {
    for (const Json* other : beside) {
      const Json* named = schema_member(*other, "properties");
      if (named == nullptr || !named->is_object()) continue;
      for (const auto& [name, property] : named->items()) {
        if (property != false && member(properties, name) == nullptr) {
          add({{"type", "object"}, {"required", {name}}});
        }
      }
    }
  }
  const std::tuple<const char*, const char*, const char*> bounds[] = {{"minimum", "exclusiveMaximum", "number"},
                                                                      {"maximum", "exclusiveMinimum", "number"},
                                                                      {"exclusiveMinimum", "maximum", "number"},
                                                                      {"exclusiveMaximum", "minimum", "number"}};
  for (const auto& [key, opposite, type] : bounds) {
    const Json* bound = schema_member(schema, key);
    if (bound != nullptr && bound->is_number()) add({{"type", type}, {opposite, *bound}});
  }
  const std::tuple<const char*, const char*, const char*> counts[] = {
      {"Length", "string", "minLength"}, {"Items", "array", "minItems"}, {"Properties", "object", "minProperties"}};
  for (const auto& [what, type, least] : counts) {
    const std::string most = std::string("max") + what;
    const Json *low = schema_member(schema, least), *high = schema_member(schema, most.c_str());
    if (low != nullptr && low->is_number_integer() && *low > 0) add({{"type", type}, {most, low->get<int64_t>() - 1}});
    if (high != nullptr && high->is_number_integer()) add({{"type", type}, {least, high->get<int64_t>() + 1}});
  }
  if (const Json* pattern = schema_member(schema, "pattern"); pattern != nullptr)
    add({{"type", "string"}, {kNotPattern, *pattern}});
  if (schema_member(schema, "not") != nullptr) join(expand(schema["not"]));
  if (schema_member(schema, "allOf") != nullptr) {
    for (const Json& part : list(schema, "allOf")) join(negated(part, beside));
  }
  for (const char* key : {"anyOf", "oneOf"}) {
    if (schema_member(schema, key) == nullptr) continue;
    Cases none = {{}};
    for (const Json& part : list(schema, key)) none = both(none, negated(part, beside));
    join(none);
  }
  return out;
}

// unevaluatedProperties and unevaluatedItems of a schema, for what its cases name.
void SchemaCases::add_unevaluated(const Json& schema, Cases& cases) {
  const Json* properties = schema_member(schema, "unevaluatedProperties");
  const Json* items = schema_member(schema, "unevaluatedItems");
  for (PlainSchemas& one : cases) {
    Json rest = Json::object();
    if (properties != nullptr) {
      bool all = false;
      OrderedMembers named, patterns;
      check_time_();
      for (const Json* s : one) {
        all = all || schema_member(*s, "additionalProperties") != nullptr;
        const Json *own = schema_member(*s, "properties"), *own_patterns = schema_member(*s, "patternProperties");
        if (own != nullptr && own->is_object()) {
          for (const auto& [name, property] : own->items()) named.emplace_back(name, true);
        }
        if (own_patterns != nullptr && own_patterns->is_object()) {
          for (const auto& [name, property] : own_patterns->items()) patterns.emplace_back(name, true);
        }
      }
      if (!all) {
        rest = {{"properties", ordered_object(std::move(named))},
                {"patternProperties", ordered_object(std::move(patterns))},
                {"additionalProperties", *properties}};
      }
    }
    if (items != nullptr) {
      bool all = false;
      size_t n = 0;
      for (const Json* s : one) {
        const Json *own = schema_member(*s, "items"), *first = schema_member(*s, "prefixItems");
        all = all || (own != nullptr && !own->is_array()) || schema_member(*s, "additionalItems") != nullptr;
        if (first != nullptr && first->is_array()) n = std::max(n, first->size());
        if (own != nullptr && own->is_array()) n = std::max(n, own->size());
      }
      if (!all) {
        rest["prefixItems"] = Json::array();
        for (size_t i = 0; i < n; ++i) rest["prefixItems"].push_back(true);
        rest["items"] = *items;
      }
    }
    if (!rest.empty()) one.push_back(make(std::move(rest), schema));
  }
}

}  // namespace vlcache
