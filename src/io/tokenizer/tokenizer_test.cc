// The tokenizer against the Python package: ids and texts of 10,400 lines for every tokenizer in
// tests/fixtures/tokenizers (tools/fixtures/tokenizers/make.py), then its parts, and invalid files.
#include "io/tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "base/json.h"
#include "base/utf8.h"
#include "io/checkpoint/checkpoint.h"
#include "io/tokenizer/regex.h"
#include "tests/testing.h"

namespace vlcache {
namespace {

const std::filesystem::path kTokenizerFixtures =
    std::filesystem::path(VLCACHE_SOURCE_DIR) / "tests/fixtures/tokenizers";

const std::vector<std::string>& fixture_lines() {
  static const std::vector<std::string> lines = [] {
    std::vector<std::string> out;
    std::ifstream in(kTokenizerFixtures / "lines.jsonl");
    for (std::string line; std::getline(in, line);) out.push_back(Json::parse(line).get<std::string>());
    return out;
  }();
  return lines;
}

// FNV-1a, 64 bit, a step per value, rows parted by 2^32; one hash per `chunk` rows. As in make.py.
class RowHashes {
 public:
  template <typename Values>
  void add(const Values& values) {
    for (const auto v : values) step(static_cast<std::make_unsigned_t<std::remove_cvref_t<decltype(v)>>>(v));
    step(uint64_t{1} << 32);
    if (++rows_ % 100 == 0) close();
  }
  std::vector<std::string> take() {
    if (rows_ % 100 != 0) close();
    return std::move(hashes_);
  }

 private:
  void step(uint64_t v) { hash_ = (hash_ ^ v) * 0x100000001B3u; }
  void close() {
    char text[20];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash_));
    hashes_.emplace_back(text);
    hash_ = 0xCBF29CE484222325u;
  }
  uint64_t hash_ = 0xCBF29CE484222325u;
  size_t rows_ = 0;
  std::vector<std::string> hashes_;
};

class TokenizerFixture : public testing::TestWithParam<const char*> {
 protected:
  Json expected_ = load_json(kTokenizerFixtures / (std::string(GetParam()) + ".expected.json"));
  std::string path_ = (kTokenizerFixtures / (std::string(GetParam()) + ".tokenizer.json")).string();
  Tokenizer tokenizer_ = Tokenizer::from_json(read_text_file(path_), path_);
};

TEST_P(TokenizerFixture, IdsAndTextsEqualThePythonPackage) {
  const auto& lines = fixture_lines();
  ASSERT_GE(lines.size(), 10000u);
  EXPECT_EQ(tokenizer_.vocab_size(), expected_["vocab_size"].get<int64_t>());
  RowHashes ids, plain, shown, skipped;
  for (size_t k = 0; k < lines.size(); ++k) {
    const std::vector<int32_t> encoded = tokenizer_.encode(lines[k]);
    if (k < expected_["first_ids"].size()) {
      EXPECT_EQ(encoded, expected_["first_ids"][k].get<std::vector<int32_t>>()) << "line " << k << ": " << lines[k];
    }
    ids.add(encoded);
    plain.add(tokenizer_.encode(lines[k], false));
    shown.add(tokenizer_.decode(encoded, false));
    skipped.add(tokenizer_.decode(encoded, true));
  }
  EXPECT_EQ(ids.take(), expected_["ids"].get<std::vector<std::string>>());
  EXPECT_EQ(plain.take(), expected_["plain_ids"].get<std::vector<std::string>>());
  EXPECT_EQ(shown.take(), expected_["text"].get<std::vector<std::string>>());
  EXPECT_EQ(skipped.take(), expected_["skipped_text"].get<std::vector<std::string>>());
}

