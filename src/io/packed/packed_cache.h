// PackedCache: a folder of packed files, within a limit of bytes, of which the least recently used are removed first.
// Processes share it: files are replaced by renaming alone, and a process that reads one keeps what it has opened.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "io/packed/packed_file.h"

namespace vlcache {

struct PackedCacheOptions {
  std::filesystem::path folder;  // empty: nothing is stored or looked up
  std::string off_reason;        // why there is no folder; empty: it was not asked for
  int64_t max_bytes = int64_t{40} << 30;
  bool half_of_free = true;  // and at most half of what the medium would have free without it
  bool share = false;  // arrays are parts of a mapping of the file, whose memory processes share, where that can be
  std::function<void(const std::string&)> say{};  // is given lines for the user; empty: they are dropped
};

// What a file is found by and refused by.
struct PackedIdentity {
  std::string place;  // what it is of: one file for each
  std::string key;    // everything that its arrays were made of
};

// The arrays of a file, which have been verified.
struct PackedContents {
  PackedIndex index;
  std::vector<Buffer> arrays;
  bool shared = false;  // with other processes
};

class PackedCache {
 public:
  // Removes what writers left that have died.
  PackedCache(PackedCacheOptions options, const PackedIdentity& identity);

  const std::filesystem::path& path() const { return path_; }
  // The contents of the file; nullopt without one. A file that is damaged, of another version or of another key, or
  // that another user may have written, is reported and removed.
  std::optional<PackedContents> read(const PackedProgress& progress);

  // ---- writing; after a problem, which is reported once, these do nothing ------------------------------------------
  void begin();
  void add(const std::string& name, nlohmann::json about, std::span<const std::byte> array);
  // Whether the file is stored.
  bool commit(nlohmann::json about);

 private:
  PackedContents contents(const PackedFile& file, const PackedProgress& progress) const;
  void make_room(int64_t bytes);
  void give_up(std::string why);
  void say(const std::string& what) const;

  PackedCacheOptions options_;
  std::filesystem::path path_;
  std::string key_;
  std::unique_ptr<PackedFileWriter> writer_;
  int64_t limit_ = 0;
};

struct PackedListing {
  std::filesystem::path path;
  int64_t bytes = 0, used_ms = 0;  // of last use, since 1970
  nlohmann::json about;
  std::string problem;  // why it would be refused whatever is asked for; empty: nothing was found
};
// The files of a folder, least recently used first; none if it does not exist. Reads their indices, no array.
std::vector<PackedListing> list_packed_files(const std::filesystem::path& folder);
// Removes them all, and what dead writers left. Returns the bytes and the number of those removed.
struct PackedRemoval {
  int64_t n_files = 0, bytes = 0;
};
PackedRemoval clear_packed_files(const std::filesystem::path& folder);

}  // namespace vlcache
