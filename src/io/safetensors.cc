#include "io/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "base/sha256.h"

namespace vlcache {
namespace {

[[noreturn]] void fail_io(const std::filesystem::path& path, std::string_view what, int error) {
  const ErrorCode code = error == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo;
  throw Error(code, path.string() + ": " + std::string(what) + ": " + std::strerror(error));
}

// A file mapped read-only. Keeps the descriptor, to detect that the file was cut short meanwhile.
class MappedFile {
 public:
  explicit MappedFile(std::filesystem::path path) : path_(std::move(path)) {
    // O_NONBLOCK: opening a pipe would wait for its writer.
    fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd_ < 0) fail_io(path_, "cannot be opened", errno);
    struct stat info = {};
    if (::fstat(fd_, &info) != 0 || !S_ISREG(info.st_mode)) {
      ::close(fd_);
      throw Error(ErrorCode::kIo, path_.string() + ": expected a regular file");
    }
    bytes_ = info.st_size;
    if (bytes_ == 0) return;
    void* mapped = ::mmap(nullptr, static_cast<size_t>(bytes_), PROT_READ, MAP_PRIVATE, fd_, 0);
    if (mapped == MAP_FAILED) {
      const int error = errno;
      ::close(fd_);
      fail_io(path_, "cannot be mapped", error);
    }
    data_ = static_cast<std::byte*>(mapped);
  }
  ~MappedFile() {
    if (data_ != nullptr) ::munmap(data_, static_cast<size_t>(bytes_));
    ::close(fd_);
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  const std::filesystem::path& path() const { return path_; }

  // Touching a page beyond a file's end kills the process, so a file that shrank is rejected.
  void check_whole() const {
    struct stat info = {};
    if (::fstat(fd_, &info) != 0 || info.st_size < bytes_) {
      throw Error(ErrorCode::kIo, path_.string() + ": was " + std::to_string(bytes_) + " bytes when opened, is now " +
                                      std::to_string(info.st_size) + ": another process is writing to it");
    }
  }
  std::string identity() const {
    struct stat info = {};
    if (::fstat(fd_, &info) != 0) fail_io(path_, "cannot be read", errno);
    std::error_code ec;
    const std::filesystem::path real = std::filesystem::canonical(path_, ec);
    uint64_t header_bytes = 0;  // the header was parsed: it lies within the file
    std::memcpy(&header_bytes, data_, sizeof header_bytes);
    Sha256 hash;
    hash.add({data_, sizeof header_bytes + header_bytes});
    return (ec ? path_ : real).string() + " " + std::to_string(info.st_size) + " " +
           std::to_string(info.st_mtim.tv_sec) + "." + std::to_string(info.st_mtim.tv_nsec) + " " +
           std::to_string(info.st_ino) + " " + hex(hash.finish()) + "\n";
  }
  void release(int64_t begin, int64_t end) const {
    const int64_t page = ::sysconf(_SC_PAGESIZE);
    begin = begin / page * page;  // a page shared with a neighbour is read again if it is needed
    if (begin < end) ::madvise(data_ + begin, static_cast<size_t>(end - begin), MADV_DONTNEED);
  }

 private:
  std::filesystem::path path_;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  int fd_ = -1;
};

}  // namespace

struct Safetensors::Impl {
  struct Item {
    SafetensorsEntry entry;
    const MappedFile* file = nullptr;
  };
  std::string where;
  std::vector<std::unique_ptr<MappedFile>> files;
  std::map<std::string, Item, std::less<>> items;

