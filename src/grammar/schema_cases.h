// Schema cases: a JSON schema as a choice of cases without $ref, allOf, anyOf, oneOf, not, if or dependencies, each a
// list of plain schemas that hold together.
#pragma once

#include <deque>
#include <functional>
#include <initializer_list>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/ordered_json.h"

namespace vlcache {

// What a schema asks that its grammar does not hold.
struct SchemaNote {
  std::string keyword, place, why;
};

// nullptr: the schema has no such keyword, or is no object.
const nlohmann::ordered_json* schema_member(const nlohmann::ordered_json& schema, const char* key);
// Whether an object has any of them.
bool has_keyword(const nlohmann::ordered_json& schema, std::initializer_list<const char*> keys);

using PlainSchemas = std::vector<const nlohmann::ordered_json*>;

class SchemaCases {
 public:
  // Keywords of schemas that only this class writes: values that are forbidden, a pattern that must not match.
  static constexpr const char* kNotValues = "\x01not enum";
  static constexpr const char* kNotPattern = "\x01not pattern";

  // `root` must outlive this. cannot(): a keyword of a schema cannot be held; it throws, or notes it and returns.
  using Cannot =
      std::function<void(const nlohmann::ordered_json& schema, const std::string& keyword, const std::string& why)>;
  SchemaCases(const nlohmann::ordered_json& root, Cannot cannot, std::function<void()> check_time);

  // The values that satisfy all schemas: the values of any case. Every case holds only such values; none: no value
  // does. Throws Error(kInput) with a place in front for a value that is no schema.
  std::vector<PlainSchemas> of(const PlainSchemas& schemas);
  // The schema that is meant, if the given one is no more than a reference to it.
  const nlohmann::ordered_json* resolved(const nlohmann::ordered_json* schema);
  // "#/properties/x", or the place of the keyword from which a schema was derived.
  std::string place(const nlohmann::ordered_json& schema) const;
  // As schema_member, by an index if the schema has many members: for names that are looked up in a loop. Null for
  // null.
  const nlohmann::ordered_json* member(const nlohmann::ordered_json* schema, const std::string& name);
  // A schema that lives as long as this.
  const nlohmann::ordered_json* make(nlohmann::ordered_json schema, const nlohmann::ordered_json& origin);

  // The types that a plain schema allows: bits of Type.
  enum Type : unsigned {
    kNull = 1,
    kBoolean = 2,
    kInteger = 4,
    kFraction = 8,  // numbers that are no integers
    kString = 16,
    kObject = 32,
    kArray = 64,
    kEvery = 127
  };
  unsigned types(const nlohmann::ordered_json& schema);
  static unsigned type_of(const nlohmann::ordered_json& value);
  static bool same(const nlohmann::ordered_json& a, const nlohmann::ordered_json& b);

 private:
  using Json = nlohmann::ordered_json;
  using Cases = std::vector<PlainSchemas>;

  [[noreturn]] void fail(const Json& schema, const std::string& keyword, const std::string& what) const;
  Cases expand(const Json& schema);
  Cases both(const Cases& a, const Cases& b);
  Cases negated(const Json& schema, const PlainSchemas& beside);
  Cases one_of(const Json& schema, const Json& choices);
  Cases dependencies(const Json& schema, Cases cases);
  void add_unevaluated(const Json& schema, Cases& cases);
  bool possible(const PlainSchemas& schemas, int depth);
  const Json* target(const Json& schema);
  const Json& list(const Json& schema, const char* key) const;
  void collect_anchors(const Json& schema, const std::string& base);
  const Json* part_at(const Json* base, const std::string& pointer);

  const Json& root_;
  Cannot cannot_;
  std::function<void()> check_time_;
  bool ref_is_alone_ = false;                   // drafts up to 7 ignore the keywords beside $ref
  std::map<std::string, const Json*> anchors_;  // by name and by $id
  std::deque<Json> made_;
  std::map<const Json*, MemberIndex> indices_;
  // Where each part of the root stands: in what, as what. Found when it is first asked for.
  mutable std::unordered_map<const Json*, std::pair<const Json*, std::string>> places_;
  std::map<const Json*, const Json*> origin_;  // of made schemas
  std::set<const Json*> open_;                 // being expanded
  int depth_ = 0;
};

}  // namespace vlcache
