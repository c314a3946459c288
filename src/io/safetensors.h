// Safetensors: opens safetensors files as named views of mapped memory; also writes them.
// https://huggingface.co/docs/safetensors
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/tensor.h"

namespace vlcache {

struct SafetensorsEntry {
  std::string name;
  std::string dtype_name;      // as in the file: "BF16", "F8_E4M3", ...
  std::optional<DType> dtype;  // empty: a type that no op here supports
  std::vector<int64_t> shape;
  int64_t begin = 0, end = 0;  // bytes in the file
};

// Reads and validates the header of a file of `file_bytes` bytes whose beginning is `head` (the whole file, or at least
// length and header). Throws Error(kInput) for an invalid header: a length beyond the file or 100 MB, bad JSON,
// duplicate names, spans reversed, overlapping, with holes or beyond the file, a shape that overflows or does not fit
// its span.
std::vector<SafetensorsEntry> parse_safetensors_header(std::span<const std::byte> head, int64_t file_bytes,
                                                       std::string_view where);

// A checkpoint's tensors, mapped read-only: one file, or the shards that an index names.
class Safetensors {
 public:
  static Safetensors open(const std::filesystem::path& file);
  // model.safetensors.index.json names shards in its own directory; every tensor must be in the shard the index names.
  static Safetensors open_index(const std::filesystem::path& index);

  Safetensors(Safetensors&&) noexcept;
  Safetensors& operator=(Safetensors&&) noexcept;
  ~Safetensors();

  std::vector<std::string_view> names() const;  // sorted
  const SafetensorsEntry* find(std::string_view name) const;

  // A view of the mapped bytes. They may be misaligned for the type (the writer chooses the offsets); a scalar has
  // shape [1]. Throws Error(kNotFound) for an unknown name, Error(kUnsupported) for a type or rank (> 4) that no view
  // can have, Error(kShape) if `shape` is given and differs, Error(kIo) if the file has shrunk since it was opened.
  // Where `shape` is given, dimensions beyond the fourth are joined to it.
  Tensor get(std::string_view name) const;
  Tensor get(std::string_view name, std::span<const int64_t> shape) const;

  // The bytes of a tensor of any type and rank, of which `find` tells. Throws Error(kNotFound / kIo) as get does.
  std::span<const std::byte> bytes(std::string_view name) const;

  // Returns a tensor's memory to the system; reading it again reads the file again.
  void release(std::string_view name) const;
  void release_part(std::string_view name, int64_t begin, int64_t end) const;  // of bytes [begin, end) of it
  int64_t data_bytes() const;                                                  // of all tensors
  const std::string& where() const;                                            // the file or the index, for errors
  // A line for each file: its real path, size, time of change, inode and a hash of its header. Files that were replaced
  // or changed have another one.
  std::string identity() const;

 private:
  struct Impl;
  explicit Safetensors(std::unique_ptr<Impl> impl);
  Tensor view(std::string_view name) const;
  std::unique_ptr<Impl> impl_;
};

struct NamedTensor {
  std::string name;
  Tensor tensor;  // dense
};

// Writes a temporary file beside `path` and renames it. Throws Error(kIo) (disk full, no such directory) and then
// leaves no file.
void write_safetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors);

}  // namespace vlcache
