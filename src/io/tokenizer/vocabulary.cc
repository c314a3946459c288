#include "io/tokenizer/vocabulary.h"

#include "base/error.h"

namespace vlcache {

void Vocabulary::reserve(size_t n) {
  ids_.reserve(n);
  by_id_.reserve(n);
}

void Vocabulary::add(std::string_view text, int64_t id, const std::string& where) {
  const auto quoted = [](std::string_view s) { return "\"" + std::string(s.substr(0, 60)) + "\""; };
  if (id < 0 || id > kMaxTokenId) {
    throw Error(ErrorCode::kInput, where + ": token " + quoted(text) + ": expected an id of 0 to " +
                                       std::to_string(kMaxTokenId) + ", found " + std::to_string(id));
  }
  if (ids_.contains(text)) throw Error(ErrorCode::kInput, where + ": token " + quoted(text) + " is there twice");
  const auto taken = by_id_.find(static_cast<int32_t>(id));
  if (taken != by_id_.end()) {
    throw Error(ErrorCode::kInput, where + ": tokens " + quoted(*taken->second) + " and " + quoted(text) +
                                       " share the id " + std::to_string(id));
  }
  const std::string& kept = texts_.emplace_back(text);
  ids_.emplace(kept, static_cast<int32_t>(id));
  by_id_.emplace(static_cast<int32_t>(id), &kept);
}

int32_t Vocabulary::id(std::string_view text) const {
  const auto it = ids_.find(text);
  return it == ids_.end() ? -1 : it->second;
}

const std::string* Vocabulary::text(int32_t id) const {
  const auto it = by_id_.find(id);
  return it == by_id_.end() ? nullptr : it->second;
}

}  // namespace vlcache
