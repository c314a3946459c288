#include "server/http/data_uri.h"

#include <openssl/evp.h>

#include <algorithm>
#include <memory>

#include "base/error.h"

namespace vlcache {

std::vector<std::byte> decode_data_uri(std::string_view uri, const std::string& where) {
  const auto fail = [&](const std::string& expected) {
    throw Error(ErrorCode::kInput,
                where + ": expected " + expected + ", found '" + std::string(uri.substr(0, 40)) + "'");
  };
  constexpr std::string_view kScheme = "data:", kMedia = "image/", kBase64 = ";base64";
  if (!uri.starts_with(kScheme)) fail("a data URI (data:image/png;base64,...), the only kind that is taken");
  const size_t comma = uri.find(',');
  const std::string_view media =
      uri.substr(kScheme.size(), comma == std::string_view::npos ? 0 : comma - kScheme.size());
  if (comma == std::string_view::npos || !media.ends_with(kBase64)) fail("a data URI in base64");
  if (!media.starts_with(kMedia) && media != kBase64) fail("a data URI of an image");
  const std::string_view text = uri.substr(comma + 1);
  if (text.empty() || text.size() > INT32_MAX / 2) fail("a picture");
  const std::unique_ptr<EVP_ENCODE_CTX, void (*)(EVP_ENCODE_CTX*)> context(EVP_ENCODE_CTX_new(), EVP_ENCODE_CTX_free);
  if (context == nullptr) throw Error(ErrorCode::kMemory, "out of memory");
  EVP_DecodeInit(context.get());
  std::vector<std::byte> bytes(text.size() / 4 * 3 + 3);
  auto* out = reinterpret_cast<unsigned char*>(bytes.data());
  const auto* in = reinterpret_cast<const unsigned char*>(text.data());
  int n = 0, n_last = 0;
  const bool good = EVP_DecodeUpdate(context.get(), out, &n, in, static_cast<int>(text.size())) >= 0 &&
                    EVP_DecodeFinal(context.get(), out + n, &n_last) == 1;
  if (!good) fail("base64 after the comma");
  bytes.resize(static_cast<size_t>(n + n_last));
  return bytes;
}

}  // namespace vlcache
