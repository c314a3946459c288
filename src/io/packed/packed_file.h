// PackedFile: arrays of bytes by name in one file, read by all threads, of which none is returned unless all of them
// have their checksums. PackedFileWriter writes one.
//
//   0     head (PackedHead, 48 bytes): magic, version, place and checksum of the index, checksum of the head
//   4096  the arrays, in the order of writing, each at a multiple of 4096 bytes
//   then  the index, JSON, up to the end of the file: {"key", "about", "records": [{"name", "about", "at", "bytes",
//         "sum"}]}
// The sum of an array is XXH3 (64 bits) of the XXH3 of each kPackedPiece bytes of it: threads share a large array.
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/buffer.h"
#include "base/file.h"
#include "base/function_ref.h"

namespace vlcache {

inline constexpr int64_t kPackedPiece = 256 << 10;    // is hashed while it is in the L2 cache
inline constexpr int64_t kMaxPackedIndex = 64 << 20;  // bytes; 12,000 experts of a mixture take 4 MB

struct PackedRecord {
  std::string name;
  nlohmann::json about;  // what the writer says of it
  int64_t at = 0, bytes = 0;
  uint64_t sum = 0;
};

struct PackedIndex {
  std::string key;       // everything that the arrays were made of
  nlohmann::json about;  // what the writer says of the whole
  std::vector<PackedRecord> records;
};

struct PackedHead {
  int64_t index_at = 0, index_bytes = 0;
  uint64_t index_sum = 0;
};
inline constexpr int64_t kPackedHeadBytes = 48;

// Each throws Error(kInput), which names `where`, unless the bytes are what the writer of this version writes: no name
// twice, arrays in order, aligned and within the file. Nothing is allocated for a size that was not compared with the
// file's.
PackedHead parse_packed_head(std::span<const std::byte> first, int64_t file_bytes, std::string_view where);
PackedIndex parse_packed_index(const PackedHead& head, std::span<const std::byte> text, std::string_view where);

using PackedProgress = std::function<void(int64_t done, int64_t total)>;

class PackedFile {
 public:
  // Opens a file and reads its index. Throws Error(kNotFound) if there is none, else kIo or kInput: also for a file
  // that may come from another user (foreign_reason), as its name is predictable and its checksums have no key.
  explicit PackedFile(std::filesystem::path path);
  const PackedIndex& index() const { return index_; }
  int64_t bytes() const { return bytes_; }
  // The arrays of all records, in their order, in memory of their own; read and verified by all threads. Throws
  // Error(kInput) naming the record whose checksum differs, Error(kIo).
  std::vector<Buffer> read(const PackedProgress& progress = {}) const;
  // The same as parts of one mapping of the file, whose memory processes share. Throws Error(kUnsupported) besides
  // where the file cannot be mapped. Once it is: see base/os/shared_mapping.h.
  std::vector<Buffer> map(const PackedProgress& progress = {}) const;
  // Sets the time of last use to now. Failure has no other effect.
  void touch() const;

 private:
  struct Share;
  using Bring = FunctionRef<int(const Share&, uint64_t* sums)>;
  void bring_all(std::span<const Buffer> arrays, const PackedProgress& progress, const Bring& bring) const;

  std::filesystem::path path_;
  File file_;
  int64_t bytes_ = 0;
  PackedIndex index_;
};

class PackedFileWriter {
 public:
  // In `folder`, which is created if only its last part is missing.
  explicit PackedFileWriter(std::filesystem::path folder);

  // A name that is there already is not written again.
  void add(const std::string& name, nlohmann::json about, std::span<const std::byte> array);
  // Completes the file and gives it its name, in place of one that has it.
  void commit(const std::filesystem::path& path, std::string key, nlohmann::json about);
  int64_t bytes() const { return bytes_; }  // so far
  // The failure; empty: none. Then the other functions do nothing, and the file is removed in the end.
  const std::string& problem() const { return problem_.empty() ? file_.problem() : problem_; }

 private:
  UnfinishedFile file_;
  std::string problem_;
  int64_t bytes_ = 0, synced_bytes_ = 0;
  std::vector<PackedRecord> records_;
  std::set<std::string> names_;
};

}  // namespace vlcache
