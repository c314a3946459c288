// Files of questions: the fields of a line, and the effect of an invalid one.
#include "analysis/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "analysis/question_line.h"
#include "base/error.h"

namespace vlcache {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class Dataset : public testing::Test {
 protected:
  EvalDataset load(const std::string& text, const DatasetNeeds& needs = {}) {
    const std::filesystem::path path = folder_ / "data.jsonl";
    std::ofstream(path) << text;
    return load_dataset(path, needs);
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

TEST_F(Dataset, ReadsLinesOfRequests) {
  const EvalDataset data = load(
      "\xef\xbb\xbf{\"prompt\": \"P?\", \"answer\": \"A\", \"images\": \"a.png\", \"max_tokens\": 5, \"kv\": "
      "\"full\"}\r\n"
      "\r\n{\"question\": \"Q?\", \"answer\": \"A\", \"image\": [\"b.png\", \"file:///c%20d.png\"], \"system\": "
      "\"\"}\r\n");
  EXPECT_THAT(data.problems, IsEmpty());
  ASSERT_EQ(data.samples.size(), 2u);
  EXPECT_EQ(data.samples[0].turns[0].question, "P?");
  EXPECT_THAT(data.samples[0].images, ElementsAre(folder_ / "a.png"));
  EXPECT_THAT(data.samples[1].images, ElementsAre(folder_ / "b.png", "/c d.png"));
}

TEST_F(Dataset, LinesThatAskSomethingElseAreLeftOut) {
  const std::string good = R"({"question": "Q", "answer": "A"})";
  for (const auto& [line, says] : std::map<std::string, std::string>{
           {R"({"question": "Q", "prompt": "Q", "answer": "A"})", "expected either question or prompt, found both"},
           {R"({"question": "Q", "answer": "A", "image": "a", "images": ["a"]})", "expected either images or image"},
           {R"({"question": "Q", "answer": "A", "turns": [{"question": "R", "answer": "B"}]})", "either turns or"},
           {R"({"answer": "A"})", "expected question or prompt, found neither"},
           {R"({"messages": [], "answer": "A"})", "messages: expected a question or prompt instead"},
           {R"({"prompt": "P", "answer": "A", "videos": ["v.mp4"]})", "videos: expected none"},
           {R"({"prompt": "P", "answer": "A", "system": "Be brief."})", "system: expected none"},
           {R"({"prompt": "P", "answer": "A", "raw": true})", "raw: expected false"},
           {R"({"prompt": "<image:1> P", "answer": "A"})", "expected no <image:N>"},
           {R"({"prompt": "P", "answer": "A", "images": ["data:image/png;base64,AA=="]})", "images: expected paths"},
           {R"({"prompt": "P", "answer": "A", "images": ["a\u0000b"]})", "NUL"},
           {R"({"prompt": "P", "answer": "A", "images": 3})", "images: expected a string or a list of strings"},
           {R"({"prompt": "P", "answers": "A"})", "answers: expected a list of strings"},
           {R"({"prompt": "P", "answer": "A", "imgaes": ["a"]})", "unknown key 'imgaes' (did you mean 'images'?)"},
           {R"({"prompt": "P", "answer": "A", "max_tokns": 3})", "did you mean 'max_tokens'"},
           {R"({"prompt": "P"})", "expected answers or answer, found neither"}}) {
    const EvalDataset data = load(good + "\n" + line + "\n");
    EXPECT_EQ(data.samples.size(), 1u) << line;
    EXPECT_THAT(data.problems, ElementsAre(AllOf(HasSubstr("data.jsonl: line 2: "), HasSubstr(says)))) << line;
  }
  EXPECT_THAT(load(R"({"prompt": "P"})", {.answers = Answers::kOptional}).samples[0].turns[0].answers, IsEmpty());
}

// Keys of other programs beside a question.
TEST_F(Dataset, OtherKeysAreIgnored) {
  std::string line = R"({"prompt": "P", "answer": "A")";
  for (const char* key :
       {"n_pages", "page",       "pages", "qid",      "uid",      "image_id", "question_id", "questionId",
        "docId",   "data_split", "split", "source",   "category", "level",    "hint",        "options",
        "choices", "caption",    "width", "height",   "topic",    "type",     "label",       "text",
        "context", "model",      "score", "language", "ocr"}) {
    EXPECT_FALSE(is_mistyped(key)) << key;
    line += std::string(", \"") + key + "\": 1";
  }
  EXPECT_THAT(load(line + "}").problems, IsEmpty());
  for (const char* key : {"promt", "prompts", "imgaes", "image1", "anwser", "questoin", "tunrs"}) {
    EXPECT_TRUE(is_mistyped(key)) << key;
  }
  EXPECT_FALSE(is_mistyped("images"));
}

TEST_F(Dataset, PathsLeadBesideTheFileFirst) {
  const std::string name = "vlcache_dataset_test_working.png";
  std::ofstream(name) << "in the working folder";
  const auto path = [&] {
    return load(R"({"question": "Q", "answer": "A", "image": ")" + name + R"("})").samples[0].images[0];
  };
  EXPECT_EQ(path(), name);
  std::ofstream(folder_ / name) << "beside the file";
  EXPECT_EQ(path(), folder_ / name);
  std::filesystem::remove(name);
}

TEST_F(Dataset, LargeFiles) {
  std::string text;
  for (int i = 0; i < 10'000; ++i)
    text += R"({"prompt": "P", "answer": "A"})"
            "\n";
  EXPECT_EQ(load(text).samples.size(), 10'000u);
  const std::string line = R"({"answer": "A", "question": ")" + std::string(10'000'000, 'q') + "\"}";
  EXPECT_EQ(load(line).samples[0].turns[0].question.size(), 10'000'000u);
  EXPECT_THAT(load(line + "\n{\"prompt\": " + std::string(10'000'000, '[') + "\n").problems,
              ElementsAre(HasSubstr("line 2: JSON nests deeper")));
}

TEST_F(Dataset, FileWithoutValidLinesIsAnError) {
  EXPECT_THROW(load(""), Error);
  EXPECT_THROW(load("{}\n"), Error);
  EXPECT_THROW(load_dataset(folder_ / "none.jsonl", {}), Error);
}

}  // namespace
}  // namespace vlcache
