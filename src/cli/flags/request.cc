// A line of JSON is parsed once, then every key is checked for type and range.
#include "cli/flags/request.h"

#include <algorithm>
#include <array>

#include "analysis/question_line.h"
#include "api/json_fields.h"
#include "api/messages/any_part.h"
#include "api/messages/chat_request.h"
#include "api/reuse_choice.h"
#include "base/error.h"
#include "base/json.h"
#include "base/json_text.h"
#include "base/nearest.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

[[noreturn]] void fail(const std::string& what) { throw Error(ErrorCode::kInput, "request: " + what); }

// The PDF within a part of OpenAI's, as a data URI.
std::optional<std::string> file_in(const OrderedJson& part) {
  const OrderedJson* file = find_field(part, "file");
  const std::string data = text_in(file != nullptr ? *file : part, "file_data");
  if (data.empty()) return std::nullopt;
  return is_data_uri(data) ? data : "data:application/pdf;base64," + data;
}

// The path in an image's part, if it has one.
std::optional<std::string> path_of(const OrderedJson& part) {
  if (std::optional<std::string> file = file_in(part)) return file;
  std::string made;
  if (const std::string* path = source_of_image(part, made)) return checked_path(*path, "request");
  for (const char* key : {"image", "image_url", "path", "url"}) {
    if (part.contains(key)) fail("messages: an image's part: expected a path as " + std::string(key));
  }
  return std::nullopt;
}

// fps and max_frames beside a video.
void read_choice(const OrderedJson& object, VideoChoice& choice) {
  const OrderedJson fps = object.value("fps", OrderedJson()), n = object.value("max_frames", OrderedJson());
  if (!fps.is_null()) choice.fps = checked_fps(fps.is_number() ? fps.get<double>() : 0, "request: fps");
  if (n.is_null()) return;
  choice.max_frames = checked_max_frames(n.is_number_integer() ? n.get<int64_t>() : 0, "request: max_frames");
}

// A path as -v takes it, or a list of frames' paths.
VideoPath video_at(const OrderedJson& source) {
  VideoPath video;
  if (source.is_string()) {
    const std::string path = checked_path(source.get<std::string>(), "request");
    video.video = is_data_uri(path) ? VideoArgument{.path = path, .choice = {}} : parse_video_argument(path);
    return video;
  }
  const auto is_text = [](const OrderedJson& item) { return item.is_string(); };
  if (!source.is_array() || source.empty() || !std::ranges::all_of(source, is_text)) {
    fail("a video: expected a path, or a list of paths of its frames");
  }
  for (const OrderedJson& frame : source) video.frames.push_back(checked_path(frame.get<std::string>(), "request"));
  return video;
}

// The video that a part, or an object of `videos`, names.
std::optional<VideoPath> video_of(const OrderedJson& part) {
  for (const char* key : {"video", "video_url", "path", "url"}) {
    if (!part.contains(key)) continue;
    const OrderedJson& value = part[key];
    VideoPath video = video_at(value.is_object() ? value.value("url", OrderedJson()) : value);
    read_choice(part, video.video.choice);
    return video;
  }
  return std::nullopt;
}

std::vector<VideoPath> read_videos(const OrderedJson& object) {
  std::vector<VideoPath> videos;
  const OrderedJson given = object.value("videos", OrderedJson());
  if (given.is_null()) return videos;
  for (const OrderedJson& item : given.is_array() ? given : OrderedJson::array({given})) {
    std::optional<VideoPath> video = item.is_object() ? video_of(item) : video_at(item);
    if (!video) fail("videos: expected {\"video\": PATH, \"fps\": F, \"max_frames\": N}");
    videos.push_back(*std::move(video));
  }
  return videos;
}

// What parts of one type name: a part's own, or the next of `listed`; the rest of those comes last, for placeholders
// within a text.
template <typename Item>
class NamedMedia {
 public:
  using Read = std::optional<Item> (*)(const OrderedJson& part);
  NamedMedia(PartKind kind, std::string noun, Read read, std::vector<Item> listed)
      : kind_(kind), noun_(std::move(noun)), read_(read), listed_(std::move(listed)) {}

  // False: the part is of another kind.
  bool take(const OrderedJson& part) {
    const PartKind kind = kind_of_part(part);
    const bool pages = kind_ == PartKind::kImage && kind == PartKind::kFile && file_in(part).has_value();
    if (kind != kind_ && !pages) return false;
    std::optional<Item> own = read_(part);
    if (!own && next_ == listed_.size()) {
      fail("messages: more " + noun_ + "s without a path of their own than " + noun_ + "s, which lists " +
           std::to_string(listed_.size()));
    }
    taken_.push_back(own ? *std::move(own) : listed_[next_++]);
    return true;
  }
  std::vector<Item> all() {
    taken_.insert(taken_.end(), listed_.begin() + static_cast<int64_t>(next_), listed_.end());
    return std::move(taken_);
  }

 private:
  const PartKind kind_;
  const std::string noun_;
  const Read read_;
  const std::vector<Item> listed_;
  std::vector<Item> taken_;
  size_t next_ = 0;
};

using Images = NamedMedia<std::string>;
using Videos = NamedMedia<VideoPath>;

