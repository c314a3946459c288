#include "cli/commands/conversation_file.h"

#include <nlohmann/json.hpp>

#include "api/messages/data_uri.h"
#include "base/error.h"
#include "base/format.h"
#include "base/json.h"
#include "io/image/encode.h"
#include "io/image/image.h"
#include "io/video/video_file.h"

namespace vlcache {
namespace {

using FileJson = nlohmann::ordered_json;

constexpr const char* kImages = "pictures";      // the page's word
constexpr std::string_view kClip = "video/mp4";  // of clips of an unknown kind, in data URIs

[[noreturn]] void expected(const std::string& where, const std::string& what) {
  throw Error(ErrorCode::kInput, where + ": expected " + what);
}

std::string text_of(const FileJson& object, const char* key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_string() ? at->get<std::string>() : "";
}

const FileJson& list_of(const FileJson& object, const char* key, const std::string& where) {
  static const FileJson kNone = FileJson::array();
  const auto at = object.find(key);
  if (at == object.end() || at->is_null()) return kNone;
  if (!at->is_array()) expected(where + ": " + key, "a list");
  return *at;
}

VideoBytes bytes_at(const FileJson& url, const std::string& place, FileKind kind) {
  if (!url.is_string()) expected(place, "a data URI");
  return std::make_shared<const std::vector<std::byte>>(
      decode_data_uri(url.get_ref<const std::string&>(), place, kind));
}

VideoRequest read_video(const FileJson& given, const std::string& where) {
  const std::string name = text_of(given, "name"), place = where + ": " + (name.empty() ? "a video" : name);
  VideoRequest request;
  request.video.where = name.empty() ? place : name;
  if (given.contains("url")) request.video.clip = bytes_at(given["url"], place, FileKind::kVideo);
  for (const FileJson& frame : list_of(given, "frames", place)) {
    request.video.frames.push_back(bytes_at(frame, place, FileKind::kImage));
  }
  if (request.video.clip == nullptr && request.video.frames.empty()) expected(place, "a url, or frames");
  const FileJson fps = given.value("fps", FileJson()), n = given.value("max_frames", FileJson());
  if (fps.is_number()) request.choice.fps = checked_fps(fps.get<double>(), place + ": fps");
  if (n.is_number_integer()) request.choice.max_frames = checked_max_frames(n.get<int64_t>(), place + ": max_frames");
  return request;
}

FileJson video_json(const ChatVideo& chat) {
  const auto uri = [](std::string_view type, const std::vector<std::byte>& bytes) {
    return "data:" + std::string(type) + ";base64," + base64(bytes);
  };
  const EncodedVideo& video = chat.request.video;
  FileJson json{{"name", video.where.substr(video.where.rfind('/') + 1)}};
  if (video.clip != nullptr) {
    const std::string_view image = media_type(*video.clip), type = clip_media_type(*video.clip);
    json["url"] = uri(!image.empty() ? image : !type.empty() ? type : kClip, *video.clip);
  }
  for (const VideoBytes& frame : video.frames) json["frames"].push_back(uri(media_type(*frame), *frame));
  if (chat.request.choice.fps > 0) json["fps"] = chat.request.choice.fps;
  if (chat.request.choice.max_frames > 0) json["max_frames"] = chat.request.choice.max_frames;
  return json;
}

ChatTurn read_question(const FileJson& message, const std::string& where) {
  ChatTurn turn;
  for (const FileJson& file : list_of(message, "files", where)) {
    std::string text = text_of(file, "text");
    while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0) text.pop_back();
    turn.question += text_of(file, "name") + ":\n\n" + text + "\n\n";
  }
  turn.question += text_of(message, "text");
  for (const FileJson& document : list_of(message, "documents", where)) {
    const std::string name = text_of(document, "name"), place = where + ": " + (name.empty() ? "a PDF" : name);
    DocumentRequest& request = turn.documents.emplace_back();
    request.document.bytes = std::make_shared<const std::vector<std::byte>>(
        decode_data_uri(text_of(document, "url"), place, FileKind::kPdf));
    request.document.where = place;
    request.name = name;
    request.pages = text_of(document, "pages");
  }
  for (const FileJson& video : list_of(message, "videos", where)) turn.videos.push_back({read_video(video, where), {}});
  for (const FileJson& image : list_of(message, kImages, where)) {
    const std::string name = text_of(image, "name"), place = where + ": " + (name.empty() ? "an image" : name);
    auto bytes = std::make_shared<const std::vector<std::byte>>(decode_data_uri(text_of(image, "url"), place));
    turn.images.push_back({.bytes = std::move(bytes),
                           .where = name.empty() ? place : name,
                           .limits = {},
                           .options = {},
                           .owner = "",
                           .text = text_of(image, "page_text")});
  }
  return turn;
}

// Returns false for a question without an answer.
bool read_answer(const FileJson& message, const std::string& where, ChatTurn& turn) {
  const FileJson& answers = list_of(message, "answers", where);
  if (answers.empty() || !answers[0].is_object()) expected(where + ": answers", "at least one");
  turn.answer = text_of(answers[0], "text");
  const auto asked = answers[0].find("asked");
  if (asked != answers[0].end() && asked->is_object()) {
    turn.kv = text_of(*asked, "kv");
    turn.budget = text_of(*asked, "budget");
  }
  return !turn.answer.empty() || text_of(answers[0], "state") == "done";
}

}  // namespace

