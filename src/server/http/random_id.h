// Creates random ids of requests, answers and tool calls.
#pragma once

#include <string>

namespace vlcache {

// "PREFIX" and 24 random hexadecimal digits.
std::string random_id(const char* prefix);

}  // namespace vlcache
