// Lines of traces, and problems.
#include "reuse/simulate/trace.h"

#include <gtest/gtest.h>

namespace vlcache {
namespace {

TEST(TraceTest, InvalidLinesAreReportedAndSkipped) {
  const Trace trace = parse_trace(
      "{\"timestamp\": 5, \"input_length\": 9, \"hash_ids\": [1, 2, 3]}\n\n{\"input_length\": 9}\nnonsense\n"
      "{\"input_length\": 13, \"hash_ids\": [1, 2, 3]}\n{\"input_length\": 4, \"hash_ids\": [\"1\"]}\n"
      "{\"input_length\": 8, \"hash_ids\": [1, 4]}",
      "t.jsonl", 4);
  ASSERT_EQ(trace.requests.size(), 2u);
  EXPECT_EQ(trace.requests[0].timestamp, 5);
  EXPECT_EQ(trace.requests[1].blocks, (std::vector<Element>{1, 4}));
  ASSERT_EQ(trace.problems.size(), 4u);
  EXPECT_NE(trace.problems[0].find("t.jsonl: line 3"), std::string::npos) << trace.problems[0];
  EXPECT_NE(trace.problems[2].find("13 tokens are not 3 blocks of 4"), std::string::npos) << trace.problems[2];
}

TEST(TraceTest, ImagesLieOneAfterTheOtherUnlessTheLineTells) {
  const Trace read = parse_trace(
      "{\"input_length\": 12, \"output_length\": 3, \"session\": 7, \"hash_ids\": [1, 2, 3], \"images\": [{\"id\": 4, "
      "\"tokens\": 2}, {\"id\": 5, \"tokens\": 3, \"at\": 6}, {\"id\": 4, \"tokens\": 3}]}",
      "t.jsonl", 4);
  ASSERT_EQ(read.requests.size(), 1u);
  const TraceRequest& request = read.requests[0];
  EXPECT_EQ(request.session, 7);
  EXPECT_EQ(request.n_answer, 3);
  ASSERT_EQ(request.images.size(), 3u);
  EXPECT_EQ(request.images[0].begin, 0);
  EXPECT_EQ(request.images[1].begin, 6);
  EXPECT_EQ(request.images[2].begin, 9);
  EXPECT_EQ(request.images[2].end(), 12);
}

TEST(TraceTest, ImagesThatCannotBeThereAreProblems) {
  const std::string begin = "{\"input_length\": 8, \"hash_ids\": [1, 2], \"images\": ";
  const std::pair<const char*, const char*> cases[] = {
      {"5}", "a list of objects"},
      {"[{\"id\": 1}]}", "tokens"},
      {"[{\"tokens\": 3}]}", "id"},
      {"[{\"id\": 1, \"tokens\": 0}]}", "from 1 on"},
      {"[{\"id\": 1, \"tokens\": -3}]}", "a number of tokens"},
      {"[{\"id\": 1, \"tokens\": 9}]}", "within the prompt"},
      {"[{\"id\": 1, \"tokens\": 9007199254740000}]}", "a number of tokens"},
      {"[{\"id\": 1, \"tokens\": 4}, {\"id\": 1, \"tokens\": 4, \"at\": 3}]}", "image 2: at"},
  };
  for (const auto& [images, says] : cases) {
    const Trace trace = parse_trace(begin + images, "t.jsonl", 4);
    EXPECT_TRUE(trace.requests.empty()) << images;
    ASSERT_EQ(trace.problems.size(), 1u) << images;
    EXPECT_NE(trace.problems[0].find(says), std::string::npos) << trace.problems[0];
  }
  for (const char* line : {"{\"input_length\": -1, \"hash_ids\": []}", "{\"hash_ids\": []}",
                           "{\"input_length\": 4, \"output_length\": -2, \"hash_ids\": [1]}"}) {
    EXPECT_EQ(parse_trace(line, "t.jsonl", 4).problems.size(), 1u) << line;
  }
}

}  // namespace
}  // namespace vlcache
