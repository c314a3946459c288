// Fuzzes the checks of every request (Host, Origin and key) and files of keys: no request passes that should not.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "base/fuzz_target.h"
#include "server/operations/access.h"

namespace {

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
  const bool own =
      text.empty() || text == "https://chat.example" || text == "http://127.0.0.1:1" || text == "https://127.0.0.1:1";
  if (!origin.answer && !own) std::abort();
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
