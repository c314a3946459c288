#include "store/miss.h"

#include <array>

namespace vlcache {

std::string_view miss_reason_name(MissReason reason) {
  static constexpr std::array<std::string_view, kMissReasons> kNames = {
      "absent",      "malformed",    "other version", "other tenant", "other kind",
      "other model", "other layout", "other key",     "truncated",    "checksum",
      "expired",     "late",         "foreign",       "io error",     "cancelled"};
  return kNames[static_cast<size_t>(reason)];
}

bool is_corrupt(MissReason reason) {
  switch (reason) {
    case MissReason::kAbsent:
    case MissReason::kLate:
    case MissReason::kForeign:
    case MissReason::kIo:
    case MissReason::kCancelled:
      return false;
    default:
      return true;
  }
}

std::string describe(const Miss& miss) {
  std::string text(miss_reason_name(miss.reason));
  return miss.detail.empty() ? text : text + ": " + miss.detail;
}

}  // namespace vlcache
