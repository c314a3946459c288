#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "base/error.h"
#include "base/json.h"
#include "io/document/page_selection.h"
#include "io/document/pdf.h"
#include "io/document/pdf_testing.h"
#include "io/document/tiff_document.h"
#include "io/image/image.h"
#include "io/image/tiff_testing.h"
#include "tests/testing.h"

namespace vlcache {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

std::vector<int32_t> pages_of(const std::string& text, int32_t n_pages) {
  return selected_pages(parse_page_selection(text, "r.pdf"), {.n = n_pages}, 100, "r.pdf", "write less");
}

TEST(PageSelection, NamesPagesInTheOrderWritten) {
  EXPECT_THAT(pages_of("", 3), ElementsAre(1, 2, 3));
  EXPECT_THAT(pages_of("2", 3), ElementsAre(2));
  EXPECT_THAT(pages_of("3-5", 9), ElementsAre(3, 4, 5));
  EXPECT_THAT(pages_of("4,1-2,4", 9), ElementsAre(4, 1, 2, 4));
  EXPECT_THAT(pages_of("2-", 4), ElementsAre(2, 3, 4));
  EXPECT_THAT(pages_of("100000-100002", 200000), ElementsAre(100000, 100001, 100002));
}

TEST(PageSelection, RefusesWhatIsNone) {
  for (const char* text : {"0", "-", "-2", "7-3", "1,", ",1", "a", "1-x", "1 2", "3-0", "99999999999", "1,,2", "+1"}) {
    EXPECT_THAT(error_of([&] { pages_of(text, 9); }), HasSubstr("r.pdf: expected pages such as 3-7")) << text;
  }
  EXPECT_THAT(error_of([&] { pages_of(std::string(5000, '1'), 9); }), HasSubstr("expected pages"));
  EXPECT_EQ(error_of([&] { pages_of("2-5", 3); }), "r.pdf: the PDF has 3 pages, and there is no page 4");
  EXPECT_EQ(error_of([&] { pages_of("9-", 1); }), "r.pdf: the PDF has 1 page, and there is no page 9");
  EXPECT_EQ(error_of([&] { pages_of("", 180); }), "r.pdf: the PDF has 180 pages; expected at most 100; write less");
  EXPECT_EQ(error_of([&] { pages_of("1-2147483646", 2147483647); }),
            "r.pdf: too many pages are selected; expected at most 100; write less");
}

TEST(PageSelection, AFileWhoseNameHasTheMarkIsThatFile) {
  const std::filesystem::path dir = std::filesystem::path(::testing::TempDir()) / ("pages-" + std::to_string(getpid()));
  std::filesystem::create_directories(dir);
  for (const char* name : {"a.pdf", "b#2.pdf", "c.pdf#1"}) std::ofstream(dir / name) << "x";
  const auto split = [&](const std::string& name) {
    const PathAndPages found = split_pages((dir / name).string());
    return std::filesystem::path(found.path).filename().string() + "|" + found.pages;
  };
  EXPECT_EQ(split("a.pdf"), "a.pdf|");
  EXPECT_EQ(split("a.pdf#3-7"), "a.pdf|3-7");
  EXPECT_EQ(split("b#2.pdf"), "b#2.pdf|");
  EXPECT_EQ(split("b#2.pdf#4"), "b#2.pdf|4");
  EXPECT_EQ(split("c.pdf#1"), "c.pdf#1|");
  EXPECT_EQ(split("none.pdf#1"), "none.pdf#1|");
  std::filesystem::remove_all(dir);
}

TEST(PdfInfo, ReadsPagesAndSizes) {
  const PdfInfo info = parse_pdf_info(
      "Title:           Pages: 7\nPages:           2\nPages:           3\nEncrypted:       no\n"
      "Page    1 size:  595.276 x 841.89 pts (A4)\nPage    1 rot:   0\nPage    2 size:  14400 x 0.5 pts\n"
      "Page    2 rot:   270\n"
      "Page    3 size:  nan x 842 pts\nPage    4 size:  -1 x 842 pts\nPage 0 size: 1 x 1 pts\nPage 5 size: 1 x");
  EXPECT_EQ(info.n_pages, 3);
  ASSERT_EQ(info.sizes.size(), 2U);
  EXPECT_DOUBLE_EQ(info.sizes.at(1).longer(), 841.89);
  EXPECT_DOUBLE_EQ(info.sizes.at(2).width, 0.5);
  EXPECT_EQ(parse_pdf_info("").n_pages, 0);
  EXPECT_EQ(parse_pdf_info("Pages: 99999999999999").n_pages, 0);
}

// The tests below run poppler's programs.
class Pdf : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!find_program("pdftocairo")) GTEST_SKIP() << "poppler-utils is not installed";
  }

  std::vector<PdfPage> read(const std::string& pdf, const std::string& pages = "", bool text = false) {
    return reader_.read(pdf_bytes(pdf),
                        {.where = "r.pdf", .pages = pages, .text = text, .longer_side = [](auto) { return 400; }});
  }
  std::string refusal(const std::string& pdf, const std::string& pages = "") {
    return error_of([&] { read(pdf, pages); });
  }

  PdfReader reader_;
};

