#include "io/image/other_formats.h"

#include <algorithm>
#include <cctype>
#include <string_view>

#include "base/utf8.h"
#include "io/image/image.h"

namespace vlcache {
namespace {

using namespace std::string_view_literals;

constexpr size_t kSniffedBytes = 4096;

// A file that begins with `magic` at `at`.
struct OtherFormat {
  size_t at;
  std::string_view magic;
  std::string_view name;
  std::string_view advice;  // a command, or what else to do; empty: none
};

constexpr OtherFormat kOtherFormats[] = {
    {0, "\0\0\1\0"sv, "ICO", "ffmpeg -i x.ico x.png"},
    {0, "\0\0\0\x0cJXL \r\n\x87\n"sv, "JPEG XL", "djxl x.jxl x.png"},
    {0, "\xff\x0a"sv, "JPEG XL", "djxl x.jxl x.png"},
    {0, "\0\0\0\x0cjP  \r\n\x87\n"sv, "JPEG 2000", "ffmpeg -i x.jp2 x.png"},
    {0, "\xff\x4f\xff\x51"sv, "JPEG 2000", "ffmpeg -i x.j2k x.png"},
    {0, "II\xbc\x01"sv, "JPEG XR", "JxrDecApp -i x.jxr -o x.bmp"},
    {0, "8BPS"sv, "PSD (Photoshop)", "ffmpeg -i x.psd x.png"},
    {0, "gimp xcf "sv, "XCF (GIMP)", "convert x.xcf -flatten x.png"},
    {0, "%!PS"sv, "PostScript", "ps2pdf x.ps x.pdf"},
    {0, "\xc5\xd0\xd3\xc6"sv, "EPS (PostScript)", "ps2pdf x.eps x.pdf"},
    {0, "%PDF-"sv, "a PDF", "send it as a file"},
    {0, "AT&TFORM"sv, "DjVu", "ddjvu -format=pdf x.djvu x.pdf"},
    {0, "\xd7\xcd\xc6\x9a"sv, "WMF", "inkscape x.wmf -o x.png"},
    {40, " EMF"sv, "EMF", "inkscape x.emf -o x.png"},
    {128, "DICM"sv, "DICOM", "dcmj2pnm --write-png x.dcm x.png"},
    {0, "\x76\x2f\x31\x01"sv, "OpenEXR", "ffmpeg -i x.exr x.png"},
    {0, "#?R"sv, "Radiance HDR", "ffmpeg -i x.hdr x.png"},
    {0, "DDS "sv, "DDS", "ffmpeg -i x.dds x.png"},
    {0, "qoif"sv, "QOI", "ffmpeg -i x.qoi x.png"},
    {0, "PF\n"sv, "PFM", "ffmpeg -i x.pfm x.png"},
    {0, "Pf\n"sv, "PFM", "ffmpeg -i x.pfm x.png"},
    {0, "\x0a\x05\x01\x08"sv, "PCX", "ffmpeg -i x.pcx x.png"},
    {0, "\x1f\x8b\x08"sv, "gzip", "unpack it first: gunzip x.gz"},
    {0, "PK\x03\x04"sv, "a ZIP archive or an Office document",
     "an Office document becomes a PDF: soffice --convert-to pdf x.docx"},
    {0, "\x1a\x45\xdf\xa3"sv, "a Matroska or WebM video", "send it as a video"},
    {0, "version https://git-lfs"sv, "a pointer of Git LFS in place of the file", "git lfs pull"},
};

// Brands of files in the container of MP4 that are no videos.
constexpr OtherFormat kContainerBrands[] = {
    {0, "avif"sv, "AVIF", "ffmpeg -i x.avif x.png"},    {0, "avis"sv, "AVIF", "ffmpeg -i x.avif x.png"},
    {0, "heic"sv, "HEIC", "heif-convert x.heic x.png"}, {0, "heix"sv, "HEIC", "heif-convert x.heic x.png"},
    {0, "heim"sv, "HEIC", "heif-convert x.heic x.png"}, {0, "heis"sv, "HEIC", "heif-convert x.heic x.png"},
    {0, "hevc"sv, "HEIC", "heif-convert x.heic x.png"}, {0, "hevx"sv, "HEIC", "heif-convert x.heic x.png"},
    {0, "crx "sv, "CR3 (a camera's raw data)", ""},
};

// Beginnings of texts, in lower case.
constexpr OtherFormat kTextBeginnings[] = {
    {0, "<!doctype html"sv, "HTML (a web page)", "send the image that it shows"},
    {0, "<html"sv, "HTML (a web page)", "send the image that it shows"},
    {0, "<head"sv, "HTML (a web page)", "send the image that it shows"},
    {0, "<body"sv, "HTML (a web page)", "send the image that it shows"},
    {0, "data:"sv, "a data URI as the image's bytes", "it is encoded twice"},
    {0, "ivborw0kgg"sv, "base64 text as the image's bytes", "it is encoded twice"},
    {0, "/9j/"sv, "base64 text as the image's bytes", "it is encoded twice"},
    {0, "r0lgod"sv, "base64 text as the image's bytes", "it is encoded twice"},
    {0, "uklgr"sv, "base64 text as the image's bytes", "it is encoded twice"},
    {0, "http://"sv, "the text of a URL", "send the image that it names"},
    {0, "https://"sv, "the text of a URL", "send the image that it names"},
    {0, "{"sv, "JSON", ""},
    {0, "["sv, "JSON", ""},
};

bool begins_as(std::string_view head, const OtherFormat& format) {
  return head.size() >= format.at && head.substr(format.at).starts_with(format.magic);
}

const OtherFormat* find_format(std::span<const OtherFormat> formats, std::string_view head) {
  const auto found = std::ranges::find_if(formats, [&](const OtherFormat& format) { return begins_as(head, format); });
  return found == formats.end() ? nullptr : &*found;
}

// Of a file in the container of MP4, by its brands: the major one, and the compatible ones.
const OtherFormat* container_format(std::string_view head) {
  static constexpr OtherFormat kHeif{0, "", "HEIF", "heif-convert x.heif x.png"};
  static constexpr OtherFormat kVideo{0, "", "an MP4 or MOV video", "send it as a video"};
  if (head.size() < 12 || head.substr(4, 4) != "ftyp") return nullptr;
  const auto size = static_cast<size_t>(static_cast<uint8_t>(head[2]) << 8 | static_cast<uint8_t>(head[3]));
  const std::string_view box = head.substr(0, size < 12 ? head.size() : size);
  bool is_heif = false;
  for (size_t at = 8; at + 4 <= box.size(); at += at == 8 ? 8 : 4) {  // past the version of the major brand
    const std::string_view brand = box.substr(at, 4);
    if (const OtherFormat* format = find_format(kContainerBrands, brand)) return format;
    is_heif = is_heif || brand == "mif1" || brand == "msf1";
  }
  return is_heif ? &kHeif : &kVideo;
}

// "P" and a digit, then white space or a comment.
const OtherFormat* netpbm_format(std::string_view head) {
  static constexpr OtherFormat kFormat{0, "", "PNM (PBM, PGM, PPM)", "ffmpeg -i x.ppm x.png"};
  const bool is = head.size() > 2 && head[0] == 'P' && head[1] >= '1' && head[1] <= '7' &&
                  (std::isspace(static_cast<unsigned char>(head[2])) != 0 || head[2] == '#');
  return is ? &kFormat : nullptr;
}

bool looks_like_text(std::string_view head) {
  std::string_view whole = head;  // characters: the last may be cut
  for (int i = 0; i < 3 && !is_valid_utf8(whole) && !whole.empty(); ++i) whole.remove_suffix(1);
  return !whole.empty() && is_valid_utf8(whole) && std::ranges::none_of(whole, [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return (byte < ' ' && std::isspace(byte) == 0) || byte == 0x7f;
  });
}

// Of a file of text in UTF-8, which begins with a byte order mark or not.
const OtherFormat* text_format(std::string_view head) {
  static constexpr OtherFormat kSvg{0, "", "SVG", "rsvg-convert x.svg -o x.png"};
  static constexpr OtherFormat kXml{0, "", "XML", ""};
  static constexpr OtherFormat kText{0, "", "text", ""};
  if (head.starts_with("\xef\xbb\xbf")) head.remove_prefix(3);
  if (!looks_like_text(head)) return nullptr;
  std::string text(head.substr(std::min(head.find_first_not_of(" \t\r\n"), head.size())));
  std::ranges::transform(text, text.begin(),
                         [](char c) { return 'A' <= c && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  if (const OtherFormat* format = find_format(kTextBeginnings, text)) return format;
  const bool is_markup = text.starts_with("<");
  if (is_markup && text.find("<svg") != std::string::npos) return &kSvg;
  if (is_markup && text.find("<html") != std::string::npos) return &kTextBeginnings[0];
  return text.starts_with("<?xml") ? &kXml : &kText;
}

const OtherFormat* other_format_of(std::string_view head) {
  if (const OtherFormat* format = container_format(head)) return format;
  if (const OtherFormat* format = find_format(kOtherFormats, head)) return format;
  if (const OtherFormat* format = netpbm_format(head)) return format;
  return text_format(head);
}

}  // namespace

bool is_heif(std::span<const std::byte> bytes) {
  const std::string_view head(reinterpret_cast<const char*>(bytes.data()), std::min(bytes.size(), kSniffedBytes));
  const OtherFormat* format = container_format(head);
  return format != nullptr && (format->name == "AVIF" || format->name == "HEIC" || format->name == "HEIF");
}

std::string describe_other_format(std::span<const uint8_t> bytes) {
  const std::string_view head(reinterpret_cast<const char*>(bytes.data()), std::min(bytes.size(), kSniffedBytes));
  const std::string expected = std::string("expected ") + kImageFormats;
  const OtherFormat* format = other_format_of(head);
  if (format == nullptr) return "unknown format; " + expected;
  const std::string text = "found " + std::string(format->name) + "; " + expected;
  return format->advice.empty() ? text : text + " (" + std::string(format->advice) + ")";
}

std::string name_other_format(std::span<const std::byte> bytes) {
  if (!media_type(bytes).empty()) return "an image";
  const std::string_view head(reinterpret_cast<const char*>(bytes.data()), std::min(bytes.size(), kSniffedBytes));
  const OtherFormat* format = other_format_of(head);
  return format == nullptr ? "another kind of file" : std::string(format->name);
}

}  // namespace vlcache
