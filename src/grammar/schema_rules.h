// JSON schemas as rules of an automaton.
//
// What OpenAI's structured outputs take, and what of it can be held exactly:
//   type (one or several), properties, required, additionalProperties, items, minItems, maxItems, enum, const, anyOf,
//   $ref within the schema (recursion too), $defs; minimum, maximum, exclusiveMinimum, exclusiveMaximum; pattern and
//   format (string_pattern.h); true, {} (any value); annotations (title, description, default, ...) are let pass.
// Any other keyword is an error that names it: an answer that does not keep to it would be worse.
//
// Properties come in the order of the schema, those that are not required or left out. Properties that it does not name
// come only where additionalProperties gives their schema, or where it names none at all and does not forbid them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "grammar/automaton.h"

namespace vlcache {

// The rule of the texts that a schema allows, in an automaton that begins with add_json_rules(). Throws Error(kInput,
// or kUnsupported for what is known and not done): "<where>: at #/properties/x: ...".
int32_t add_schema(Automaton& automaton, const nlohmann::ordered_json& schema, const std::string& where);

}  // namespace vlcache
