// Test helpers for reused images: a prompt with an image at any position, and the image's record.
#pragma once

#include <memory>
#include <vector>

#include "engine/engine_testing.h"
#include "reuse/image/image_kv.h"

namespace vlcache {

inline constexpr int32_t kImage = 50, kAfterImage = 30;

// A prompt: `before` tokens, the image (the same ids every time: its embeddings do not matter here), and 30 tokens
// after it.
inline std::vector<int32_t> image_prompt(int32_t before, uint32_t seed) {
  std::vector<int32_t> tokens = random_tokens(before, seed);
  for (const auto& part : {random_tokens(kImage, 99), random_tokens(kAfterImage, 7)})
    tokens.insert(tokens.end(), part.begin(), part.end());
  return tokens;
}

inline ImageSpan image_at(int32_t begin) {
  return {.begin = begin, .end = begin + kImage, .image = 0, .first_row = 0, .rows = {}};
}

// An image_prompt's sequence; where the model has M-RoPE, the image is a grid of 5 x 10.
inline std::unique_ptr<Sequence> image_sequence(Engine& engine, std::vector<int32_t> tokens,
                                                std::string_view policy = "full", std::string_view budget = "") {
  Prompt prompt = engine.prepare_tokens(std::move(tokens));
  const int32_t n = prompt.n_tokens(), end = n - kAfterImage;
  if (is_multimodal(engine)) prompt.positions = image_positions(n, end - kImage, end, 10);
  return engine.new_sequence(prompt, parse_policy(policy, budget));
}

inline std::shared_ptr<ImageKv> record_image(Engine& engine, std::vector<int32_t> tokens, int32_t begin,
                                             int32_t chunk) {
  auto image = std::make_shared<ImageKv>(engine.kv_shape(), engine.options().cache_form, kImage);
  ImageRecorder recorder;
  recorder.place(recorder.add(image), begin, 0, kImage);
  const auto s = image_sequence(engine, std::move(tokens));
  EXPECT_FALSE(recorder.complete(0));
  compute(engine, *s, chunk, &recorder);
  EXPECT_TRUE(recorder.complete(0));
  return image;
}

// K before rotation and V of all tokens of an image in a layer, [kImage, Hk * d].
struct ImageRows {
  ImageRows(Engine& engine, const ImageKv& image, int32_t layer) : k(kImage * kKvHeads * kHeadDim), v(k.size()) {
    const auto rows = [](std::vector<float>& x) { return Tensor(x.data(), DType::kF32, {kImage, kKvHeads, kHeadDim}); };
    image.read(engine.backend(), layer, 0, rows(k), rows(v));
  }
  std::vector<float> k, v;
};

}  // namespace vlcache
