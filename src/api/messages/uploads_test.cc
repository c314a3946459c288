// Uploaded files: their owners, bounds in bytes and time, and the parts of messages that name them.
#include "api/messages/uploads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "api/json_fields.h"
#include "api/messages/chat_request.h"
#include "base/error.h"

namespace vlcache {
namespace {

using testing::HasSubstr;

std::shared_ptr<const std::vector<std::byte>> upload_bytes(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return std::make_shared<const std::vector<std::byte>>(bytes.begin(), bytes.end());
}

Upload upload_of(const std::string& id, std::string_view text) {
  return {.id = id,
          .name = id,
          .purpose = "user_data",
          .type = upload_type(*upload_bytes(text), ""),
          .bytes = upload_bytes(text)};
}

// Adds a file of n bytes, which are all the same.
UploadPtr add_upload(Uploads& uploads, const std::string& owner, const std::string& id, size_t n, char c = 'a',
                     int64_t seconds = 0) {
  return uploads.add(owner, upload_of(id, std::string(n, c)), seconds, "file");
}

TEST(Uploads, BelongToTheirOwner) {
  Uploads uploads({.max_bytes = 1 << 20});
  add_upload(uploads, "a", "1", 10);
  add_upload(uploads, "b", "2", 20);
  EXPECT_EQ(uploads.find("a", "1")->bytes->size(), 10U);
  EXPECT_EQ(uploads.find("b", "1"), nullptr);
  EXPECT_EQ(uploads.find("", "1"), nullptr);
  EXPECT_EQ(uploads.list("a").size(), 1U);
  EXPECT_TRUE(uploads.list("c").empty());
  EXPECT_FALSE(uploads.remove("b", "1"));
  EXPECT_TRUE(uploads.remove("a", "1"));
  EXPECT_FALSE(uploads.remove("a", "1"));
  EXPECT_EQ(uploads.find("a", "1"), nullptr);
  EXPECT_EQ(uploads.state().n_removed, 1);
  EXPECT_EQ(uploads.state().bytes, 20 + kUploadBytes);
}

TEST(Uploads, TheSameBytesAreStoredOnce) {
  Uploads uploads({.max_bytes = 1 << 20});
  const UploadPtr one = add_upload(uploads, "a", "1", 1000), two = add_upload(uploads, "b", "2", 1000),
                  other = add_upload(uploads, "b", "3", 1000, 'b');
  EXPECT_EQ(one->bytes, two->bytes);
  EXPECT_NE(one->bytes, other->bytes);
  EXPECT_EQ(uploads.state().bytes, 2000 + 3 * kUploadBytes);
  EXPECT_TRUE(uploads.remove("a", "1"));
  EXPECT_EQ(uploads.state().bytes, 2000 + 2 * kUploadBytes);
  EXPECT_EQ(uploads.find("b", "2")->bytes->size(), 1000U);
  EXPECT_TRUE(uploads.remove("b", "2"));
  EXPECT_EQ(uploads.state().bytes, 1000 + kUploadBytes);
}

TEST(Uploads, ExpireByTheirOwnTimes) {
  int64_t now = 1000;
  Uploads uploads({.max_bytes = 1 << 20, .seconds = 100}, [&] { return now; });
  EXPECT_EQ(add_upload(uploads, "", "short", 10, 'a', 5)->expires, 1005);
  EXPECT_EQ(add_upload(uploads, "", "usual", 10)->expires, 1100);
  EXPECT_EQ(add_upload(uploads, "", "long", 10, 'b', 1'000'000)->expires, 1100) << "as long as the server keeps any";
  now = 1004;
  const UploadPtr held = uploads.find("", "short");
  ASSERT_NE(held, nullptr);
  now = 1005;
  EXPECT_EQ(uploads.find("", "short"), nullptr);
  EXPECT_EQ(held->bytes->size(), 10U) << "a request that has the file keeps it";
  EXPECT_EQ(uploads.list("").size(), 2U);
  now = 1100;
  EXPECT_FALSE(uploads.remove("", "usual"));
  EXPECT_EQ(uploads.state().n_expired, 3);
  EXPECT_EQ(uploads.state().bytes, 0);
  EXPECT_EQ(
      uploads.unknown("short", "id"),
      "id: there is no file \"short\", or no longer: this server keeps uploads in memory for 100 s, unless they are "
      "evicted or it is restarted; upload it again (POST /v1/files), or send its bytes");
  EXPECT_THAT(Uploads({.seconds = 86'400}).unknown("x", "id"), HasSubstr("for 24 hours,"));
  EXPECT_THAT(Uploads({.seconds = 90 * 60}).unknown("x", "id"), HasSubstr("for 90 minutes,"));
}

TEST(Uploads, TheLeastRecentlyUsedOfTheLargestOwnerAreEvicted) {
  Uploads uploads({.max_bytes = 5 * (kUploadBytes + 1000)});
  for (const char* id : {"1", "2", "3", "0"}) add_upload(uploads, "many", id, 1000, id[0]);
  add_upload(uploads, "few", "4", 1000, '4');
  EXPECT_NE(uploads.find("many", "1"), nullptr);
  EXPECT_NE(add_upload(uploads, "few", "5", 1000, '5'), nullptr);
  EXPECT_EQ(uploads.find("many", "2"), nullptr);
  EXPECT_NE(uploads.find("many", "1"), nullptr);
  EXPECT_EQ(uploads.state().n_evicted, 1);
  // A file that a request reads stays, and the next one is evicted.
  const auto used = uploads.find("many", "3")->bytes;
  for (const char* id : {"0", "1"}) EXPECT_NE(uploads.find("many", id), nullptr);
  EXPECT_NE(add_upload(uploads, "few", "6", 1000, '6'), nullptr);
  EXPECT_EQ(uploads.find("many", "0"), nullptr);
  EXPECT_NE(uploads.find("many", "3"), nullptr);
  // The file that is evicted for another may have its bytes.
  EXPECT_EQ(*add_upload(uploads, "few", "7", 1000, '4')->bytes, *upload_bytes(std::string(1000, '4')));
  EXPECT_EQ(uploads.find("few", "4"), nullptr);
  EXPECT_EQ(uploads.state().bytes, uploads.state().max_bytes);
}

TEST(Uploads, FilesThatAreAllInUseLeaveNoRoom) {
  Uploads uploads({.max_bytes = kUploadBytes + 1000});
  auto used = add_upload(uploads, "", "1", 1000)->bytes;
  EXPECT_EQ(add_upload(uploads, "", "2", 1000, 'b'), nullptr);
  EXPECT_NE(uploads.find("", "1"), nullptr);
  used = nullptr;
  EXPECT_NE(add_upload(uploads, "", "2", 1000, 'b'), nullptr);
  EXPECT_EQ(uploads.find("", "1"), nullptr);
}

TEST(Uploads, LargeFilesAreRefusedByName) {
  Uploads uploads({.max_bytes = 5000, .max_file_bytes = 2000});
  const auto refusal = [&](Uploads& to, size_t n) -> std::string {
    try {
      add_upload(to, "", "1", n);
      return "";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kMemory);
      return e.what();
    }
  };
  EXPECT_EQ(refusal(uploads, 2000), "");
  EXPECT_EQ(refusal(uploads, 2001), "file: the file has 2001 bytes; the limit is 2000 (--max-file)");
  Uploads small({.max_bytes = 5000});
  EXPECT_THAT(refusal(small, 5000), HasSubstr("(--files-memory)"));
  EXPECT_EQ(small.state().n_files, 0U);
}

TEST(Uploads, ManySmallFilesStayWithinTheMemory) {
  Uploads uploads({.max_bytes = 64 << 10});
  const std::vector<UploadPtr> listed{add_upload(uploads, "", "listed", 1)};  // a list uses no file
  for (int i = 0; i < 5000; ++i) add_upload(uploads, "", std::to_string(i), 1);
  EXPECT_EQ(uploads.state().n_files, 63U);
  EXPECT_EQ(uploads.state().n_evicted, 5001 - 63);
  EXPECT_EQ(uploads.list("").back()->id, "4999");
  EXPECT_EQ(uploads.list("").front()->id, "4937");
}

TEST(Uploads, ThreadsAddListAndRemove) {
  Uploads uploads({.max_bytes = 100 * (kUploadBytes + 50)});
  const auto work = [&](const std::string& owner) {
    for (int i = 0; i < 300; ++i) {
      const std::string id = owner + std::to_string(i);
      const UploadPtr added = add_upload(uploads, owner, id, 50, static_cast<char>('a' + i % 7));
      EXPECT_NE(added, nullptr);
      for (const UploadPtr& listed : uploads.list(owner)) EXPECT_EQ(listed->id.substr(0, 1), owner);
      if (i % 3 == 0) uploads.remove(owner, id);
    }
  };
  std::thread a(work, "a"), b(work, "b");
  a.join();
  b.join();
  const Uploads::State state = uploads.state();
  EXPECT_EQ(state.n_files, uploads.list("a").size() + uploads.list("b").size());
  for (const char* owner : {"a", "b"}) {
    for (const UploadPtr& file : uploads.list(owner)) uploads.remove(owner, file->id);
  }
  EXPECT_EQ(uploads.state().bytes, 0);
}

TEST(Uploads, TypesAreThoseOfTheBytes) {
  const auto type = [](std::string_view bytes, std::string_view given) {
    return upload_type(*upload_bytes(bytes), given);
  };
  EXPECT_EQ(type("\x89PNG\r\n\x1a\n", "application/pdf"), "image/png");
  EXPECT_EQ(type("%PDF-1.7", "application/octet-stream"), "application/pdf");
  EXPECT_EQ(type(std::string_view("\0\0\0 ftypisom", 12), "image/png"), "video/mp4");
  EXPECT_EQ(type("{}", "application/json"), "application/json");
  EXPECT_EQ(type("# Title", "application/octet-stream"), "text/plain");
  EXPECT_EQ(type("# Title", "text/html\r\nx: y"), "text/plain");
  EXPECT_EQ(type("# Title", "/html"), "text/plain");
  EXPECT_EQ(type(std::string_view("\0\1", 2), ""), "application/octet-stream");
  EXPECT_EQ(upload_of("1", "# Title\n\tcaf\xc3\xa9").text(), "# Title\n\tcaf\xc3\xa9");
  EXPECT_EQ(upload_of("1", "\xff").text(), std::nullopt);
  EXPECT_EQ(upload_of("1", "%PDF-1.7").text(), std::nullopt);
}

// The parts of a chat completion whose file has that id.
class UploadParts : public testing::Test {
 protected:
  UploadParts() {
    for (const auto& [id, text] : {std::pair("image", "GIF89a"), std::pair("pdf", "%PDF-1.7"),
                                   std::pair("text", "hello"), std::pair("clip", "\x1a\x45\xdf\xa3")}) {
      uploads_.add("me", upload_of(id, text), 0, "file");
    }
    uploads_.add("you", upload_of("yours", "GIF89a"), 0, "file");
    named_.add({"me\n", "named"}, upload_bytes("GIF89a of a name"), "here");
    named_.add({"me\n", "image"}, upload_bytes("GIF89a of a name that an upload has, too"), "here");
  }

  // The bytes of the only part, in words; or the error.
  std::string read(const std::string& part) {
    const ChatLimits limits{.read_document =
                                [](const DocumentRequest& request) {
                                  EncodedImage page = request.document;
                                  page.where = request.name + ":" + page.where;
                                  return std::vector<EncodedImage>{page};
                                },
                            .read_video =
                                [](const VideoRequest& request) {
                                  const std::string bytes = std::to_string(request.video.clip->size());
                                  const int fps = static_cast<int>(request.choice.fps);
                                  return InputVideo{
                                      .where = bytes + " bytes" + (fps == 0 ? "" : " at " + std::to_string(fps)),
                                      .read = nullptr};
                                },
                            .named_images = &named_,
                            .caller = "me",
                            .uploads = has_uploads_ ? &uploads_ : nullptr};
    try {
      const ChatRequest request =
          read_chat_request(parse_body(R"({"messages": [{"role": "user", "content": [)" + part + "]}]}"), {}, limits);
      const Part& only = request.messages.at(0).parts.at(0);
      if (const auto* video = std::get_if<VideoPart>(&only)) return video->video.where;
      const EncodedImage& image = std::get<ImagePart>(only).image;
      const std::string text(reinterpret_cast<const char*>(image.bytes->data()), image.bytes->size());
      return text + (image.where.starts_with("messages") ? "" : " " + image.where);
    } catch (const Error& e) {
      const std::string what = e.what();
      const std::string start = "messages[0].content[0].";
      EXPECT_TRUE(what.starts_with(start)) << what;
      return (e.code() == ErrorCode::kNotFound ? "404 " : "400 ") + what.substr(std::min(what.size(), start.size()));
    }
  }
  std::string file(const std::string& id) { return read(R"({"type": "file", "file": {"file_id": ")" + id + "\"}}"); }

  Uploads uploads_{{.max_bytes = 1 << 20}};
  NamedImages named_{1 << 20};
  bool has_uploads_ = true;
};

TEST_F(UploadParts, FilesOfAnyKind) {
  EXPECT_EQ(file("image"), "GIF89a");
  EXPECT_EQ(file("pdf"), "%PDF-1.7 pdf:messages[0].content[0].file");
  EXPECT_EQ(file("clip"), "4 bytes");
  EXPECT_EQ(read(R"({"type": "file", "file": {"file_id": "clip"}, "fps": 2})"), "4 bytes at 2");
  for (const char* id : {"image", "clip"}) {
    EXPECT_THAT(
        read(R"({"type": "file", "file": {"file_id": ")" + std::string(id) + R"("}, "vlcache": {"pages": "1"}})"),
        HasSubstr("400 vlcache.pages: the file has none, its type is "));
  }
  EXPECT_EQ(file("named"), "GIF89a of a name");
  EXPECT_EQ(read(R"({"type": "file", "file": {"file_id": "pdf", "filename": "my.pdf", "file_data": null}})"),
            "%PDF-1.7 my.pdf:messages[0].content[0].file");
  EXPECT_THAT(file("yours"), HasSubstr("404 file.file_id: there is no file \"yours\", or no longer: "));
  EXPECT_THAT(file(""), HasSubstr("404 file.file_id: there is no file \"\""));
  EXPECT_EQ(read(R"({"type": "file", "file": {"file_id": 1}})"), "400 file.file_id: expected a string");
  EXPECT_EQ(read(R"({"type": "file", "file": {"file_id": "pdf", "file_data": "JVBERi0="}})"),
            "400 file.file_id: not together with file_data");
  EXPECT_EQ(file(std::string(257, 'x')), "400 file.file_id: expected at most 256 bytes");
  EXPECT_TRUE(uploads_.remove("me", "pdf"));
  EXPECT_THAT(file("pdf"), HasSubstr("upload it again (POST /v1/files)"));
}

TEST_F(UploadParts, Images) {
  for (const char* part : {R"({"type": "image_url", "file_id": "image"})",
                           R"({"type": "image_url", "image_url": {"file_id": "image", "url": null}})",
                           R"({"type": "image_file", "image_file": {"file_id": "image", "detail": "low"}})"}) {
    EXPECT_EQ(read(part), "GIF89a") << part;
  }
  EXPECT_EQ(read(R"({"type": "image_url", "uuid": "image"})"), "GIF89a of a name that an upload has, too");
  EXPECT_EQ(read(R"({"type": "image_url", "file_id": "named"})"), "GIF89a of a name");
  EXPECT_EQ(read(R"({"type": "image_url", "file_id": "pdf"})"),
            "400 file_id: expected an image, found a file of type application/pdf; name it in a part for files");
  EXPECT_THAT(read(R"({"type": "image_file", "image_file": {"file_id": "x"}})"),
              HasSubstr("404 image_file.file_id: there is no file \"x\""));
  EXPECT_THAT(read(R"({"type": "image_url", "uuid": "x"})"), HasSubstr("send the image's bytes with the name"));
}

TEST_F(UploadParts, Videos) {
  EXPECT_EQ(read(R"({"type": "video_url", "video_url": {"file_id": "clip"}, "fps": 2})"), "4 bytes at 2");
  EXPECT_EQ(read(R"({"type": "input_video", "input_video": {"file_id": "clip", "fps": 2}})"), "4 bytes at 2");
  EXPECT_EQ(read(R"({"type": "video", "file_id": "clip"})"), "4 bytes");
  EXPECT_EQ(read(R"({"type": "video", "file_id": "image"})"), "6 bytes") << "a GIF may be animated";
  EXPECT_EQ(read(R"({"type": "video", "file_id": "pdf"})"),
            "400 file_id: expected a video, found a file of type application/pdf");
  EXPECT_THAT(read(R"({"type": "video", "video": {"file_id": "x"}})"),
              HasSubstr("404 video.file_id: there is no file"));
}

TEST_F(UploadParts, OfAServerWithoutUploads) {
  has_uploads_ = false;
  EXPECT_EQ(read(R"({"type": "image_url", "file_id": "named"})"), "GIF89a of a name");
  EXPECT_THAT(read(R"({"type": "image_url", "file_id": "x"})"), HasSubstr("404 file_id: this replica has no image"));
  for (const char* id : {"named", "pdf"}) {
    EXPECT_EQ(file(id), "400 file.file_id: this server keeps no uploaded files; send the PDF itself as file_data");
  }
  EXPECT_EQ(read(R"({"type": "video", "file_id": "clip"})"), "400 file_id: this server keeps no uploaded files");
}

}  // namespace
}  // namespace vlcache
