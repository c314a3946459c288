// BlockRows: rows of a matrix in the blocks of GGUF files, as codes and scales. Nothing is lost: what
// QuantRows::dequantise gives is what the `gguf` package gives, bit for bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/numeric/quant_form.h"

namespace vlcache {

enum class BlockKind : uint8_t {
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIq4Nl,
  kIq4Xs,
  kMxfp4,
  kNvfp4
};
inline constexpr int kBlockKinds = 12;

struct BlockShape {
  std::string_view name;  // as ggml has it: "Q4_K"
  int64_t n_values;       // of a block: 32, 64 or 256
  int64_t bytes;
  QuantForm form;
};
const BlockShape& block_shape(BlockKind kind);

// [n_out, n_in] of blocks along the inputs, in memory of the caller. n_in must be a multiple of the block's values.
class BlockRows : public QuantSource {
 public:
  BlockRows(BlockKind kind, std::span<const std::byte> blocks, int64_t n_out, int64_t n_in);
  QuantForm form() const override { return shape_.form; }
  int64_t n_out() const override { return n_out_; }
  int64_t n_in() const override { return n_in_; }
  void read(int64_t first, int64_t n, QuantRows& out) const override;

 private:
  BlockKind kind_;
  const BlockShape& shape_;
  std::span<const std::byte> blocks_;
  int64_t n_out_, n_in_;
};

}  // namespace vlcache
