// String formats: the values of "format" of JSON Schema that are known, as regular expressions.
#pragma once

#include <string>
#include <string_view>

namespace vlcache {

// date-time, time, date, duration, email, hostname, ipv4, ipv6, uuid. Empty: another format, which is an annotation.
std::string pattern_of_format(std::string_view format);

}  // namespace vlcache
