#include "io/image/other_formats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string_view>

#include "io/image/image.h"
#include "io/video/video_file.h"
#include "tests/testing.h"

namespace vlcache {
namespace {

using namespace std::string_view_literals;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string refusal(std::string_view bytes) {
  return error_of([&] { decode_image(std::as_bytes(std::span(bytes)), "x"); });
}

TEST(OtherFormats, AreNamedWithTheCommandThatConvertsThem) {
  constexpr std::pair<std::string_view, const char*> kCases[] = {
      {"\0\0\0\x1c"
       "ftypavif\0\0\0\0avifmif1miaf"sv,
       "AVIF|ffmpeg -i x.avif x.png"},
      {"\0\0\0\x1c"
       "ftypmif1\0\0\0\0mif1avifmiaf"sv,
       "AVIF|ffmpeg -i x.avif x.png"},
      {"\0\0\0\x18"
       "ftypavis\0\0\0\0avis"sv,
       "AVIF|ffmpeg"},
      {"\0\0\0\x18"
       "ftypheic\0\0\0\0mif1heic"sv,
       "HEIC|heif-convert x.heic x.png"},
      {"\0\0\0\x18"
       "ftypmif1\0\0\0\0mif1heic"sv,
       "HEIC|heif-convert"},
      {"\0\0\0\x14"
       "ftypmif1\0\0\0\0mif1"sv,
       "HEIF|heif-convert"},
      {"\0\0\0\x18"
       "ftypisom\0\0\0\0isomavc1"sv,
       "an MP4 or MOV video|send it as a video"},
      {"\0\0\1\0\1\0\x10\x10"sv, "ICO|ffmpeg -i x.ico x.png"},
      {"<svg xmlns=\"http://www.w3.org/2000/svg\"/>"sv, "SVG|rsvg-convert x.svg -o x.png"},
      {"\xef\xbb\xbf<?xml version=\"1.0\"?>\n<!-- a -->\n<!DOCTYPE svg>\n<svg width=\"1\">"sv, "SVG|rsvg-convert"},
      {"\0\0\0\x0cJXL \r\n\x87\n"sv, "JPEG XL|djxl x.jxl x.png"},
      {"\xff\x0a\xfa"sv, "JPEG XL|djxl"},
      {"\0\0\0\x0cjP  \r\n\x87\n"sv, "JPEG 2000|ffmpeg -i x.jp2 x.png"},
      {"\xff\x4f\xff\x51"sv, "JPEG 2000|ffmpeg"},
      {"8BPS\0\1"sv, "PSD|ffmpeg -i x.psd x.png"},
      {"P6\n2 2\n255\n"sv, "PNM|ffmpeg -i x.ppm x.png"},
      {"P4 8 1 x"sv, "PNM|ffmpeg"},
      {"P1#a\n"sv, "PNM|ffmpeg"},
      {"%PDF-1.4"sv, "a PDF|send it as a file"},
      {"%!PS-Adobe"sv, "PostScript|ps2pdf"},
      {"PK\3\4"sv, "a ZIP archive|soffice"},
      {"<!DOCTYPE html><html><body>Not found"sv, "HTML (a web page)|expected JPEG"},
      {"\n <HTML>"sv, "HTML|expected"},
      {"<?xml version=\"1.0\"?><html xmlns=\"x\">"sv, "HTML|expected"},
      {"<?xml version=\"1.0\"?><a/>"sv, "XML|expected"},
      {"{\"error\": \"not found\"}"sv, "JSON|expected"},
      {"  [1, 2]"sv, "JSON|expected"},
      {"Access denied"sv, "text|expected"},
      {"\xc3\x9c"
       "ber"sv,
       "text|expected"},
      {"iVBORw0KGgoAAAANSUhEUg=="sv, "base64 text|it is encoded twice"},
      {"data:image/png;base64,iVBO"sv, "a data URI|it is encoded twice"},
      {"https://x.example/a.png"sv, "the text of a URL|"},
      {"version https://git-lfs.github.com/spec/v1\n"sv, "a pointer of Git LFS|git lfs pull"}};
  for (const auto& [bytes, expected] : kCases) {
    const std::string_view all = expected;
    const std::string name(all.substr(0, all.find('|'))), advice(all.substr(all.find('|') + 1)), said = refusal(bytes);
    EXPECT_THAT(said, StartsWith("x: image: found " + name));
    EXPECT_THAT(said, HasSubstr("expected JPEG, PNG, WebP, BMP, GIF or TIFF"));
    EXPECT_THAT(said, HasSubstr(advice));
  }
  for (const std::string_view bytes : {"\1\2\3"sv, "RIFF\0\0\0\0WAVE"sv, "\xff\xfe<\0h\0"sv, "P6"sv.substr(0, 0)}) {
    EXPECT_THAT(refusal(bytes), bytes.empty()
                                    ? HasSubstr("the file is empty")
                                    : HasSubstr("unknown format; expected JPEG, PNG, WebP, BMP, GIF or TIFF"));
  }
}

TEST(OtherFormats, ImagesInTheContainerOfMp4AreNoVideos) {
  const auto type_of = [](std::string_view bytes) { return clip_media_type(std::as_bytes(std::span(bytes))); };
  EXPECT_EQ(type_of("\0\0\0\x18"
                    "ftypheic\0\0\0\0mif1heic"sv),
            "");
  EXPECT_EQ(type_of("\0\0\0\x18"
                    "ftypmif1\0\0\0\0avifmif1"sv),
            "");
  EXPECT_EQ(type_of("\0\0\0\x18"
                    "ftypisom\0\0\0\0isomavc1"sv),
            "video/mp4");
  EXPECT_EQ(type_of("\0\0\0\x14"
                    "ftypqt  \0\0\0\0qt  "sv),
            "video/mp4");
}

}  // namespace
}  // namespace vlcache
