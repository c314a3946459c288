// Attention over pages that sequences have in common, against ops/ref, which reads them for each sequence.
#include "ops/cpu/attention/shared_pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "base/os/threads.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/ref/ref_backend.h"

namespace vlcache::cpu {
namespace {

constexpr int kPoolPages = 160;  // in each kv head

// size: sequences of one row (of n_rows[i] rows where given), by the pages that they list.
struct Batch {
  int n_kv_heads = 2, group = 3, d = 64;
  std::vector<std::vector<int32_t>> tables;  // page numbers, which differ from head to head
  std::vector<int32_t> n_slots;
  std::vector<int32_t> n_rows = {};
  KvCodec coded = KvCodec::kBF16;  // int8: pages [1, coded_end) of each sequence
  int32_t window = 0;

  int n_heads() const { return n_kv_heads * group; }
  int32_t rows_of(size_t seq) const { return n_rows.empty() ? 1 : n_rows[seq]; }
};

std::vector<int32_t> numbers(int32_t begin, int32_t end) {
  std::vector<int32_t> list(static_cast<size_t>(end - begin));
  std::iota(list.begin(), list.end(), begin);
  return list;
}

std::vector<int32_t> join(std::vector<int32_t> list, const std::vector<int32_t>& more) {
  list.insert(list.end(), more.begin(), more.end());
  return list;
}

// The batch in the layout of one backend, with the same values in every one.
class World {
 public:
  World(Backend& backend, const Batch& batch) : backend_(backend), batch_(batch) {
    const int64_t d = batch.d, n_pages = kPoolPages * batch.n_kv_heads;
    const KvCodec values = KvCodec::kF32;
    for (const KvCodec codec : {values, KvCodec::kInt8}) {
      const int64_t bytes = backend.kv_page_bytes(codec, d);
      Buffer& pool = pools_[static_cast<size_t>(codec)] = Buffer(n_pages * bytes);
      kv_pools_[static_cast<size_t>(codec)] = {pool.data(), bytes};
    }
    ids_ = numbers(0, static_cast<int32_t>(n_pages));
    const auto all_slots = static_cast<int32_t>(n_pages * kPageSlots);
    KvView all = view_of(ids_.data(), &all_slots, static_cast<int32_t>(n_pages));
    all.n_kv_heads = 1;
    const std::vector<float> k = random(all_slots * d, 1), v = random(all_slots * d, 2);
    backend.kv_write(tensor(k, {all_slots, 1, d}), tensor(v, {all_slots, 1, d}), all);
    KvView codes = all;
    codes.codec = KvCodec::kInt8;
    const std::vector<int32_t> slots = numbers(0, all_slots);
    backend.kv_move(all, codes, 0, slots, slots);
    for (size_t i = 0; i < batch.tables.size(); ++i) list_pages(i);
    const int64_t width = batch.n_heads() * d;
    for (size_t i = 0; i < batch.tables.size(); ++i) n_ += batch.rows_of(i);
    q_ = random(n_ * width, 3);
    out_.assign(static_cast<size_t>(n_ * width), NAN);
    lse_.assign(static_cast<size_t>(n_ * batch.n_heads()), NAN);
    reads_.resize(batch.tables.size());
    logits_.resize(batch.tables.size());
    bias_.assign(static_cast<size_t>(batch.n_kv_heads * kPoolPages * kPageSlots), 0.0f);
    bias_[5] = 1.0f;
    seqs_ = make_seqs();
  }

  std::vector<AttentionSeq>& seqs() { return seqs_; }
  void want_logits(size_t seq) {
    logits_[seq].assign(static_cast<size_t>(batch_.n_heads() * batch_.n_slots[seq]), NAN);
    seqs_[seq].logits = logits_[seq].data();
    seqs_[seq].logits_stride = batch_.n_slots[seq];
  }
  void add_bias(size_t seq) {
    seqs_[seq].kv.slot_bias = bias_.data();
    seqs_[seq].kv.slot_stride = kPoolPages * kPageSlots;
  }
  void attend(bool share) { attend(seqs_, share); }
  void attend(std::span<const AttentionSeq> seqs, bool share) {
    const AttentionArgs args{
        .scale = 1.0f / std::sqrt(static_cast<float>(batch_.d)), .window = batch_.window, .lse = lse(), .share = share};
    backend_.attention(tensor(q_, {n_, batch_.n_heads(), batch_.d}), seqs, args, out());
  }
  Tensor out() { return tensor(out_, {n_, batch_.n_heads(), batch_.d}); }
  Tensor lse() { return tensor(lse_, {n_, batch_.n_heads()}); }
  const std::vector<float>& outputs() const { return out_; }
  const std::vector<float>& log_sums() const { return lse_; }
  const std::vector<float>& logits(size_t seq) const { return logits_[seq]; }
  KvReads reads(size_t seq) const { return reads_[seq]; }
  KvReads all_reads() const {
    KvReads sum;
    for (const KvReads& r : reads_) sum += r;
    return sum;
  }

