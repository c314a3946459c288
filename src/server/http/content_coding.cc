#include "server/http/content_coding.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "server/http/http_server.h"

namespace vlcache {
namespace {

constexpr size_t kMaxCodings = 4;  // in a row
// log2 of the bytes that a zstd frame may refer back to: those that RFC 8878 (3.1.1.1.2) asks decoders to take. The
// decoder allocates them at once, so this bounds what a few bytes can cost.
constexpr int kMaxZstdWindow = 23;

Decoded inflate_body(std::string& body, bool with_gzip, size_t max_bytes) {
  z_stream stream{};
  // Deflate comes in zlib's frame, and from some clients in none: 15 reads zlib, +32 finds gzip or zlib, -15 none.
  const bool bare = !with_gzip && (body.empty() || (static_cast<unsigned char>(body[0]) & 0x0f) != 8);
  if (inflateInit2(&stream, bare ? -15 : 15 + 32) != Z_OK) return Decoded::kDamaged;
  const std::unique_ptr<z_stream, int (*)(z_stream*)> end(&stream, inflateEnd);
  stream.next_in = reinterpret_cast<Bytef*>(body.data());
  stream.avail_in = static_cast<uInt>(body.size());
  std::string out;
  std::vector<char> piece(1 << 16);
  int state = Z_OK;
  while (state == Z_OK) {
    stream.next_out = reinterpret_cast<Bytef*>(piece.data());
    stream.avail_out = static_cast<uInt>(piece.size());
    state = inflate(&stream, Z_NO_FLUSH);
    out.append(piece.data(), piece.size() - stream.avail_out);
    if (out.size() > max_bytes) return Decoded::kTooLarge;
    // A file may have several members.
    if (state == Z_STREAM_END && stream.avail_in > 0 && with_gzip && inflateReset(&stream) == Z_OK) state = Z_OK;
  }
  if (state != Z_STREAM_END) return Decoded::kDamaged;
  body = std::move(out);
  return Decoded::kDone;
}

Decoded unpack_zstd(std::string& body, size_t max_bytes) {
  const std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> decoder(ZSTD_createDCtx(), ZSTD_freeDCtx);
  if (decoder == nullptr) return Decoded::kDamaged;
  ZSTD_DCtx_setParameter(decoder.get(), ZSTD_d_windowLogMax, kMaxZstdWindow);
  std::string out;
  std::vector<char> piece(1 << 16);
  ZSTD_inBuffer in{body.data(), body.size(), 0};
  size_t state = 1;  // 0: the last frame is complete. A body may have several
  bool full = false;
  while (in.pos < in.size || full) {
    ZSTD_outBuffer some{piece.data(), piece.size(), 0};
    state = ZSTD_decompressStream(decoder.get(), &some, &in);
    if (ZSTD_isError(state) != 0) return Decoded::kDamaged;
    out.append(piece.data(), some.pos);
    if (out.size() > max_bytes) return Decoded::kTooLarge;
    full = some.pos == some.size && state != 0;
  }
  if (state != 0) return Decoded::kDamaged;
  body = std::move(out);
  return Decoded::kDone;
}

}  // namespace

Decoded decode_body(std::string& body, std::string_view codings, size_t max_bytes) {
  std::vector<std::string> list;
  const std::string lower = lower_case(codings);
  for (size_t at = 0; at <= lower.size();) {
    const size_t comma = std::min(lower.find(',', at), lower.size());
    std::string one = lower.substr(at, comma - at);
    one.erase(0, std::min(one.find_first_not_of(" \t"), one.size()));
    one.resize(one.find_last_not_of(" \t") + 1);
    if (!one.empty() && one != "identity") list.push_back(std::move(one));
    at = comma + 1;
  }
  if (list.size() > kMaxCodings) return Decoded::kUnknownCoding;
  for (auto coding = list.rbegin(); coding != list.rend(); ++coding) {  // the last was applied last
    const bool gzip = *coding == "gzip" || *coding == "x-gzip";
    const bool zstd = *coding == "zstd";
    if (!gzip && !zstd && *coding != "deflate") return Decoded::kUnknownCoding;
    const Decoded done = zstd ? unpack_zstd(body, max_bytes) : inflate_body(body, gzip, max_bytes);
    if (done != Decoded::kDone) return done;
  }
  return Decoded::kDone;
}

}  // namespace vlcache
