// Which tokens a changed pixel belongs to, in images of every layout.
#include "model/images/cell_hashes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <random>
#include <set>

#include "io/checkpoint/checkpoint.h"
#include "model/family.h"
#include "model/model.h"
#include "model/processors/image_processor.h"
#include "tests/fixture_cases.h"

namespace vlcache {
namespace {

class CellHashes : public testing::TestWithParam<const char*> {
 protected:
  const std::filesystem::path dir_ = std::filesystem::path(VLCACHE_SOURCE_DIR) / "tests/fixtures/models" / GetParam();
  const Checkpoint checkpoint_{dir_};
  const ModelConfig config_ = Model::read_config(checkpoint_);
};

// A changed pixel of a tile changes the hash of the token that shows it, and reaches its neighbours in that tile.
TEST_P(CellHashes, ChangesReachTheTokensAround) {
  const auto processor = load_image_processor(checkpoint_, config_.model_type);
  Image image(90, 70);
  std::mt19937 random(1);
  for (uint8_t& value : image.rgb) value = static_cast<uint8_t>(random() % 200);
  ImageTiles tiles = processor->process(image);
  const std::vector<uint64_t> before = cell_hashes(config_, tiles);
  const std::vector<TokenPlace> places = token_places(config_, tiles);
  ASSERT_EQ(before.size(), places.size());
  EXPECT_THAT(changed_tokens(config_, tiles, before, before), testing::Each(false));
  const int64_t cell = config_.vision->patch_size * config_.projector.scale, cols = tiles.width / cell,
                n_class = config_.vision->n_class_features();
  auto* pixels = reinterpret_cast<float*>(tiles.pixels.data());
  for (int round = 0; round < 40; ++round) {
    // A pixel that some patch covers.
    const int64_t tile = random() % tiles.n_tiles, y = random() % (tiles.height / cell * cell),
                  x = random() % (cols * cell), plane = random() % (3 * tiles.n_frames);
    float& pixel = pixels[((tile * 3 * tiles.n_frames + plane) * tiles.height + y) * tiles.width + x];
    const float old = std::exchange(pixel, 77.0f);
    const std::vector<uint64_t> after = cell_hashes(config_, tiles);
    pixel = old;
    const std::vector<bool> changed = changed_tokens(config_, tiles, before, after);
    const bool seen = before != after;  // LLaVA-NeXT has no tokens of patches in the padding
    for (size_t i = 0; i < places.size(); ++i) {
      const bool shows = places[i].rect.has_value() && places[i].tile == tile;
      const int64_t number = places[i].row - n_class, line = shows ? number / cols : 0, col = shows ? number % cols : 0;
      const bool own = shows && line == y / cell && col == x / cell;
      const bool around = shows && std::abs(line - y / cell) <= 1 && std::abs(col - x / cell) <= 1;
      EXPECT_EQ(before[i] != after[i], own) << i;
      const bool is_class = places[i].tile >= 0 && places[i].row < n_class;
      if (is_class) {  // it sees the whole tile
        EXPECT_EQ(changed[i], seen);
      } else {
        EXPECT_EQ(changed[i], around && seen) << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, CellHashes,
                         testing::Values("qwen2.5-vl-nested", "qwen3-vl-wide", "llava-clip", "llava-layers",
                                         "llava-next-llama", "idefics3-split"),
                         fixture_test_name<const char*>);

}  // namespace
}  // namespace vlcache
