// The routes below /v1/files in both shapes, and the parts of messages and responses that name an upload.
#include "server/protocol/file_routes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "api/json_fields.h"
#include "base/error.h"
#include "server/http/json_reply.h"
#include "server/protocol/messages_request.h"
#include "server/protocol/responses_request.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;
using testing::HasSubstr;

constexpr std::pair<const char*, const char*> kAnthropicHeader{"anthropic-version", "2023-06-01"};

class FileRoutesTest : public testing::Test {
 protected:
  static std::string field(const std::string& name, const std::string& value) {
    return "--b\r\nContent-Disposition: form-data; name=\"" + name + "\"\r\n\r\n" + value + "\r\n";
  }
  static std::string file(const std::string& name, const std::string& bytes,
                          const std::string& type = "application/octet-stream") {
    return "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"" + name + "\"\r\nContent-Type: " + type +
           "\r\n\r\n" + bytes + "\r\n";
  }
  HttpRequest request(const std::string& method, const std::string& target, bool anthropic = false) const {
    HttpRequest r{.method = method, .path = target.substr(0, target.find('?'))};
    if (target.size() > r.path.size()) r.query = target.substr(r.path.size() + 1);
    r.headers = {{"content-type", "multipart/form-data; boundary=b"}};
    if (anthropic) r.headers.emplace_back(kAnthropicHeader);
    return r;
  }
  HttpResponse add(const std::string& fields, bool anthropic = false, const std::string& owner = "me") {
    HttpRequest r = request("POST", "/v1/files", anthropic);
    r.body = fields + "--b--\r\n";
    return routes_.add(r, owner);
  }
  std::string add_id(const std::string& name, const std::string& bytes, const std::string& purpose = "user_data") {
    ++now_;
    return OrderedJson::parse(add(field("purpose", purpose) + file(name, bytes)).body)["id"];
  }
  // The status and the message of the error that the call throws; "none" without one.
  template <typename F>
  std::string error(const F& call) {
    try {
      call();
      return "none";
    } catch (const Error& e) {
      return std::to_string(http_status(e)) + " " + e.what();
    }
  }
  std::string refusal(const std::string& fields, bool anthropic = false) {
    return error([&] { add(fields, anthropic); });
  }
  OrderedJson list(const std::string& query, bool anthropic = false) {
    return OrderedJson::parse(routes_.list(request("GET", "/v1/files" + query, anthropic), "me").body);
  }
  static std::vector<std::string> ids(const OrderedJson& list) {
    std::vector<std::string> found;
    for (const OrderedJson& file : list["data"]) found.push_back(file["id"]);
    return found;
  }

  int64_t now_ = 1'000'000;
  Uploads uploads_{{.max_bytes = 1 << 20, .max_file_bytes = 5000, .seconds = 7200}, [this] { return now_; }};
  FileRoutes routes_{uploads_};
};

TEST_F(FileRoutesTest, OpenAiShape) {
  const OrderedJson made = OrderedJson::parse(add(field("purpose", "user_data") + file("a.pdf", "%PDF-1.7")).body);
  const std::string id = made["id"];
  EXPECT_EQ(id.substr(0, 5), "file-");
  EXPECT_EQ(made, (OrderedJson{{"id", id},
                               {"object", "file"},
                               {"bytes", 8},
                               {"created_at", 1'000'000},
                               {"expires_at", 1'007'200},
                               {"filename", "a.pdf"},
                               {"purpose", "user_data"},
                               {"status", "processed"},
                               {"status_details", nullptr}}));
  EXPECT_EQ(OrderedJson::parse(routes_.read(request("GET", "/v1/files/" + id), "me").body), made);
  const HttpResponse content = routes_.read(request("GET", "/v1/files/" + id + "/content"), "me");
  EXPECT_EQ(content.body, "%PDF-1.7");
  EXPECT_EQ(content.content_type, "application/octet-stream");
  EXPECT_EQ(content.headers[0].second, "attachment; filename=\"a.pdf\"");
  for (const char* path : {"", "/content"}) {
    EXPECT_THAT(error([&] { routes_.read(request("GET", "/v1/files/" + id + path), "you"); }),
                HasSubstr("404 id: there is no file \"" + id));
  }
  EXPECT_THAT(error([&] { routes_.remove(request("DELETE", "/v1/files/" + id), "you"); }), HasSubstr("404 id: "));
  EXPECT_EQ(routes_.remove(request("DELETE", "/v1/files/" + id), "me").body,
            R"({"id":")" + id + R"(","object":"file","deleted":true})");
  EXPECT_THAT(error([&] { routes_.remove(request("DELETE", "/v1/files/" + id), "me"); }), HasSubstr("404 id: "));
}

