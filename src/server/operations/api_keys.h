// ApiKeys: the keys that a server accepts, each with its tenant's name in the log and the salt of its tenant's caches.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/sha256.h"

namespace vlcache {

struct Caller {
  std::string name;                  // "" if no key is needed
  bool admin = true;                 // may reset caches
  bool sees_totals = true;           // may read counts of all tenants: an admin, or the only tenant
  std::optional<Sha256Digest> salt;  // Prompt::salt: callers with different names share no cache entries
};

class ApiKeys {
 public:
  // One key a line, "KEY [NAME] [admin]"; empty lines and those that begin with # are skipped. Keys with the same name
  // belong to one tenant. Throws Error(kInput) that names `where` and the line, but never a key.
  static ApiKeys parse(std::string_view text, std::string_view where);
  static ApiKeys load(const std::filesystem::path& file);

  // Takes the same time for every key, known or not.
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
