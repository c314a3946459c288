#include "store/kv_tier.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "base/buffer.h"
#include "base/error.h"

namespace vlcache {

std::string_view put_outcome_name(PutOutcome outcome) {
  static constexpr std::array<std::string_view, kPutOutcomes> kNames = {"stored", "present",  "too large", "no space",
                                                                        "late",   "io error", "outranked"};
  return kNames[static_cast<size_t>(outcome)];
}

bool is_failure(MissReason reason) {
  return reason != MissReason::kAbsent && reason != MissReason::kExpired && reason != MissReason::kCancelled;
}

bool is_failure(PutOutcome outcome) {
  return outcome != PutOutcome::kStored && outcome != PutOutcome::kPresent && outcome != PutOutcome::kOutranked;
}

int64_t TierStats::n_misses() const { return std::accumulate(n_missed.begin(), n_missed.end(), int64_t{0}); }

int64_t TierStats::n_failed() const {
  int64_t n = 0;
  for (size_t i = 0; i < kMissReasons; ++i) n += is_failure(static_cast<MissReason>(i)) ? n_missed[i] : 0;
  return n;
}

int64_t TierStats::n_failed_writes() const {
  int64_t n = 0;
  for (size_t i = 0; i < kPutOutcomes; ++i) n += is_failure(static_cast<PutOutcome>(i)) ? n_put[i] : 0;
  return n;
}

std::string new_claimant() {
  std::random_device random;
  std::string name;
  for (int i = 0; i < 4; ++i) name += std::to_string(random()) + (i < 3 ? "-" : "");
  return name;
}

std::optional<Miss> verify_record(KvTier& tier, const RecordKey& key) {
  OpenedRecord opened = tier.open(key, kNoDeadline);
  if (!opened.reader) return opened.miss;
  int64_t largest = 0;
  const RecordHeader& header = opened.reader->header();
  for (const SectionInfo& section : header.sections) largest = std::max(largest, section.bytes);
  try {
    const Buffer buffer(largest);
    for (size_t i = 0; i < header.sections.size(); ++i) {
      const std::span to(buffer.data(), static_cast<size_t>(header.sections[i].bytes));
      if (auto why = opened.reader->read(static_cast<int32_t>(i), to, kNoDeadline)) return why;
    }
  } catch (const Error& error) {  // the buffer cannot be allocated
    return Miss{MissReason::kIo, error.what()};
  }
  return std::nullopt;
}

}  // namespace vlcache
