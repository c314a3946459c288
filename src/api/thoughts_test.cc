// Thoughts split off answers that arrive in pieces.
#include "api/thoughts.h"

#include <gtest/gtest.h>

namespace vlcache {
namespace {

struct Split {
  std::string thought, text;
  bool operator==(const Split&) const = default;
};

Split split(const std::string& answer, bool in_thought, size_t n_piece) {
  ThoughtReader reader({"<think>", "</think>"}, in_thought);
  Split out;
  const auto add = [&](const ThoughtReader::Piece& piece) {
    out.thought += piece.thought;
    out.text += piece.text;
  };
  for (size_t i = 0; i < answer.size(); i += n_piece) add(reader.push(std::string_view(answer).substr(i, n_piece)));
  add(reader.finish());
  return out;
}

TEST(ThoughtReader, SplitsWhateverThePieces) {
  const struct {
    std::string answer;
    bool in_thought;
    Split split;
  } cases[] = {
      {"<think>\nI look.\n\nTwo.\n</think>\n\nIt is 2.", false, {"I look.\n\nTwo.", "It is 2."}},
      {"I look.\n</think>\n\nIt is 2.\n", true, {"I look.", "It is 2.\n"}},
      {"\n\n</think>\n\nIt is 2.", true, {"", "It is 2."}},
      {"It is <think>2</think>.", false, {"", "It is <think>2</think>."}},
      {"  <thin ice>", false, {"", "  <thin ice>"}},
      {"  It is 2.", false, {"", "  It is 2."}},
      {"<think>I do not end </thin", false, {"I do not end </thin", ""}},
      {"a </think> b </think> c", true, {"a", "b </think> c"}},
      {"", true, {"", ""}},
      {"<thi", false, {"", "<thi"}},
  };
  for (const auto& c : cases) {
    for (const size_t n_piece : {1, 2, 3, 7, 1000}) {
      const Split found = split(c.answer, c.in_thought, n_piece);
      EXPECT_EQ(found.thought, c.split.thought) << c.answer << " by " << n_piece;
      EXPECT_EQ(found.text, c.split.text) << c.answer << " by " << n_piece;
    }
  }
}

TEST(ThoughtReader, WithoutTagsAllIsText) {
  ThoughtReader reader({}, false);
  EXPECT_EQ(reader.push("<think>a</think>").text, "<think>a</think>");
  EXPECT_EQ(reader.finish().text, "");
}

}  // namespace
}  // namespace vlcache