TEST_F(FileRoutesTest, AnthropicShape) {
  EXPECT_FALSE(asks_anthropic_files(request("GET", "/v1/files/x")));
  EXPECT_FALSE(asks_anthropic_files(request("GET", "/v1/filesystem", true)));
  const OrderedJson made = OrderedJson::parse(add(file("a.txt", "hello", "text/plain"), true).body);
  const std::string id = made["id"];
  EXPECT_EQ(id.substr(0, 5), "file_");
  EXPECT_EQ(made, (OrderedJson{{"id", id},
                               {"type", "file"},
                               {"filename", "a.txt"},
                               {"mime_type", "text/plain"},
                               {"size_bytes", 5},
                               {"created_at", "1970-01-12T13:46:40Z"},
                               {"expires_at", "1970-01-12T15:46:40Z"},
                               {"downloadable", true}}));
  EXPECT_EQ(OrderedJson::parse(routes_.read(request("GET", "/v1/files/" + id, true), "me").body), made);
  const OrderedJson all = list("", true);
  EXPECT_EQ(all["data"], OrderedJson::array({made}));
  EXPECT_EQ(all["first_id"], id);
  EXPECT_EQ(all["last_id"], id);
  EXPECT_EQ(all["has_more"], false);
  EXPECT_EQ(all["next_page"], nullptr);
  EXPECT_EQ(routes_.remove(request("DELETE", "/v1/files/" + id, true), "me").body,
            R"({"id":")" + id + R"(","type":"file_deleted"})");
}

TEST_F(FileRoutesTest, ListsInPages) {
  std::vector<std::string> old;
  for (const char* name : {"1", "2", "3", "4", "5"})
    old.push_back(add_id(name, name, name[0] == '3' ? "vision" : "user_data"));
  const std::vector<std::string> newest(old.rbegin(), old.rend());
  EXPECT_EQ(ids(list("")), newest);
  EXPECT_EQ(ids(list("?order=asc&purpose=user_data")), (std::vector{old[0], old[1], old[3], old[4]}));
  const OrderedJson first = list("?limit=2");
  EXPECT_EQ(ids(first), (std::vector{newest[0], newest[1]}));
  EXPECT_EQ(first["object"], "list");
  EXPECT_EQ(first["has_more"], true);
  EXPECT_EQ(first["last_id"], newest[1]);
  EXPECT_EQ(ids(list("?limit=2&after=" + newest[1])), (std::vector{newest[2], newest[3]}));
  const OrderedJson last = list("?limit=2&after=" + newest[3]);
  EXPECT_EQ(ids(last), (std::vector{newest[4]}));
  EXPECT_EQ(last["has_more"], false);
  EXPECT_TRUE(ids(list("?after=" + newest[4])).empty());
  EXPECT_EQ(list("?after=" + newest[4])["first_id"], nullptr);
  // Anthropic's: pages by id in both directions, by a cursor, and single files.
  const OrderedJson page = list("?limit=3", true);
  EXPECT_EQ(page["next_page"], "page_" + newest[2]);
  EXPECT_EQ(ids(list("?limit=3&page=page_" + newest[2], true)), (std::vector{newest[3], newest[4]}));
  EXPECT_EQ(ids(list("?limit=3&after_id=" + newest[2] + "&beta=true", true)), (std::vector{newest[3], newest[4]}));
  const OrderedJson before = list("?limit=2&before_id=" + newest[3], true);
  EXPECT_EQ(ids(before), (std::vector{newest[1], newest[2]}));
  EXPECT_EQ(before["has_more"], true);
  EXPECT_EQ(ids(list("?ids=" + newest[1] + "&ids%5B%5D=" + newest[4] + "&ids=file_none", true)),
            (std::vector{newest[1], newest[4]}));
  for (const char* wrong :
       {"?limit=0", "?limit=10001", "?limit=x", "?limit=1e3", "?order=up", "?after=none", "?limit=%zz"}) {
    EXPECT_THAT(error([&] { list(wrong); }), HasSubstr("400 ")) << wrong;
  }
  EXPECT_THAT(error([&] { list("?limit=1001", true); }), HasSubstr("limit: expected an integer from 1 to 1000"));
}

