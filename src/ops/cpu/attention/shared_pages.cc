#include "ops/cpu/attention/shared_pages.h"

#include <algorithm>

namespace vlcache::cpu {
namespace {

// A part costs its rows another packing of queries, partial sums and a merge: about what reading one page costs. From
// four pages on (256 tokens) two rows gain.
constexpr int64_t kMinSharedPages = 4;

bool may_share(const AttentionSeq& seq) {
  return seq.n_rows == 1 && seq.logits == nullptr && seq.kv.slot_bias == nullptr && seq.kv.n_kv_heads > 0;
}

}  // namespace

void PageSharing::find(std::span<const AttentionSeq> seqs, const AttentionArgs& args) {
  readers_.clear(), groups_.clear(), members_.clear(), rows_.clear(), reader_of_.clear(), single_.clear();
  if (!args.share || args.window > 0 || args.q_sinks != nullptr) return;
  seqs_ = seqs;
  for (size_t i = 0; i < seqs.size(); ++i) {
    if (may_share(seqs[i])) single_.push_back(static_cast<int32_t>(i));
  }
  if (single_.size() < 2) return;
  n_heads_ = static_cast<size_t>(seqs[static_cast<size_t>(single_[0])].kv.n_kv_heads);
  for (int head = 0; head < static_cast<int>(n_heads_); ++head) {
    candidates_.clear();
    for (const int32_t i : single_) {
      const AttentionSeq& seq = seqs[static_cast<size_t>(i)];
      CHECK(static_cast<size_t>(seq.kv.n_kv_heads) == n_heads_);
      const int64_t limit = seq.kv.n_slots[head] - (seq.n_after != nullptr ? seq.n_after[0] : 0);
      candidates_.push_back({.seq = i, .n_whole = limit / kPageSlots, .coded_end = coded_end(limit - 1)});
    }
    group(candidates_, head, 0, 0);
  }
}

// Groups candidates that have pages [0, begin) in common. Only candidates with the same next page are compared further.
void PageSharing::group(std::span<Candidate> candidates, int head, int64_t begin, int level) {
  for (Candidate& c : candidates) {
    const bool enough = c.n_whole - begin >= kMinSharedPages;
    c.first = enough ? view(c).form(head, begin, c.coded_end).data : nullptr;
  }
  std::ranges::sort(candidates, [](const Candidate& a, const Candidate& b) {
    return a.first != b.first ? std::less<>()(a.first, b.first) : a.seq < b.seq;
  });
  while (!candidates.empty()) {
    const std::byte* first = candidates[0].first;
    size_t n = 1;
    while (n < candidates.size() && candidates[n].first == first) ++n;
    if (first != nullptr) divide(candidates.first(n), head, begin, level);
    candidates = candidates.subspan(n);
  }
}

// Makes groups of candidates with the same first page: the leader's is the one that saves most reads of pages, then a
// candidate that is left leads the next.
void PageSharing::divide(std::span<Candidate> candidates, int head, int64_t begin, int level) {
  while (candidates.size() > 1) {
    for (Candidate& c : candidates.subspan(1)) c.n_common = count_common(candidates[0], c, head, begin);
    std::ranges::sort(candidates.subspan(1), [](const Candidate& a, const Candidate& b) {
      return a.n_common != b.n_common ? a.n_common > b.n_common : a.seq < b.seq;
    });
    int64_t end = 0, most_saved = 0;
    size_t size = 1;
    for (size_t i = 1; i < candidates.size(); ++i) {
      const int64_t n = candidates[i].n_common - begin, saved = n * static_cast<int64_t>(i);
      if (n < kMinSharedPages || saved < most_saved) continue;
      most_saved = saved, end = candidates[i].n_common, size = i + 1;
    }
    if (size > 1) {
      add(candidates.first(size), head, begin, end);
      if (level + 1 < kLevels) group(candidates.first(size), head, end, level + 1);
    }
    candidates = candidates.subspan(size);
  }
}

void PageSharing::add(std::span<const Candidate> members, int head, int64_t begin, int64_t end) {
  if (reader_of_.empty()) reader_of_.assign(seqs_.size() * n_heads_, -1);
  groups_.push_back({.head = head,
                     .begin = begin,
                     .end = end,
                     .first = static_cast<int32_t>(members_.size()),
                     .size = static_cast<int32_t>(members.size())});
  for (const Candidate& c : members) {
    int32_t& reader = reader_of_[static_cast<size_t>(c.seq) * n_heads_ + static_cast<size_t>(head)];
    if (reader < 0) {
      reader = static_cast<int32_t>(readers_.size());
      readers_.push_back({.seq = c.seq, .head = head});
    }
    readers_[static_cast<size_t>(reader)].own_begin = end;
    members_.push_back(reader);
    rows_.push_back(seqs_[static_cast<size_t>(c.seq)].row_begin);
  }
}

// How many of the first pages that both see whole are the same memory in the same form; the first `begin` are.
int64_t PageSharing::count_common(const Candidate& a, const Candidate& b, int head, int64_t begin) const {
  const KvView &x = view(a), &y = view(b);
  const int64_t n = std::min(a.n_whole, b.n_whole);
  const bool plain = x.codecs == nullptr && y.codecs == nullptr && x.born == nullptr && y.born == nullptr;
  if (plain && x.codec == y.codec) {
    const int32_t* pages = x.pages + int64_t{head} * x.page_stride;
    return std::mismatch(pages + begin, pages + n, y.pages + int64_t{head} * y.page_stride + begin).first - pages;
  }
  for (int64_t i = begin; i < n; ++i) {
    const KvView::Form p = x.form(head, i, a.coded_end), q = y.form(head, i, b.coded_end);
    if (p.data != q.data || p.codec != q.codec) return i;
  }
  return n;
}

}  // namespace vlcache::cpu