TEST_P(TokenizerFixture, StopsBeyondTheTokensAskedFor) {
  const auto& lines = fixture_lines();
  for (size_t k = 0; k < lines.size(); k += 50) {
    const std::vector<int32_t> all = tokenizer_.encode(lines[k], false);
    const auto n = std::ssize(all);
    EXPECT_EQ(tokenizer_.encode(lines[k], false, {.max_tokens = n}), all) << lines[k];
    if (n > 0) {
      EXPECT_THROW(tokenizer_.encode(lines[k], false, {.max_tokens = n - 1}), TextTooLong) << lines[k];
    }
  }
}

TEST_P(TokenizerFixture, DecodesAnyIdsAndStreamsWholeCharacters) {
  RowHashes texts;
  const int64_t size = tokenizer_.vocab_size();
  for (int64_t i = 0; i < 1000; ++i) {
    std::vector<int32_t> ids;
    for (int64_t k = 0; k < i % 23; ++k)
      ids.push_back(static_cast<int32_t>((i * 7919 + k * 104729 + (i * k) % 31) % (size + 3)));
    StreamDecoder stream(tokenizer_, false);
    std::string streamed;
    for (int32_t id : ids) {
      const std::string part = stream.push(id);
      EXPECT_TRUE(is_valid_utf8(part));
      streamed += part;
    }
    streamed += stream.finish();
    EXPECT_EQ(streamed, tokenizer_.decode(ids, false));
    texts.add(streamed);
  }
  EXPECT_EQ(texts.take(), expected_["noise_text"].get<std::vector<std::string>>());
}

INSTANTIATE_TEST_SUITE_P(All, TokenizerFixture,
                         testing::Values("gpt2", "roberta", "qwen2", "smollm", "llama3", "o200k", "deepseek", "tekken",
                                         "llama2", "llama2_metaspace", "mistral", "gemma", "subwords", "accents",
                                         "behaviors"),
                         [](const auto& param_info) { return std::string(param_info.param); });

TEST(TokenClasses, AreReadFromTheText) {
  const auto load = [](const char* name) {
    const std::string path = (kTokenizerFixtures / (std::string(name) + ".tokenizer.json")).string();
    return Tokenizer::from_json(read_text_file(path), path);
  };
  const Tokenizer bytes = load("llama3"), pieces = load("llama2");
  const auto expect = [](const Tokenizer& tokenizer, TokenClass expected, std::vector<std::string> tokens) {
    for (const std::string& token : tokens) {
      ASSERT_TRUE(tokenizer.has_token(tokenizer.token_id(token))) << token;
      EXPECT_EQ(tokenizer.token_class(tokenizer.token_id(token)), expected) << token;
    }
  };
  // Byte level: "Ġ" is a space, "Ċ" a line feed, "Ã" the first byte of a character.
  expect(bytes, TokenClass::kSpecial, {"<s>", "</s>", "<|im_start|>", "<image>"});
  expect(bytes, TokenClass::kPunctuation, {",", ".", "\"", "Ġ="});
  expect(bytes, TokenClass::kOther, {"a", "1", "Ġthe", "Ġ", "Ċ", "Ã"});
  // Pieces with byte fallback: "▁" is a space, <0x2C> a comma.
  expect(pieces, TokenClass::kSpecial, {"<unk>", "<s>", "<|im_end|>"});
  expect(pieces, TokenClass::kPunctuation, {",", ".", "\"", "<0x2C>"});
  expect(pieces, TokenClass::kOther, {"a", "▁", "▁the", "<0xE3>", "<0x0A>"});
  for (const int32_t none : {-1, 1 << 30}) EXPECT_EQ(pieces.token_class(none), TokenClass::kOther);
}