TEST_F(Pdf, PagesAreImagesAndTexts) {
  const std::string pdf = make_pdf({"First", "Second (2)", ""});
  const std::vector<PdfPage> pages = read(pdf, "2-3,1", true);
  ASSERT_EQ(pages.size(), 3U);
  EXPECT_EQ(pages[0].number, 2);
  EXPECT_EQ(pages[0].text, "Second (2)");
  EXPECT_EQ(pages[1].text, "");
  EXPECT_EQ(pages[2].text, "First");
  const Image image = decode_image(*pages[0].image, "page");
  EXPECT_EQ(image.height, 400);
  EXPECT_EQ(image.width, 309);  // 400 * 612 / 792
  EXPECT_EQ(image.row(1)[3], 255);
  EXPECT_EQ(image.row(400 - 400 * 325 / 792)[3 * (400 * 100 / 792)], 0);  // the bar
}

TEST_F(Pdf, ThePageIsTheSameAgainAndDrawnOnce) {
  const std::string pdf = make_pdf({"First", "Second"});
  const std::vector<PdfPage> once = read(pdf), again = read(pdf, "2,1");
  EXPECT_EQ(once[1].image, again[0].image);
  EXPECT_EQ(reader_.n_drawn(), 2);
  reader_.clear();
  EXPECT_EQ(*read(pdf, "1")[0].image, *once[0].image);  // drawn again, equal byte for byte
  EXPECT_EQ(reader_.n_drawn(), 3);
  reader_.read(pdf_bytes(pdf), {.where = "r.pdf", .owner = "another", .longer_side = [](auto) { return 400; }});
  EXPECT_EQ(reader_.n_drawn(), 5);
}

TEST_F(Pdf, SizesAreBounded) {
  const auto size = [&](const std::string& box, int64_t side) {
    const PdfRequest request{.where = "r.pdf", .longer_side = [side](auto) { return side; }};
    const Image image = decode_image(*reader_.read(pdf_bytes(make_pdf({"x"}, box)), request)[0].image, "page");
    return std::to_string(image.width) + "x" + std::to_string(image.height);
  };
  EXPECT_EQ(size("0 0 14400 14400", 4000), "2048x2048");
  EXPECT_EQ(size("0 0 14400 1", 1024), "1024x1");
  EXPECT_EQ(size("0 0 72 36", 2000), "300x150");  // kMaxDpi
  EXPECT_EQ(size("0 0 800 400] /Rotate 90 /CropBox [0 0 600 200", 300), "100x300");
}

TEST_F(Pdf, BadFilesAreErrorsOfOneLine) {
  EXPECT_EQ(refusal("GIF89a"), "r.pdf: expected a PDF, found an image");
  EXPECT_EQ(refusal("A page of text"), "r.pdf: expected a PDF, found text");
  EXPECT_EQ(refusal("{\"a\": 1}"), "r.pdf: expected a PDF, found JSON");
  EXPECT_EQ(refusal("<html><body>404"), "r.pdf: expected a PDF, found HTML (a web page)");
  EXPECT_EQ(refusal(""), "r.pdf: expected a PDF, found another kind of file");
  EXPECT_THAT(refusal(make_pdf({"First"}).substr(0, 200)),
              StartsWith("r.pdf: the PDF cannot be read: it is damaged ("));
  EXPECT_THAT(refusal("%PDF-1.4\n" + std::string(100000, 'x')), HasSubstr("it is damaged"));
  EXPECT_EQ(refusal(make_pdf({"First"}), "3"), "r.pdf: the PDF has 1 page, and there is no page 3");
  EXPECT_EQ(refusal(read_text_file(VLCACHE_SOURCE_DIR "/tests/fixtures/pdf/encrypted.pdf")),
            "r.pdf: the PDF is encrypted and needs a password; remove the password first (qpdf --decrypt "
            "--password=... IN OUT)");
  const std::string many = make_pdf(std::vector<std::string>(101, "x"));
  EXPECT_EQ(refusal(many), "r.pdf: the PDF has 101 pages; expected at most 100");
  EXPECT_EQ(read(many, "101")[0].number, 101);
  for (size_t cut = 0; cut < make_pdf({"First"}).size(); cut += 97) {  // an answer or one line
    EXPECT_THAT(refusal(make_pdf({"First"}).substr(0, cut)), ::testing::Not(HasSubstr("\n"))) << cut;
  }
}

