// Schema rules: JSON schemas as rules of an automaton.
//
// JSON Schema 2020-12, and the forms of earlier drafts and of OpenAPI that clients still write. Keywords that are not
// known, and formats that are not, are annotations. Every text of a rule satisfies the schema; a keyword that cannot be
// held (uniqueItems of other than enums, contains, ...) is an error that names it, or is left out with a note.
//
// The texts are fewer than the values that the schema allows:
// - Properties are written in the order of the schema (of the first that names them, where several hold), others after
//   them; enums with uniqueItems of more than kMaxUniqueValues values are in their order.
// - White space and numbers are those of json_rules.h, escapes those of json.dumps where there is a pattern.
// - The root, if it has no "type", allows only the types that its keywords are about; so do all schemas of a function.
// - format is held where it is known (string_format.h) and no pattern stands beside it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "grammar/automaton.h"
#include "grammar/schema_cases.h"

namespace vlcache {

struct SchemaOptions {
  // Keywords that cannot be held: left out, each with a note; otherwise they are errors.
  std::vector<SchemaNote>* widened = nullptr;
  // Objects have only named properties, unless additionalProperties or patternProperties say so: the
  // arguments of a function.
  bool closed = false;
};

// Adds the rule of the texts that a schema allows to an automaton that begins with add_json_rules(). Throws
// Error(kInput, or kUnsupported for rules that cannot be held): "<where>: at #/properties/x: ...".
int32_t add_schema(Automaton& automaton, const nlohmann::ordered_json& schema, const std::string& where,
                   const SchemaOptions& options = {});

// The same for schemas that are parts of `root`, to which their references are: a rule for each, in one pass over it.
std::vector<int32_t> add_schemas_within(Automaton& automaton, const nlohmann::ordered_json& root,
                                        const std::vector<const nlohmann::ordered_json*>& schemas,
                                        const std::string& where, const SchemaOptions& options = {});

}  // namespace vlcache
