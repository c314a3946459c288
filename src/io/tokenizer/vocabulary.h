// Vocabulary: maps token text to id and back, for vocabularies whose ids may have gaps of any size.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>

namespace vlcache {

constexpr int64_t kMaxTokenId = INT32_MAX;

class Vocabulary {
 public:
  // Throws Error(kInput) naming `where` if the id is out of range or taken, or the text is taken.
  void add(std::string_view text, int64_t id, const std::string& where);
  int32_t id(std::string_view text) const;
  const std::string* text(int32_t id) const;
  int64_t size() const { return static_cast<int64_t>(texts_.size()); }
  void reserve(size_t n);

 private:
  std::deque<std::string> texts_;
  std::unordered_map<std::string_view, int32_t> ids_;
  std::unordered_map<int32_t, const std::string*> by_id_;  // a hash, because an id may have any size
};

}  // namespace vlcache
