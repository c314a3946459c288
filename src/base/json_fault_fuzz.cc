// Fuzzes JSON with halves of surrogate pairs: none is left, nothing else changes, and every error can be printed.
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/fuzz_target.h"
#include "base/json.h"
#include "base/lone_surrogates.h"
#include "base/utf8.h"

FUZZ_TARGET(json_fault) {
  using namespace vlcache;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  std::string changed, again;
  const std::string_view whole = with_whole_pairs(text, changed);
  if (whole.size() != size || with_whole_pairs(whole, again).data() != whole.data()) std::abort();
  try {
    const Json value = parse_json(text, "t");
    if (nlohmann::json::accept(text) && nlohmann::json::parse(text) != value) std::abort();
  } catch (const Error& e) {
    const std::string_view fault = e.what();
    if (!is_valid_utf8(fault) || fault.size() > 250) std::abort();
    for (const char c : fault) {
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) std::abort();
    }
  }
  return 0;
}
