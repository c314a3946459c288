// libFuzzer entry: a tokenizer.json, a zero byte, and a text that is encoded and decoded with it.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "base/fuzz_target.h"
#include "io/tokenizer/tokenizer.h"

FUZZ_TARGET(tokenizer) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t cut = input.find('\0');
  try {
    const vlcache::Tokenizer tokenizer = vlcache::Tokenizer::from_json(input.substr(0, cut), "fuzz");
    const std::string_view text = cut == std::string_view::npos ? input : input.substr(cut + 1);
    const auto ids = tokenizer.encode(text);
    tokenizer.decode(ids, true);
    vlcache::StreamDecoder stream(tokenizer, false);
    for (int32_t id : ids) stream.push(id);
    stream.finish();
  } catch (const vlcache::Error&) {
  }
  return 0;
}
