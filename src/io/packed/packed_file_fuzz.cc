// An untrusted packed file: an accepted one has its arrays in order and within the file; nothing else happens.
#include <xxhash.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/fuzz_target.h"
#include "io/packed/packed_file.h"

namespace {

using namespace vlcache;

void parse(std::span<const std::byte> file) {
  try {
    const auto size = static_cast<int64_t>(file.size());
    const PackedHead head = parse_packed_head(file, size, "fuzz");
    const auto index = file.subspan(static_cast<size_t>(head.index_at), static_cast<size_t>(head.index_bytes));
    int64_t end = 0;
    for (const PackedRecord& r : parse_packed_index(head, index, "fuzz").records) {
      if (r.at < end || r.at < kPackedHeadBytes || r.bytes < 0 || r.bytes > head.index_at - r.at) std::abort();
      end = r.at + r.bytes;
    }
  } catch (const Error&) {
  }
}

}  // namespace

FUZZ_TARGET(packed_file) {
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  std::vector<std::byte> file(begin, begin + size);
  parse(file);
  // Beyond the checksums: the same bytes as an index after an array of 4096 bytes, as a malicious writer would have it.
  constexpr size_t kAt = 8192;
  std::vector<std::byte> whole(kAt + size);
  std::copy_n(begin, size, whole.data() + kAt);
  const uint64_t places[] = {kAt, size, XXH3_64bits(data, size)};
  std::memcpy(whole.data(), "\x89VLW\r\n\x1a\n\1\0\0\0\0\0\0\0", 16);
  std::memcpy(whole.data() + 16, places, sizeof places);
  const uint64_t sum = XXH3_64bits(whole.data(), 40);
  std::memcpy(whole.data() + 40, &sum, sizeof sum);
  parse(whole);
  return 0;
}
