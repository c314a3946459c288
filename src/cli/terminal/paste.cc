#include "cli/terminal/paste.h"

namespace vlcache {

bool Pasted::add(char c) {
  bytes_ += c;
  if (!bytes_.ends_with(kEnd)) return false;
  bytes_.resize(bytes_.size() - kEnd.size());
  return true;
}

void Pasted::take_rest(std::string& more) {
  const size_t end = more.substr(0, more.find(kBegin)).rfind(kEnd);
  if (end == std::string::npos) return;
  bytes_ += more.substr(0, end);
  more.erase(0, end + kEnd.size());
}

std::string Pasted::text() const {
  std::string text;
  for (size_t i = 0; i < bytes_.size(); ++i) {
    const auto c = static_cast<unsigned char>(bytes_[i]);
    if (c == '\r' && i + 1 < bytes_.size() && bytes_[i + 1] == '\n') continue;
    if (c == '\r') {
      text += '\n';
    } else if ((c >= 0x20 && c != 0x7F) || c == '\n' || c == '\t') {
      text += bytes_[i];
    }
  }
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

}  // namespace vlcache