Part read_part(OrderedJson& part, const std::string& where, Images& images, Videos& videos) {
  const OrderedJson* type = part.is_object() ? find_field(part, "type") : nullptr;
  const bool good = part.is_string() || (part.is_object() && (type == nullptr || type->is_string()));
  if (!good) fail(where + ".content: expected parts with a type, found " + shown_json(part));
  if (images.take(part)) return ImagePart{};
  if (videos.take(part)) return VideoPart{};
  const bool has_image = part.is_object() && (find_field(part, "image") || find_field(part, "image_url"));
  if (has_image && kind_of_part(part) == PartKind::kUnknown) {
    fail(where + ".content: expected an image in a part of type \"image\", found " + shown_json(part));
  }
  const bool is_text = kind_of_part(part) == PartKind::kText;
  const std::string* text = is_text ? text_of_part(part, where + ".content") : nullptr;
  if (text != nullptr && (part.is_string() || text_in(part, "type") != "text")) return TextPart{*text};
  return OtherPart{std::move(part)};
}

// Ollama's images beside a text, before which they stand; here paths.
void take_images(OrderedJson& given, const std::string& where, Images& images, Message& message) {
  const OrderedJson* list = find_field(given, "images");
  if (list == nullptr || list->empty() || *list == false || *list == 0 || *list == "") return;
  const auto is_text = [](const OrderedJson& item) { return item.is_string(); };
  if (!list->is_array() || !std::ranges::all_of(*list, is_text)) fail(where + ".images: expected a list of paths");
  if (message.role != "user") fail(where + ".images: expected none in a message of the role " + message.role);
  for (const OrderedJson& path : *list) {
    images.take({{"type", "image"}, {"image", path}});
    message.parts.emplace_back(ImagePart{});
  }
  message.plain = false;
  given.erase("images");
}

// What templates and their probes rely on is checked; what else a message has is for its template to read.
Message read_message(OrderedJson given, const std::string& where, Images& images, Videos& videos) {
  Message message{.role = text_in(given, "role"), .plain = true};
  if (message.role.empty()) fail(where + ": expected {role, content}, found " + shown_json(given));
  take_images(given, where, images, message);
  if (const OrderedJson* content = find_field(given, "content"); content != nullptr && !content->is_string()) {
    if (!content->is_array())
      fail(where + ".content: expected a text or a list of parts, found " + shown_json(*content));
    message.plain = false;
    for (OrderedJson& part : given["content"]) message.parts.push_back(read_part(part, where, images, videos));
  } else if (content != nullptr && !message.plain) {
    message.parts.emplace_back(TextPart{content->get<std::string>()});
  }
  if (const OrderedJson* calls = find_field(given, "tool_calls")) {
    read_tool_calls(*calls, where + ".tool_calls");  // for its errors
  }
  message.own = std::move(given);
  return message;
}

// The paths of images and videos come in the order of the parts.
void read_messages(OrderedJson given, Question& q) {
  if (!given.is_array() || given.empty()) fail("messages: expected a list of {role, content}");
  Images images(PartKind::kImage, "image", path_of, std::move(q.images));
  Videos videos(PartKind::kVideo, "video", video_of, std::move(q.videos));
  for (size_t i = 0; i < given.size(); ++i) {
    q.messages.push_back(read_message(std::move(given[i]), item_name("messages", i), images, videos));
  }
  q.images = images.all();
  q.videos = videos.all();
}

void check_keys(const OrderedJson& object) {
  const std::vector<std::string>& known = line_keys();
  const bool is_question = object.contains("answer") || object.contains("answers");  // may say more about itself
  for (const auto& [key, value] : object.items()) {
    if (std::ranges::find(known, key) != known.end() || (is_question && !is_mistyped(key))) continue;
    std::string all;
    for (const std::string& k : known) all += (all.empty() ? "" : ", ") + k;
    fail("unknown key '" + key + "'" + did_you_mean(key, known) + "; known are " + all);
  }
}

void resolve_paths(Question& q) {
  for (std::string& image : q.images) image = resolved_path(q.folder, image);
  for (VideoPath& video : q.videos) {
    if (video.frames.empty()) video.video.path = resolved_path(q.folder, video.video.path);
    for (std::string& frame : video.frames) frame = resolved_path(q.folder, frame);
  }
}

Question parse_question(OrderedJson object, const Question& defaults) {
  Question q = defaults;
  // Templates print keys in their original order: messages keep it; for the rest it does not matter.
  OrderedJson messages;
  if (object.contains("messages")) messages = std::exchange(object["messages"], OrderedJson());
  q.videos = read_videos(object);
  const Json json(object);
  const JsonObject o(json, "request");
  q.raw = o.boolean("raw", q.raw);
  q.system = o.string("system", q.system);
  if (o.has("turns")) fail("turns: expected a question on each line; eval --data alone asks several turns");
  std::optional<std::string> asked = asked_text(o);
  if (asked.has_value() != messages.is_null()) {
    fail(std::string("expected either prompt (or question) or messages, found ") + (asked ? "both" : "neither"));
  }
  for (std::string& path : image_paths(o)) q.images.push_back(checked_path(std::move(path), "request"));
  if (asked) {
    q.prompt = *std::move(asked);
  } else {
    if (q.raw) fail("raw takes a prompt, not messages");
    read_messages(std::move(messages), q);
  }
  resolve_paths(q);
  return q;
}

}  // namespace

RequestLine read_request(std::string_view line, const Question& defaults, const RequestFields& default_fields) {
  RequestLine out;
  try {
    OrderedJson json = parse_ordered_json(line, "request");
    if (!json.is_object()) fail(std::string("expected a JSON object, found ") + json.type_name());
    if (json.contains("id")) out.id = json["id"];
    check_keys(json);
    out.fields = over(read_line_fields(json), default_fields);
    if (out.fields.reuse) check_reuse(*out.fields.reuse);
    out.question = parse_question(std::move(json), defaults);
  } catch (const Error& e) {
    out.error = e.what();
  }
  return out;
}

}  // namespace vlcache
