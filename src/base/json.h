// Reads untrusted JSON: depth and size limits, typed access with errors that name the key and the file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace vlcache {

using Json = nlohmann::json;

// What an error shows of a value that was found: its JSON, cut at 60 characters.
std::string shown_json(const Json& value);
std::string shown_json(const nlohmann::ordered_json& value);

// Half a surrogate pair becomes U+FFFD (lone_surrogates.h). Throws Error(kInput) naming `where`, the byte offset and
// the fault (json_fault.h) when the text is not JSON or nests deeper than 256.
Json parse_json(std::string_view text, std::string_view where);
// The same, with the keys of objects in the order of the text; of equal ones, the last value at the first place.
nlohmann::ordered_json parse_ordered_json(std::string_view text, std::string_view where);
// The same for texts that need not be JSON: is_discarded() then.
nlohmann::ordered_json parse_ordered_or_discard(std::string_view text);
// Throws as they do for a text that nests deeper than kMaxJsonDepth; to be called before any parser, because writing
// and comparing such values is recursive.
void check_json_depth(std::string_view text, std::string_view where);

// Whole file; Error(kNotFound / kIo) if it cannot be read, Error(kInput) if larger than max_bytes.
std::string read_text_file(const std::filesystem::path& path, int64_t max_bytes = int64_t{1} << 30);
Json load_json(const std::filesystem::path& path);

// Reads the lines of a JSON-lines file; empty ones are skipped. `read` gets the line as JSON, its location ("FILE: line
// 3") and its number from 1; each Error that it or the parser throws becomes a problem. Returns the problems.
std::vector<std::string> read_json_lines(
    std::string_view text, const std::string& file,
    const std::function<void(const Json& line, const std::string& where, int number)>& read);

// A JSON object with the location it came from ("config.json: text_config"), for errors. Holds pointers: keep the Json
// alive.
class JsonObject {
 public:
  JsonObject(const Json& object, std::string where);

  bool has(std::string_view key) const;         // present and not null
  int64_t integer(std::string_view key) const;  // required; throws if missing, not integral, beyond 2^53
  int64_t integer(std::string_view key, int64_t fallback) const;
  double number(std::string_view key) const;
  double number(std::string_view key, double fallback) const;
  bool boolean(std::string_view key, bool fallback) const;
  std::string string(std::string_view key) const;
  std::string string(std::string_view key, std::string_view fallback) const;
  JsonObject object(std::string_view key) const;  // required
  const Json* find(std::string_view key) const;   // null if absent or JSON null
  const Json& raw() const { return *object_; }
  const std::string& where() const { return where_; }
  // Throws Error(kInput): "<where>: <key>: expected <expected>, found <the value>".
  [[noreturn]] void fail(std::string_view key, std::string_view expected) const;

 private:
  const Json* object_;
  std::string where_;
};

}  // namespace vlcache
