// Fuzzes schemas, and walks the resulting automata: either an error that names a place, or every walk can continue or
// end.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "base/fuzz_target.h"
#include "base/json.h"
#include "grammar/grammar_testing.h"
#include "grammar/json_rules.h"
#include "grammar/schema_rules.h"

FUZZ_TARGET(schema_rules) {
  using namespace vlcache;
  if (size > 1 << 14) return 0;
  Automaton automaton;
  add_json_rules(automaton);
  int32_t rule = 0;
  try {
    rule = add_schema(automaton, parse_ordered_json({reinterpret_cast<const char*>(data), size}, "schema"), "schema");
  } catch (const Error& e) {
    if (std::string_view(e.what()).empty()) std::abort();
    return 0;
  }
  if (size > 0 && !never_stuck(automaton, rule, {data, size})) std::abort();
  return 0;
}