  static Tensor tensor(const std::vector<float>& x, std::initializer_list<int64_t> dims) {
    return Tensor(const_cast<float*>(x.data()), DType::kF32, dims);
  }

 private:
  static std::vector<float> random(int64_t n, uint32_t seed) {
    std::mt19937 rng(seed);
    std::uniform_real_distribution<float> uniform(-1, 1);
    std::vector<float> values(static_cast<size_t>(n));
    for (float& x : values) x = uniform(rng);
    return values;
  }
  KvView view_of(const int32_t* pages, const int32_t* n_slots, int32_t stride) const {
    KvView view{.pages = pages,
                .n_slots = n_slots,
                .page_stride = stride,
                .n_kv_heads = batch_.n_kv_heads,
                .head_dim = batch_.d,
                .codec = KvCodec::kF32};
    std::copy(std::begin(kv_pools_), std::end(kv_pools_), view.pools);
    return view;
  }
  // Page number i of head h is page i * n_kv_heads + h of a pool.
  void list_pages(size_t seq) {
    std::vector<int32_t>& pages = pages_.emplace_back();
    std::vector<uint8_t>& codecs = codecs_.emplace_back();
    for (int h = 0; h < batch_.n_kv_heads; ++h) {
      for (size_t i = 0; i < batch_.tables[seq].size(); ++i) {
        pages.push_back(batch_.tables[seq][i] * batch_.n_kv_heads + h);
        const bool is_code =
            is_coded(batch_.coded) && i > 0 && static_cast<int>(i) < coded_end(batch_.n_slots[seq] - 1);
        codecs.push_back(static_cast<uint8_t>(is_code ? batch_.coded : KvCodec::kF32));
      }
    }
    lengths_.emplace_back(static_cast<size_t>(batch_.n_kv_heads), batch_.n_slots[seq]);
  }
  std::vector<AttentionSeq> make_seqs() {
    std::vector<AttentionSeq> seqs;
    int32_t row = 0;
    for (size_t i = 0; i < pages_.size(); ++i) {
      KvView view = view_of(pages_[i].data(), lengths_[i].data(), static_cast<int32_t>(batch_.tables[i].size()));
      if (is_coded(batch_.coded)) view.codecs = codecs_[i].data();
      seqs.push_back({.row_begin = row, .n_rows = batch_.rows_of(i), .kv = view, .reads = &reads_[i]});
      row += batch_.rows_of(i);
    }
    return seqs;
  }

  Backend& backend_;
  const Batch& batch_;
  Buffer pools_[kKvCodecs];
  KvPool kv_pools_[kKvCodecs];
  std::vector<int32_t> ids_;
  std::vector<std::vector<int32_t>> pages_, lengths_;
  std::vector<std::vector<uint8_t>> codecs_;
  std::vector<float> q_, out_, lse_, bias_;
  std::vector<std::vector<float>> logits_;
  std::vector<KvReads> reads_;
  std::vector<AttentionSeq> seqs_;
  int64_t n_ = 0;
};

// Sums of thousands of products of about 1, whose weights are off by 1e-7.
constexpr float kTolerance = 1e-6f;

float largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  float most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = std::max(most, a[i] == b[i] ? 0.0f : std::fabs(a[i] - b[i]));
  return std::any_of(a.begin(), a.end(), [](float x) { return std::isnan(x); }) ? NAN : most;
}

class SharedPages : public ::testing::TestWithParam<int> {
 protected:
  SharedPages() : n_before_(n_threads()) { set_threads(GetParam()); }
  ~SharedPages() override { set_threads(n_before_); }

  // Attention of the batch as ref computes it; returns what sharing saved.
  KvReads check(const Batch& batch) {
    World expected(*ref_, batch), found(*cpu_, batch);
    expected.attend(true);
    found.attend(true);
    EXPECT_LE(largest_difference(found.outputs(), expected.outputs()), kTolerance);
    EXPECT_LE(largest_difference(found.log_sums(), expected.log_sums()), 2 * kTolerance);
    EXPECT_EQ(expected.all_reads().saved, 0);
    const KvReads reads = found.all_reads();
    const int64_t n_pages = expected.all_reads().bytes / ref_->kv_page_bytes(KvCodec::kF32, batch.d);
    EXPECT_EQ(reads.bytes + reads.saved, n_pages * page_bytes(batch));
    return reads;
  }
  int64_t page_bytes(const Batch& batch) const { return cpu_->kv_page_bytes(KvCodec::kF32, batch.d); }
  // Bits of the batch do not depend on `share`.
  void expect_alone(const Batch& batch) {
    World off(*cpu_, batch), on(*cpu_, batch);
    off.attend(false);
    on.attend(true);
    EXPECT_EQ(on.outputs(), off.outputs());
    EXPECT_EQ(on.log_sums(), off.log_sums());
    EXPECT_EQ(on.all_reads().saved, 0);
    EXPECT_EQ(on.all_reads().bytes, off.all_reads().bytes);
  }

