#include "grammar/text_rules.h"

#include <algorithm>

#include "base/error.h"
#include "grammar/string_pattern.h"
#include "grammar/string_set.h"

namespace vlcache {

TextRule add_choice(Automaton& automaton, std::vector<std::string> choices) {
  std::ranges::sort(choices);
  const TextRule out{.rule = automaton.add_rule(), .may_be_empty = !choices.empty() && choices[0].empty()};
  std::vector<int32_t> path = {automaton.start(out.rule)};  // the states after each beginning of the last text
  std::string last;
  for (const std::string& choice : choices) {
    const auto differ = std::ranges::mismatch(choice, last);
    const size_t n_common = static_cast<size_t>(differ.in1 - choice.begin());
    path.resize(n_common + 1);
    for (size_t i = n_common; i < choice.size(); ++i) path.push_back(automaton.text(path.back(), choice.substr(i, 1)));
    if (!choice.empty()) automaton.end(path.back());
    last = choice;
  }
  return out;
}

TextRule add_regex(Automaton& automaton, std::string_view regex, const std::string& where) {
  TextRule out{.rule = automaton.add_rule()};
  const int32_t end = automaton.add_state();
  automaton.end(end);
  std::optional<bool> empty;
  try {
    empty = plain_texts_of(automaton, parse_pattern(regex), automaton.start(out.rule), end);
  } catch (const Error& e) {
    throw Error(e.code(), where + ": " + e.what());
  }
  if (!empty) throw Error(ErrorCode::kInput, where + ": no text matches");
  out.may_be_empty = *empty;
  return out;
}

}  // namespace vlcache
