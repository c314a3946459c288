// SchemaCompiler adds the rules of one schema to an automaton: for add_schema (schema_rules.h) alone. Objects are in
// schema_objects.cc, all else in schema_rules.cc.
#pragma once

#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "grammar/automaton.h"
#include "grammar/number_range.h"
#include "grammar/schema_cases.h"
#include "grammar/schema_rules.h"
#include "grammar/string_set.h"

namespace vlcache {

class SchemaCompiler {
 public:
  SchemaCompiler(Automaton& automaton, const nlohmann::ordered_json& root, const SchemaOptions& options);

  // The rules of parts of the root, or of the root itself.
  std::vector<int32_t> compile(const PlainSchemas& schemas);

 private:
  struct Waiting {
    int32_t rule;
    PlainSchemas schemas;
  };

  [[noreturn]] void fail(const nlohmann::ordered_json& schema, const std::string& keyword, const std::string& what,
                         ErrorCode code = ErrorCode::kInput) const;

  void cannot(const nlohmann::ordered_json& schema, const std::string& keyword, const std::string& why);

  // The rule of what satisfies all of the schemas.
  int32_t rule_of(const PlainSchemas& schemas);

  // Connects the states `from` and `to` by the values of one case.
  void value(const PlainSchemas& schemas, int32_t from, int32_t to);

  static std::vector<const nlohmann::ordered_json*> forbidden_values(const PlainSchemas& schemas);

  // enum and const: their texts, with common beginnings merged.
  void values(const PlainSchemas& schemas, unsigned types, int32_t from, int32_t to);

  // The values of enum and const that satisfy everything else.
  std::vector<nlohmann::ordered_json> listed_values(const PlainSchemas& schemas, unsigned types);

  // Leaves out the values that do not satisfy the schemas.
  void satisfying(const std::deque<nlohmann::ordered_json>& schemas, std::vector<nlohmann::ordered_json>& values);

  // One after the other, not recursively: a chain of schemas may be long.
  void compile_waiting();

  // Numbers.

  Decimal decimal(const nlohmann::ordered_json& schema, const char* key) const;

  void numbers(const PlainSchemas& schemas, bool integers, int32_t from, int32_t to);

  void numbers_in(const NumberRange& range, const std::vector<const nlohmann::ordered_json*>& multiples, bool integers,
                  int32_t from, int32_t to);

  // Strings.

  int64_t count(const nlohmann::ordered_json& schema, const char* key, int64_t fallback) const;

  StringSet string_set(const PlainSchemas& schemas);

  void strings(const PlainSchemas& schemas, int32_t from, int32_t to);

  // Arrays.

  struct ArrayShape {
    std::vector<PlainSchemas> first;  // of the items at the beginning
    PlainSchemas rest;
    bool ends = false;  // no items after the first
    int64_t least = 0, most = -1;
    bool unique = false;
  };

  ArrayShape array_shape(const PlainSchemas& schemas);

  void array(const PlainSchemas& schemas, int32_t from, int32_t to);

  // A list of these items, at least one, whose commas are counted.
  int32_t counted_list(int32_t item);

  // Different values of an enum: in any order if they are few, else in that of the enum. False: items are others.
  bool unique_items(const ArrayShape& shape, int32_t from, int32_t to);

  // Objects.

  struct Property {
    std::string name;
    PlainSchemas schemas;
    bool required = false;
  };
  // Names outside `Property` that match exactly these patterns.
  struct Others {
    StringSet names;
    PlainSchemas schemas;
  };

  static bool matches(const StringPattern& regex, const std::string& name);

  struct NamePattern {
    std::string text;
    StringPattern regex;
    PlainSchemas schemas;
    std::set<const nlohmann::ordered_json*> owners;  // the schemas whose patternProperties have it
  };

  std::vector<NamePattern> name_patterns(const PlainSchemas& schemas);

  // Every schema's part in a property: what it names, what its patterns match, else its additionalProperties.
  PlainSchemas schemas_of(const std::string& name, const PlainSchemas& schemas,
                          const std::vector<NamePattern>& patterns);

  bool may_have_name(const std::string& name, const PlainSchemas& names);

  // propertyNames as a set of strings, or as a list (listed_names_).
  StringSet name_set(const PlainSchemas& names);

  struct ObjectShape {
    std::vector<Property> properties;
    std::vector<Others> others;
    int64_t least = 0, most = -1;
  };

  ObjectShape object_shape(const PlainSchemas& schemas);

  // The names that propertyNames lists; nullptr: it does not.
  const std::vector<std::string>* listed_by(const PlainSchemas& names);

  void add_others(const PlainSchemas& schemas, const std::vector<NamePattern>& patterns, const PlainSchemas& names,
                  const std::set<std::string>& known, bool any_named, ObjectShape& shape);

  // Properties in order, then others. A state for each number of properties so far, as far as their number matters: for
  // the comma, and for minProperties and maxProperties.
  void object(const PlainSchemas& schemas, int32_t from, int32_t to);

  void others(const ObjectShape& shape, bool limited, std::vector<int32_t>& at);

  Automaton& a_;
  const nlohmann::ordered_json& root_;
  const SchemaOptions& options_;
  SchemaCases cases_;
  std::map<PlainSchemas, int32_t> rules_;
  std::deque<Waiting> waiting_;
  std::map<PlainSchemas, std::pair<std::optional<Automaton>, int32_t>> name_rules_;  // of propertyNames
  std::map<PlainSchemas, std::optional<std::vector<std::string>>> name_lists_;
  std::optional<std::vector<std::string>> listed_names_;
  std::map<int32_t, int32_t> lists_;  // counted_list by the rule of its items
  size_t n_unlike_bytes_ = 0;
};

}  // namespace vlcache