  const int n_before_;
  const std::unique_ptr<Backend> ref_ = make_ref_backend(DType::kF32), cpu_ = make_cpu_backend(DType::kF32);
};

// The parts of a row and their merge are what merge_attention says.
TEST_P(SharedPages, AreTheMergeOfTheirParts) {
  const Batch batch{.tables = {numbers(0, 10), join(numbers(0, 8), numbers(20, 23))}, .n_slots = {600, 700}};
  World parts[2] = {{*ref_, batch}, {*ref_, batch}};
  World found(*cpu_, batch);
  const std::vector<int32_t> shared(2, 8 * kPageSlots), own[2] = {{88, 88}, {188, 188}};
  for (size_t i = 0; i < 2; ++i) {
    parts[0].seqs()[i].kv.n_slots = shared.data();
    parts[1].seqs()[i].kv.pages += 8;
    parts[1].seqs()[i].kv.n_slots = own[i].data();
  }
  for (World& part : parts) part.attend(false);
  ref_->merge_attention(parts[0].out(), parts[0].lse(), parts[1].out(), parts[1].lse(), parts[0].out(), parts[0].lse());
  found.attend(true);
  EXPECT_LE(largest_difference(found.outputs(), parts[0].outputs()), kTolerance);
  EXPECT_LE(largest_difference(found.log_sums(), parts[0].log_sums()), 2 * kTolerance);
  EXPECT_EQ(found.all_reads().saved, 8 * 2 * page_bytes(batch));
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(found.reads(i).saved, 8 * page_bytes(batch)) << "each half of it";
}

// Random trees of pages: each sequence begins like an earlier one, up to a random page.
TEST_P(SharedPages, RandomTables) {
  std::mt19937 rng(7);
  const auto below = [&](size_t n) { return static_cast<int32_t>(rng() % n); };
  int64_t saved = 0;
  for (const int d : {64, 128}) {
    for (const int group : {1, 3, 8}) {
      for (int n = 1; n <= 17; n += 1 + below(6)) {
        Batch batch{.n_kv_heads = 1 + below(2), .group = group, .d = d};
        int32_t next = 0;
        for (int i = 0; i < n; ++i) {
          std::vector<int32_t> table;
          if (i > 0) {
            table = batch.tables[static_cast<size_t>(below(static_cast<size_t>(i)))];
            table.resize(static_cast<size_t>(below(table.size() + 1)));
          }
          const int32_t more = 1 + below(i == 0 ? 20 : 6);
          table = join(table, numbers(next, next + more));
          next += more;
          batch.n_slots.push_back(static_cast<int32_t>(table.size()) * kPageSlots - below(kPageSlots));
          batch.n_rows.push_back(below(8) == 0 ? 3 : 1);
          batch.tables.push_back(table);
        }
        SCOPED_TRACE("d " + std::to_string(d) + " group " + std::to_string(group) + " sequences " + std::to_string(n));
        saved += check(batch).saved;
      }
    }
  }
  EXPECT_GT(saved, 0);
}

// A system text, then two documents with two conversations each; pages after these are a third level.
TEST_P(SharedPages, TwoLevels) {
  const std::vector<int32_t> system = numbers(0, 8),
                             document[] = {join(system, numbers(8, 20)), join(system, numbers(20, 32))};
  Batch batch{.n_kv_heads = 1};
  for (int i = 0; i < 8; ++i) {
    const int32_t talk = 32 + 5 * (i / 2), own = 60 + 2 * i;  // two continue each conversation
    batch.tables.push_back(join(join(document[i / 4], numbers(talk, talk + 5)), numbers(own, own + 2)));
    batch.n_slots.push_back(26 * kPageSlots + 1 + i);
  }
  World world(*cpu_, batch);
  PageSharing sharing;
  sharing.find(world.seqs(), {.share = true});
  std::vector<std::array<int64_t, 3>> found;
  for (const PageSharing::Group& g : sharing.groups()) found.push_back({g.begin, g.end, g.size});
  std::ranges::sort(found);
  // Four have 20 pages in common: that saves more than 8 pages of eight. Then conversations are the second level.
  EXPECT_EQ(found, (std::vector<std::array<int64_t, 3>>{
                       {0, 20, 4}, {0, 20, 4}, {20, 25, 2}, {20, 25, 2}, {20, 25, 2}, {20, 25, 2}}));
  EXPECT_EQ(check(batch).saved, (2 * 3 * 20 + 4 * 5) * page_bytes(batch));
  // A longer system text, which is then the first level; conversations are a third, which each row reads alone.
  for (auto& table : batch.tables) table = join(numbers(100, 130), table);
  for (int32_t& n : batch.n_slots) n += 30 * kPageSlots;
  EXPECT_EQ(check(batch).saved, (7 * 38 + 2 * 3 * 12) * page_bytes(batch));
}

TEST_P(SharedPages, WholeAndEqualPagesAlone) {
  // A copy on write in the middle ends the shared part, whatever follows it.
  Batch copied{.tables = {numbers(0, 12), numbers(0, 12), numbers(0, 12)}, .n_slots = {768, 768, 768}};
  copied.tables[1][6] = 50;
  EXPECT_EQ(check(copied).saved, (6 + 12) * 2 * page_bytes(copied));
  // The last page is not whole in every table; entries after the last slot are no pages at all.
  const Batch partial{.tables = {numbers(0, 12), numbers(0, 12)}, .n_slots = {5 * kPageSlots, 12 * kPageSlots - 1}};
  EXPECT_EQ(check(partial).saved, 5 * 2 * page_bytes(partial));
  const Batch few{.tables = {numbers(0, 9), join(numbers(0, 3), numbers(20, 26))}, .n_slots = {560, 570}};
  expect_alone(few);
  const Batch nothing{.tables = {numbers(0, 9), numbers(10, 30)}, .n_slots = {560, 1200}};
  expect_alone(nothing);
}

// Where rows of a head differ in something else than pages, they are computed as without sharing.
TEST_P(SharedPages, OtherwiseARowStaysAlone) {
  Batch batch{.tables = {numbers(0, 10), numbers(0, 11), numbers(0, 12)}, .n_slots = {600, 700, 750}};
  batch.window = 300;
  expect_alone(batch);
  batch.window = 0;
  batch.n_rows = {4, 1, 9};
  expect_alone(batch);
  batch.n_rows = {};
  World off(*cpu_, batch), on(*cpu_, batch);
  for (World* world : {&off, &on}) world->want_logits(0), world->add_bias(1);
  off.attend(false);
  on.attend(true);
  EXPECT_EQ(on.outputs(), off.outputs());
  EXPECT_EQ(on.logits(0), off.logits(0));
  EXPECT_EQ(on.all_reads().saved, 0);
  World three(*cpu_, batch);
  three.want_logits(0);
  three.attend(true);
  EXPECT_EQ(three.logits(0), off.logits(0));
  EXPECT_EQ(three.reads(0).saved, 0);
  EXPECT_GT(three.reads(1).saved, 0);
}

// Rows see the pages of a block as codes once they are far enough from it: groups are of rows that see the same form.
TEST_P(SharedPages, Codes) {
  Batch batch{.n_kv_heads = 1, .coded = KvCodec::kInt8};
  for (int32_t i = 0; i < 5; ++i) batch.tables.push_back(join(numbers(0, 20), numbers(20 + 6 * i, 26 + 6 * i)));
  batch.n_slots = {1300, 1310, 1320, 1600, 1590};
  World expected(*ref_, batch), found(*cpu_, batch);
  expected.attend(false);
  found.attend(true);
  EXPECT_LE(largest_difference(found.outputs(), expected.outputs()), kTolerance);
  const int64_t code_bytes = cpu_->kv_page_bytes(KvCodec::kInt8, batch.d);
  // Pages 18 and 19 are values to the first three and codes to the others, too few for groups of their own.
  EXPECT_EQ(coded_end(1319), 18);
  EXPECT_EQ(found.all_reads().saved, 4 * (page_bytes(batch) + 17 * code_bytes));
}

// More rows than a tile holds: each tile reads the pages.
TEST_P(SharedPages, ManyRowsAreSeveralTiles) {
  Batch batch{.n_kv_heads = 1, .group = 40};
  for (int32_t i = 0; i < 17; ++i) {
    batch.tables.push_back(join(numbers(0, 6), {20 + i}));
    batch.n_slots.push_back(6 * kPageSlots + 3 * i + 1);
  }
  const int64_t saved = check(batch).saved / (6 * page_bytes(batch));
  EXPECT_GE(saved, 7);
  EXPECT_LT(saved, 16);
}

INSTANTIATE_TEST_SUITE_P(Threads, SharedPages, ::testing::Values(1, 2));

}  // namespace
}  // namespace vlcache::cpu
