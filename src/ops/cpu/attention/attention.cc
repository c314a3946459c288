#include "ops/cpu/attention/attention.h"

#include <algorithm>

#include "ops/cpu/attention/tile_runner.h"

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

// The tiles of one sequence, the most expensive first: heads in turn, so that threads walk the same pages at the same
// time.
void add_sequence(TileRunner& runner, const AttentionSeq& seq, const AttentionArgs& args, const Tensor& q) {
  const int group = static_cast<int>(q.dim(1) / seq.kv.n_kv_heads);
  const bool coded = seq.kv.codecs != nullptr || is_coded(seq.kv.codec);
  const int step = runner.tokens_per_tile(q.dtype, seq.n_rows, group, coded);
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
      add_parts(runner, tile);
    }
  }
}

}  // namespace

AttentionWorkspace::AttentionWorkspace(Isa isa, bool byte_dots)
    : runner_(std::make_unique<TileRunner>(isa, byte_dots)) {}
AttentionWorkspace::~AttentionWorkspace() = default;
int64_t AttentionWorkspace::bytes() const { return runner_->bytes(); }

void attention(AttentionWorkspace& workspace, const Tensor& q, std::span<const AttentionSeq> seqs,
               const AttentionArgs& args, const Tensor& out) {
  CHECK(q.rank == 3 && out.rank == 3 && q.dtype == out.dtype && args.scale > 0.0f);
  CHECK(args.sink_logits.empty() || std::ssize(args.sink_logits) == q.dim(1));
  TileRunner& runner = workspace.runner();
  runner.clear();
  for (const AttentionSeq& seq : seqs) {
    check_sequence(q, seq, args);
    if (seq.n_rows > 0) add_sequence(runner, seq, args, q);
  }
  runner.run(q, out, args.lse);
}

}  // namespace vlcache::cpu
