// Text rules: answers that are no JSON, as rules of an automaton: one of several texts, an expression, a context-free
// grammar.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/automaton.h"

namespace vlcache {

// The rule of the texts; the empty one, which no rule accepts, is told apart.
struct TextRule {
  int32_t rule = 0;
  bool may_be_empty = false;

  void connect(Automaton& automaton, int32_t from, int32_t to) const {
    automaton.call(from, rule, to);
    if (may_be_empty) automaton.skip(from, to);
  }
};

// Exactly one of the texts, which are valid UTF-8.
TextRule add_choice(Automaton& automaton, std::vector<std::string> choices);

// The texts that match an expression (string_pattern.h) from their beginning to their end. Throws Error(kInput, or
// kUnsupported for rules that cannot be held): "<where>: ...".
TextRule add_regex(Automaton& automaton, std::string_view regex, const std::string& where);

// The texts of the rule `root` of a grammar in llama.cpp's form (GBNF), which is also XGrammar's:
//   root ::= "yes" | [a-z]+ (", " name){0,3}   # a comment
// Literals, classes, . (any character), groups, |, ? * + {n} {n,} {n,m}, escapes \n \r \t \\ \" \[ \] \- \xHH \uHHHH
// \UHHHHHHHH. Rules may call each other and themselves, on the left as well. Throws as add_regex does.
TextRule add_gbnf(Automaton& automaton, std::string_view text, const std::string& where);

}  // namespace vlcache
