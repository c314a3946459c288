// String patterns: regular expressions over the characters of a JSON string, as states of an automaton.
#pragma once

#include <string>
#include <string_view>

#include "grammar/automaton.h"

namespace vlcache {

// The strings, quotes included, in which `pattern` is found: anywhere, unless ^ and $ anchor it. Every text that the
// automaton accepts matches in ECMAScript and in Python; where the two differ (\w and \d beyond ASCII), only texts are
// accepted that both match. Supported: characters, classes, . \d \w \s \D \W \S, escapes, groups, | * + ? {n,m} (lazy
// ones too), ^ at the beginning and $ at the end. Throws Error(kUnsupported or kInput) that names anything else.
void strings_with(Automaton& automaton, std::string_view pattern, int32_t from, int32_t to);

// The pattern of a "format" of JSON Schema: date-time, time, date, duration, email, hostname, ipv4, ipv6, uuid. Empty:
// unknown format.
std::string pattern_of_format(std::string_view format);

}  // namespace vlcache
