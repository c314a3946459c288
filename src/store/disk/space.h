// DiskSpace keeps a directory of records within its limit in bytes. Several processes may write to the directory: each
// counts the bytes that it found and wrote itself, and scans again now and then.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <set>
#include <vector>

#include "store/disk/files.h"

namespace vlcache {

class DiskSpace {
 public:
  // ttl_ms 0: records do not expire. salted: records of other users are evicted like one's own, otherwise first. Scans
  // the directory.
  DiskSpace(std::filesystem::path root, int64_t max_bytes, int64_t ttl_ms, bool salted);

  void set_model(const ModelFingerprint& model) { models_.insert(model); }
  // If this many more bytes do not fit: removes records until the limit is nine tenths full with them. First expired
  // files and files that are no records, then records of other models, then records used once (Record::yields),
  // then the least recently used. Returns the number of records removed.
  int64_t make_room(int64_t bytes);
  // The same for a record that yields, and saves `saves_ms`; -1, and removes none, if of a model in use a record would
  // be evicted that was used again or saves more for its bytes, or of which one of these is not known.
  int64_t make_room_yielding(int64_t bytes, double saves_ms);
  // The same for a record at its first use: removes records alone that were used once, or are of no use; fewer than
  // above if these are too few. -1, and removes none, if that makes no room.
  int64_t make_room_first_use(int64_t bytes);
  // If the medium is full below the limit: removes records in the same order until this many bytes are free. Returns
  // the number of records removed; 0 if all of them together hold less.
  int64_t free(int64_t bytes);
  // Removes expired records: make_room() removes them only when room is needed. Returns the number of records removed.
  int64_t remove_expired();
  void changed(int64_t bytes) { used_bytes_ += bytes; }
  void wrote(int64_t bytes);
  int64_t used_bytes() const { return used_bytes_; }

 private:
  struct Candidate;
  std::vector<Candidate> scan();  // in the order of eviction
  bool fits(int64_t bytes) const;
  bool outranked(const std::vector<Candidate>& candidates, int64_t most_bytes, double ms_per_byte) const;
  int64_t remove_down_to(const std::vector<Candidate>& candidates, int64_t most_bytes);
  bool expired(int64_t created_ms) const;

  std::filesystem::path root_;
  int64_t max_bytes_, ttl_ms_;
  bool salted_;
  int64_t used_bytes_ = 0, written_since_scan_ = 0;
  std::set<ModelFingerprint> models_;
};

}  // namespace vlcache
