// Every kind of block, of random bits, against what the `gguf` package makes of it (tools/fixtures/quant/make.py).
#include "base/numeric/quant_blocks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

#include "base/at.h"

namespace vlcache {
namespace {

TEST(QuantBlocks, AreWhatGgufMakesOfThem) {
  for (int i = 0; i < kBlockKinds; ++i) {
    const auto kind = static_cast<BlockKind>(i);
    const BlockShape& shape = block_shape(kind);
    SCOPED_TRACE(shape.name);
    std::ifstream file(std::string(VLCACHE_SOURCE_DIR) + "/tests/fixtures/quant/" + std::string(shape.name) + ".bin",
                       std::ios::binary);
    const std::string bytes(std::istreambuf_iterator<char>(file), {});
    // Blocks, then their values as f32.
    const int64_t n = std::ssize(bytes) / (shape.bytes + 4 * shape.n_values);
    ASSERT_GT(n, 0);
    ASSERT_EQ(std::ssize(bytes), n * (shape.bytes + 4 * shape.n_values));
    const auto* data = reinterpret_cast<const std::byte*>(bytes.data());
    QuantRows rows;
    // As rows of one block, and as one row of all.
    for (const int64_t n_rows : {n, int64_t{1}}) {
      const int64_t n_in = n / n_rows * shape.n_values;
      const BlockRows source(kind, {data, at(n * shape.bytes)}, n_rows, n_in);
      source.read(0, n_rows, rows);
      std::vector<float> found(at(n_in)), expected(at(n_in));
      for (int64_t row = 0; row < n_rows; ++row) {
        rows.dequantise(row, found.data());
        std::memcpy(expected.data(), data + n * shape.bytes + row * n_in * 4, at(n_in * 4));
        for (int64_t k = 0; k < n_in; ++k) {
          const float f = found[at(k)], e = expected[at(k)];
          // Bit for bit; of NaN, sign and payload do not matter.
          ASSERT_TRUE(std::memcmp(&f, &e, 4) == 0 || (std::isnan(f) && std::isnan(e)))
              << "row " << row << " input " << k << ": expected " << e << ", found " << f;
        }
      }
    }
  }
}

TEST(QuantForm, BitsPerWeight) {
  EXPECT_EQ(block_shape(BlockKind::kQ4_0).form.bits_per_weight(32), 4.5);
  EXPECT_EQ(block_shape(BlockKind::kQ4_K).form.bits_per_weight(256), 4.625);
  EXPECT_EQ(block_shape(BlockKind::kQ6_K).form.bits_per_weight(256), 6.5625);
  for (int i = 0; i < kBlockKinds; ++i) EXPECT_TRUE(block_shape(static_cast<BlockKind>(i)).form.valid());
}

}  // namespace
}  // namespace vlcache
