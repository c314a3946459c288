// ImageParts reads images, the pages of PDFs and videos into the parts of messages.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "api/messages/data_uri.h"
#include "api/messages/message.h"
#include "api/messages/named_images.h"
#include "api/messages/uploads.h"
#include "api/messages/video_parts.h"
#include "api/request_fields.h"
#include "base/request_limits.h"
#include "engine/prompt/document_reader.h"
#include "engine/prompt/encoded_image.h"

namespace vlcache {

// What a request may ask for, at most.
struct ChatLimits {
  size_t max_images = 64;
  ImageLimits image{.max_pixels = 64'000'000};
  // Whether work for the request is in vain; asked while it is done. Empty: never.
  std::function<bool()> cancelled;
  // Returns the bytes at the URL of an image or a PDF, which errors call `where`; empty: data URIs alone are accepted.
  std::function<std::vector<std::byte>(const std::string& url, const std::string& where, FileKind kind,
                                       const std::function<bool()>& cancelled)>
      read_url;
  // Draws the pages of a PDF or TIFF; empty: PDFs are refused, and of a TIFF the first page is read.
  std::function<std::vector<EncodedImage>(DocumentRequest request)> read_document;
  // Probes a video; empty: videos are refused.
  std::function<InputVideo(VideoRequest request)> read_video;
  int max_answers = kMaxAnswers;  // n
  int max_logprobs = 20;          // alternatives of a token
  // This caller's images with names, for parts with a `uuid`; null: a `uuid` is ignored.
  NamedImages* named_images = nullptr;
  std::string caller;
  Uploads* uploads = nullptr;  // for parts with a `file_id`, which may be a name, too; null: there are none
};

struct NamedImage {
  NamedImages::Name name;
  NamedImages::Bytes bytes;
  std::string where;  // the name, in errors
};

// Of all images and videos whose parts set none.
struct MediaOptions {
  ImageOptions images;
  VideoChoice videos;
};

// An image as a body has it. Null fields are left out.
struct GivenImage {
  std::string where;     // of the data, in errors
  std::string id_where;  // of the name; where it ends in file_id, the name may be an upload's
  std::optional<EncodedText> data = std::nullopt;
  const nlohmann::ordered_json* id = nullptr;
  bool least_detail = false;
};

// A PDF as a body has it, likewise.
struct GivenFile {
  std::string where;         // of the file, in errors
  std::string data_where;    // of its data or URL
  std::string choice_where;  // of `choice`
  EncodedText data = {};
  bool may_be_url = true;                      // else base64 or a data URI alone
  const nlohmann::ordered_json* id = nullptr;  // the file_id, instead of the data; it may be of any kind of file
  std::string name = "";
  const nlohmann::ordered_json* choice = nullptr;  // {pages, pdf_text}
  const nlohmann::ordered_json* part = nullptr;    // has fps and max_frames, if the file is a clip
  std::string part_where = "";
};

// The `detail` of an image; true: as few tokens as possible. Throws Error(kInput), beginning with `where`.
bool wants_least_detail(const nlohmann::ordered_json& source, const std::string& where);

class ImageParts {
 public:
  // The limits must outlive this object. messages: the field of the body that has them.
  ImageParts(const ChatLimits& limits, MediaOptions options, const RequestFields& fields,
             const char* messages = "messages");

  // Adds the image to `parts`, or the pages of a TIFF that has several. Throws Error(kInput), or kNotFound for an
  // unknown name; the message begins with the source's places.
  void add_image(const GivenImage& source, std::vector<Part>& parts);
  // The text of an uploaded file; nullopt: it is none, or there is no such file. Throws Error(kInput).
  std::optional<std::string> uploaded_text(const nlohmann::ordered_json& id, const std::string& where) const;
  // The image of an OpenAI `image_url` part.
  void add_image_url(const nlohmann::ordered_json& part, const std::string& where, std::vector<Part>& parts);
  // Adds the pages of the PDF or TIFF, each as an image, and their texts where these are asked for. Throws Error
  // likewise, and what reading documents throws. May take as long as fetching and drawing take.
  void add_file(const GivenFile& source, std::vector<Part>& parts);
  // The PDF of an object with file_data or file_url, within `part` or the part itself.
  void add_openai_file(const nlohmann::ordered_json& file, const std::string& file_where,
                       const nlohmann::ordered_json& part, const std::string& where, std::vector<Part>& parts);
  // Adds the video of a `video_url`, `video` or `input_video` part. Throws Error likewise, and what probing videos
  // throws. May take as long as fetching and demuxing take; its frames are decoded later.
  void add_video(const nlohmann::ordered_json& part, const std::string& where, std::vector<Part>& parts);

  // Images to be stored under their names, once they have been decoded.
  std::vector<NamedImage> take_named() { return std::move(named_); }

 private:
  void add_document(const GivenFile& source, std::shared_ptr<const std::vector<std::byte>> bytes,
                    std::vector<Part>& parts);
  void add_upload(const GivenFile& source, std::vector<Part>& parts);
  void add_clip(VideoRequest request, std::vector<Part>& parts);
  UploadPtr upload(const nlohmann::ordered_json& id, const std::string& where) const;
  VideoBytes find_clip(const nlohmann::ordered_json& id, const std::string& where) const;
  size_t n_more() const;
  void add_pages(DocumentRequest request, std::vector<Part>& parts);
  std::vector<std::byte> read(const EncodedText& data, const std::string& where, FileKind kind) const;
  NamedImages::Bytes find(const GivenImage& source, const std::string& id) const;

  const ChatLimits& limits_;
  const MediaOptions options_;
  const char* const messages_;
  const std::string owner_;
  const bool pdf_text_;
  size_t n_media_ = 0;
  std::vector<NamedImage> named_;
};

}  // namespace vlcache
