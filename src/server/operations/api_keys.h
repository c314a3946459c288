// API keys: who may ask a server, by what they are called in its log, and whose caches are whose.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/sha256.h"

namespace vlcache {

struct Caller {
  std::string name;                  // "" where nobody needs a key
  bool admin = true;                 // may reset caches
  std::optional<Sha256Digest> salt;  // Prompt::salt: callers of another name share nothing that is kept
};

class ApiKeys {
 public:
  // A line for each, "KEY [NAME] [admin]"; empty lines and those that begin with # are none. Keys of one name are one
  // tenant's. Throws Error(kInput) that names `where` and the line, but never a key.
  static ApiKeys parse(std::string_view text, std::string_view where);
  static ApiKeys load(const std::filesystem::path& file);

  // Takes the same time whichever key it is, and whether it is one.
  std::optional<Caller> find(std::string_view key) const;
  size_t size() const { return keys_.size(); }

 private:
  struct Key {
    Sha256Digest digest;
    Caller caller;
  };
  std::vector<Key> keys_;
};

}  // namespace vlcache
