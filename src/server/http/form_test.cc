// Forms with files: every spelling that clients send, and bodies that are none.
#include "server/http/form.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace vlcache {
namespace {

const std::string kType = "multipart/form-data; boundary=b";

std::string part(const std::string& headers, const std::string& data) {
  return "--b\r\n" + headers + "\r\n\r\n" + data + "\r\n";
}
std::string field(const std::string& name, const std::string& value) {
  return part("Content-Disposition: form-data; name=\"" + name + "\"", value);
}

// The message of the error; "": there is none.
std::string refused(const std::string& body, const std::string& type = kType) {
  try {
    parse_form(type, body);
    return "";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kInput);
    EXPECT_TRUE(std::string(e.what()).starts_with("the form: ")) << e.what();
    return std::string(e.what()).substr(10);
  }
}

// The only part's data.
std::string data_of(const std::string& body, const std::string& type = kType) {
  const std::vector<FormPart> parts = parse_form(type, body);
  EXPECT_EQ(parts.size(), 1U);
  return parts.empty() ? "(none)" : std::string(parts[0].data);
}

// The filename of a part with these parameters beside its name.
std::string filename_of(const std::string& parameters) {
  const std::string body = part("Content-Disposition: form-data; name=file; " + parameters, "x") + "--b--";
  const std::vector<FormPart> parts = parse_form(kType, body);
  return parts.at(0).filename.value_or("(none)");
}

TEST(Form, HasFieldsAndFiles) {
  const std::string data("\x00\r\n--\r\n--bc\r\n--b-x\xff\r", 20);
  const std::string body =
      "preamble\r\n" + field("purpose", "vision") +
      part(
          "content-disposition:FORM-DATA; name=file; filename=\"a b.png\"\r\nX-More: 1\r\nContent-Type: Image/PNG; x=y",
          data) +
      field("empty", "") + "--b-- \t\r\nepilogue --b\r\n";
  const std::vector<FormPart> parts = parse_form(kType, body);
  ASSERT_EQ(parts.size(), 3U);
  EXPECT_EQ(parts[0].name, "purpose");
  EXPECT_EQ(parts[0].data, "vision");
  EXPECT_EQ(parts[0].filename, std::nullopt);
  EXPECT_EQ(parts[1].filename, "a b.png");
  EXPECT_EQ(parts[1].type, "image/png");
  EXPECT_EQ(parts[1].data, data);
  EXPECT_GE(parts[1].data.data(), body.data());  // it is not copied
  EXPECT_LT(parts[1].data.data(), body.data() + body.size());
  EXPECT_EQ(parts[2].data, "");
  EXPECT_TRUE(parse_form(kType, "--b--").empty());
}