TEST_F(Pdf, PagesThatTakeTooMuchAreRefused) {
  const PdfRequest request{.where = "r.pdf", .longer_side = [](auto) { return 400; }};
  const std::string pdf = make_pdf({"First"});
  PdfReader no_time({.time = std::chrono::milliseconds(1)});
  EXPECT_THAT(error_of([&] { no_time.read(pdf_bytes(pdf), request); }), HasSubstr("took longer than 0 s"));
  PdfReader no_memory({.memory_bytes = 1 << 20});  // it cannot even be loaded
  EXPECT_THAT(error_of([&] { no_memory.read(pdf_bytes(pdf), request); }), StartsWith("r.pdf: the PDF cannot be read"));
  PdfReader no_output({.output_bytes = 100});
  EXPECT_EQ(error_of([&] { no_output.read(pdf_bytes(pdf), request); }),
            "r.pdf: page 1 is larger than the limit is for a page");
  const PdfRequest gone{.where = "r.pdf", .cancelled = [] { return true; }, .longer_side = [](auto) { return 400; }};
  EXPECT_THAT(error_of([&] { reader_.read(pdf_bytes(pdf), gone); }), HasSubstr("cancelled"));
}

TEST(PdfWithoutPoppler, NamesThePackage) {
  const std::string path = std::getenv("PATH");
  setenv("PATH", "/nowhere", 1);
  PdfReader reader;
  const std::string said = error_of([&] { reader.read(pdf_bytes(make_pdf({"x"})), {.where = "r.pdf"}); });
  setenv("PATH", path.c_str(), 1);
  EXPECT_THAT(said, AllOf(StartsWith("r.pdf: "), HasSubstr("poppler-utils")));
}

TEST(TiffPages, AreImagesInTheOrderSelected) {
  const std::string tiff = make_tiff({grey_page(10), grey_page(20, 5, 4), grey_page(30)});
  PageCache known;
  TiffDocument reader(known);
  const auto read = [&](const std::string& pages, const PdfRequest& more = {}) {
    PdfRequest request = more;
    request.where = "r.tif";
    request.pages = pages;
    return reader.read(tiff_bytes(tiff), request, {});
  };
  const std::vector<PdfPage> pages = read("3,1-2");
  ASSERT_EQ(pages.size(), 3U);
  EXPECT_EQ(pages[0].number, 3);
  EXPECT_EQ(decode_image(*pages[0].image, "page").rgb[0], 30);
  EXPECT_EQ(decode_image(*pages[2].image, "page").width, 5);
  EXPECT_EQ(read("3")[0].image, pages[0].image);  // kept
  EXPECT_NE(read("3", {.owner = "another"})[0].image, pages[0].image);
  EXPECT_EQ(error_of([&] { read("4"); }), "r.tif: the TIFF has 3 pages, and there is no page 4");
  EXPECT_EQ(error_of([&] { read("", {.max_pages = 2, .advice = "write less"}); }),
            "r.tif: the TIFF has 3 pages; expected at most 2; write less");
  EXPECT_THAT(error_of([&] { read("1", {.cancelled = [] { return true; }}); }), HasSubstr("cancelled"));
  const std::string cut = tiff.substr(0, tiff.size() - 20);
  EXPECT_THAT(error_of([&] { reader.read(tiff_bytes(cut), {.where = "r.tif"}, {}); }), StartsWith("r.tif: "));
  EXPECT_THAT(error_of([&] { reader.read(tiff_bytes(tiff), {.where = "r.tif", .owner = "b"}, {.max_pixels = 20}); }),
              HasSubstr("r.tif: page 1: TIFF: 8 x 6 pixels; the limit is 20 pixels"));
}

TEST(TiffPages, TellDocumentsFromImages) {
  const std::string one = make_tiff({grey_page(1)}), two = make_tiff({grey_page(1), grey_page(2)});
  EXPECT_TRUE(is_document(tiff_bytes(one)));
  EXPECT_TRUE(is_document(pdf_bytes(make_pdf({"x"}))));
  EXPECT_FALSE(is_document(pdf_bytes("GIF89a %PDF-1.4")));
  EXPECT_FALSE(has_more_pages(tiff_bytes(one), "a"));
  EXPECT_TRUE(has_more_pages(tiff_bytes(two), "a"));
  EXPECT_FALSE(has_more_pages(pdf_bytes(make_pdf({"x", "y"})), "a"));
}

}  // namespace
}  // namespace vlcache
