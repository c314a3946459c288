// Regular expressions over the characters of a JSON string, as states of an automaton.
#pragma once

#include <string>
#include <string_view>

#include "grammar/automaton.h"

namespace vlcache {

// The strings, quotes included, in which `pattern` is found: anywhere, unless ^ and $ say where. Every text that comes
// of it is one for ECMAScript's and for Python's expressions; where they differ (what \w and \d are beyond ASCII),
// nothing is allowed that either refuses. Taken: characters, classes, . \d \w \s \D \W \S, escapes, groups, | * + ?
// {n,m} (lazy ones too), ^ at the beginning and $ at the end. Throws Error(kUnsupported or kInput) saying what else is
// there.
void strings_with(Automaton& automaton, std::string_view pattern, int32_t from, int32_t to);

// The pattern of a "format" of JSON Schema: date-time, time, date, duration, email, hostname, ipv4, ipv6, uuid. Empty:
// no such format.
std::string pattern_of_format(std::string_view format);

}  // namespace vlcache
