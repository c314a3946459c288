// Why something stored cannot be used. Whatever is doubtful is a miss with a reason, never an error: who asked computes
// it anew.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace vlcache {

enum class MissReason : uint8_t {
  kAbsent,        // nobody stored it, or it was evicted
  kMalformed,     // not a record, or one that no writer of ours makes
  kOtherVersion,  // of the format
  kOtherTenant,   // stored under another salt, or with one where we have none
  kOtherKind,
  kOtherModel,
  kOtherLayout,
  kOtherKey,   // other contents behind the same id
  kTruncated,  // its size is not what its header says
  kChecksum,
  kExpired,
  kLate,  // not there by the deadline
  kIo,
  kCancelled,  // given up, or the program ends
};
inline constexpr size_t kMissReasons = static_cast<size_t>(MissReason::kCancelled) + 1;

// "absent", "other model", ...: for users and JSON.
std::string_view miss_reason_name(MissReason reason);

// Whether the stored bytes themselves are to blame, not the way to them: such a record is removed, so that it will be
// written anew. A name says everything about a record, so one that is of something else is as wrong as a flipped bit.
bool is_corrupt(MissReason reason);

struct Miss {
  MissReason reason = MissReason::kAbsent;
  std::string detail;  // what was found, where; may be empty
};
// "checksum: section 3"
std::string describe(const Miss& miss);

}  // namespace vlcache