// The bytes of an encoded text's tokens are its text, except for a space that the first token loses.
TEST(TokenBytes, ConcatenateToTheEncodedText) {
  for (const char* name :
       {"gpt2", "llama2", "llama2_metaspace", "llama3", "gemma", "mistral", "qwen2", "smollm", "tekken"}) {
    SCOPED_TRACE(name);
    const auto path = kTokenizerFixtures / (std::string(name) + ".tokenizer.json");
    const Tokenizer tokenizer = Tokenizer::from_json(read_text_file(path), path.string());
    for (size_t i = 0; i < fixture_lines().size(); i += 7) {
      const std::vector<int32_t> ids = tokenizer.encode(fixture_lines()[i], /*add_special_tokens=*/false);
      std::string bytes;
      for (const int32_t id : ids) bytes += tokenizer.token_bytes(id);
      const std::string text = tokenizer.decode(ids, /*skip_special_tokens=*/true);
      if (text.find("\xEF\xBF\xBD") != std::string::npos)
        continue;  // a vocabulary without some byte: no whole character
      EXPECT_TRUE(bytes == text || bytes == " " + text) << bytes << "\n" << text;
    }
    EXPECT_EQ(tokenizer.token_bytes(-1), "");
    EXPECT_EQ(tokenizer.token_bytes(INT32_MAX), "");
  }
}

TEST(TokenBytes, CanBePartsOfCharacters) {
  const auto bytes = [](const char* name, const char* token) {
    const auto path = kTokenizerFixtures / (std::string(name) + ".tokenizer.json");
    const Tokenizer tokenizer = Tokenizer::from_json(read_text_file(path), path.string());
    return tokenizer.token_bytes(tokenizer.token_id(token));
  };
  EXPECT_EQ(bytes("gpt2", "\u00e6"), "\xe6");  // the character that stands for this byte
  EXPECT_EQ(bytes("llama2", "<0xE6>"), "\xe6");
  EXPECT_EQ(bytes("llama2", "<s>"), "");
}

TEST(TokenizerRegex, SplitsLikeOniguruma) {
  const Json patterns = load_json(kTokenizerFixtures / "patterns.json");
  ASSERT_GE(patterns.size(), 40u);
  for (const auto& [name, entry] : patterns.items()) {
    const Regex regex(entry["pattern"].get<std::string>(), name);
    RowHashes lengths;
    std::vector<TextMatch> matches;
    for (const std::string& line : fixture_lines()) {
      regex.cut(line, matches);
      std::vector<uint32_t> row;
      for (const TextMatch& m : matches) {
        if (m.end > m.start) row.push_back(static_cast<uint32_t>(m.end - m.start));
      }
      lengths.add(row);
    }
    EXPECT_EQ(lengths.take(), entry["lengths"].get<std::vector<std::string>>()) << name;
  }
}

TEST(TokenizerRegex, RejectsUnsupportedSyntax) {
  for (const char* pattern : {"(",        ")",         "[",
                              "[]",       "[a",        "*a",
                              "(?x:a b)", "\\X",       "\\p{Nonsense}",
                              "\\p",      "\\xff",     "(?~a)",
                              "a{5,2}",   "\\u12",     "[[:nonsense:]]",
                              "(?<=a+)b", "\\",        "(?<n",
                              "[b-a]",    "\\k<none>", "\\12"}) {
    EXPECT_THROW(Regex(pattern, "test"), Error) << pattern;
  }
  EXPECT_THROW(Regex(std::string(20000, '('), "test"), Error);
  EXPECT_THROW(Regex(std::string(5000, '['), "test"), Error);
}

TEST(TokenizerRegex, LimitsBacktracking) {
  const Regex regex(R"((?:a|aa|aaa)+\z)", "test");
  std::vector<TextMatch> matches;
  EXPECT_THROW(regex.cut(std::string(100, 'a') + "b", matches), Error);
}

Tokenizer fixture(const std::string& name) {
  const std::string path = (kTokenizerFixtures / (name + ".tokenizer.json")).string();
  return Tokenizer::from_json(read_text_file(path), path);
}

