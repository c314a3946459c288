// Counts of several processes, files that cannot be used, reuse that opens and closes.
#include "reuse/evidence/reuse_counts.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <thread>

namespace vlcache {
namespace {

class ReuseCountsTest : public testing::Test {
 protected:
  ReuseCountsTest()
      : dir_(std::filesystem::temp_directory_path() / ("vlcache-reuse-counts-" + std::to_string(getpid()))) {
    std::filesystem::create_directory(dir_);
  }
  ~ReuseCountsTest() override { std::filesystem::remove_all(dir_); }

  static ReusePlan plan(double share = 0.05) { return {.model = "m", .shares = {share, 0}}; }
  std::unique_ptr<ReuseCounts> counts(double share = 0.05) const {
    return std::make_unique<ReuseCounts>(plan(share), GateRule{.margin = 0.02}, file());
  }
  std::filesystem::path file() const { return dir_ / "counts.json"; }

  static ReusePlan plan_of(KvCodec codec) {
    ReusePlan own = plan();
    if (is_coded(codec)) own.kv_codec = codec;
    return own;
  }

  static ReuseEvidence answers(int64_t n, int64_t n_changed) { return {.answers = {n, n_changed}}; }

  std::filesystem::path dir_;
};

TEST_F(ReuseCountsTest, ProcessesAddUp) {
  const auto a = counts(), b = counts();
  std::thread other([&] {
    for (int i = 0; i < 20; ++i) b->add(/*several=*/i % 2 == 1, answers(1, 1));
  });
  for (int i = 0; i < 20; ++i) a->add(/*several=*/false, answers(1, 0));
  other.join();
  for (ReuseCounts* each : {a.get(), b.get()}) {
    const ReuseCounts::State state = each->state();
    EXPECT_EQ(state.one.evidence.answers.n, 30);
    EXPECT_EQ(state.one.evidence.answers.n_changed, 10);
    EXPECT_EQ(state.several.evidence.answers.n, 10);
  }
  EXPECT_EQ(counts()->state().one.evidence.answers.n, 30);    // a later process
  EXPECT_EQ(counts(0.1)->state().one.evidence.answers.n, 0);  // of another plan
  EXPECT_FALSE(a->permits(1));
  EXPECT_TRUE(counts(0.1)->undecided(1));
}

TEST_F(ReuseCountsTest, OpensAndClosesAndSaysSo) {
  const auto counts = this->counts(), other = this->counts();
  counts->add(false, answers(1000, 0));
  EXPECT_TRUE(counts->permits(1));
  EXPECT_FALSE(counts->permits(2));
  EXPECT_TRUE(other->permits(1)) << "by what another process has counted";
  EXPECT_EQ(counts->take_news().size(), 1u);
  const std::vector<std::string> news = other->take_news();
  ASSERT_EQ(news.size(), 1u);
  EXPECT_TRUE(news[0].starts_with("images are reused in prompts with one: measured on 1000 requests: 100 % same (99."))
      << news[0];
  counts->add(false, answers(200, 100));
  EXPECT_FALSE(counts->permits(1));
  EXPECT_FALSE(counts->undecided(1));
  const std::vector<std::string> closed = counts->take_news();
  ASSERT_EQ(closed.size(), 1u);
  EXPECT_TRUE(closed[0].starts_with("images are no longer reused in prompts with one: measured on 1200")) << closed[0];
  EXPECT_TRUE(closed[0].ends_with("; off")) << closed[0];
  EXPECT_TRUE(counts->take_news().empty());
}

TEST_F(ReuseCountsTest, ACodecsCountsOpenReuseForThatCodecAlone) {
  ReuseCountsByCodec by_codec([this](KvCodec codec) {
    return std::make_unique<ReuseCounts>(plan_of(codec), GateRule{.margin = 0.02},
                                         dir_ / (std::string(kv_codec_name(codec)) + ".json"));
  });
  by_codec.of(KvCodec::kInt8).add(false, answers(1000, 0));
  by_codec.of(KvCodec::kBF16).add(false, answers(3, 0));
  EXPECT_TRUE(by_codec.of(KvCodec::kInt8).permits(1));
  for (const KvCodec other : {KvCodec::kBF16, KvCodec::kInt4}) EXPECT_FALSE(by_codec.of(other).permits(1));
  const auto states = by_codec.states();
  ASSERT_EQ(states.size(), 3u);
  EXPECT_EQ(states.at(KvCodec::kInt8).one.evidence.answers.n, 1000);
  EXPECT_EQ(states.at(KvCodec::kBF16).one.evidence.answers.n, 3);
  EXPECT_EQ(states.at(KvCodec::kInt4).one.evidence.answers.n, 0);
  const std::vector<std::string> news = by_codec.take_news();
  ASSERT_EQ(news.size(), 1u);
  EXPECT_TRUE(news[0].starts_with("images are reused in prompts with one, under KV codec int8: measured on 1000"))
      << news[0];
  // A file that another codec's counts were copied to is not read.
  std::filesystem::copy_file(dir_ / "int8.json", file());
  EXPECT_EQ(counts()->state().one.evidence.answers.n, 0);
  EXPECT_EQ(ReuseCounts(plan_of(KvCodec::kInt8), {}, file()).state().one.evidence.answers.n, 1000);
}

TEST_F(ReuseCountsTest, DamagedFilesAreReplaced) {
  counts()->add(false, answers(5, 0));
  for (const char* text : {"", "{", "[1]", R"({"format": 1})"}) {
    std::ofstream(file()) << text;
    EXPECT_EQ(counts()->state().one.evidence.answers.n, 0) << text;
    counts()->add(true, answers(7, 1));
    EXPECT_EQ(counts()->state().several.evidence.answers.n, 7) << text;
  }
}

// They would open reuse, so another user must not have written them.
TEST_F(ReuseCountsTest, FilesThatOthersMayWriteAreReplaced) {
  for (const mode_t mode : {0620, 0602}) {
    counts()->add(false, answers(5, 0));
    EXPECT_GE(counts()->state().one.evidence.answers.n, 5);
    chmod(file().c_str(), mode);
    EXPECT_EQ(counts()->state().one.evidence.answers.n, 0);
    counts()->add(true, answers(7, 1));
    EXPECT_EQ(counts()->state().several.evidence.answers.n, 7);
  }
  if (geteuid() != 0) return;
  ASSERT_EQ(chown(file().c_str(), 65534, 65534), 0);
  EXPECT_EQ(counts()->state().several.evidence.answers.n, 0);
}

TEST_F(ReuseCountsTest, WithoutAFolderTheyCountInMemory) {
  ReuseCounts memory(plan(), {}, {}), gone(plan(), {}, dir_ / "not there" / "counts.json");
  for (ReuseCounts* counts : {&memory, &gone}) {
    counts->add(false, answers(2, 0));
    counts->add(false, answers(2, 1));
    EXPECT_EQ(counts->state().one.evidence.answers.n, 4);
    EXPECT_EQ(counts->state().one.evidence.answers.n_changed, 1);
  }
  // What could not be written is written later.
  std::filesystem::create_directory(dir_ / "not there");
  gone.add(true, answers(1, 0));
  EXPECT_EQ(ReuseCounts(plan(), {}, dir_ / "not there" / "counts.json").state().one.evidence.answers.n, 4);
}

}  // namespace
}  // namespace vlcache
