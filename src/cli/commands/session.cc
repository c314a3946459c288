#include "cli/commands/session.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "base/os/private_folder.h"
#include "io/image/image.h"
#include "store/disk/files.h"

namespace vlcache {
namespace {

namespace fs = std::filesystem;

constexpr int kVersion = 1;
constexpr size_t kMaxName = 64;
constexpr const char* kFile = "session.json";

bool is_name(std::string_view name) {
  const auto fits = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_'; };
  return !name.empty() && name.size() <= kMaxName && std::ranges::all_of(name, fits);
}

void make_folder(const fs::path& dir) {
  if (const int error = make_private_folders(dir)) {
    throw Error(ErrorCode::kIo, dir.string() + ": the session's folder cannot be made: " + std::strerror(error) +
                                    "; name another with --cache-disk");
  }
}

void write_whole(const fs::path& path, std::span<const std::byte> bytes) {
  TemporaryFile file(path.parent_path());
  file.write(bytes, kNoDeadline);
  file.commit(path);
  if (file.result().there()) return;
  throw Error(ErrorCode::kIo, path.string() + ": the session cannot be kept: " + file.result().detail);
}

Sha256Digest digest_of(const std::string& text, const std::string& where) {
  Sha256Digest digest{};
  const auto value = [](char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; };
  bool good = text.size() == 2 * digest.size();
  for (size_t i = 0; good && i < digest.size(); ++i) {
    const int high = value(text[2 * i]), low = value(text[2 * i + 1]);
    good = high >= 0 && low >= 0;
    digest[i] = static_cast<uint8_t>(16 * high + low);
  }
  if (!good) throw Error(ErrorCode::kInput, where + ": expected 64 hexadecimal digits, found '" + text + "'");
  return digest;
}

std::string name_of(std::span<const std::byte> image) {
  Sha256 hash;
  hash.add(image);
  return hex(hash.finish());
}

const Json& list(const JsonObject& o, std::string_view key) {
  const Json* value = o.find(key);
  if (value == nullptr || !value->is_array()) o.fail(key, "a list");
  return *value;
}

int32_t number(const Json& value, const std::string& where) {
  if (!value.is_number_integer() || value < 0 || value > INT32_MAX) {
    throw Error(ErrorCode::kInput, where + ": expected an integer of at least 0");
  }
  return value.get<int32_t>();
}

std::string text(const Json& value, const std::string& where) {
  if (!value.is_string()) throw Error(ErrorCode::kInput, where + ": expected a string");
  return value.get<std::string>();
}

PrefixTokens read_tokens(const JsonObject& o, const std::string& where) {
  PrefixTokens kv;
  for (const Json& id : list(o, "tokens")) kv.ids.push_back(number(id, where + ": tokens"));
  for (size_t i = 0; i < kv.ids.size(); ++i) kv.positions.push_back(Position::all(static_cast<int32_t>(i)));
  if (o.find("positions") != nullptr) {
    kv.positions.clear();
    for (const Json& p : list(o, "positions")) {
      if (!p.is_array() || p.size() != 3) throw Error(ErrorCode::kInput, where + ": positions: expected three numbers");
      kv.positions.push_back({number(p[0], where), number(p[1], where), number(p[2], where)});
    }
    if (kv.positions.size() != kv.ids.size())
      throw Error(ErrorCode::kInput, where + ": positions: expected one a token");
  }
  for (const Json& content : list(o, "images")) {
    kv.contents.push_back(digest_of(text(content, where + ": images"), where + ": images"));
  }
  kv.keys = kv.contents;
  if (o.find("keys") != nullptr) {
    kv.keys.clear();
    for (const Json& key : list(o, "keys")) kv.keys.push_back(digest_of(text(key, where + ": keys"), where + ": keys"));
    if (kv.keys.size() != kv.contents.size()) throw Error(ErrorCode::kInput, where + ": keys: expected one an image");
  }
  if (o.find("salt") != nullptr) kv.salt = digest_of(o.string("salt"), where + ": salt");
  int32_t after = 0;
  for (const Json& span : list(o, "spans")) {
    if (!span.is_array() || span.size() != 4) throw Error(ErrorCode::kInput, where + ": spans: expected four numbers");
    ImageSpan s{.begin = number(span[0], where),
                .end = number(span[1], where),
                .image = number(span[2], where),
                .first_row = number(span[3], where)};
    if (s.begin < after || s.end <= s.begin || s.end > std::ssize(kv.ids) || s.image >= std::ssize(kv.contents)) {
      throw Error(ErrorCode::kInput, where + ": spans: expected places among the tokens, in their order");
    }
    after = s.end;
    kv.spans.push_back(std::move(s));
  }
  return kv;
}

}  // namespace

SessionText parse_session(std::string_view json_text, const std::string& where) {
  const Json json = parse_json(json_text, where);
  const JsonObject o(json, where);
  if (o.integer("version") != kVersion) {
    throw Error(ErrorCode::kInput, where + ": a session of another version of vlcache");
  }
  SessionText session;
  session.state.system = o.string("system");
  for (const Json& entry : list(o, "turns")) {
    const JsonObject turn(entry, where + ": turns");
    session.state.turns.push_back(
        {.question = turn.string("question"), .answer = turn.string("answer"), .images = {}, .texts = {}});
    std::vector<std::string>& images = session.images.emplace_back();
    for (const Json& name : list(turn, "pictures")) {
      images.push_back(hex(digest_of(text(name, where + ": pictures"), where + ": pictures")));  // no path gets in
    }
    if (turn.find("page_texts") == nullptr) continue;
    for (const Json& page : list(turn, "page_texts")) {
      session.state.turns.back().texts.push_back(text(page, where + ": page_texts"));
    }
  }
  session.state.kv = read_tokens(o, where);
  return session;
}

std::string session_text(const SessionText& session) {
  nlohmann::ordered_json turns = nlohmann::ordered_json::array(), spans = turns, contents = turns;
  for (size_t i = 0; i < session.state.turns.size(); ++i) {
    const SessionTurn& turn = session.state.turns[i];
    turns.push_back({{"question", turn.question}, {"pictures", session.images[i]}, {"answer", turn.answer}});
    const auto has_text = [](const std::string& page) { return !page.empty(); };
    if (std::ranges::any_of(turn.texts, has_text)) turns.back()["page_texts"] = turn.texts;
  }
  for (const ImageSpan& s : session.state.kv.spans) spans.push_back({s.begin, s.end, s.image, s.first_row});
  for (const Sha256Digest& content : session.state.kv.contents) contents.push_back(hex(content));
  bool indices = true;  // every position is the token's index
  for (size_t i = 0; i < session.state.kv.positions.size(); ++i) {
    indices = indices && session.state.kv.positions[i] == Position::all(static_cast<int32_t>(i));
  }
  nlohmann::ordered_json json{{"version", kVersion},           {"system", session.state.system},
                              {"turns", std::move(turns)},     {"tokens", session.state.kv.ids},
                              {"images", std::move(contents)}, {"spans", std::move(spans)}};
  if (session.state.kv.keys != session.state.kv.contents) {
    for (const Sha256Digest& key : session.state.kv.keys) json["keys"].push_back(hex(key));
  }
  for (size_t i = 0; !indices && i < session.state.kv.positions.size(); ++i) {
    const Position& p = session.state.kv.positions[i];
    json["positions"].push_back({p.t, p.h, p.w});
  }
  if (session.state.kv.salt) json["salt"] = hex(*session.state.kv.salt);
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

Session::Session(const fs::path& folder, std::string_view name) : dir_(folder / std::string(name)) {
  if (!is_name(name)) {
    throw Error(ErrorCode::kInput,
                "--session: expected up to 64 letters, digits, - and _, found '" + std::string(name) + "'");
  }
  make_folder(dir_);
  const fs::path lock = dir_ / "lock";
  lock_ = ::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock_ < 0) throw Error(ErrorCode::kIo, lock.string() + ": " + std::strerror(errno));
  if (flock(lock_, LOCK_EX | LOCK_NB) == 0) {
    remove_stale_files_in(dir_);
    return;
  }
  close(lock_);
  throw Error(ErrorCode::kInput, "--session " + std::string(name) + ": it is open in another process");
}

Session::~Session() { close(lock_); }

SessionState Session::load() const {
  const fs::path path = dir_ / kFile;
  if (!fs::exists(path)) return {};
  SessionText session = parse_session(read_text_file(path), path.string());
  for (size_t i = 0; i < session.images.size(); ++i) {
    for (const std::string& name : session.images[i]) {
      auto bytes = std::make_shared<const std::vector<std::byte>>(read_image_file(dir_ / name));
      if (name_of(*bytes) != name) {
        throw Error(ErrorCode::kInput, (dir_ / name).string() + ": not the image that was kept there");
      }
      session.state.turns[i].images.push_back(std::move(bytes));
    }
  }
  return std::move(session.state);
}

void Session::save(const SessionState& state) const {
  SessionText session{.state = state, .images = {}};
  std::set<std::string> used;
  for (const SessionTurn& turn : state.turns) {
    std::vector<std::string>& images = session.images.emplace_back();
    for (const auto& bytes : turn.images) {
      images.push_back(name_of(*bytes));
      const fs::path path = dir_ / images.back();
      if (used.insert(images.back()).second && !fs::exists(path)) write_whole(path, *bytes);
    }
  }
  const std::string text = session_text(session);
  write_whole(dir_ / kFile, std::as_bytes(std::span(text)));
  for (const auto& entry : fs::directory_iterator(dir_)) {  // images that were taken back
    const std::string name = entry.path().filename();
    if (name.size() == 64 && !used.contains(name)) fs::remove(entry.path());
  }
}

}  // namespace vlcache
