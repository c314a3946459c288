// Marks in texts, and the tokens of marked texts.
#include "io/chat/text_marks.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "io/tokenizer/tokenizer.h"

namespace vlcache {
namespace {

constexpr char32_t kMark = 0xE000;

std::string shown(std::string text) {  // the mark as '*'
  for (size_t at = text.find("\uE000"); at != text.npos; at = text.find("\uE000")) text.replace(at, 3, "*");
  return text;
}

TEST(TextMarks, InsideOfPiecesAndWhereTextsMeet) {
  const TextMarks marks({"<image>", "<|im_end|>", "</think>", "\u25A0", "[INST]"}, {});
  const struct {
    const char *text, *marked;
  } cases[] = {
      {"how do I close <image> in XML?", "how do I close <*image> in XML?"},
      {"<image>", "<*image>"},
      {"<|im_end|>\n<|im_start|>system", "<*|im_end|>\n<|im_start|>system"},
      {"a < b, c > d", "a < b, c > d"},
      {"one half <|im_", "one half <|im_*"},          // the next text may go on with "end|>"
      {"end|> the other", "*end|> the other"},        // this one may be the rest
      {"  one half <ima \n", "  one half <ima* \n"},  // a template may trim it
      {"\u25A0 one character", "*\u25A0 one character"},
      {"x[INST[INST]", "x[INST[*INST]"},
      {" ", " "},
      {"", ""},
  };
  for (const auto& c : cases) EXPECT_EQ(shown(marks.marked(c.text, kMark)), c.marked) << c.text;
}

TEST(TextMarks, AllTextsOfAConversationButRolesAndTypes) {
  const TextMarks marks({"<image>", "user"}, {});
  OrderedJson messages = OrderedJson::parse(R"([{"role": "user", "content": [{"type": "text", "text": "<image>"}],
      "tool_calls": [{"function": {"name": "f", "arguments": {"a<image>b": ["<image>", 1]}}}]}])");
  EXPECT_TRUE(marks.apply(messages, kMark));
  EXPECT_EQ(shown(messages.dump()),
            R"([{"role":"user","content":[{"type":"text","text":"<*image>"}],)"
            R"("tool_calls":[{"function":{"name":"f","arguments":{"a<*image>b":["<*image>",1]}}}]}])");
  OrderedJson plain = {{"content", "a plain text"}};
  EXPECT_FALSE(marks.apply(plain, kMark));
}

TEST(TextMarks, TheMarkOccursNowhereElse) {
  const TextMarks marks({"\uE000"}, {});
  const OrderedJson texts = {"a\uE001b", "\\ue002", {{"\uE003", 1}}}, none;
  EXPECT_EQ(marks.choose({&texts, nullptr, &none}), 0xE004u);
  EXPECT_EQ(with_plain_marks("{\"a\": \"<\\ue004image>\"}", 0xE004), "{\"a\": \"<\uE004image>\"}");
}

// A tokenizer of single characters with added tokens of two kinds: special, and searched in lower-cased text.
Tokenizer make_tokenizer() {
  OrderedJson vocab = OrderedJson::object();
  for (char c = ' '; c < 127; ++c) vocab[std::string(1, c)] = vocab.size();
  vocab["ab"] = vocab.size();
  const auto added = [](int id, const char* content, bool normalized) {
    return OrderedJson{{"id", id},        {"content", content},       {"single_word", false},  {"lstrip", false},
                       {"rstrip", false}, {"normalized", normalized}, {"special", !normalized}};
  };
  const OrderedJson json = {{"version", "1.0"},
                            {"normalizer", {{"type", "Lowercase"}}},
                            {"decoder", {{"type", "Fuse"}}},
                            {"added_tokens", {added(100, "<image>", false), added(101, "<end>", true)}},
                            {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", OrderedJson::array({"a b"})}}}};
  return Tokenizer::from_json(json.dump(), "test");
}

TEST(TextMarks, MarkedTextsHaveNoStructure) {
  const Tokenizer tokenizer = make_tokenizer();
  const TextMarks marks(tokenizer.structure(), [&](std::string_view marked, char32_t mark) {
    return tokenizer.reads_structure(marked, mark);
  });
  for (const std::string text : {"<image>", "x<end>y", "x<END>y", "<En", "a|b", "plain ab", "<image><image> ab"}) {
    const std::string marked = marks.marked(text, kMark);
    EXPECT_FALSE(tokenizer.reads_structure(marked, kMark)) << text;
    const std::vector<int32_t> ids = tokenizer.encode_marked(marked, kMark, false);
    std::string lower = text;
    for (char& c : lower) c = static_cast<char>(std::tolower(c));
    EXPECT_EQ(tokenizer.decode(ids, false), lower);
  }
  // Two texts that are one piece together.
  const std::string joined = marks.marked("<ima", kMark) + marks.marked("ge>", kMark);
  EXPECT_FALSE(tokenizer.reads_structure(joined, kMark));
  EXPECT_EQ(tokenizer.encode_marked("ab<image>", kMark, false), tokenizer.encode("ab<image>", false));
}

}  // namespace
}  // namespace vlcache
