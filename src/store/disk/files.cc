// System calls, each retried after a signal interrupted it.
#include "store/disk/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <functional>

#include "store/save_pace.h"

namespace vlcache {
namespace {

namespace fs = std::filesystem;

// Bytes of one read or write: short enough to check the deadline often and to compute the checksum from the L2 cache,
// long enough that the cost of system calls does not show.
constexpr size_t kPieceBytes = size_t{1} << 20;
constexpr std::string_view kRecordSuffix = ".vlr";
constexpr std::string_view kClaimSuffix = ".claim";
constexpr std::chrono::minutes kOldClaim{10};       // of a process that has died
constexpr const char* kUses = "user.vlcache.uses";  // a decimal number, and perhaps kOnce, which older programs ignore
constexpr std::string_view kOnce = " once";

bool late(Deadline deadline) { return deadline != kNoDeadline && Clock::now() >= deadline; }

PutOutcome outcome_of(int error) {
  if (error == EFBIG) return PutOutcome::kTooLarge;  // for this process (ulimit -f)
  return error == ENOSPC || error == EDQUOT ? PutOutcome::kNoSpace : PutOutcome::kIo;
}

bool is_hex(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return ('0' <= c && c <= '9') || ('a' <= c && c <= 'f'); });
}

std::optional<RecordId> id_of_name(std::string_view name) {
  RecordId id;
  if (name.size() != 2 * id.size() + kRecordSuffix.size() || !name.ends_with(kRecordSuffix)) return std::nullopt;
  if (!is_hex(name.substr(0, 2 * id.size()))) return std::nullopt;
  for (size_t i = 0; i < id.size(); ++i) std::from_chars(name.data() + 2 * i, name.data() + 2 * i + 2, id[i], 16);
  return id;
}

// Throws nothing: a folder may vanish while it is read.
void for_each_in(const fs::path& folder, const std::function<void(const fs::path&)>& see) {
  std::error_code ec;
  for (fs::directory_iterator file(folder, ec), end; !ec && file != end; file.increment(ec)) see(file->path());
}

// Every file in the folders 00 to ff.
void for_each_file(const fs::path& root, const std::function<void(const fs::path&)>& see) {
  for_each_in(root, [&](const fs::path& folder) {
    const std::string name = folder.filename().string();
    if (name.size() == 2 && is_hex(name)) for_each_in(folder, see);
  });
}

fs::path claim_path(const fs::path& root, const RecordId& id) {
  return record_path(root, id).replace_extension(kClaimSuffix);
}

bool is_of(const fs::path& claim, const std::string& claimant) {
  const File file(retried([&] { return open(claim.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK); }));
  std::array<char, 64> text{};
  const ssize_t n = file ? retried([&] { return read(file.fd(), text.data(), text.size()); }) : 0;
  return n > 0 && std::string_view(text.data(), static_cast<size_t>(n)) == claimant;
}

// The time between now and the file's last write, which may lie in the future: clocks are set back. nullopt: no file.
std::optional<Clock::duration> age_of(const fs::path& path) {
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0) return std::nullopt;
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return std::chrono::abs(std::chrono::seconds(now.tv_sec - status.st_mtim.tv_sec) +
                          std::chrono::nanoseconds(now.tv_nsec - status.st_mtim.tv_nsec));
}

int64_t remove_if_stale(const fs::path& path) {
  if (path.extension() == kClaimSuffix) {
    const auto age = age_of(path);
    return age && *age > kOldClaim && unlink(path.c_str()) == 0 ? 1 : 0;
  }
  return remove_if_abandoned(path) ? 1 : 0;
}

}  // namespace

OpenedFile open_record_file(const fs::path& path) {
  OpenedFile opened;
  opened.file = File(retried([&] { return open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK); }));
  if (!opened.file) {
    const MissReason reason = errno == ENOENT ? MissReason::kAbsent : MissReason::kIo;
    opened.miss = Miss{reason, reason == MissReason::kAbsent ? "" : errno_text(path.string())};
    return opened;
  }
  struct stat status {};
  if (fstat(opened.file.fd(), &status) != 0) {
    opened.miss = Miss{MissReason::kIo, errno_text(path.string())};
  } else if (!S_ISREG(status.st_mode)) {
    opened.miss = Miss{MissReason::kIo, path.string() + ": not a file"};
  } else {
    opened.bytes = status.st_size;
    opened.foreign = foreign_reason(status);
    if (!opened.foreign.empty()) opened.foreign.insert(0, path.string() + ": ");
    return opened;
  }
  opened.file = File();
  return opened;
}

