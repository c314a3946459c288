#include "io/packed/packed_cache.h"

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <system_error>

#include "base/error.h"
#include "base/format.h"
#include "base/os/private_folder.h"
#include "base/sha256.h"

namespace vlcache {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSuffix = ".vlw";

std::string digest_of(const std::string& text) {
  Sha256 hash;
  hash.add(std::as_bytes(std::span(text)));
  return hex(hash.finish());
}

// The name of a file: 32 hexadecimal digits.
fs::path name_of(const std::string& place) { return digest_of(place).substr(0, 32) + std::string(kSuffix); }

bool has_packed_name(const fs::path& path) {
  const std::string name = path.filename().string();
  return name.size() == 32 + kSuffix.size() && name.ends_with(kSuffix) &&
         name.find_first_not_of("0123456789abcdef") == 32;
}

// Throws nothing: a folder may vanish while it is read.
void for_each_entry(const fs::path& folder, const std::function<void(const fs::path&)>& see) {
  std::error_code ec;
  for (fs::directory_iterator file(folder, ec), end; !ec && file != end; file.increment(ec)) see(file->path());
}

struct Found {
  fs::path path;
  int64_t bytes, used_ns;
};

// Least recently used first.
std::vector<Found> find_packed(const fs::path& folder) {
  std::vector<Found> found;
  for_each_entry(folder, [&](const fs::path& path) {
    struct stat status {};
    if (!has_packed_name(path) || lstat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return;
    found.push_back({path, status.st_size, status.st_mtim.tv_sec * 1'000'000'000 + status.st_mtim.tv_nsec});
  });
  std::ranges::sort(found, {}, &Found::used_ns);
  return found;
}

int64_t total_of(const std::vector<Found>& files) {
  int64_t bytes = 0;
  for (const Found& file : files) bytes += file.bytes;
  return bytes;
}

// Bytes that users may still write there; a huge number if that is not known.
int64_t free_bytes(const fs::path& folder) {
  struct statvfs status {};
  if (statvfs(folder.c_str(), &status) != 0) return int64_t{1} << 60;
  return static_cast<int64_t>(status.f_bavail) * static_cast<int64_t>(status.f_frsize);
}

std::string gigabytes(int64_t bytes) { return format("%.2f GB", static_cast<double>(bytes) / 1e9); }

}  // namespace

PackedCache::PackedCache(PackedCacheOptions options, const PackedIdentity& identity)
    : options_(std::move(options)), path_(options_.folder / name_of(identity.place)), key_(digest_of(identity.key)) {
  for_each_entry(options_.folder, [](const fs::path& path) { remove_if_abandoned(path); });
}

void PackedCache::say(const std::string& what) const {
  if (options_.say) options_.say("packed weights: " + what);
}

PackedContents PackedCache::contents(const PackedFile& file, const PackedProgress& progress) const {
  const std::string from = path_.string() + " (" + gigabytes(file.bytes()) + ")";
  PackedContents contents{.index = file.index(), .arrays = {}};
  try {
    if (options_.share) {
      contents.arrays = file.map(progress);
      contents.shared = true;
      say("shared with other processes, mapped from " + from);
      return contents;
    }
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kUnsupported) throw;
    say("not shared: " + path_.string() + ": " + e.what());
  }
  contents.arrays = file.read(progress);
  say("read from " + from);
  return contents;
}

std::optional<PackedContents> PackedCache::read(const PackedProgress& progress) {
  try {
    const PackedFile file(path_);
    if (file.index().key != key_) {
      throw Error(ErrorCode::kInput, path_.string() +
                                         ": was made of other contents of the model's files, or by another version of "
                                         "vlcache");
    }
    PackedContents found = contents(file, progress);
    file.touch();
    return found;
  } catch (const Error& e) {
    if (e.code() == ErrorCode::kMemory) throw;
    if (e.code() == ErrorCode::kNotFound) return std::nullopt;
    say(std::string(e.what()) + "; the model is quantised again");
    std::error_code ignored;
    fs::remove(path_, ignored);
    return std::nullopt;
  }
}

void PackedCache::begin() {
  make_private_folders(options_.folder);
  writer_ = std::make_unique<PackedFileWriter>(options_.folder);
  if (!writer_->problem().empty()) return give_up(writer_->problem());
  limit_ = options_.max_bytes;
  if (options_.half_of_free) {
    limit_ = std::min(limit_, (free_bytes(options_.folder) + total_of(find_packed(options_.folder))) / 2);
  }
}

// Removes other files until the limit holds with `bytes` more of the one that is written.
void PackedCache::make_room(int64_t bytes) {
  std::vector<Found> others = find_packed(options_.folder);
  int64_t held = total_of(others) + writer_->bytes() + bytes;
  for (const Found& file : others) {
    if (held <= limit_) break;
    std::error_code ignored;
    if (fs::remove(file.path, ignored)) held -= file.bytes;
  }
  if (held > limit_) give_up("more than the " + gigabytes(limit_) + " that " + options_.folder.string() + " may hold");
}

void PackedCache::give_up(std::string why) {
  writer_.reset();
  say("not stored: " + why);
}

void PackedCache::add(const std::string& name, nlohmann::json about, std::span<const std::byte> array) {
  if (writer_ == nullptr) return;
  make_room(std::ssize(array));
  if (writer_ == nullptr) return;
  writer_->add(name, std::move(about), array);
  if (!writer_->problem().empty()) give_up(writer_->problem());
}

bool PackedCache::commit(nlohmann::json about) {
  if (writer_ == nullptr) return false;
  writer_->commit(path_, key_, std::move(about));
  if (!writer_->problem().empty()) {
    give_up(writer_->problem());
    return false;
  }
  say("written to " + path_.string() + " (" + gigabytes(writer_->bytes()) + "), for the next start");
  writer_.reset();
  return true;
}

std::vector<PackedListing> list_packed_files(const fs::path& folder) {
  std::vector<PackedListing> files;
  for (const Found& found : find_packed(folder)) {
    PackedListing& file = files.emplace_back();
    file = {.path = found.path, .bytes = found.bytes, .used_ms = found.used_ns / 1'000'000, .about = {}, .problem = ""};
    try {
      file.about = PackedFile(found.path).index().about;
    } catch (const Error& e) {
      file.problem = e.what();
    }
  }
  return files;
}

PackedRemoval clear_packed_files(const fs::path& folder) {
  PackedRemoval removed;
  for_each_entry(folder, [](const fs::path& path) { remove_if_abandoned(path); });
  for (const Found& found : find_packed(folder)) {
    std::error_code ignored;
    if (!fs::remove(found.path, ignored)) continue;
    ++removed.n_files;
    removed.bytes += found.bytes;
  }
  return removed;
}

}  // namespace vlcache
