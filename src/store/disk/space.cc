// Eviction by scan: a record is tens of megabytes, so even a large directory holds few of them.
#include "store/disk/space.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <tuple>

namespace vlcache {
namespace {

// The directory is scanned again after this part of the limit was written: n processes exceed the limit by n times this
// at most.
constexpr int64_t kScanParts = 16;

// In the order of eviction.
enum class Worth { kUseless, kOtherModel, kOnce, kInUse };

}  // namespace

struct DiskSpace::Candidate {
  Worth worth;
  FoundRecord record;
  double ms_per_byte;     // saved by uses as many as so far; infinity: unknown
  bool once, used_again;  // RecordUses::once; n > 0, or not known
  bool operator<(const Candidate& other) const {
    return std::tie(worth, record.used_ns) < std::tie(other.worth, other.record.used_ns);
  }
};

DiskSpace::DiskSpace(std::filesystem::path root, int64_t max_bytes, int64_t ttl_ms, bool salted)
    : root_(std::move(root)), max_bytes_(max_bytes), ttl_ms_(ttl_ms), salted_(salted) {
  for (const FoundRecord& record : find_records(root_)) used_bytes_ += record.bytes;
}

bool DiskSpace::expired(int64_t created_ms) const { return has_expired(created_ms, ttl_ms_); }

std::vector<DiskSpace::Candidate> DiskSpace::scan() {
  std::vector<Candidate> candidates;
  used_bytes_ = written_since_scan_ = 0;
  for (FoundRecord& record : find_records(root_)) {
    used_bytes_ += record.bytes;
    std::array<std::byte, kPeekBytes> first{};
    const OpenedFile opened = open_record_file(record.path);
    // What another user may have written does not outrank what this process may use, whatever it says of itself.
    const bool used = opened.file && (salted_ || opened.foreign.empty());
    const bool there = used && !read_at(opened.file, 0, first, kNoDeadline);
    const auto found = there ? peek(first) : std::nullopt;
    const RecordUses uses = there ? read_uses(opened.file) : RecordUses{};
    Worth worth = Worth::kInUse;
    if (!found || expired(found->created_ms)) {
      worth = Worth::kUseless;
    } else if (!models_.empty() && !models_.contains(found->model)) {
      worth = Worth::kOtherModel;
    } else if (uses.once) {
      worth = Worth::kOnce;
    }
    const double saves_ms = found && found->saves_ms > 0 ? found->saves_ms : std::numeric_limits<double>::infinity();
    const auto n_uses = static_cast<double>(1 + std::max<int64_t>(0, uses.n));
    const double ms_per_byte = saves_ms * n_uses / static_cast<double>(std::max<int64_t>(1, record.bytes));
    candidates.push_back({worth, std::move(record), ms_per_byte, uses.once, uses.n != 0});
  }
  std::ranges::sort(candidates, std::less<>());
  return candidates;
}

// As far as is known, without a scan.
bool DiskSpace::fits(int64_t bytes) const {
  return used_bytes_ + bytes <= max_bytes_ && written_since_scan_ <= max_bytes_ / kScanParts;
}

int64_t DiskSpace::make_room(int64_t bytes) {
  if (fits(bytes)) return 0;
  const std::vector<Candidate> candidates = scan();
  if (used_bytes_ + bytes <= max_bytes_) return 0;
  return remove_down_to(candidates, max_bytes_ / 10 * 9 - bytes);
}

int64_t DiskSpace::make_room_yielding(int64_t bytes, double saves_ms) {
  if (fits(bytes)) return 0;
  const std::vector<Candidate> candidates = scan();
  if (used_bytes_ + bytes <= max_bytes_) return 0;
  const int64_t most_bytes = max_bytes_ / 10 * 9 - bytes;
  if (outranked(candidates, most_bytes, saves_ms / static_cast<double>(std::max<int64_t>(1, bytes)))) return -1;
  return remove_down_to(candidates, most_bytes);
}

int64_t DiskSpace::make_room_first_use(int64_t bytes) {
  if (fits(bytes)) return 0;
  std::vector<Candidate> candidates = scan();
  if (used_bytes_ + bytes <= max_bytes_) return 0;
  std::erase_if(candidates, [](const Candidate& c) { return c.worth != Worth::kUseless && !c.once; });
  int64_t removable = 0;
  for (const Candidate& candidate : candidates) removable += candidate.record.bytes;
  if (used_bytes_ - removable + bytes > max_bytes_) return -1;
  return remove_down_to(candidates, max_bytes_ / 10 * 9 - bytes);
}

int64_t DiskSpace::free(int64_t bytes) {
  const std::vector<Candidate> candidates = scan();
  return used_bytes_ < bytes ? 0 : remove_down_to(candidates, used_bytes_ - bytes);
}

// Whether one of the candidates that would be removed was used again, or saves more.
bool DiskSpace::outranked(const std::vector<Candidate>& candidates, int64_t most_bytes, double ms_per_byte) const {
  int64_t left = used_bytes_;
  for (const Candidate& candidate : candidates) {
    if (left <= most_bytes) break;
    const bool in_use = candidate.worth == Worth::kOnce || candidate.worth == Worth::kInUse;
    if (in_use && (candidate.used_again || candidate.ms_per_byte > ms_per_byte)) return true;
    left -= candidate.record.bytes;
  }
  return false;
}

int64_t DiskSpace::remove_down_to(const std::vector<Candidate>& candidates, int64_t most_bytes) {
  int64_t n_removed = 0;
  for (const Candidate& candidate : candidates) {
    if (used_bytes_ <= most_bytes) break;
    // Bytes that another process freed in the meantime count, too.
    if (unlink(candidate.record.path.c_str()) == 0) {
      ++n_removed;
    } else if (errno != ENOENT) {
      continue;
    }
    used_bytes_ -= candidate.record.bytes;
  }
  return n_removed;
}

int64_t DiskSpace::remove_expired() {
  if (ttl_ms_ == 0) return 0;
  int64_t n_removed = 0;
  for (const Candidate& candidate : scan()) {
    if (candidate.worth != Worth::kUseless || unlink(candidate.record.path.c_str()) != 0) continue;
    used_bytes_ -= candidate.record.bytes;
    ++n_removed;
  }
  return n_removed;
}

void DiskSpace::wrote(int64_t bytes) {
  used_bytes_ += bytes;
  written_since_scan_ += bytes;
}

}  // namespace vlcache
