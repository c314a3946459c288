// What a terminal sends and shows: dropped paths, pastes, completions, Markdown.
#include <gtest/gtest.h>
#include <unistd.h>

#include <clocale>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "cli/terminal/line_layout.h"
#include "cli/terminal/markdown.h"
#include "cli/terminal/paste.h"
#include "cli/terminal/shell_words.h"

namespace vlcache {
namespace {

using Texts = std::vector<std::string>;

class PathTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "vlcache_paths_" + std::to_string(::getpid());
    std::filesystem::create_directories(folder_ + "/sub folder");
    for (const char* name : {"/my page.png", "/it's.png", "/a.png", "/b.JPG", "/notes.txt", "/.hidden"}) {
      std::ofstream(folder_ + name) << "x";
    }
    setenv("HOME", folder_.c_str(), 1);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string folder_;
};

TEST_F(PathTest, AreReadAsTerminalsWriteThem) {
  const std::string page = folder_ + "/my page.png";
  EXPECT_EQ(paths_of("'" + page + "'"), Texts{page});
  EXPECT_EQ(paths_of("\"" + page + "\" "), Texts{page});
  EXPECT_EQ(paths_of(folder_ + "/my\\ page.png"), Texts{page});
  EXPECT_EQ(paths_of(page), Texts{page});  // as it was typed, since it exists
  EXPECT_EQ(paths_of("~/my\\ page.png"), Texts{page});
  EXPECT_EQ(paths_of("file://" + folder_ + "/my%20page.png"), Texts{page});
  EXPECT_EQ(paths_of("file://host" + folder_ + "/my%20page.png"), Texts{page});
  EXPECT_EQ(paths_of("'" + folder_ + "/it'\\''s.png'"), Texts{folder_ + "/it's.png"});
  EXPECT_EQ(paths_of("~/a.png  'b c' d\\\\e \"x\\\"y\\z\""), (Texts{folder_ + "/a.png", "b c", "d\\e", "x\"y\\z"}));
  EXPECT_EQ(paths_of("  "), Texts{});
  EXPECT_EQ(paths_of("'open quote"), Texts{"open quote"});
  EXPECT_EQ(expand_path("~other/x"), "~other/x");
}

TEST_F(PathTest, OfDroppedFilesAreKnownFromText) {
  const auto dropped = [](const std::string& message) {
    const DroppedFiles files = dropped_files(message);
    return std::pair(files.paths, files.text);
  };
  const std::string a = folder_ + "/a.png", b = folder_ + "/b.JPG", page = folder_ + "/my page.png";
  EXPECT_EQ(dropped("'" + page + "' "), std::pair(Texts{page}, std::string()));
  EXPECT_EQ(dropped(page), std::pair(Texts{page}, std::string()));
  EXPECT_EQ(dropped(a + " '" + b + "'\n"), std::pair(Texts({a, b}), std::string()));
  EXPECT_EQ(dropped("~/a.png What's the TOTAL?"), std::pair(Texts{a}, std::string("What's the TOTAL?")));
  EXPECT_EQ(dropped("~/notes.txt#1-2 What?").first, Texts{});  // no image and no PDF
  std::ofstream(folder_ + "/r.pdf") << "x";
  EXPECT_EQ(dropped("~/r.pdf#3-7 What?"), std::pair(Texts{folder_ + "/r.pdf#3-7"}, std::string("What?")));
  EXPECT_EQ(paths_of("~/r.pdf#2 ~/a.png"), (Texts{folder_ + "/r.pdf#2", a}));
  EXPECT_EQ(dropped("~/notes.txt"), std::pair(Texts{folder_ + "/notes.txt"}, std::string()));
  for (const char* text :
       {"What is in ~/a.png?", "a.png", "/no/such/file.png", "~/notes.txt is a file", "don't", "", "~"}) {
    EXPECT_EQ(dropped(text).first, Texts{}) << text;
  }
}

TEST_F(PathTest, ThatAreMissingAreKnownFromText) {
  const auto missing = [](const std::string& message) { return dropped_files(message).missing; };
  EXPECT_EQ(missing("/tmp/no/nope.png"), "/tmp/no/nope.png");
  EXPECT_EQ(missing("'/tmp/no/my nope.png' What?"), "/tmp/no/my nope.png");
  EXPECT_EQ(missing("~/a.png ~/nope.PDF#2 What?"), folder_ + "/nope.PDF#2");
  EXPECT_EQ(missing("file:///tmp/no/a%20clip.mp4"), "/tmp/no/a clip.mp4");
  EXPECT_EQ(missing("/no/such/file What?"), "/no/such/file");
  for (const char* text : {"Look at ~/nope.png?", "nope.png Read it", "./configure fails", "~/a.png ./x", "/help",
                           "/tmp/ is a folder", "~/notes.txt is a file", "and/or", ""}) {
    EXPECT_EQ(missing(text), "") << text;
  }
  const auto mere = [](const std::string& message) { return dropped_files(message).mere_name; };
  EXPECT_EQ(mere("nope.png is this good?"), "nope.png");
  EXPECT_EQ(mere("'my clip.MOV' what is this?"), "my clip.MOV");
  for (const char* text : {"See nope.png", "~/a.png b.png", "v1.2 of it", ""}) EXPECT_EQ(mere(text), "") << text;
}

TEST(LayoutTest, CountsRowsAsTheTerminalBreaksThem) {
  std::setlocale(LC_CTYPE, "C.UTF-8");
  EXPECT_EQ(cursor_row(L"", 10), 0U);
  EXPECT_EQ(cursor_row(L"> 1234567", 10), 0U);
  EXPECT_EQ(cursor_row(L"> 12345678", 10), 1U);  // after the last column the cursor is in the next row
  EXPECT_EQ(cursor_row(L"> 123456789012345678", 10), 2U);
  EXPECT_EQ(cursor_row(L"> \u8acb\u6c42\u66f8 ", 10), 0U);        // 2 + 3 x 2 + 1
  EXPECT_EQ(cursor_row(L"> \u8acb\u6c42\u66f8 \u8acb", 10), 1U);  // no half of a character at the end of a row
  EXPECT_EQ(cursor_row(L"> a\nb\nc", 10), 2U);
  EXPECT_EQ(cursor_row(L"> a\tb", 9), 1U);
  EXPECT_EQ(cursor_row(L"> e\u0301e\u0301e\u0301 12", 10), 0U);  // accents have no columns
  EXPECT_EQ(cursor_row(L"> \x01\x01\x01\x01", 10), 1U);          // as ^A
}

TEST(LayoutTest, CountsRowsThatWereWrappedAgain) {
  std::setlocale(LC_CTYPE, "C.UTF-8");
  EXPECT_EQ(rewrapped_cursor_row(L"> 12345678", 5, 20), 0U);             // full rows are one line
  EXPECT_EQ(rewrapped_cursor_row(L"> 12 34567", 5, 20), 1U);             // the first row ended with a blank
  EXPECT_EQ(rewrapped_cursor_row(L"> 1\u8acb\u8acb\u8acb", 6, 20), 1U);  // a wide character did not fit
  EXPECT_EQ(rewrapped_cursor_row(L"> 12 34567", 5, 3), 3U);              // "> 1", "2", "345", "67"
  EXPECT_EQ(rewrapped_cursor_row(L"> a\nb\nc", 10, 20), 2U);
  EXPECT_EQ(rewrapped_cursor_row(L"> a\n\nc", 10, 2), 3U);  // "> ", "a", "", "c"
  EXPECT_EQ(rewrapped_cursor_row(L"", 10, 20), 0U);
}

TEST_F(PathTest, AreCompleted) {
  const auto completed = [](const std::string& line) {
    const Completion c = complete_path(line);
    return std::pair(line.substr(0, c.begin), c.candidates);
  };
  EXPECT_EQ(completed("/image ~/m"), std::pair(std::string("/image "), Texts{"~/my\\ page.png"}));
  EXPECT_EQ(completed("/image ~/my\\ p").second, Texts{"~/my\\ page.png"});
  EXPECT_EQ(completed("/image '" + folder_ + "/my p").second, Texts{"'" + folder_ + "/my page.png'"});
  EXPECT_EQ(completed("~/sub").second, Texts{"~/sub\\ folder/"});
  EXPECT_EQ(completed("~/").second,
            (Texts{"~/a.png", "~/b.JPG", "~/it\\'s.png", "~/my\\ page.png", "~/notes.txt", "~/sub\\ folder/"}));
  EXPECT_EQ(completed("~/.h").second, Texts{"~/.hidden"});
  EXPECT_EQ(completed("~/a.png ").second, Texts{});
  EXPECT_EQ(completed("~/nothing").second, Texts{});
  EXPECT_EQ(complete_word("/s", 0, {"/system", "/quit", "/save"}).candidates, (Texts{"/save", "/system"}));
  EXPECT_EQ(common_beginning({"/save", "/system"}), "/s");
  EXPECT_EQ(common_beginning({"\u00e4", "\u00e5"}), "");  // they share a byte
  EXPECT_EQ(common_beginning({}), "");
}

// Returns the pasted text and the text typed after it.
std::pair<std::string, std::string> paste(std::string sent) {
  Pasted pasted;
  for (size_t i = 0; i < sent.size(); ++i) {
    if (!pasted.add(sent[i])) continue;
    std::string more = sent.substr(i + 1);
    pasted.take_rest(more);
    return {pasted.text(), more};
  }
  return {pasted.text(), "(no end)"};
}

TEST(PasteTest, KeepsLinesAndDropsWhatCommandsATerminal) {
  const std::string end(Pasted::kEnd), begin(Pasted::kBegin);
  EXPECT_EQ(paste("one\rtwo\r\nthree\n" + end), std::pair(std::string("one\ntwo\nthree"), std::string()));
  EXPECT_EQ(paste("a\tb\x03\x1b[31m\x7f\u00fc" + end + "x").first, "a\tb[31m\u00fc");
  EXPECT_EQ(paste("a" + end + "\nrm\n" + end + "typed"), std::pair(std::string("a\nrm"), std::string("typed")));
  EXPECT_EQ(paste("a" + end + "typed" + begin + "next" + end).second, "typed" + begin + "next" + end);
  EXPECT_EQ(paste("endless").second, "(no end)");
}

// Styles as letters: B bold, D dim, C code, 0 the end of all.
std::string shown(std::string_view text, TerminalMarkdown::Options options = {}, size_t piece = 1) {
  TerminalMarkdown markdown(options);
  std::string out;
  for (size_t i = 0; i < text.size(); i += piece) out += markdown.add(text.substr(i, piece));
  out += markdown.finish();
  for (const auto& [code, letter] : {std::pair("\x1b[0m", "<0>"), std::pair("\x1b[1m", "<B>"),
                                     std::pair("\x1b[2m", "<D>"), std::pair("\x1b[36m", "<C>")}) {
    for (size_t at = 0; (at = out.find(code, at)) != std::string::npos;)
      out.replace(at, std::string_view(code).size(), letter);
  }
  return out;
}

TEST(MarkdownTest, IsShownWhateverItsPieces) {
  constexpr std::pair<const char*, const char*> kCases[] = {
      {" TOTAL: 435.75", " TOTAL: 435.75"},
      {"# Head\ntext", "<0><B>Head<0>\ntext"},
      {"#hash and #", "#hash and #"},
      {"a **b** c*d 2 ** 3", "a <0><B>b<0> c*d 2 ** 3"},
      {"**open\nnext", "<0><B>open<0>\nnext"},
      {"a `x*y**z` b", "a <0><C>x*y**z<0> b"},
      {"- one\n  * two\n+ three\n-4\n*x*", "\u2022 one\n  \u2022 two\n\u2022 three\n-4\n*x*"},
      {"> said", "<D>\u2502<0> said"},
      {"```py\na **b**\n- c\n```\n**d**", "<D>```py<0>\n<C>a **b**<0>\n<C>- c<0>\n<D>```<0>\n<0><B>d<0>"},
      {"\\*no\\* \\(x\\)", "*no* \\(x\\)"},
      {"a\n\nb\n", "a\n\nb\n"},
      {"--", "--"},
      {"-", "-"},
      {"|a|b|\n|-|-|\n|1|**22**|\nend", "<B>a \u2502 b<0>\n\u2500\u2500\u253C\u2500\u2500\u2500\n1 \u2502 22\nend"},
      {"|a|b|\n|1|2|", "|a|b|\n|1|2|"},
      {"x\x1b[2J\x07\u009b1m\u00fc\u00a0", "x[2J1m\u00fc\u00a0"},
  };
  for (const auto& [text, expected] : kCases) {
    for (const size_t piece : {1, 3, 1000}) EXPECT_EQ(shown(text, {}, piece), expected) << text;
  }
  EXPECT_EQ(shown("---\n", {.width = 3}), "\u2500\u2500\u2500\n");
  EXPECT_EQ(shown("|a|b|\n|-|-|\n|1|2|", {.width = 3}), "|a|b|\n|-|-|\n|1|2|");
  EXPECT_EQ(shown("a `b`", {.colour = false}), "a <0>`b<0>`");
  EXPECT_EQ(shown("# a **b**\x1b[1m\n", {.renders = false}), "# a **b**[1m\n");
}

}  // namespace
}  // namespace vlcache
