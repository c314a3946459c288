// Fuzzes the checks of every request (Host, Origin and key) and files of keys: no request passes that should not.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "base/fuzz_target.h"
#include "server/operations/access.h"

namespace {

// No text becomes a pattern that has another site, and no origin of another site fits the patterns.
void check_origins(std::string_view text) {
  using namespace vlcache;
  static const AllowedOrigins some({"https://*.chat.example", "chrome-extension://*", "http://localhost:*"});
  const std::string lower = lower_case(text);
  const bool below =
      lower.starts_with("https://") && (lower.ends_with(".chat.example") || lower.ends_with(".chat.example:443"));
  const bool known = below || lower.starts_with("chrome-extension://") || lower.starts_with("http://localhost");
  if (some.contains(text) && !known) std::abort();
  try {
    const AllowedOrigins one({std::string(text)});
    if (text != "*" && (one.contains("null") || one.contains("https://other-site.test"))) {
      if (lower.find("other-site.test") == lower.npos && lower.find("*.test") == lower.npos) std::abort();
    }
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kInput) std::abort();
  }
}

void check_names(std::string_view text) {
  using namespace vlcache;
  const std::string name = host_name(text);
  if (name.find_first_of("/@ \t[]ABCXYZ") != name.npos) std::abort();
  static const Access access({.hosts = {"chat.example"}, .origins = {"https://chat.example"}});
  const Access::Verdict host = access.check({.method = "GET", .headers = {{"host", std::string(text)}}});
  const bool known = name == "localhost" || name.ends_with(".localhost") || name == "chat.example" || is_address(name);
  if (!text.empty() && host.answer.has_value() == known) std::abort();
  const Access::Verdict origin =
      access.check({.method = "POST", .headers = {{"host", "127.0.0.1:1"}, {"origin", std::string(text)}}});
  const std::string lower = lower_case(text);
  const bool own = text.empty() || lower == "https://chat.example" || lower == "https://chat.example:443" ||
                   text == "http://127.0.0.1:1" || text == "https://127.0.0.1:1";
  if (!origin.answer && !own) std::abort();
  check_origins(text);
}

}  // namespace

FUZZ_TARGET(access) {
  using namespace vlcache;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  check_names(text);
  try {
    const ApiKeys keys = ApiKeys::parse(text, "keys");
    if (keys.size() == 0 || keys.find("") || keys.find(text.substr(0, 15))) std::abort();
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kInput) std::abort();
  }
  return 0;
}