// Only decoders that join words write spaces between added tokens; the others' texts are the same.
TEST(StreamDecoder, SpacesBetweenSpecialTokens) {
  for (const char* name : {"accents", "behaviors", "qwen2", "llama2", "mistral", "subwords"}) {
    const Tokenizer tokenizer = fixture(name);
    std::vector<int32_t> ids = tokenizer.encode("the", /*add_special_tokens=*/false);
    for (const char* token : {"<s>", "<image>", "<pad>"}) ids.push_back(tokenizer.token_id(token));
    ids.push_back(tokenizer.encode("the", false).front());
    ids.push_back(tokenizer.token_id("<sw>"));
    const auto text = [&](bool skip, bool spaces) {
      StreamDecoder stream(tokenizer, skip, spaces);
      std::string out;
      for (const int32_t id : ids) out += stream.push(id);
      return out + stream.finish();
    };
    const std::string shown = text(false, true);
    EXPECT_EQ(shown, tokenizer.decode(ids, false));
    const bool joins_words = shown.find("<s> <image> <pad>") != std::string::npos;
    EXPECT_EQ(joins_words, std::string_view(name) == "accents" || std::string_view(name) == "behaviors") << shown;
    std::string expected = shown;
    if (joins_words) expected.replace(expected.find("<s> <image> <pad>"), 17, "<s><image><pad>");
    EXPECT_EQ(text(false, false), expected) << name;
    EXPECT_EQ(text(true, false), text(true, true)) << name;
  }
}

TEST(Tokenizer, LongTextsTakeLinearTime) {
  // Quadratic work on these would be 10^10 steps each: the test would not end.
  const size_t n_bytes = shortened() ? 60'000 : 300'000;
  for (const char* name : {"qwen2", "llama2", "gpt2", "accents", "mistral"}) {
    const Tokenizer tokenizer = fixture(name);
    for (const char* unit : {"a", " ", "\n", "ab", "\xE4\xB8\x80", "'", "<s>", "the "}) {
      std::string text;
      while (text.size() < n_bytes) text += unit;
      EXPECT_GT(tokenizer.encode(text).size() + 1, 0u);
    }
  }
}

TEST(Tokenizer, LongTextsAreNotReadToTheirEnds) {
  for (const char* name : {"qwen2", "mistral"}) {
    const Tokenizer tokenizer = fixture(name);
    for (const char* unit : {"a", " the", "\xE4\xB8\x80"}) {
      std::string text;
      while (text.size() < 1'000'000) text += unit;
      int n_asked = 0;  // in proportion to the words and merges
      const auto count = [&] { return ++n_asked < 0; };
      EXPECT_THROW(tokenizer.encode(text, false, {.max_tokens = 1000, .cancelled = count}), TextTooLong)
          << name << unit;
      EXPECT_LE(n_asked, 100) << name << ": " << unit;
    }
  }
}

// Unknown characters in a row are one token, however many they are.
TEST(Tokenizer, UnknownCharactersCountAsTheyBecomeTokens) {
  const std::string model =
      R"({"type": "BPE", "vocab": {"<unk>": 0, "a": 1}, "merges": [], "unk_token": "<unk>", "fuse_unk": true})";
  const Tokenizer tokenizer = Tokenizer::from_json(R"({"version": "1.0", "model": )" + model + "}", "t");
  const std::string text(100'000, 'x');
  EXPECT_EQ(tokenizer.encode(text, false, {.max_tokens = 1}), std::vector<int32_t>{0});
  EXPECT_EQ(tokenizer.encode("a" + text + "a", false, {.max_tokens = 3}), (std::vector<int32_t>{1, 0, 1}));
  EXPECT_THROW(tokenizer.encode("a" + text + "a", false, {.max_tokens = 2}), TextTooLong);
  // Without one they are dropped.
  const Tokenizer dropping = Tokenizer::from_json(
      R"({"version": "1.0", "pre_tokenizer": {"type": "WhitespaceSplit"}, "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}})",
      "t");
  EXPECT_EQ(dropping.encode("x y z a x", false, {.max_tokens = 1}), std::vector<int32_t>{0});
}