TEST(Form, BoundariesAndLineEnds) {
  const std::string head = "Content-Disposition: form-data; name=a\r\n";
  EXPECT_EQ(
      data_of("--b c\r\n" + head + "\r\n1\r\n--b c--\r\n", "Multipart/Form-Data; charset=utf-8; Boundary=\"b c\""),
      "1");
  EXPECT_EQ(data_of("--\"\r\n" + head + "\r\n1\r\n--\"--", R"(multipart/form-data; boundary="\"")"), "1");
  EXPECT_EQ(data_of("--b \t\r\n" + head + "\r\n1\r\n--b--"), "1");
  EXPECT_EQ(data_of("x--b\r\n--b\r\n" + head + "\r\n1\r\n--b--"), "1");
  EXPECT_EQ(data_of("--b\r\n" + head + "\r\n--b--"), "") << "the empty line ends the headers and begins the boundary";
  EXPECT_EQ(data_of("--b\nContent-Disposition: form-data; name=a\n\n1\r\n2\r\n--b--\n"), "1\r\n2\r");
  EXPECT_EQ(data_of("--b\r\nContent-Disposition: form-data;\r\n\tname=a\r\n\r\n1\r\n--b--"), "1");
  EXPECT_EQ(data_of("--b\r\nContent-Transfer-Encoding: BINARY\r\n" + head + "\r\n1\r\n--b--"), "1");
}

TEST(Form, Filenames) {
  EXPECT_EQ(filename_of("x=y"), "(none)");
  EXPECT_EQ(filename_of("filename="), "");
  EXPECT_EQ(filename_of("filename=a.pdf;"), "a.pdf");
  EXPECT_EQ(filename_of(R"(filename="a\"b\\c;d=e.pdf")"), R"(a"b\c;d=e.pdf)");
  EXPECT_EQ(filename_of(R"(filename="C:\dir\a.pdf")"), R"(C:\dir\a.pdf)");
  EXPECT_EQ(filename_of("filename=\"\xc3\xa9.pdf\""), "\xc3\xa9.pdf");
  EXPECT_EQ(filename_of("filename=plain.pdf; filename*=UTF-8''na%C3%AFve%20%22.pdf"), "na\xc3\xafve \".pdf");
  EXPECT_EQ(filename_of("filename*=iso-8859-1'en'na%EFve.pdf"), "na\xc3\xafve.pdf");
  EXPECT_EQ(filename_of("filename=plain.pdf; filename*=koi8-r''%C1"), "plain.pdf");
  EXPECT_EQ(filename_of("filename=plain.pdf; filename*=UTF-8''%zz"), "plain.pdf");
  EXPECT_EQ(filename_parameter("a b.pdf"), "filename=\"a b.pdf\"");
  EXPECT_EQ(filename_parameter("\xc3\xa9\".pdf"), "filename=\"__.pdf\"; filename*=UTF-8''%C3%A9%22.pdf");
}

TEST(Form, OtherBodiesAreRefused) {
  const std::string whole = field("a", "1") + "--b--\r\n";
  EXPECT_EQ(refused(whole, "application/json"),
            "expected Content-Type: multipart/form-data; boundary=..., found 'application/json'");
  EXPECT_EQ(refused(whole, "multipart/mixed; boundary=b").substr(0, 21), "expected Content-Type");
  EXPECT_EQ(refused(whole, "").substr(0, 21), "expected Content-Type");
  for (const char* type : {"; boundary=b; boundary=c", "; boundary", "; boundary=\"b", "; boundary=\"b\"c"}) {
    EXPECT_EQ(refused(whole, "multipart/form-data" + std::string(type)).substr(0, 21), "expected Content-Type") << type;
  }
  EXPECT_EQ(refused(whole, "multipart/form-data").substr(0, 28), "Content-Type has no boundary");
  for (const std::string& bad : {std::string("\"\""), std::string("\"b \""), std::string(257, 'b')}) {
    EXPECT_EQ(refused(whole, "multipart/form-data; boundary=" + bad).substr(0, 19), "expected a boundary") << bad;
  }
  for (const char* none : {"", "--a\r\n", " --b\r\n", "--bb\r\n", "--b"}) {
    EXPECT_EQ(refused(none), "its first boundary ('--b') is missing") << none;
  }
  for (const std::string& head : {std::string("Content-Type: text/plain"), std::string("x: 1"),
                                  std::string("Content-Dispositio: form-data; name=a")}) {
    EXPECT_NE(refused(part(head, "1") + "--b--").find("part 1 has no header Content-Disposition"), std::string::npos);
  }
  for (const char* value :
       {"form-data", "attachment; name=a", "form-data; name=", "form-data; name=\"\xff\"", "form-data; name=a; name=b",
        "form-data; name=\"a", "form-data; name", "form-data; name=\"a\" x"}) {
    EXPECT_NE(refused(part(std::string("Content-Disposition: ") + value, "1") + "--b--").find("name=\"...\", found"),
              std::string::npos)
        << value;
  }
  const std::string head = "Content-Disposition: form-data; name=a\r\n";
  EXPECT_EQ(refused(part(head + head.substr(0, head.size() - 2), "1") + "--b--"),
            "part 1 has two headers Content-Disposition");
  EXPECT_EQ(refused(field("a", "1") + part("no header", "1") + "--b--"),
            "part 2: expected a header, found 'no header'");
  EXPECT_EQ(refused(part(head + "Content-Type: multipart/mixed; boundary=c", "1") + "--b--"),
            "part 1 is a form itself; send each file as one part");
  for (const char* coding : {"base64", "Quoted-Printable", "x"}) {
    EXPECT_NE(
        refused(part(head + "Content-Transfer-Encoding: " + coding, "MQ==") + "--b--").find("the file's own bytes"),
        std::string::npos);
  }
}

TEST(Form, CutBodiesAreRefusedEverywhere) {
  const std::string whole =
      field("a", "1") + part("Content-Disposition: form-data; name=b; filename=c", "22") + "--b--";
  EXPECT_EQ(refused(whole), "");
  for (size_t n = 0; n < whole.size(); ++n) EXPECT_NE(refused(whole.substr(0, n)), "") << n;
  EXPECT_EQ(refused(whole.substr(0, whole.size() - 2)),
            "its last boundary ('--b--') is missing: was the upload cut off?");
  EXPECT_EQ(refused(whole.substr(0, 10)), "part 1 ends in its headers: was the upload cut off?");
}

TEST(Form, Bounds) {
  std::string many;
  for (size_t i = 0; i < kMaxFormParts; ++i) many += field("a", "1");
  EXPECT_EQ(parse_form(kType, many + "--b--").size(), kMaxFormParts);
  EXPECT_EQ(refused(many + field("a", "1") + "--b--"), "expected at most 64 parts");
  for (int i = 0; i < 100'000; ++i) many += "--b\r\n";
  EXPECT_EQ(refused(many), "expected at most 64 parts");
  const std::string head = "Content-Disposition: form-data; name=a\r\n";
  EXPECT_EQ(refused(part(head + "x: " + std::string(kMaxPartHeaderBytes, 'x'), "1") + "--b--"),
            "part 1: expected headers of at most 8192 bytes");
  std::string long_headers = head;
  for (int i = 0; i < 2000; ++i) long_headers += "x: y\r\n ";
  EXPECT_EQ(refused(part(long_headers + "x: y", "1") + "--b--"), "part 1: expected headers of at most 8192 bytes");
  // Data that looks like boundaries costs time in proportion to its bytes.
  std::string alike = "--b\r\n" + head + "\r\n";
  for (int i = 0; i < 100'000; ++i) alike += "\r\n--b \t \tx";
  EXPECT_EQ(parse_form(kType, alike + "\r\n--b--").at(0).data.size(), 1'000'000U);
}

}  // namespace
}  // namespace vlcache
