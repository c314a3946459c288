#include "io/checkpoint/download.h"

#include "base/error.h"

namespace vlcache {
namespace {

namespace fs = std::filesystem;

// "ORG/NAME" of CACHE/models--ORG--NAME/snapshots/COMMIT; "" of other folders.
std::string hub_name(const fs::path& dir) {
  const fs::path snapshots = dir.has_filename() ? dir.parent_path() : dir.parent_path().parent_path();
  std::string name = snapshots.parent_path().filename().string();
  constexpr std::string_view kPrefix = "models--";
  if (snapshots.filename() != "snapshots" || !name.starts_with(kPrefix)) return "";
  name.erase(0, kPrefix.size());
  if (const size_t at = name.find("--"); at != std::string::npos) name.replace(at, 2, "/");
  return name;
}

bool has_unfinished_file(const fs::path& folder) {
  std::error_code error;
  for (fs::recursive_directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (at->path().extension() == ".incomplete") return true;
  }
  return false;
}

}  // namespace

std::string incomplete_hint(const fs::path& dir, bool needed) {
  constexpr const char* kHint = "; its download is incomplete, fetch the rest with: hf download ";
  if (const std::string name = hub_name(dir); !name.empty()) {
    return needed || has_unfinished_file(dir / ".." / ".." / "blobs") ? kHint + name : "";
  }
  if (!has_unfinished_file(dir / ".cache" / "huggingface" / "download")) return "";
  return kHint + std::string("ORG/NAME --local-dir ") + dir.string();
}

void check_link(const fs::path& path) {
  std::error_code error;
  if (!fs::is_symlink(path, error) || fs::exists(path, error)) return;
  throw Error(ErrorCode::kNotFound,
              path.string() + ": a link to a file that does not exist" + incomplete_hint(path.parent_path(), true));
}

}  // namespace vlcache
