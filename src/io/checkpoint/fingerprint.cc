#include "io/checkpoint/fingerprint.h"

#include <algorithm>
#include <fstream>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/sha256.h"

namespace vlcache {
namespace {

constexpr int64_t kEnds = int64_t{64} << 10;

void add_ends(Sha256& hash, const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  const auto size = static_cast<int64_t>(in.tellg());
  hash.add(size);
  std::vector<char> bytes(static_cast<size_t>(std::clamp<int64_t>(size, 0, kEnds)));
  for (const int64_t begin : {int64_t{0}, size - std::ssize(bytes)}) {
    in.seekg(begin);
    if (!in.read(bytes.data(), std::ssize(bytes))) throw Error(ErrorCode::kIo, path.string() + ": cannot be read");
    hash.add(std::as_bytes(std::span(bytes)));
  }
}

}  // namespace

std::string fingerprint_of(std::span<const std::filesystem::path> files) {
  Sha256 hash;
  for (const std::filesystem::path& file : files) add_ends(hash, file);
  return hex(hash.finish());
}

}  // namespace vlcache
