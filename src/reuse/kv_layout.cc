#include "reuse/kv_layout.h"

namespace vlcache {

std::string kv_layout(const KvShape& shape) {
  std::string layout = shape.codec == KvCodec::kF32 ? "f32" : "bf16";
  for (int32_t begin = 0, end = 0; begin < shape.n_layers(); begin = end) {
    const auto heads = [&](int32_t layer) { return shape.n_own_heads(layer); };
    const auto size = [&](int32_t layer) { return shape.layers[static_cast<size_t>(layer)].head_dim; };
    const auto codes = [&](int32_t layer) {
      const std::optional<KvCodec>& codec = shape.layers[static_cast<size_t>(layer)].coded;
      return codec && heads(layer) > 0 ? std::string(kv_codec_name(*codec)) : "";
    };
    const auto same = [&](int32_t layer) {
      return heads(layer) == heads(begin) && size(layer) == size(begin) && codes(layer) == codes(begin);
    };
    while (end < shape.n_layers() && same(end)) ++end;
    layout +=
        " " + std::to_string(end - begin) + "x" + std::to_string(heads(begin)) + "x" + std::to_string(size(begin));
    // Which pages rows see as codes is part of how K and V come about.
    if (!codes(begin).empty()) layout += ":" + codes(begin) + "/" + std::to_string(kCodedBlockPages);
  }
  return layout;
}

}  // namespace vlcache
