// An untrusted record: its header parses to one that would be written the same, or is a miss; nothing else happens.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/fuzz_target.h"
#include "store/record.h"

namespace {

using namespace vlcache;

// True: a header, and all that follows from it holds.
bool parse(const RecordSeal& seal, std::span<const std::byte> bytes) {
  RecordHeader header;
  static_cast<void>(peek(bytes));
  const auto size = static_cast<int64_t>(bytes.size());
  if (parse_header(seal, bytes, size, nullptr, header)) return false;
  if (header_bytes(bytes) != header.bytes() || header.section_offset(header.sections.size()) != size) std::abort();
  RecordHeader again;
  const std::vector<std::byte> written = encode_header(seal, header);
  if (parse_header(seal, written, size, &header.key, again)) std::abort();
  if (again.sections != header.sections || again.created_ms != header.created_ms) std::abort();
  for (size_t i = 0; i < header.sections.size(); ++i) {
    const auto at = static_cast<size_t>(header.section_offset(i)), n = static_cast<size_t>(header.sections[i].bytes);
    ChecksumStream sum = seal.section(seal.id(header.key), static_cast<int64_t>(i), header.sections[i].bytes);
    sum.add(bytes.subspan(at, n));
    static_cast<void>(sum.finish());
  }
  return true;
}

}  // namespace

FUZZ_TARGET(record) {
  static const RecordSeal seal;
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  std::vector<std::byte> bytes(begin, begin + size);
  parse(seal, bytes);
  // Beyond the checksum: as a malicious writer would compute it, knowing that there is no salt.
  const auto n = static_cast<size_t>(header_bytes(bytes));
  if (n < sizeof(Checksum) || n > size) return 0;
  const Checksum sum = seal.header(std::span(bytes).first(n - sizeof(Checksum)));
  std::memcpy(bytes.data() + n - sizeof(Checksum), sum.data(), sum.size());
  parse(seal, bytes);
  return 0;
}
