// Fuzzes context-free grammars, and walks the resulting automata: either an error that names the field, or every walk
// can continue or end.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "base/fuzz_target.h"
#include "grammar/grammar_testing.h"
#include "grammar/json_rules.h"
#include "grammar/text_rules.h"

FUZZ_TARGET(gbnf) {
  using namespace vlcache;
  if (size == 0 || size > 1 << 12) return 0;
  Automaton automaton;
  add_json_rules(automaton);
  TextRule texts;
  try {
    texts = add_gbnf(automaton, {reinterpret_cast<const char*>(data), size}, "grammar");
  } catch (const Error& e) {
    if (!std::string_view(e.what()).starts_with("grammar: ")) std::abort();
    return 0;
  }
  const int32_t rule = automaton.add_rule(), end = automaton.add_state();
  automaton.end(end);
  texts.connect(automaton, automaton.start(rule), end);
  if (!never_stuck(automaton, rule, {data, size})) std::abort();
  return 0;
}
