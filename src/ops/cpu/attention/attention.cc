#include "ops/cpu/attention/attention.h"

#include <algorithm>

#include "ops/cpu/attention/shared_pages.h"
#include "ops/cpu/attention/tile_runner.h"
#include "ops/kv_reads.h"

namespace vlcache::cpu {
namespace {

void check_sequence(const Tensor& q, const AttentionSeq& seq, const AttentionArgs& args) {
  const KvView& kv = seq.kv;
  CHECK(kv.n_kv_heads > 0 && q.dim(1) % kv.n_kv_heads == 0 && q.dim(2) == kv.head_dim && kv.head_dim % 2 == 0);
  CHECK(seq.row_begin >= 0 && seq.row_begin + seq.n_rows <= q.rows());
  CHECK(args.window <= 0 || kv.slot_pos == nullptr || args.positions != nullptr);
  CHECK(seq.n_after == nullptr || std::all_of(seq.n_after, seq.n_after + seq.n_rows, [](int32_t n) { return n >= 0; }));
  if (seq.logits == nullptr) return;
  CHECK(seq.n_rows == 1 && seq.logits_stride >= *std::max_element(kv.n_slots, kv.n_slots + kv.n_kv_heads));
}

// Adds a tile, cut where its tokens see other pages as codes.
void add_parts(TileRunner& runner, const Tile& tile) {
  for (int end = tile.n_tokens; end > 0;) {
    const int begin = tile.part_begin(end);
    runner.add(tile.part(begin, end));
    end = begin;
  }
}

bool has_codes(const KvView& kv) { return kv.codecs != nullptr || is_coded(kv.codec); }

// A call of attention: makes its tiles.
struct Planner {
  TileRunner& runner;
  const PageSharing& sharing;
  const Tensor& q;
  std::span<const AttentionSeq> seqs;
  const AttentionArgs& args;

