// PageSharing: which rows of a batch read pages together.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/backend.h"

namespace vlcache::cpu {

// Compares page tables: sequences of one row whose first pages of a kv head are the same memory in the same form make a
// group, and parts of a group that have more in common make groups again, once. More levels are read per sequence.
class PageSharing {
 public:
  static constexpr int kLevels = 2;

  // One row in one kv head. It reads pages [own_begin, ...) alone.
  struct Reader {
    int32_t seq = 0;
    int head = 0;
    int64_t own_begin = 0;
  };
  // Pages [begin, end) of a kv head, which some readers have in common.
  struct Group {
    int head = 0;
    int64_t begin = 0, end = 0;
    int32_t first = 0, size = 0;  // its place in the lists of members
  };

  // Finds the groups of a call; `seqs` must live until the next one. Allocates only when more are found than ever
  // before.
  void find(std::span<const AttentionSeq> seqs, const AttentionArgs& args);

  std::span<const Reader> readers() const { return readers_; }
  // A group comes before the groups of its members.
  std::span<const Group> groups() const { return groups_; }
  std::span<const int32_t> members(const Group& group) const { return of(group, members_); }  // indices of readers
  std::span<const int32_t> rows(const Group& group) const { return of(group, rows_); }        // their rows of q
  // Index of a reader; -1: the row shares no page of this head.
  int32_t reader(size_t seq, int head) const {
    return reader_of_.empty() ? -1 : reader_of_[seq * n_heads_ + static_cast<size_t>(head)];
  }

 private:
  struct Candidate {
    int32_t seq = 0;
    int64_t n_whole = 0;               // pages that it sees to their last slot
    int32_t coded_end = 1;             // it sees pages [1, coded_end) as codes
    const std::byte* first = nullptr;  // its page `begin`; null: it has too few
    int64_t n_common = 0;              // pages in common with the leader
  };

  static std::span<const int32_t> of(const Group& group, const std::vector<int32_t>& list) {
    return std::span(list).subspan(static_cast<size_t>(group.first), static_cast<size_t>(group.size));
  }
  void group(std::span<Candidate> candidates, int head, int64_t begin, int level);
  void divide(std::span<Candidate> candidates, int head, int64_t begin, int level);
  void add(std::span<const Candidate> members, int head, int64_t begin, int64_t end);
  int64_t count_common(const Candidate& a, const Candidate& b, int head, int64_t begin) const;
  const KvView& view(const Candidate& c) const { return seqs_[static_cast<size_t>(c.seq)].kv; }

  std::span<const AttentionSeq> seqs_;
  size_t n_heads_ = 0;
  std::vector<int32_t> single_;        // sequences that may share
  std::vector<Candidate> candidates_;  // in one head
  std::vector<Reader> readers_;
  std::vector<Group> groups_;
  std::vector<int32_t> members_, rows_;
  std::vector<int32_t> reader_of_;  // [n sequences, n_heads]; empty: no group
};

}  // namespace vlcache::cpu