TEST_F(FileRoutesTest, Expiry) {
  const auto expires = [&](const std::string& fields) {
    return OrderedJson::parse(add(fields + field("purpose", "vision") + file("a", "x")).body)["expires_at"]
               .get<int64_t>() -
           now_;
  };
  EXPECT_EQ(expires(""), 7200);
  EXPECT_EQ(expires(field("expires_after[anchor]", "created_at") + field("expires_after[seconds]", "3600")), 3600);
  EXPECT_EQ(expires(field("expires_after[seconds]", "2592000")), 7200) << "the reply tells how long it is kept";
  EXPECT_EQ(expires(field("expires_after", R"({"anchor": "created_at", "seconds": 60})")), 60);
  EXPECT_EQ(expires(field("expires_in_seconds", "3600")), 3600);
  for (const char* seconds : {"0", "-1", "x", "", "1.5", "99999999999999999999"}) {
    EXPECT_THAT(refusal(field("expires_after[seconds]", seconds)),
                HasSubstr("400 expires_after[seconds]: expected an integer from 1 to 7776000"));
  }
  EXPECT_THAT(refusal(field("expires_after[anchor]", "last_used")),
              HasSubstr("400 expires_after[anchor]: expected created_at, found 'last_used'"));
  for (const char* bad : {"3600", "{}", "{", R"({"anchor": 1, "seconds": 60})", R"({"seconds": "60"})"}) {
    EXPECT_THAT(refusal(field("expires_after", bad)), HasSubstr("400 expires_after")) << bad;
  }
}

TEST_F(FileRoutesTest, UploadsThatAreRefused) {
  const std::string purpose = field("purpose", "user_data"), good = file("a", "x");
  EXPECT_EQ(refusal(purpose), "400 file: expected a file in the form");
  EXPECT_EQ(refusal(good), "400 purpose: expected a name such as user_data, vision or assistants");
  EXPECT_EQ(refusal(good + field("purpose", "a b")),
            "400 purpose: expected a name such as user_data, vision or assistants");
  EXPECT_EQ(refusal(good, true), "none") << "Anthropic's have none";
  EXPECT_EQ(refusal(purpose + good + good), "400 file: expected one file, found several; upload each with a request");
  EXPECT_EQ(refusal(purpose + file("a", "")), "400 file: expected bytes, found an empty file");
  EXPECT_EQ(refusal(purpose + field("file", "@a.pdf")),
            "400 file: expected a file, found a text (with curl: -F file=@PATH)");
  EXPECT_EQ(refusal(purpose + file("a", std::string(5001, 'x'))),
            "413 file: the file has 5001 bytes; the limit is 5000 (--max-file)");
  EXPECT_EQ(refusal(good + field("purpose", std::string(2000, 'x'))),
            "400 purpose: expected a text of at most 1024 bytes");
  EXPECT_EQ(refusal(purpose + good + field("model", std::string(2000, 'x'))), "none") << "fields of other servers";
  HttpRequest json = request("POST", "/v1/files");
  json.headers = {{"content-type", "application/json"}};
  EXPECT_THAT(error([&] { routes_.add(json, "me"); }),
              HasSubstr("400 the form: expected Content-Type: multipart/form-data"));
  Uploads none({});
  FileRoutes off(none);
  EXPECT_THAT(error([&] { off.list(request("GET", "/v1/files"), "me"); }),
              HasSubstr("404 this server keeps no uploaded files"));
}

TEST_F(FileRoutesTest, WithoutRoomAClientTriesAgain) {
  Uploads small({.max_bytes = kUploadBytes + 10});
  FileRoutes routes(small);
  HttpRequest r = request("POST", "/v1/files");
  r.body = field("purpose", "vision") + file("a", "0123456789") + "--b--";
  const std::string id = OrderedJson::parse(routes.add(r, "").body)["id"];
  const auto used = small.find("", id)->bytes;
  r.body = field("purpose", "vision") + file("b", "9876543210") + "--b--";
  const HttpResponse full = routes.add(r, "");
  EXPECT_EQ(full.status, 503);
  EXPECT_EQ(full.headers.at(0).first, "retry-after");
}

