// JSON of configuration files: of checkpoints and others that Python programs write.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/json.h"

namespace vlcache {

// As parse_json, for texts that may hold NaN, Infinity and -Infinity, which Python writes: these become the strings
// "NaN", "Infinity" and "-Infinity", so that a key which is not read does no harm and one that is read is an error that
// shows them.
Json parse_config_json(std::string_view text, std::string_view where);
nlohmann::ordered_json parse_ordered_config_json(std::string_view text, std::string_view where);

// The text of a file without the byte order mark before it. Throws Error(kInput) for a text in UTF-16, and for a
// pointer of Git LFS, which stands where the file itself was not fetched.
std::string checked_text(std::string text, const std::string& path);

// The beginning of a file that holds no more than a pointer of Git LFS: the reason for an error. Else "".
std::string lfs_pointer_reason(std::string_view text);

// Removes a UTF-8 byte order mark from the beginning of a text.
std::string_view without_bom(std::string_view text);

}  // namespace vlcache