TEST(Tokenizer, OfAddedTokensTheLongestIsFound) {
  for (const char* normalized : {"true", "false"}) {
    const auto added = [&](int id, const char* content) {
      return R"({"id": )" + std::to_string(id) + R"(, "content": ")" + content + R"(", "normalized": )" + normalized +
             "}";
    };
    const Tokenizer tokenizer = Tokenizer::from_json(
        R"({"version": "1.0", "added_tokens": [)" + added(5, "<b") + ", " + added(6, "<b>c") +
            R"(], "model": {"type": "BPE", "vocab": {"a": 0, "<": 1, ">": 2, "b": 3, "c": 4}, "merges": []}})",
        "t");
    EXPECT_EQ(tokenizer.encode("a<b>c<b>a", false), (std::vector<int32_t>{0, 6, 5, 2, 0})) << normalized;
  }
}

TEST(Tokenizer, CanBeCancelled) {
  const Tokenizer tokenizer = fixture("qwen2");
  for (const char* unit : {"ab ", "the"}) {  // many words; one word of many merges
    std::string text;
    while (text.size() < 300'000) text += unit;
    int n_asked = 0;
    try {
      tokenizer.encode(text, false, {.cancelled = [&] { return ++n_asked == 2; }});
      FAIL() << unit;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kCancelled);
    }
    EXPECT_EQ(n_asked, 2);
  }
}

TEST(Tokenizer, InvalidUtf8CountsAsReplacementCharacters) {
  const Tokenizer tokenizer = fixture("qwen2");
  EXPECT_EQ(tokenizer.encode("a\xFF\xE2\x82z\xED\xA0\x80\xF0\x9F"),
            tokenizer.encode("a\uFFFD\uFFFDz\uFFFD\uFFFD\uFFFD\uFFFD"));
}

TEST(Tokenizer, IsSharedByThreads) {
  const Tokenizer tokenizer = fixture("o200k");
  const auto& lines = fixture_lines();
  const auto expected = tokenizer.encode(lines[5000]);
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int k = 0; k < 50; ++k) wrong += tokenizer.encode(lines[5000]) != expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

class SnapshotDir {
 public:
  SnapshotDir() { std::filesystem::create_directories(path_); }
  ~SnapshotDir() { std::filesystem::remove_all(path_); }
  void write(const char* name, const std::string& text) const { std::ofstream(path_ / name) << text; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_ = std::filesystem::path(testing::TempDir()) / "vlcache_tokenizer_test";
};

TEST(Tokenizer, ReadsNamedTokensFromTheOtherFiles) {
  const SnapshotDir dir;
  EXPECT_THROW(
      try { Tokenizer::load(Checkpoint(dir.path())); } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::kNotFound);
        EXPECT_NE(std::string(e.what()).find("save_pretrained"), std::string::npos);
        throw;
      },
      Error);
  dir.write("tokenizer.json", read_text_file(kTokenizerFixtures / "qwen2.tokenizer.json"));
  dir.write("tokenizer_config.json",
            R"({"eos_token": "<|im_end|>", "bos_token": null, "pad_token": {"content": "<pad>"}, "add_bos_token": true,
                "z_token": "<z>", "image_token": "<image>", "extra_special_tokens": ["<extra>", "<z>"]})");
  dir.write("special_tokens_map.json", R"({"unk_token": "<s>"})");
  const Tokenizer tokenizer = Tokenizer::load(Checkpoint(dir.path()));
  EXPECT_EQ(tokenizer.special_token("eos_token"), "<|im_end|>");
  EXPECT_EQ(tokenizer.eos_id(), tokenizer.token_id("<|im_end|>"));
  EXPECT_EQ(tokenizer.bos_id(), -1);
  EXPECT_EQ(tokenizer.special_token_id("pad_token"), tokenizer.token_id("<pad>"));
  EXPECT_EQ(tokenizer.special_token_id("unk_token"), 0);
  EXPECT_EQ(tokenizer.special_token_id("image_token"), tokenizer.token_id("<image>"));
  // New tokens follow the last existing one, in the order of the file.
  EXPECT_EQ(tokenizer.token_id("<z>"), 632);
  EXPECT_EQ(tokenizer.token_id("<extra>"), 633);
  EXPECT_TRUE(tokenizer.is_special(632));
  EXPECT_FALSE(tokenizer.is_special(tokenizer.token_id("<plain>")));
  EXPECT_EQ(tokenizer.encode("<z><extra>"), (std::vector<int32_t>{632, 633}));
}

