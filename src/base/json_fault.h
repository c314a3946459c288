// Names the fault of a text that is not JSON, in words for the person who wrote it.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace vlcache {

// Throws Error(kInput): "WHERE: not valid JSON at byte 9: a raw line feed in a string; write \n (near 'abc\ndef')".
//   byte: the number, from 1, of the last byte that the parser read; nullopt: a value beyond its range.
//   reason: the message of nlohmann's exception.
// About 20 characters of the text are shown, control characters and invalid bytes escaped; none where a header or a key
// (Authorization, Cookie, api_key) stands before them, because errors are logged.
[[noreturn]] void throw_json_fault(std::string_view text, std::string_view where, std::optional<size_t> byte,
                                   std::string_view reason);

// The text around text[at] as such an error shows it, with "near" before it; "": nothing can be shown.
std::string shown_near(std::string_view text, size_t at);

}  // namespace vlcache