std::optional<Miss> read_at(const File& file, int64_t offset, std::span<std::byte> to, Deadline deadline,
                            ChecksumStream* sum) {
  while (!to.empty()) {
    if (late(deadline)) return Miss{MissReason::kLate, ""};
    const size_t n = std::min(to.size(), kPieceBytes);
    const ssize_t got = retried([&] { return pread(file.fd(), to.data(), n, offset); });
    if (got < 0) return Miss{MissReason::kIo, errno_text("reading")};
    if (got == 0) return Miss{MissReason::kTruncated, "it ends at byte " + std::to_string(offset)};
    const auto piece = static_cast<size_t>(got);
    if (sum != nullptr) sum->add(to.first(piece));
    to = to.subspan(piece);
    offset += got;
  }
  return std::nullopt;
}

void touch(const File& file) {
  // Not UTIME_NOW, which is as coarse as the kernel's tick: the order of uses decides which record is evicted first.
  timespec times[2] = {{0, UTIME_OMIT}, {}};
  clock_gettime(CLOCK_REALTIME, &times[1]);
  static_cast<void>(futimens(file.fd(), times));
  write_uses(file, {.n = read_uses(file).n + 1});
}

RecordUses read_uses(const File& file) {
  std::array<char, 32> text{};
  const ssize_t n = fgetxattr(file.fd(), kUses, text.data(), text.size());
  RecordUses uses;
  if (n > 0) std::from_chars(text.data(), text.data() + n, uses.n);
  uses.once = n > 0 && std::string_view(text.data(), static_cast<size_t>(n)).ends_with(kOnce);
  return uses;
}

void write_uses(const File& file, const RecordUses& uses) {
  if (uses.n < 0) return;
  const std::string text = std::to_string(uses.n) + std::string(uses.once ? kOnce : "");
  static_cast<void>(fsetxattr(file.fd(), kUses, text.data(), text.size(), 0));
}

bool remove_if_same(const fs::path& path, const File& file) {
  struct stat here {
  }, opened{};
  const bool same = lstat(path.c_str(), &here) == 0 && fstat(file.fd(), &opened) == 0 && here.st_ino == opened.st_ino &&
                    here.st_dev == opened.st_dev;
  return same && unlink(path.c_str()) == 0;
}

TemporaryFile::TemporaryFile(fs::path folder) : file_(std::move(folder)) { check(); }

void TemporaryFile::check() {
  if (file_.error() != 0) result_ = {outcome_of(file_.error()), file_.problem()};
}

void TemporaryFile::write(std::span<const std::byte> bytes, Deadline deadline, const SavePace* pace) {
  while (ok() && !bytes.empty()) {
    if (late(deadline)) {
      result_ = {PutOutcome::kLate, file_.folder().string()};
      return;
    }
    const size_t n = std::min(bytes.size(), kPieceBytes);
    file_.write(bytes.first(n));
    check();
    bytes = bytes.subspan(n);
    if (ok() && pace != nullptr) pace->stored(static_cast<int64_t>(n), deadline);
  }
}

void TemporaryFile::commit(const fs::path& path) {
  if (!ok()) return;
  file_.commit(path);
  check();
}

int64_t remove_stale_files(const fs::path& root) {
  int64_t n = 0;
  for_each_file(root, [&](const fs::path& path) { n += remove_if_stale(path); });
  return n;
}

int64_t remove_stale_files_in(const fs::path& folder) {
  int64_t n = 0;
  for_each_in(folder, [&](const fs::path& path) { n += remove_if_stale(path); });
  return n;
}

std::vector<FoundRecord> find_records(const fs::path& root) {
  std::vector<FoundRecord> records;
  for_each_file(root, [&](const fs::path& path) {
    const auto id = id_of_name(path.filename().string());
    struct stat status {};
    if (!id || record_path(root, *id) != path || lstat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return;
    records.push_back({path, *id, status.st_size, status.st_mtim.tv_sec * 1'000'000'000 + status.st_mtim.tv_nsec});
  });
  return records;
}

bool claim_file(const fs::path& root, const RecordId& id, const std::string& claimant, Clock::duration time) {
  const fs::path path = claim_path(root, id);
  if (mkdir(path.parent_path().c_str(), 0700) != 0 && errno != EEXIST) return true;
  for (int attempt = 0; attempt < 2; ++attempt) {
    const int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
    const File file(retried([&] { return open(path.c_str(), flags, 0600); }));
    if (file) {
      static_cast<void>(retried([&] { return write(file.fd(), claimant.data(), claimant.size()); }));
      return true;
    }
    if (errno != EEXIST || is_of(path, claimant)) return true;
    const auto age = age_of(path);
    if (age && *age < time) return false;
    unlink(path.c_str());  // of a process that took too long, or has died
  }
  return true;
}

void release_claim_file(const fs::path& root, const RecordId& id, const std::string& claimant) {
  const fs::path path = claim_path(root, id);
  if (is_of(path, claimant)) unlink(path.c_str());
}

fs::path record_path(const fs::path& root, const RecordId& id) {
  const std::string name = hex(id);
  return root / name.substr(0, 2) / (name + std::string(kRecordSuffix));
}

}  // namespace vlcache
