// A conversation that outlives the program: what was said, the pictures as they were, and the tokens whose KV is stored
// elsewhere. A folder of its own, readable by its owner only.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/reuse/prefix_reuse.h"

namespace vlcache {

struct SessionTurn {
  std::string question, answer;
  std::vector<std::shared_ptr<const std::vector<std::byte>>> pictures;  // the files' bytes
};

struct SessionState {
  std::string system;
  std::vector<SessionTurn> turns;
  PrefixTokens kv;  // whose KV is stored; none: it is to be computed
};

class Session {
 public:
  // Of a folder of sessions, which is made if only its last part is missing; this process's alone until it is
  // destroyed. Throws Error(kInput) for a name that is none, or of a session that is open elsewhere; Error(kIo).
  Session(const std::filesystem::path& folder, std::string_view name);
  ~Session();
  Session(const Session&) = delete;

  // Empty where there is nothing yet. Throws Error for a damaged one.
  SessionState load() const;
  // Replaces what was there, at once or not at all.
  void save(const SessionState& state) const;

 private:
  std::filesystem::path dir_;
  int lock_ = -1;
};

// What session.json says; pictures by name. Throws Error(kInput), `where` in front.
struct SessionText {
  SessionState state;                              // without pictures
  std::vector<std::vector<std::string>> pictures;  // of each turn, by name
};
SessionText parse_session(std::string_view text, const std::string& where);
std::string session_text(const SessionText& session);

}  // namespace vlcache
