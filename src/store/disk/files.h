// File operations of a directory of records: DIR/ab/ab12....vlr, and the temporary files that are renamed to these.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "store/kv_tier.h"

namespace vlcache {

// A regular file opened for reading; never follows a link or waits for a pipe. kAbsent if there is none.
struct OpenedFile {
  File file;
  int64_t bytes = 0;
  std::string foreign;       // foreign_reason(), with the path; empty: none
  std::optional<Miss> miss;  // set if `file` is not
};
OpenedFile open_record_file(const std::filesystem::path& path);
// Reads all of `to` from `offset`, in pieces; the deadline is checked before each. `on_piece` receives each piece while
// it is in the processor's caches.
std::optional<Miss> read_at(const File& file, int64_t offset, std::span<std::byte> to, Deadline deadline,
                            ChecksumStream* sum = nullptr);
// Counts a use, and sets the time of last use, by which eviction orders records, to now. Failure has no other effect.
void touch(const File& file);
// Uses that were counted, in an extended attribute of the file.
struct RecordUses {
  int64_t n = -1;     // beyond the first; -1: not counted, or the file system has no such attributes
  bool once = false;  // stored though it was used once (Record::yields), and not used since
};
RecordUses read_uses(const File& file);
void write_uses(const File& file, const RecordUses& uses);
// Removes the file at `path` if it is still this one: another process may have replaced it.
bool remove_if_same(const std::filesystem::path& path, const File& file);

// A record while it is written, as an UnfinishedFile, in pieces and with the reason of a failure.
class TemporaryFile {
 public:
  // In `folder`, which is created if only its last part is missing.
  explicit TemporaryFile(std::filesystem::path folder);

  void write(std::span<const std::byte> bytes, Deadline deadline, const SavePace* pace = nullptr);
  // The file's count of uses.
  void set_uses(const RecordUses& uses) { write_uses(file_.file(), uses); }
  // Fills `to` with the bytes written from the first on; false: they cannot be read.
  bool read_back(std::span<std::byte> to) const { return !read_at(file_.file(), 0, to, kNoDeadline); }
  // Syncs to the medium, then renames: one step for every reader.
  void commit(const std::filesystem::path& path);
  // kStored: no error so far. After an error the other functions do nothing.
  const PutResult& result() const { return result_; }

 private:
  bool ok() const { return result_.outcome == PutOutcome::kStored; }
  void check();  // adopts the failure of the file

  UnfinishedFile file_;
  PutResult result_;
};

// Removes the files that dead writers left below `root`. Returns their number.
int64_t remove_stale_files(const std::filesystem::path& root);
// The same for one folder, without its subfolders.
int64_t remove_stale_files_in(const std::filesystem::path& folder);

// Creates the file that claims a record for this claimant. False: another one has claimed it, no longer ago than
// `time`. True if the directory cannot be written to.
bool claim_file(const std::filesystem::path& root, const RecordId& id, const std::string& claimant,
                Clock::duration time);
void release_claim_file(const std::filesystem::path& root, const RecordId& id, const std::string& claimant);

struct FoundRecord {
  std::filesystem::path path;
  RecordId id{};
  int64_t bytes = 0;
  int64_t used_ns = 0;  // since 1970
};
// Every file below `root` with a record's name; other files are ignored.
std::vector<FoundRecord> find_records(const std::filesystem::path& root);
std::filesystem::path record_path(const std::filesystem::path& root, const RecordId& id);

}  // namespace vlcache
