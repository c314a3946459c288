// Escapes of half a surrogate pair in JSON texts: "\ud83d" without "\ude00" after it. JavaScript clients send them when
// they cut a text within an emoji; RFC 8259 allows them, but no UTF-8 text can hold what they name.
#pragma once

#include <string>
#include <string_view>

namespace vlcache {

// The JSON text with every such escape replaced by "\ufffd", as browsers' TextEncoder writes a half; pairs and escaped
// backslashes stay. All bytes keep their offsets. Returns `text` itself if it has none, else `changed`, which holds the
// new text. Linear in the text; a text that is not JSON is only searched.
std::string_view with_whole_pairs(std::string_view text, std::string& changed);

}  // namespace vlcache
