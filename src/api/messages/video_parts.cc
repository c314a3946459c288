#include "api/messages/video_parts.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "api/json_fields.h"
#include "base/file_url.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

// vLLM's data URI of frames: JPEG files in base64, separated by commas.
constexpr std::string_view kFrames = "data:video/jpeg;base64,";

class VideoPartReader {
 public:
  VideoPartReader(const ClipSources& sources, EncodedVideo& video) : sources_(sources), video_(video) {}

  // A URL, a list of frames, or the id of an uploaded clip.
  void read(const OrderedJson& source, const std::string& where) {
    if (source.is_array()) return read_frames(source, where);
    const OrderedJson* id = source.is_object() ? find_field(source, "file_id") : nullptr;
    if (id != nullptr && find_field(source, "url") == nullptr) {
      video_.clip = sources_.find(*id, where + ".file_id");
      return;
    }
    const OrderedJson* url = source.is_object() ? find_field(source, "url") : &source;
    if (url != nullptr && url->is_array()) return read_frames(*url, where + ".url");
    if (url == nullptr || !url->is_string()) {
      bad_field(where + ": expected {\"url\": \"data:video/mp4;base64,...\"}, or a list of frames");
    }
    const auto& text = url->get_ref<const std::string&>();
    if (text.starts_with(kFrames)) return read_joined_frames(std::string_view(text).substr(kFrames.size()), where);
    video_.clip = shared_bytes(sources_.read({text}, where, FileKind::kVideo));
  }

  // llama.cpp's {data, format}, and base64 under another key.
  void read_data(const OrderedJson& source, const char* key, const std::string& where) {
    const EncodedText data = uri_or_base64(text_field(source, key, where));
    video_.clip = shared_bytes(decode_data(data, where + "." + key, FileKind::kVideo));
  }

 private:
  // Each a URL, or a part of an image.
  void read_frames(const OrderedJson& frames, const std::string& where) {
    if (std::ssize(frames) > VideoChoice::kMaxFrames) {
      bad_field(where + ": expected at most " + std::to_string(VideoChoice::kMaxFrames) + " frames");
    }
    for (size_t i = 0; i < frames.size(); ++i) {
      const std::string at = item_name(where, i);
      const OrderedJson* url = &frames[i];
      for (const char* key : {"image_url", "image", "url"}) {
        const OrderedJson* inner = url->is_object() ? find_field(*url, key) : nullptr;
        if (inner != nullptr) url = inner;
      }
      if (!url->is_string()) bad_field(at + ": expected the URL of an image (data:image/jpeg;base64,...)");
      video_.frames.push_back(shared_bytes(sources_.read({url->get_ref<const std::string&>()}, at, FileKind::kImage)));
    }
    if (frames.empty()) bad_field(where + ": expected a list of frames, found none");
  }

  void read_joined_frames(std::string_view text, const std::string& where) {
    while (!text.empty()) {
      const std::string_view frame = text.substr(0, text.find(','));
      text.remove_prefix(std::min(text.size(), frame.size() + 1));
      const std::string at = item_name(where, video_.frames.size());
      if (std::ssize(video_.frames) == VideoChoice::kMaxFrames) {
        bad_field(where + ": expected at most " + std::to_string(VideoChoice::kMaxFrames) + " frames");
      }
      video_.frames.push_back(
          shared_bytes(decode_data({.text = frame, .type = "image/jpeg", .is_base64 = true}, at, FileKind::kImage)));
    }
    if (video_.frames.empty()) bad_field(where + ": expected frames after the comma, found none");
  }

  const ClipSources& sources_;
  EncodedVideo& video_;
};

}  // namespace

void read_video_choice(const OrderedJson& object, const std::string& where, VideoChoice& choice) {
  if (const OrderedJson* fps = find_field(object, "fps"); fps != nullptr) {
    const bool unset = fps->is_number() && *fps == -1;
    if (!unset) choice.fps = checked_fps(fps->is_number() ? fps->get<double>() : 0, where + ".fps");
  }
  for (const char* key : {"num_frames", "max_frames"}) {
    const OrderedJson* n = find_field(object, key);
    if (n == nullptr) continue;
    const bool unset = n->is_number_integer() && *n == -1;
    const int64_t most = n->is_number_integer() && *n <= VideoChoice::kMaxFrames ? n->get<int64_t>() : 0;
    if (!unset) choice.max_frames = checked_max_frames(most, where + "." + key);
  }
}

VideoChoice take_video_choice(const OrderedJson& body, OrderedJson& settings) {
  VideoChoice choice;
  if (const OrderedJson* io = find_field(body, "media_io_kwargs"); io != nullptr && io->is_object()) {
    const OrderedJson* video = find_field(*io, "video");
    if (video != nullptr && video->is_object()) read_video_choice(*video, "media_io_kwargs.video", choice);
  }
  if (!settings.is_object()) return choice;
  read_video_choice(settings, "mm_processor_kwargs", choice);
  choice.all = !bool_field(settings, "do_sample_frames", true);
  for (const char* key : {"fps", "max_frames", "num_frames", "do_sample_frames"}) settings.erase(key);
  return choice;
}

VideoRequest read_video_part(const OrderedJson& part, const std::string& where, const VideoChoice& choice,
                             const ClipSources& sources) {
  VideoRequest request{.video = {}, .choice = choice, .options = {}, .limits = {}};
  constexpr std::array kKeys{"video_url", "video", "input_video", "url", "base64", "path", "source"};
  const auto key = std::ranges::find_if(kKeys, [&](const char* k) { return find_field(part, k) != nullptr; });
  const bool is_upload = key == kKeys.end() && find_field(part, "file_id") != nullptr;  // its id beside the type
  if (key == kKeys.end() && !is_upload) {
    bad_field(where + ".video_url: expected {\"url\": \"data:video/mp4;base64,...\"}, or a list of frames");
  }
  const std::string name = is_upload ? "" : *key;
  const OrderedJson& source = is_upload ? part : *find_field(part, *key);
  const std::string at = is_upload ? where : where + "." + name;
  request.video.where = at;
  VideoPartReader reader(sources, request.video);
  if (source.is_object() && find_field(source, "data") != nullptr) {
    reader.read_data(source, "data", at);
  } else if (name == "base64") {
    reader.read_data(part, "base64", where);
  } else if (name == "path" && source.is_string()) {
    reader.read(file_url_of(source.get<std::string>()), at);
  } else {
    reader.read(source, at);
  }
  if (source.is_object()) read_video_choice(source, at, request.choice);
  read_video_choice(part, where, request.choice);
  return request;
}

}  // namespace vlcache
