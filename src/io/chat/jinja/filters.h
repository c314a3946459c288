// Declares the filters of jinja2, in two files: those that return text or numbers, and those that work on sequences.
#pragma once

#include "io/chat/jinja/runtime.h"

namespace vlcache::jinja {

struct FilterEntry {
  std::string_view name;
  FilterFunction function;
};
std::initializer_list<FilterEntry> text_filters();
std::initializer_list<FilterEntry> sequence_filters();

// jinja2's soft_str: a string stays what it is (Markup too), anything else becomes str(value).
Value soft_string(Runtime& runtime, const Value& value);

}  // namespace vlcache::jinja
