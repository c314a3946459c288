// Schema rules: JSON schemas as rules of an automaton.
//
// Supported is the part of OpenAI's structured outputs that can be enforced exactly:
//   type (one or several), properties, required, additionalProperties, items, minItems, maxItems, enum, const, anyOf,
//   $ref within the schema (recursion too), $defs; minimum, maximum, exclusiveMinimum, exclusiveMaximum; pattern and
//   format (string_pattern.h); true, {} (any value); annotations (title, description, default, ...) are let pass.
// Any other keyword is an error that names it: an answer that ignores it would be worse.
//
// Properties are written in the order of the schema; those that are not required may be left out. Properties that the
// schema does not name are allowed only if additionalProperties gives their schema, or if it names none at all and does
// not forbid others.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "grammar/automaton.h"

namespace vlcache {

// Adds the rule of the texts that a schema allows to an automaton that begins with add_json_rules(). Throws
// Error(kInput, or kUnsupported for keywords that are known but not implemented): "<where>: at #/properties/x: ...".
int32_t add_schema(Automaton& automaton, const nlohmann::ordered_json& schema, const std::string& where);

}  // namespace vlcache
