// Session: a conversation that outlives the program: its texts, the bytes of its images, and the tokens whose KV is
// stored elsewhere. It is a folder of its own, readable by its owner only.
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
  std::vector<std::shared_ptr<const std::vector<std::byte>>> images;  // the files' bytes
  std::vector<std::string> texts;  // after the images, which may be more (EncodedImage::text)
};

struct SessionState {
  std::string system;
  std::vector<SessionTurn> turns;
  PrefixTokens kv;  // whose KV is stored; empty: it is to be computed
};

class Session {
 public:
  // Opens a session in a folder of sessions, which is created if it is missing; exclusive to this process until it is
  // destroyed. Throws Error(kInput) for an invalid name, or a session that is open elsewhere; Error(kIo).
  Session(const std::filesystem::path& folder, std::string_view name);
  ~Session();
  Session(const Session&) = delete;

  // Empty for a new session. Throws Error for a damaged one.
  SessionState load() const;
  // Replaces the stored state, atomically.
  void save(const SessionState& state) const;

 private:
  std::filesystem::path dir_;
  int lock_ = -1;
};

// The content of session.json; images by name. Throws Error(kInput) that begins with `where`.
struct SessionText {
  SessionState state;                            // without images
  std::vector<std::vector<std::string>> images;  // of each turn, by name
};
SessionText parse_session(std::string_view text, const std::string& where);
std::string session_text(const SessionText& session);

}  // namespace vlcache