std::string minimal(const std::string& model, const std::string& rest = "") {
  return R"({"version": "1.0", "model": )" + model + rest + "}";
}

TEST(Tokenizer, SparseIdsTakeNoMemory) {
  const Tokenizer tokenizer =
      Tokenizer::from_json(minimal(R"({"type": "BPE", "vocab": {"a": 2147483647, "b": 0}, "merges": []})"), "t");
  EXPECT_EQ(tokenizer.encode("ab"), (std::vector<int32_t>{2147483647, 0}));
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{2147483647, -5, 7, 0}, false), "a b");
}

TEST(Tokenizer, ErrorsDescribeTheInvalidFile) {
  const std::string good = R"({"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]})";
  EXPECT_EQ(Tokenizer::from_json(minimal(good), "t").encode("ab"), std::vector<int32_t>{2});
  const std::pair<std::string, const char*> cases[] = {
      {"", "JSON"},
      {"[]", "object"},
      {std::string(200000, '['), "nests deeper"},
      {"{}", "model"},
      {minimal(R"({"type": "WordPiece", "vocab": {}})"), "WordPiece"},
      {minimal(R"({"type": "BPE", "vocab": {"a": 0}})"), "merges"},
      {minimal(R"({"type": "BPE", "vocab": [], "merges": []})"), "vocab"},
      {minimal(R"({"type": "BPE", "vocab": {"a": -1}, "merges": []})"), "expected an id"},
      {minimal(R"({"type": "BPE", "vocab": {"a": 2147483648}, "merges": []})"), "expected an id"},
      {minimal(R"({"type": "BPE", "vocab": {"a": 18446744073709551615}, "merges": []})"), "expected an id"},
      {minimal(R"({"type": "BPE", "vocab": {"a": "0"}, "merges": []})"), "expected an id"},
      {minimal(R"({"type": "BPE", "vocab": {"a": 0, "b": 0}, "merges": []})"), "share the id"},
      {minimal(R"({"type": "BPE", "vocab": {"a": 0}, "merges": ["a c"]})"), "not in the vocabulary"},
      {minimal(R"({"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": ["a b"]})"), "\"ab\" is not in"},
      {minimal(R"({"type": "BPE", "vocab": {"a": 0}, "merges": ["a"]})"), "two tokens"},
      {minimal(R"({"type": "BPE", "vocab": {"a": 0}, "merges": [["a"]]})"), "merges[0]"},
      {minimal(good, R"(, "normalizer": {"type": "Precompiled"})"), "Precompiled"},
      {minimal(good, R"(, "pre_tokenizer": {"type": "UnicodeScripts"})"), "UnicodeScripts"},
      {minimal(good, R"(, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "X"}]})"),
       "pre_tokenizer[0]"},
      {minimal(good, R"(, "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated"})"),
       "("},
      {minimal(good, R"(, "pre_tokenizer": {"type": "Split", "pattern": {"String": "x"}, "behavior": "Odd"})"),
       "behavior"},
      {minimal(good, R"(, "decoder": {"type": "CTC"})"), "CTC"},
      {minimal(good, R"(, "post_processor": {"type": "X"})"), "post-processor"},
      {minimal(
           good,
           R"(, "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "s"}}], "special_tokens": {}})"),
       "s:"},
      {minimal(good, R"(, "added_tokens": {})"), "added_tokens"},
      {minimal(good, R"(, "added_tokens": [{"id": 1}])"), "content"},
  };
  for (const auto& [text, part] : cases) {
    try {
      Tokenizer::from_json(text, "file.json");
      ADD_FAILURE() << "no error for " << text.substr(0, 100);
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
      EXPECT_NE(std::string(e.what()).find("file.json"), std::string::npos) << e.what();
    }
  }
}

}  // namespace
}  // namespace vlcache