std::string conversation_text(const ConversationFile& conversation, int64_t now_ms) {
  FileJson messages = FileJson::array(), ids = FileJson::array();
  for (const ChatTurn& turn : conversation.turns) {
    FileJson images = FileJson::array();
    for (const EncodedImage& image : turn.images) {
      const Image decoded = decode_image(*image.bytes, image.where, image.limits);
      const std::string id = format("image-%zu", ids.size() + 1);
      ids.push_back(id);
      images.push_back({{"id", id},
                        {"name", image.where.substr(image.where.rfind('/') + 1)},
                        {"width", decoded.width},
                        {"height", decoded.height},
                        {"url", "data:" + std::string(media_type(*image.bytes)) + ";base64," + base64(*image.bytes)}});
      if (!image.text.empty()) images.back()["page_text"] = image.text;
    }
    messages.push_back({{"role", "user"}, {"text", turn.question}, {kImages, images}, {"files", FileJson::array()}});
    for (const ChatVideo& video : turn.videos) messages.back()["videos"].push_back(video_json(video));
    const FileJson answer{{"label", turn.kv + (turn.budget.empty() ? "" : " " + turn.budget)},
                          {"asked", {{"kv", turn.kv}, {"budget", turn.budget}, {"reuse", ""}}},
                          {kImages, ids},
                          {"thought", ""},
                          {"text", turn.answer},
                          {"state", "done"},
                          {"error", ""},
                          {"retry", false},
                          {"finish", "stop"},
                          {"usage", nullptr},
                          {"served", nullptr},
                          {"seen", {{"first", nullptr}, {"total", nullptr}}}};
    messages.push_back({{"role", "assistant"}, {"answers", FileJson::array({answer})}});
  }
  FileJson file{{"id", format("chat-%lld", static_cast<long long>(now_ms))},
                {"name", conversation.name},
                {"created", now_ms},
                {"updated", now_ms},
                {"messages", std::move(messages)}};
  if (!conversation.system.empty()) file["system"] = conversation.system;
  return file.dump(1, ' ', false, FileJson::error_handler_t::replace) + "\n";
}

ConversationFile parse_conversation(std::string_view text, const std::string& where) {
  const FileJson file = parse_ordered_json(text, where);
  if (!file.is_object() || !file.contains("messages")) {
    expected(where, "a conversation that /save or the page of `serve` has written, found no messages");
  }
  ConversationFile conversation{.name = text_of(file, "name"), .system = text_of(file, "system"), .turns = {}};
  const FileJson& messages = list_of(file, "messages", where);
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string place = where + format(": messages[%zu]", i), role = i % 2 == 0 ? "user" : "assistant";
    if (!messages[i].is_object() || text_of(messages[i], "role") != role)
      expected(place, "a message with the role " + role);
    if (i % 2 == 0) {
      conversation.turns.push_back(read_question(messages[i], place));
      if (i + 1 == messages.size()) conversation.turns.pop_back();
    } else if (!read_answer(messages[i], place, conversation.turns.back())) {
      conversation.turns.pop_back();
    }
  }
  return conversation;
}

}  // namespace vlcache
