// Writes safetensors files completely or not at all.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "io/safetensors.h"

namespace vlcache {
namespace {

std::string_view file_type(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kBF16:
      return "BF16";
    case DType::kF16:
      return "F16";
    case DType::kI32:
      return "I32";
    case DType::kI64:
      return "I64";
    case DType::kU8:
      return "U8";
    case DType::kI8:
      return "I8";
  }
  return "";
}

// A file that disappears unless it is committed under its final name.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::filesystem::path& target)
      : target_(target), path_(target.string() + ".tmp." + std::to_string(::getpid())) {
    fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd_ < 0) fail("cannot be created");
  }
  ~TemporaryFile() {
    if (fd_ >= 0) ::close(fd_);
    if (!committed_) ::unlink(path_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  void write(const void* data, int64_t bytes) {
    const char* from = static_cast<const char*>(data);
    while (bytes > 0) {
      const ssize_t n = ::write(fd_, from, static_cast<size_t>(bytes));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) fail("writing failed");
      from += n;
      bytes -= n;
    }
  }
  void commit() {
    const int fd = fd_;
    fd_ = -1;
    // close() reports data that a network file system could not store.
    if (::close(fd) != 0 || std::rename(path_.c_str(), target_.c_str()) != 0) fail("writing failed");
    committed_ = true;
  }

 private:
  [[noreturn]] void fail(const char* what) {
    const int error = errno;
    if (fd_ >= 0) ::close(fd_);
    ::unlink(path_.c_str());  // the destructor does not run when the constructor throws
    fd_ = -1;
    throw Error(ErrorCode::kIo, target_.string() + ": " + what + ": " + std::strerror(error));
  }
  std::filesystem::path target_;
  std::string path_;
  int fd_ = -1;
  bool committed_ = false;
};

}  // namespace

void write_safetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors) {
  Json header = Json::object();
  int64_t at = 0;
  for (const NamedTensor& t : tensors) {
    CHECK(t.tensor.dense() && !header.contains(t.name));
    Json shape = Json::array();
    for (int i = 0; i < t.tensor.rank; ++i) shape.push_back(t.tensor.dim(i));
    header[t.name] = {
        {"dtype", file_type(t.tensor.dtype)}, {"shape", shape}, {"data_offsets", {at, at + t.tensor.bytes()}}};
    at += t.tensor.bytes();
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that the data begins aligned
  const uint64_t length = text.size();

  TemporaryFile file(path);
  file.write(&length, sizeof length);
  file.write(text.data(), static_cast<int64_t>(length));
  for (const NamedTensor& t : tensors) file.write(t.tensor.data, t.tensor.bytes());
  file.commit();
}

}  // namespace vlcache