  const Item& item(std::string_view name) const {
    const auto it = items.find(name);
    if (it != items.end()) return it->second;
    throw Error(ErrorCode::kNotFound, where + ": no tensor \"" + std::string(name) + "\"");
  }
  void add_file(const std::filesystem::path& path) {
    const MappedFile& file = *files.emplace_back(std::make_unique<MappedFile>(path));
    const std::string name = path.string();
    for (SafetensorsEntry& e :
         parse_safetensors_header({file.data(), static_cast<size_t>(file.bytes())}, file.bytes(), name)) {
      std::string key = e.name;
      const auto [at, added] = items.try_emplace(std::move(key), Item{std::move(e), &file});
      if (!added) {
        throw Error(ErrorCode::kInput,
                    name + ": tensor \"" + at->first + "\" is in " + at->second.file->path().string() + " too");
      }
    }
  }
};

Safetensors::Safetensors(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Safetensors::Safetensors(Safetensors&&) noexcept = default;
Safetensors& Safetensors::operator=(Safetensors&&) noexcept = default;
Safetensors::~Safetensors() = default;

Safetensors Safetensors::open(const std::filesystem::path& file) {
  auto impl = std::make_unique<Impl>();
  impl->where = file.string();
  impl->add_file(file);
  return Safetensors(std::move(impl));
}

Safetensors Safetensors::open_index(const std::filesystem::path& index) {
  auto impl = std::make_unique<Impl>();
  impl->where = index.string();
  const Json json = load_json(index);
  const JsonObject map = JsonObject(json, index.string()).object("weight_map");
  std::map<std::string, std::string> shard_of;
  std::vector<std::string> shards;
  for (const auto& [name, shard] : map.raw().items()) {
    if (!shard.is_string()) map.fail(name, "the name of a file");
    std::string file = shard.get<std::string>();
    // An index is untrusted: it may not point out of its directory.
    if (file.empty() || file.find('/') != std::string::npos || file == "..")
      map.fail(name, "the name of a file in the same directory");
    shards.push_back(file);
    shard_of.emplace(name, std::move(file));
  }
  std::sort(shards.begin(), shards.end());
  shards.erase(std::unique(shards.begin(), shards.end()), shards.end());
  for (const std::string& shard : shards) {
    std::error_code ec;
    if (!std::filesystem::exists(index.parent_path() / shard, ec)) {
      throw Error(ErrorCode::kNotFound,
                  index.string() + ": names the file " + shown_json(Json(shard)) + ", which does not exist");
    }
    impl->add_file(index.parent_path() / shard);
  }
  for (const auto& [name, shard] : shard_of) {
    const auto at = impl->items.find(name);
    if (at == impl->items.end() || at->second.file->path().filename() != shard) {
      throw Error(ErrorCode::kInput, index.string() + ": says that tensor \"" + name + "\" is in " +
                                         shown_json(Json(shard)) + ", where it is not");
    }
  }
  return Safetensors(std::move(impl));
}

std::vector<std::string_view> Safetensors::names() const {
  std::vector<std::string_view> names;
  names.reserve(impl_->items.size());
  for (const auto& [name, item] : impl_->items) names.push_back(name);
  return names;
}

const SafetensorsEntry* Safetensors::find(std::string_view name) const {
  const auto it = impl_->items.find(name);
  return it == impl_->items.end() ? nullptr : &it->second.entry;
}

Tensor Safetensors::get(std::string_view name) const {
  const SafetensorsEntry* e = find(name);
  if (e != nullptr && e->shape.size() > 4) {
    throw Error(ErrorCode::kUnsupported, impl_->where + ": tensor \"" + e->name + "\": has " +
                                             std::to_string(e->shape.size()) + " dimensions, at most 4 are supported");
  }
  return view(name);
}

Tensor Safetensors::view(std::string_view name) const {
  const Impl::Item& item = impl_->item(name);
  const SafetensorsEntry& e = item.entry;
  const MappedFile& file = *item.file;
  if (!e.dtype) {
    throw Error(ErrorCode::kUnsupported,
                file.path().string() + ": tensor \"" + e.name + "\": dtype " + e.dtype_name + " is not supported");
  }
  file.check_whole();
  Tensor t;
  t.data = file.data() + e.begin;
  t.dtype = *e.dtype;
  t.rank = static_cast<int>(std::clamp<size_t>(e.shape.size(), 1, t.shape.size()));
  t.shape[0] = 1;
  for (size_t i = 0; i < e.shape.size(); ++i) {
    if (i < t.shape.size()) {
      t.shape[i] = e.shape[i];
    } else {
      t.shape.back() *= e.shape[i];
    }
  }
  t.stride = t.row_size();
  return t;
}

Tensor Safetensors::get(std::string_view name, std::span<const int64_t> shape) const {
  const SafetensorsEntry* e = find(name);
  if (e != nullptr && !std::equal(shape.begin(), shape.end(), e->shape.begin(), e->shape.end())) {
    const auto text = [](std::span<const int64_t> dims) {
      std::string s = "[";
      for (size_t i = 0; i < dims.size(); ++i) s += (i > 0 ? ", " : "") + std::to_string(dims[i]);
      return s + "]";
    };
    throw Error(ErrorCode::kShape, impl_->where + ": tensor \"" + e->name + "\": expected shape " + text(shape) +
                                       " (from config.json), found " + text(e->shape));
  }
  return view(name);
}

std::span<const std::byte> Safetensors::bytes(std::string_view name) const {
  const auto& [entry, file] = impl_->item(name);
  file->check_whole();
  return {file->data() + entry.begin, static_cast<size_t>(entry.end - entry.begin)};
}

void Safetensors::release(std::string_view name) const {
  const auto it = impl_->items.find(name);
  if (it != impl_->items.end()) it->second.file->release(it->second.entry.begin, it->second.entry.end);
}

void Safetensors::release_part(std::string_view name, int64_t begin, int64_t end) const {
  const auto it = impl_->items.find(name);
  if (it == impl_->items.end()) return;
  const SafetensorsEntry& entry = it->second.entry;
  CHECK(0 <= begin && begin <= end && end <= entry.end - entry.begin);
  it->second.file->release(entry.begin + begin, entry.begin + end);
}

int64_t Safetensors::data_bytes() const {
  int64_t bytes = 0;
  for (const auto& [name, item] : impl_->items) bytes += item.entry.end - item.entry.begin;
  return bytes;
}

const std::string& Safetensors::where() const { return impl_->where; }

std::string Safetensors::identity() const {
  std::string text;
  for (const auto& file : impl_->files) text += file->identity();
  return text;
}

}  // namespace vlcache
