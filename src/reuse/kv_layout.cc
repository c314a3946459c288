#include "reuse/kv_layout.h"

namespace vlcache {

std::string kv_layout(const KvShape& shape) {
  std::string layout = shape.codec == KvCodec::kF32 ? "f32" : "bf16";
  for (int32_t begin = 0, end = 0; begin < shape.n_layers(); begin = end) {
    const auto heads = [&](int32_t layer) { return shape.n_own_heads(layer); };
    const auto size = [&](int32_t layer) { return shape.layers[static_cast<size_t>(layer)].head_dim; };
    while (end < shape.n_layers() && heads(end) == heads(begin) && size(end) == size(begin)) ++end;
    layout +=
        " " + std::to_string(end - begin) + "x" + std::to_string(heads(begin)) + "x" + std::to_string(size(begin));
  }
  return layout;
}

}  // namespace vlcache
