#include "api/messages/uploads.h"

#include <algorithm>
#include <ctime>
#include <iterator>

#include "base/error.h"
#include "base/utf8.h"
#include "io/document/pdf.h"
#include "io/image/image.h"
#include "io/video/video_file.h"

namespace vlcache {
namespace {

constexpr size_t kShownIdBytes = 80, kMaxTypeBytes = 127;

// "24 hours", "90 minutes", "10 s": in whole units.
std::string shown_time(int64_t seconds) {
  if (seconds % 3600 == 0) return std::to_string(seconds / 3600) + (seconds == 3600 ? " hour" : " hours");
  if (seconds % 60 == 0) return std::to_string(seconds / 60) + (seconds == 60 ? " minute" : " minutes");
  return std::to_string(seconds) + " s";
}

// "type/subtype" of RFC 6838's characters.
bool is_media_type(std::string_view text) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
           std::string_view("!#$&^_.+-/").find(c) != std::string_view::npos;
  };
  const size_t slash = text.find('/');
  return text.size() <= kMaxTypeBytes && slash != text.npos && slash > 0 && slash + 1 < text.size() &&
         text.find('/', slash + 1) == text.npos && std::ranges::all_of(text, plain);
}

// The same bytes, counted apart: the count of a file tells whether a request uses it.
Upload::Bytes lent(const Upload::Bytes& bytes) { return {std::make_shared<const Upload::Bytes>(bytes), bytes.get()}; }

std::optional<std::string_view> as_text(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto binary = [](char c) { return static_cast<unsigned char>(c) < '\t' || c == 0x7f; };
  if (std::ranges::any_of(text, binary) || !is_valid_utf8(text)) return std::nullopt;
  return text;
}

}  // namespace

std::string upload_type(std::span<const std::byte> bytes, std::string_view given) {
  if (const std::string_view image = media_type(bytes); !image.empty()) return std::string(image);
  if (const std::string_view clip = clip_media_type(bytes); !clip.empty()) return std::string(clip);
  if (is_pdf(bytes)) return "application/pdf";
  if (is_media_type(given) && given != "application/octet-stream") return std::string(given);
  return as_text(bytes) ? "text/plain" : "application/octet-stream";
}

std::optional<std::string_view> Upload::text() const {
  return is_image() || is_clip() || is_pdf() ? std::nullopt : as_text(*bytes);
}

Uploads::Uploads(const UploadOptions& options, std::function<int64_t()> now)
    : options_(options), now_(now ? std::move(now) : [] { return static_cast<int64_t>(std::time(nullptr)); }) {
  state_.max_bytes = options.max_bytes;
}

UploadPtr Uploads::add(const std::string& owner, Upload file, int64_t seconds, const std::string& where) {
  const int64_t size = std::ssize(*file.bytes);
  const auto check = [&](int64_t limit, const char* flag) {
    if (size <= limit) return;
    throw Error(ErrorCode::kMemory, where + ": the file has " + std::to_string(size) + " bytes; the limit is " +
                                        std::to_string(limit) + " (" + flag + ")");
  };
  if (options_.max_file_bytes > 0) check(options_.max_file_bytes, "--max-file");
  check(options_.max_bytes - kUploadBytes, "--files-memory");
  Sha256 hash;
  hash.add(*file.bytes);
  const Sha256Digest digest = hash.finish();
  file.created = now_();
  file.expires = file.created + (seconds > 0 ? std::min(seconds, options_.seconds) : options_.seconds);

  const std::lock_guard lock(mutex_);
  drop_expired();
  if (!make_room(digest, size)) return nullptr;
  const auto [content, is_new] = contents_.try_emplace(digest, Content{.bytes = std::move(file.bytes)});
  ++content->second.n_files;
  file.bytes = lent(content->second.bytes);
  const auto upload = std::make_shared<const Upload>(std::move(file));
  Owner& own = owners_[owner];
  own.files.push_front({.upload = upload, .digest = digest, .number = n_added_++});
  own.by_id[upload->id] = own.files.begin();
  own.bytes += kUploadBytes + size;
  expiries_.emplace(upload->expires, std::pair(owner, upload->id));
  state_.bytes += kUploadBytes + (is_new ? size : 0);
  ++state_.n_files;
  return upload;
}

