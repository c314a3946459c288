#include "base/format.h"

#include <cstdarg>
#include <cstdio>

namespace vlcache {

std::string format(const char* pattern, ...) {
  va_list values, again;
  va_start(values, pattern);
  va_copy(again, values);
  std::string text(static_cast<size_t>(std::vsnprintf(nullptr, 0, pattern, values)), '\0');
  std::vsnprintf(text.data(), text.size() + 1, pattern, again);
  va_end(again);
  va_end(values);
  return text;
}

std::string with_replaced(std::string_view text, std::string_view part, std::string_view by) {
  std::string out;
  size_t begin = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, begin)) {
    out.append(text.substr(begin, at - begin)).append(by);
    begin = at + part.size();
  }
  return out.append(text.substr(begin));
}

}  // namespace vlcache
