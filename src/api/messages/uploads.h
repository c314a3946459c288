// Uploads holds the files that callers have uploaded, so that requests can name them by their ids: in memory alone,
// bounded in bytes and in time. Files of the same bytes share them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/sha256.h"

namespace vlcache {

struct Upload {
  using Bytes = std::shared_ptr<const std::vector<std::byte>>;  // shared with requests that use them

  std::string id, name, purpose;
  std::string type;                  // the media type that its first bytes tell, else the one that the client gave
  int64_t created = 0, expires = 0;  // seconds since 1970
  Bytes bytes;

  bool is_clip() const { return type.starts_with("video/"); }
  bool is_image() const { return type.starts_with("image/"); }
  bool is_pdf() const { return type == "application/pdf"; }
  bool has_pages() const { return is_pdf() || type == "image/tiff"; }
  // The file as a text; null unless it is one, of any type.
  std::optional<std::string_view> text() const;
};
using UploadPtr = std::shared_ptr<const Upload>;  // shared with requests, for which it stays when it is removed

struct UploadOptions {
  int64_t max_bytes = 0;       // all files together, with kUploadBytes for each; 0: none are kept
  int64_t max_file_bytes = 0;  // 0: as many as max_bytes allows
  int64_t seconds = 86'400;    // after which a file expires
};

// The media type of a file: by its first bytes if vlcache reads files that begin so, else `given`, if that is one, else
// text/plain for UTF-8 without control characters.
std::string upload_type(std::span<const std::byte> bytes, std::string_view given);

// What a file costs besides its bytes: its names and its places in the maps.
inline constexpr int64_t kUploadBytes = 1024;

// Any thread.
class Uploads {
 public:
  // now: seconds since 1970; empty: the system's clock.
  explicit Uploads(const UploadOptions& options, std::function<int64_t()> now = nullptr);

  bool enabled() const { return options_.max_bytes > 0; }
  // Keeps the file for its owner, `seconds` at most (0: as long as any), under file.id, which is new; created and
  // expires are set. Where there is no room, files are evicted that no request uses: of the owner that has the most
  // bytes, the least recently used first. Returns null if running requests use them all. Throws Error(kMemory),
  // beginning with `where`, for a file that is larger than the limits.
  UploadPtr add(const std::string& owner, Upload file, int64_t seconds, const std::string& where);
  // Null: the owner has no such file, or no longer.
  UploadPtr find(const std::string& owner, const std::string& id);
  bool remove(const std::string& owner, const std::string& id);
  // Frees files that have expired. All other calls do so first; without any, expired files keep their memory.
  void expire();
  // The owner's files, oldest first.
  std::vector<UploadPtr> list(const std::string& owner);
  // "WHERE: there is no file ID, or no longer: ...": the reasons, and what to do.
  std::string unknown(const std::string& id, const std::string& where) const;

  struct State {
    size_t n_files = 0;
    int64_t bytes = 0, max_bytes = 0;
    int64_t n_evicted = 0, n_expired = 0, n_removed = 0;  // since the start
  };
  State state();

 private:
  struct File {
    UploadPtr upload;
    Sha256Digest digest;
    int64_t number = 0;  // in the order of uploads
  };
  struct Owner {
    std::list<File> files;  // most recently used first
    std::map<std::string, std::list<File>::iterator> by_id;
    int64_t bytes = 0;
  };
  using Owners = std::map<std::string, Owner>;
  struct Content {
    Upload::Bytes bytes;
    int64_t n_files = 0;
  };

  void drop(Owners::iterator owner, std::list<File>::iterator file);
  void drop_expired();
  bool make_room(const Sha256Digest& digest, int64_t size);

  const UploadOptions options_;
  const std::function<int64_t()> now_;
  std::mutex mutex_;  // guards all below
  Owners owners_;     // each with at least one file
  std::map<Sha256Digest, Content> contents_;
  std::set<std::pair<int64_t, std::pair<std::string, std::string>>> expiries_;  // when, and owner and id
  State state_;
  int64_t n_added_ = 0;
};

}  // namespace vlcache