TEST(UploadName, HasNoFoldersAndControlCharacters) {
  EXPECT_EQ(upload_name("a b.pdf", ""), "a b.pdf");
  EXPECT_EQ(upload_name("../../etc/passwd", ""), "passwd");
  EXPECT_EQ(upload_name("C:\\dir\\a.pdf", ""), "a.pdf");
  EXPECT_EQ(upload_name("a\r\nx: y\x7f.pdf", ""), "ax: y.pdf");
  EXPECT_EQ(upload_name("caf\xc3\xa9\xff", ""), "caf\xc3\xa9\xef\xbf\xbd");
  for (const char* none : {"", "/", ".", "..", "a/..", "\n"}) {
    EXPECT_EQ(upload_name(none, "application/pdf"), "unnamed.pdf") << none;
  }
  EXPECT_EQ(upload_name("", "x/y"), "unnamed");
  std::string wide;
  for (int i = 0; i < 200; ++i) wide += "\xc3\xa9";
  EXPECT_EQ(upload_name("x" + wide, "").size(), 255U);
  EXPECT_EQ(upload_name(wide, ""), wide.substr(0, 254));
}

// Parts of the other APIs; chat completions': api/messages/uploads_test.cc.
class UploadsOfOtherApis : public FileRoutesTest {
 protected:
  // Of the only message's last part: an image's bytes, or a text.
  std::string read(bool anthropic, const std::string& part) {
    NamedImages named(1 << 20);
    const ChatLimits limits{
        .read_document = [](const DocumentRequest& r) { return std::vector<EncodedImage>{r.document}; },
        .named_images = &named,
        .caller = "me",
        .uploads = &uploads_};
    ResponsesPlan plan;
    const OrderedJson body = parse_body(R"({"max_tokens": 1, ")" + std::string(anthropic ? "messages" : "input") +
                                        R"(": [{"role": "user", "content": [)" + part + "]}]}");
    const ChatRequest request =
        anthropic ? read_messages_request(body, {}, limits) : read_responses_request(body, {}, limits, plan);
    const Part& last = request.messages.at(0).parts.back();
    if (const auto* text = std::get_if<TextPart>(&last)) return text->text;
    const auto& bytes = *std::get<ImagePart>(last).image.bytes;
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
};

TEST_F(UploadsOfOtherApis, AreFound) {
  const std::string image = add_id("a.gif", "GIF89a"), pdf = add_id("a.pdf", "%PDF-1.7"),
                    text = add_id("a.md", "# Title");
  const auto source = [](const char* type, const std::string& id) {
    return R"({"type": ")" + std::string(type) + R"(", "source": {"type": "file", "file_id": ")" + id + "\"}}";
  };
  EXPECT_EQ(read(true, source("image", image)), "GIF89a");
  EXPECT_EQ(read(true, source("document", pdf)), "%PDF-1.7");
  EXPECT_EQ(read(true, source("document", text)), "# Title");
  EXPECT_EQ(read(true, source("document", image)), "GIF89a");
  EXPECT_EQ(read(false, R"({"type": "input_image", "file_id": ")" + image + R"(", "detail": "low"})"), "GIF89a");
  EXPECT_EQ(read(false, R"({"type": "input_file", "file_id": ")" + pdf + "\"}"), "%PDF-1.7");
  EXPECT_THAT(error([&] { read(true, source("image", pdf)); }),
              HasSubstr("400 messages[0].content[0].source.file_id: expected an image"));
  for (const char* type : {"image", "document"}) {
    EXPECT_THAT(error([&] { read(true, source(type, "file_x")); }),
                HasSubstr("404 messages[0].content[0].source.file_id: there is no file \"file_x\""));
  }
  EXPECT_THAT(error([&] { read(false, R"({"type": "input_image", "file_id": "x"})"); }),
              HasSubstr("404 input[0].content[0].file_id: there is no file \"x\""));
  EXPECT_THAT(error([&] { read(false, R"({"type": "input_file", "file_id": "x"})"); }),
              HasSubstr("404 input[0].content[0].file_id: there is no file \"x\""));
  EXPECT_THAT(error([&] { read(false, R"({"type": "input_file", "file_id": "x", "file_data": "eA=="})"); }),
              HasSubstr("400 input[0].content[0].file_id: not together"));
}

}  // namespace
}  // namespace vlcache