  int group_of(const KvView& kv) const { return static_cast<int>(q.dim(1) / kv.n_kv_heads); }
  void add_sequence(size_t index) const;
  void add_readers() const;
  void add_shared(const PageSharing::Group& shared) const;
  void count_saved(const PageSharing::Group& shared, int64_t n_tiles) const;
};

// The tiles of one sequence, the most expensive first: heads in turn, so that threads walk the same pages at the same
// time.
void Planner::add_sequence(size_t index) const {
  const AttentionSeq& seq = seqs[index];
  const int group = group_of(seq.kv);
  const int step = runner.tokens_per_tile(q.dtype, seq.n_rows, group, has_codes(seq.kv));
  for (int head = 0; head < seq.kv.n_kv_heads; ++head) {
    for (int begin = (seq.n_rows - 1) / step * step; begin >= 0; begin -= step) {
      Tile tile{.kv = &seq.kv,
                .args = &args,
                .head = head,
                .query_head = head * group,
                .group = group,
                .row = seq.row_begin + begin,
                .n_tokens = std::min(step, seq.n_rows - begin),
                .n_seen = int64_t{seq.kv.n_slots[head]} - seq.n_rows + 1 + begin,
                .n_after = seq.n_after != nullptr ? seq.n_after + begin : nullptr,
                .logits = seq.logits != nullptr ? seq.logits + head * group * seq.logits_stride : nullptr,
                .logits_stride = seq.logits_stride};
      const int32_t reader = sharing.reader(index, head);
      if (reader < 0) {
        add_parts(runner, tile);
      } else {
        tile.first_page = sharing.readers()[static_cast<size_t>(reader)].own_begin;
        tile.place();
        runner.add(tile, {&reader, 1});
      }
    }
  }
}

// The rows that share pages, numbered as PageSharing numbers them.
void Planner::add_readers() const {
  for (const PageSharing::Reader& reader : sharing.readers()) {
    const AttentionSeq& seq = seqs[static_cast<size_t>(reader.seq)];
    const int group = group_of(seq.kv);
    runner.add_rows(
        {.args = &args, .row = seq.row_begin, .query_head = reader.head * group, .group = group, .parts = {}});
  }
}

// The tiles of pages that rows of several sequences read together. All of them see these pages whole and in the same
// form, so any one's view will do.
void Planner::add_shared(const PageSharing::Group& shared) const {
  const std::span<const int32_t> members = sharing.members(shared);
  const AttentionSeq& leader = seqs[static_cast<size_t>(sharing.readers()[static_cast<size_t>(members[0])].seq)];
  const int group = group_of(leader.kv);
  const int step = runner.tokens_per_tile(q.dtype, shared.size, group, has_codes(leader.kv));
  for (int begin = 0; begin < shared.size; begin += step) {
    const int n_tokens = std::min(step, shared.size - begin);
    Tile tile{.kv = &leader.kv,
              .args = &args,
              .head = shared.head,
              .query_head = shared.head * group,
              .group = group,
              .rows = sharing.rows(shared).data() + begin,
              .n_tokens = n_tokens,
              .n_seen = leader.kv.n_slots[shared.head] - (leader.n_after != nullptr ? leader.n_after[0] : 0),
              .causal_step = 0,
              .first_page = shared.begin,
              .end_page = shared.end};
    tile.place();
    runner.add(tile, members.subspan(static_cast<size_t>(begin), static_cast<size_t>(n_tokens)));
    if (begin == 0) count_saved(shared, (shared.size + step - 1) / step);
  }
}

void Planner::count_saved(const PageSharing::Group& shared, int64_t n_tiles) const {
  for (const int32_t member : sharing.members(shared)) {
    const AttentionSeq& seq = seqs[static_cast<size_t>(sharing.readers()[static_cast<size_t>(member)].seq)];
    if (seq.reads == nullptr) continue;
    const int64_t limit = seq.kv.n_slots[shared.head] - (seq.n_after != nullptr ? seq.n_after[0] : 0);
    const int64_t bytes = seq.kv.page_bytes(shared.head, shared.begin, shared.end, coded_end(limit - 1));
    const int64_t all = bytes * (shared.size - n_tiles), part = all / shared.size;
    const int64_t saved = member == sharing.members(shared)[0] ? all - part * (shared.size - 1) : part;
    *seq.reads += {.bytes = -saved, .saved = saved};
  }
}

}  // namespace

AttentionWorkspace::AttentionWorkspace(Isa isa, bool byte_dots)
    : runner_(std::make_unique<TileRunner>(isa, byte_dots)), sharing_(std::make_unique<PageSharing>()) {}
AttentionWorkspace::~AttentionWorkspace() = default;
int64_t AttentionWorkspace::bytes() const { return runner_->bytes(); }

void attention(AttentionWorkspace& workspace, const Tensor& q, std::span<const AttentionSeq> seqs,
               const AttentionArgs& args, const Tensor& out) {
  CHECK(q.rank == 3 && out.rank == 3 && q.dtype == out.dtype && args.scale > 0.0f);
  CHECK(args.sink_logits.empty() || std::ssize(args.sink_logits) == q.dim(1));
  TileRunner& runner = workspace.runner();
  PageSharing& sharing = workspace.sharing();
  runner.clear();
  for (const AttentionSeq& seq : seqs) {
    check_sequence(q, seq, args);
    if (seq.reads != nullptr) seq.reads->bytes += seen_page_bytes(seq, args);
  }
  sharing.find(seqs, args);
  const Planner planner{runner, sharing, q, seqs, args};
  planner.add_readers();
  for (const PageSharing::Group& shared : sharing.groups()) planner.add_shared(shared);
  for (size_t i = 0; i < seqs.size(); ++i) {
    if (seqs[i].n_rows > 0) planner.add_sequence(i);
  }
  runner.run(q, out, args.lse);
}

}  // namespace vlcache::cpu
