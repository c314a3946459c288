#include "store/disk/tier.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/os/private_folder.h"

namespace vlcache {
namespace {

namespace fs = std::filesystem;

// Enough for the header of a model of 150 layers; longer ones need a second read.
constexpr size_t kFirstRead = 4096;

constexpr size_t kProbeBytes = size_t{64} << 10;  // more than the rest of a full disk's last block

int open_folder(const fs::path& dir) {
  return retried([&] { return ::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
}

// Checks the options and creates the directory, before the members are constructed.
fs::path prepared(const DiskTierOptions& options) {
  const std::string dir = options.dir.string();
  if (dir.empty()) throw Error(ErrorCode::kInput, "cache directory: expected a path, found nothing");
  if (options.max_bytes <= 0 || options.ttl_ms < 0)
    throw Error(ErrorCode::kInput, dir + ": expected a positive limit of bytes and no negative time to live");
  if (const int error = make_private_folders(options.dir)) {
    throw Error(ErrorCode::kInput, dir + ": the cache folder cannot be made: " + std::strerror(error) +
                                       "; name a folder to which you may write");
  }
  remove_stale_files(options.dir);
  remove_stale_files_in(options.dir);  // left by probes
  return options.dir;
}

}  // namespace

class DiskTier::Reader final : public RecordReader {
 public:
  Reader(DiskTier& tier, OpenedFile opened, RecordHeader header, fs::path path)
      : tier_(tier), opened_(std::move(opened)), header_(std::move(header)), path_(std::move(path)) {
    id_ = tier.seal_.id(header_.key);
  }

  const RecordHeader& header() const override { return header_; }

  // expect() does nothing: the kernel reads ahead of pread by itself. POSIX_FADV_SEQUENTIAL changed nothing that could
  // be measured, WILLNEED took as long or longer (62 MB from a virtual disk: 40 to 51 ms without, 51 to 107 ms with).

  std::optional<Miss> read(int32_t section, std::span<std::byte> to, Deadline deadline) override {
    const auto start = Clock::now();
    auto why = verified(section, to, deadline);
    if (why) {
      why->detail = "section " + std::to_string(section) + (why->detail.empty() ? "" : ": " + why->detail);
      tier_.drop(*why, path_, opened_);
    }
    tier_.counter_.read(start, static_cast<int64_t>(to.size()), why);
    return why;
  }

 private:
  std::optional<Miss> verified(int32_t section, std::span<std::byte> to, Deadline deadline) const {
    if (auto why = check_target(header_, section, to)) return why;
    const auto i = static_cast<size_t>(section);
    const SectionInfo& expected = header_.sections[i];
    ChecksumStream sum = tier_.seal_.section(id_, section, expected.bytes);
    if (auto why = read_at(opened_.file, header_.section_offset(i), to, deadline, &sum)) return why;
    if (!equal(sum.finish(), expected.sum)) return Miss{MissReason::kChecksum, ""};
    return std::nullopt;
  }

  DiskTier& tier_;
  OpenedFile opened_;
  RecordHeader header_;
  RecordId id_;
  fs::path path_;
};

DiskTier::DiskTier(const DiskTierOptions& options)
    : dir_(prepared(options)),
      max_bytes_(options.max_bytes),
      ttl_ms_(options.ttl_ms),
      seal_(options.salt, options.id_bits),
      claimant_(new_claimant()),
      space_(dir_, options.max_bytes, options.ttl_ms, /*salted=*/!options.salt.empty()) {
  for (int64_t n = space_.remove_expired(); n > 0; --n) counter_.removed();
}

std::vector<bool> DiskTier::exists(std::span<const RecordKey> keys, Deadline) {
  std::vector<bool> there;
  for (const RecordKey& key : keys) {
    const fs::path path = path_of(key);
    struct stat status {};
    const bool is_file = lstat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode);
    const std::string foreign = is_file && !seal_.salted() ? foreign_reason(status) : "";
    if (!foreign.empty()) counter_.problem({MissReason::kForeign, path.string() + ": " + foreign});
    there.push_back(is_file && foreign.empty());
  }
  return there;
}

std::optional<Miss> DiskTier::read_header(const OpenedFile& opened, const RecordKey* expected, Deadline deadline,
                                          RecordHeader& header) const {
  if (!seal_.salted() && !opened.foreign.empty()) return Miss{MissReason::kForeign, opened.foreign};
  std::vector<std::byte> first(std::min(kFirstRead, static_cast<size_t>(opened.bytes)));
  if (auto why = read_at(opened.file, 0, first, deadline)) return why;
  const auto wanted = static_cast<size_t>(std::min(header_bytes(first), opened.bytes));
  if (const size_t have = first.size(); have < wanted) {
    first.resize(wanted);
    const auto rest = std::span(first).subspan(have);
    if (auto why = read_at(opened.file, static_cast<int64_t>(have), rest, deadline)) return why;
  }
  if (auto why = parse_header(seal_, first, opened.bytes, expected, header)) return why;
  return check_age(header, ttl_ms_);
}

void DiskTier::drop(const Miss& why, const fs::path& path, const OpenedFile& opened) {
  if (!is_corrupt(why.reason) || !remove_if_same(path, opened.file)) return;
  counter_.removed();
  const std::lock_guard lock(space_mutex_);
  space_.changed(-opened.bytes);
}

OpenedRecord DiskTier::open(const RecordKey& key, Deadline deadline) {
  const auto start = Clock::now();
  const fs::path path = path_of(key);
  OpenedFile opened = open_record_file(path);
  RecordHeader header;
  auto why = opened.file ? read_header(opened, &key, deadline, header) : opened.miss;
  if (opened.file && why) drop(*why, path, opened);
  counter_.opened(start, why);
  if (why) return {nullptr, std::move(*why)};
  touch(opened.file);
  return {std::make_unique<Reader>(*this, std::move(opened), std::move(header), path), {}};
}

PutResult DiskTier::put(const Record& record, Deadline deadline) {
  const auto start = Clock::now();
  CHECK(valid(record.key) && record.sections.size() <= kMaxSections);
  const fs::path path = path_of(record.key);
  PutResult result;
  {
    const OpenedFile opened = open_record_file(path);
    RecordHeader header;
    if (opened.file && !read_header(opened, &record.key, deadline, header)) {
      touch(opened.file);
      result.outcome = PutOutcome::kPresent;
    }
  }
  if (result.outcome == PutOutcome::kStored) result = store(record, path, deadline);
  counter_.put(start, record.bytes(), result);
  return result;
}

PutResult DiskTier::store(const Record& record, const fs::path& path, Deadline deadline) {
  const RecordHeader header = make_header(seal_, record);
  const int64_t bytes = header.section_offset(header.sections.size());
  if (bytes > max_bytes_) return {PutOutcome::kTooLarge, std::to_string(bytes) + " bytes"};
  {
    const std::lock_guard lock(space_mutex_);
    const int64_t wanted = bytes + writing_bytes_;
    const int64_t n_evicted = record.first_use ? space_.make_room_first_use(wanted)
                              : record.yields  ? space_.make_room_yielding(wanted, record.saves_ms)
                                               : space_.make_room(wanted);
    if (n_evicted < 0) return {PutOutcome::kOutranked, ""};
    counter_.evicted(n_evicted);
    writing_bytes_ += bytes;
  }
  PutResult result = write_or_evict(record, header, path, deadline);
  const std::lock_guard lock(space_mutex_);
  writing_bytes_ -= bytes;
  return result;
}

PutResult DiskTier::write_or_evict(const Record& record, const RecordHeader& header, const fs::path& path,
                                   Deadline deadline) {
  PutResult result = write(record, header, path, deadline);
  if (result.outcome != PutOutcome::kNoSpace || record.yields) return result;
  // The medium is full, perhaps of other files: the cache evicts its own records, but only if that makes room for this
  // one.
  int64_t n_evicted = 0;
  {
    const std::lock_guard lock(space_mutex_);
    n_evicted = space_.free(header.section_offset(header.sections.size()));
  }
  counter_.evicted(n_evicted);
  return n_evicted > 0 ? write(record, header, path, deadline) : result;
}

PutResult DiskTier::write(const Record& record, const RecordHeader& header, const fs::path& path, Deadline deadline) {
  TemporaryFile file(path.parent_path());
  file.write(encode_header(seal_, header), deadline);
  for (const auto& section : record.sections) file.write(section, deadline, record.pace);
  file.set_uses({.n = record.n_uses, .once = record.yields});
  struct stat replaced {};
  const bool replaces = lstat(path.c_str(), &replaced) == 0;
  file.commit(path);
  if (file.result().there()) {
    const std::lock_guard lock(space_mutex_);
    space_.wrote(header.section_offset(header.sections.size()));
    if (replaces) space_.changed(-replaced.st_size);
  }
  return file.result();
}

bool DiskTier::erase(const RecordId& id) {
  const fs::path path = record_path(dir_, id);
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0 || unlink(path.c_str()) != 0) return false;
  const std::lock_guard lock(space_mutex_);
  space_.changed(-status.st_size);
  return true;
}

bool DiskTier::claim(const RecordKey& key, Clock::duration time, Deadline) {
  return claim_file(dir_, id_of(key), claimant_, time);
}

void DiskTier::release(const RecordKey& key) { release_claim_file(dir_, id_of(key), claimant_); }

void DiskTier::used(const RecordKey& key) {
  if (const OpenedFile opened = open_record_file(path_of(key)); opened.file) touch(opened.file);
}

void DiskTier::probe() {
  if (!File(open_folder(dir_))) {  // it is not made again: its removal may have been intended
    const std::string problem = errno_text(dir_.string());
    return counter_.probed(Miss{MissReason::kIo, problem}, {PutOutcome::kIo, problem});
  }
  const std::vector<std::byte> bytes(kProbeBytes, std::byte{0x5a});
  std::vector<std::byte> again(bytes.size());
  TemporaryFile file(dir_);
  file.write(bytes, kNoDeadline);
  PutResult result = file.result();
  std::optional<Miss> why;
  if (result.there() && (!file.read_back(again) || again != bytes)) {
    why = Miss{MissReason::kIo, "what was written cannot be read"};
  }
  // A full disk is no failure as long as there are records to evict; nor is it one of the tier that one file is
  // limited.
  const bool evicts = result.outcome == PutOutcome::kNoSpace && used_bytes() >= std::ssize(bytes);
  if (evicts || result.outcome == PutOutcome::kTooLarge) result = {};
  counter_.probed(why, result);
}

std::vector<ListedRecord> DiskTier::list() {
  std::vector<ListedRecord> records;
  for (const FoundRecord& found : find_records(dir_)) {
    ListedRecord listed{found.id, {}, found.bytes, 0, found.used_ns / 1'000'000, std::nullopt, 0, -1};
    const OpenedFile opened = open_record_file(found.path);
    RecordHeader header;
    listed.problem = opened.file ? read_header(opened, nullptr, kNoDeadline, header) : opened.miss;
    if (listed.problem && listed.problem->reason == MissReason::kAbsent) continue;  // removed during the listing
    if (!listed.problem && id_of(header.key) != found.id)
      listed.problem = Miss{MissReason::kOtherKey, "its name is not its key's"};
    listed.key = std::move(header.key);
    listed.created_ms = header.created_ms;
    listed.saves_ms = header.saves_ms;
    if (opened.file) listed.n_uses = read_uses(opened.file).n;
    records.push_back(std::move(listed));
  }
  return records;
}

void DiskTier::set_model(const ModelFingerprint& model) {
  const std::lock_guard lock(space_mutex_);
  space_.set_model(model);
}

int64_t DiskTier::used_bytes() const {
  const std::lock_guard lock(space_mutex_);
  return space_.used_bytes();
}

}  // namespace vlcache
