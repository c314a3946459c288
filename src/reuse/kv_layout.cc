#include "reuse/kv_layout.h"

#include <set>

namespace vlcache {
namespace {

// The codes that the layer's full pages become, and the block of pages that rows see as codes together; "": they stay
// values.
std::string codes_of(const KvShape& shape, int32_t layer) {
  const std::optional<KvCodec>& codec = shape.layers[static_cast<size_t>(layer)].coded;
  return codec ? ":" + std::string(kv_codec_name(*codec)) + "/" + std::to_string(kCodedBlockPages) : "";
}

}  // namespace

std::string kv_layout(const KvShape& shape) {
  std::string layout = shape.codec == KvCodec::kF32 ? "f32" : "bf16";
  const auto heads = [&](int32_t layer) { return shape.n_own_heads(layer); };
  std::set<std::string> codes;
  for (int32_t layer = 0; layer < shape.n_layers(); ++layer) {
    if (heads(layer) > 0) codes.insert(codes_of(shape, layer));
  }
  const bool alike = codes.size() == 1;
  if (alike) layout += *codes.begin();
  for (int32_t begin = 0, end = 0; begin < shape.n_layers(); begin = end) {
    const auto size = [&](int32_t layer) { return shape.layers[static_cast<size_t>(layer)].head_dim; };
    const auto own_codes = [&](int32_t layer) {
      return alike || heads(layer) == 0 ? std::string() : codes_of(shape, layer);
    };
    const auto same = [&](int32_t layer) {
      return heads(layer) == heads(begin) && size(layer) == size(begin) && own_codes(layer) == own_codes(begin);
    };
    while (end < shape.n_layers() && same(end)) ++end;
    layout +=
        " " + std::to_string(end - begin) + "x" + std::to_string(heads(begin)) + "x" + std::to_string(size(begin));
    layout += own_codes(begin);
  }
  return layout;
}

}  // namespace vlcache
