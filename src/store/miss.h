// Miss: the reason why a stored record cannot be used. Stored data is untrusted: any doubt is a miss with a reason,
// never an error, and the caller recomputes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace vlcache {

enum class MissReason : uint8_t {
  kAbsent,        // never stored, or evicted
  kMalformed,     // not a record, or one that none of our writers produces
  kOtherVersion,  // of the format
  kOtherTenant,   // stored under another salt, or under one while this tier has none
  kOtherKind,
  kOtherModel,
  kOtherLayout,
  kOtherKey,   // other contents under the same id
  kTruncated,  // its size differs from the one in its header
  kChecksum,
  kExpired,
  kLate,     // not available by the deadline
  kForeign,  // perhaps another user's: foreign_reason() of a file without a salt
  kIo,
  kCancelled,  // given up, or the program ends
};
inline constexpr size_t kMissReasons = static_cast<size_t>(MissReason::kCancelled) + 1;

// "absent", "other model", ...: for users and JSON.
std::string_view miss_reason_name(MissReason reason);

// Whether the stored bytes themselves are at fault, not the connection to them: such a record is removed, so that it
// will be written again. A name covers everything about a record, so a record of something else is as corrupt as one
// with a flipped bit. A foreign one is left to its user.
bool is_corrupt(MissReason reason);

struct Miss {
  MissReason reason = MissReason::kAbsent;
  std::string detail;  // the found value and its place; may be empty
};
// "checksum: section 3"
std::string describe(const Miss& miss);

}  // namespace vlcache