UploadPtr Uploads::find(const std::string& owner, const std::string& id) {
  const std::lock_guard lock(mutex_);
  drop_expired();
  const auto own = owners_.find(owner);
  if (own == owners_.end()) return nullptr;
  const auto found = own->second.by_id.find(id);
  if (found == own->second.by_id.end()) return nullptr;
  own->second.files.splice(own->second.files.begin(), own->second.files, found->second);
  return found->second->upload;
}

bool Uploads::remove(const std::string& owner, const std::string& id) {
  const std::lock_guard lock(mutex_);
  drop_expired();
  const auto own = owners_.find(owner);
  if (own == owners_.end()) return false;
  const auto found = own->second.by_id.find(id);
  if (found == own->second.by_id.end()) return false;
  drop(own, found->second);
  ++state_.n_removed;
  return true;
}

std::vector<UploadPtr> Uploads::list(const std::string& owner) {
  std::vector<File> files;
  {
    const std::lock_guard lock(mutex_);
    drop_expired();
    const auto own = owners_.find(owner);
    if (own != owners_.end()) files.assign(own->second.files.begin(), own->second.files.end());
  }
  std::ranges::sort(files, {}, &File::number);
  std::vector<UploadPtr> uploads;
  uploads.reserve(files.size());
  for (File& file : files) uploads.push_back(std::move(file.upload));
  return uploads;
}

std::string Uploads::unknown(const std::string& id, const std::string& where) const {
  return where + ": there is no file \"" + to_valid_utf8(std::string_view(id).substr(0, kShownIdBytes)) +
         "\", or no longer: this server keeps uploads in memory for " + shown_time(options_.seconds) +
         ", unless they are evicted or it is restarted; upload it again (POST /v1/files), or send its bytes";
}

void Uploads::expire() {
  const std::lock_guard lock(mutex_);
  drop_expired();
}

Uploads::State Uploads::state() {
  const std::lock_guard lock(mutex_);
  drop_expired();
  return state_;
}

void Uploads::drop(Owners::iterator owner, std::list<File>::iterator file) {
  const UploadPtr& upload = file->upload;
  const int64_t size = std::ssize(*upload->bytes);
  expiries_.erase({upload->expires, {owner->first, upload->id}});
  const auto content = contents_.find(file->digest);
  const bool last = --content->second.n_files == 0;
  if (last) contents_.erase(content);
  state_.bytes -= kUploadBytes + (last ? size : 0);
  --state_.n_files;
  owner->second.bytes -= kUploadBytes + size;
  owner->second.by_id.erase(upload->id);
  owner->second.files.erase(file);
  if (owner->second.files.empty()) owners_.erase(owner);
}

void Uploads::drop_expired() {
  const int64_t now = now_();
  while (!expiries_.empty() && expiries_.begin()->first <= now) {
    const auto& [name, id] = expiries_.begin()->second;
    const auto owner = owners_.find(name);
    drop(owner, owner->second.by_id.find(id)->second);
    ++state_.n_expired;
  }
}

// For another file, whose content may be here, and may be evicted on the way.
bool Uploads::make_room(const Sha256Digest& digest, int64_t size) {
  while (state_.bytes + kUploadBytes + (contents_.contains(digest) ? 0 : size) > options_.max_bytes) {
    auto victim = owners_.end();
    std::list<File>::iterator victim_file;
    for (auto owner = owners_.begin(); owner != owners_.end(); ++owner) {
      if (victim != owners_.end() && owner->second.bytes <= victim->second.bytes) continue;
      std::list<File>& files = owner->second.files;
      const auto is_unused = [](const File& file) { return file.upload->bytes.use_count() == 1; };
      const auto unused = std::find_if(files.rbegin(), files.rend(), is_unused);
      if (unused == files.rend()) continue;
      victim = owner;
      victim_file = std::prev(unused.base());
    }
    if (victim == owners_.end()) return false;
    drop(victim, victim_file);
    ++state_.n_evicted;
  }
  return true;
}

}  // namespace vlcache
