// Files of questions: the fields of a line, and the effect of an invalid one.
#include "analysis/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"

namespace vlcache {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class Dataset : public testing::Test {
 protected:
  EvalDataset load(const std::string& text) {
    const std::filesystem::path path = folder_ / "data.jsonl";
    std::ofstream(path) << text;
    return load_dataset(path, Metric::kExact);
  }
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  const std::filesystem::path folder_ = std::filesystem::path(testing::TempDir()) / "vlcache_dataset_test";
};

TEST_F(Dataset, ReadsEveryForm) {
  const EvalDataset data =
      load(R"({"images": ["a.png", "b/c.png"], "question": "Q?", "answer": "A", "kind": "k", "id": "x"}

{"image": "/d.png", "question": "Q?", "answers": ["A", "B"], "metric": "anls", "id": 7}
{"turns": [{"question": "1?", "answer": "a"}, {"question": "2?", "answers": ["b"]}]})");
  ASSERT_EQ(data.samples.size(), 3u);
  EXPECT_THAT(data.samples[0].images, ElementsAre(folder_ / "a.png", folder_ / "b/c.png"));
  EXPECT_EQ(data.samples[0].id, "x");
  EXPECT_EQ(data.samples[0].kind, "k");
  EXPECT_EQ(data.samples[0].metric, Metric::kExact);
  EXPECT_THAT(data.samples[1].images, ElementsAre("/d.png"));
  EXPECT_THAT(data.samples[1].turns[0].answers, ElementsAre("A", "B"));
  EXPECT_EQ(data.samples[1].metric, Metric::kAnls);
  EXPECT_EQ(data.samples[1].id, "7");
  EXPECT_EQ(data.samples[2].turns.size(), 2u);
  EXPECT_EQ(data.samples[2].id, "4") << "without an id, the number of the line";
  EXPECT_TRUE(data.problems.empty());
}

TEST_F(Dataset, InvalidLinesAreSkippedAndReported) {
  const EvalDataset data = load(
      "{\"question\": \"Q\", \"answer\": \"A\"}\n{not json}\n{\"question\": \"Q\"}\n[]\n{\"question\": 5, \"answer\": "
      "\"A\"}\n"
      "{\"question\": \"Q\", \"answer\": \"A\", \"metric\": \"bleu\"}\n{\"turns\": []}\n{\"question\": \"Q\", "
      "\"answer\": \"A\"}");
  EXPECT_EQ(data.samples.size(), 2u);
  ASSERT_EQ(data.problems.size(), 6u);
  EXPECT_THAT(data.problems[0], HasSubstr("data.jsonl: line 2"));
  EXPECT_THAT(data.problems[1], HasSubstr("line 3: expected answers or answer"));
  EXPECT_THAT(data.problems[4], HasSubstr("metric: expected one of exact, normalised"));
}

TEST_F(Dataset, FileWithoutValidLinesIsAnError) {
  EXPECT_THROW(load(""), Error);
  EXPECT_THROW(load("{}\n"), Error);
  EXPECT_THROW(load_dataset(folder_ / "none.jsonl", Metric::kExact), Error);
}

}  // namespace
}  // namespace vlcache
