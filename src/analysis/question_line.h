// Keys that lines of `eval --data` and of `run --requests` share, so that each command reads the other's files.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace vlcache {

// The keys that such a line may have in either command: a question's, and request fields.
const std::vector<std::string>& line_keys();

// Whether a key that is none of these looks like one of them mistyped: with a letter more, less or other, or the same
// letters in another order.
bool is_mistyped(std::string_view key);

// The text under `question` or `prompt`; nullopt without either. Throws Error(kInput) if the line has both.
std::optional<std::string> asked_text(const JsonObject& line);

// The paths under `images` or `image`: a text, or a list of texts. Throws Error(kInput) if the line has both.
std::vector<std::string> image_paths(const JsonObject& line);

// A path that a line names; of a file:// URL, the path in it. Throws Error(kInput) for a NUL character, at which the
// system would end the name and open another file.
std::string checked_path(std::string path, const std::string& where);

// Where a relative path of a line leads: into `folder`, that of the file of lines; if only the working folder has such
// a file, there. Without a folder, and of data URIs and absolute paths: as given. A PDF's pages may follow its path.
std::string resolved_path(const std::filesystem::path& folder, const std::string& path);

}  // namespace vlcache
