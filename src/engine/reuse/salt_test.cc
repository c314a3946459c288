// Prompts of different salts share nothing: no prefix, no embeddings, no KV of an image, in memory and beyond.
#include "base/sha256.h"
#include "engine/reuse/stored_images_testing.h"

namespace vlcache {
namespace {

using Source = CacheReport::Image::Source;
using Encoder = CacheReport::Image::Encoder;

Sha256Digest salt(int64_t tenant) {
  Sha256 hash;
  hash.add(tenant);
  return hash.finish();
}

// None of them stands for an image.
std::vector<int32_t> plain_tokens(int32_t n) {
  std::vector<int32_t> tokens = random_tokens(n);
  for (int32_t& token : tokens) token += 20;
  return tokens;
}

class Salts : public StoredImages {
 protected:
  GenerateResult ask(Engine& engine, std::optional<Sha256Digest> whose, bool prefix = true) const {
    Request asked = request(engine, "static:r=0");
    asked.prompt.salt = whose;
    asked.reuse.prefix = prefix;
    return generate(engine, std::move(asked));
  }
  std::vector<Image> one_image() const {
    std::vector<Image> images;
    images.push_back(load_image(fixture_ / "image-0.png"));
    return images;
  }
  void expect_all_computed(const GenerateResult& result) const {
    EXPECT_EQ(result.cache.n_prefix_tokens, 0);
    EXPECT_FALSE(result.cache.images.empty());
    for (const CacheReport::Image& image : result.cache.images) {
      EXPECT_EQ(image.source, Source::kComputed);
      EXPECT_EQ(image.encoder, Encoder::kComputed);
    }
    EXPECT_EQ(ids(result), greedy());
  }
};

TEST_F(Salts, OtherSaltsMissInMemory) {
  tiers_.clear();
  const std::unique_ptr<Engine> e = engine();
  for (const auto& whose : {std::optional(salt(1)), std::optional(salt(2)), std::optional<Sha256Digest>()}) {
    expect_all_computed(ask(*e, whose));
    const GenerateResult again = ask(*e, whose);  // the salt's own prefix is a hit
    EXPECT_EQ(again.cache.n_prefix_tokens, again.n_prompt - 1);
    EXPECT_EQ(ids(again), greedy());
    for (const CacheReport::Image& image : ask(*e, whose, /*prefix=*/false).cache.images) {
      EXPECT_EQ(image.source, Source::kRam);
    }
  }
}

TEST_F(Salts, OtherSaltsMissOnDisk) {
  ask(*engine(), salt(1));
  expect_all_computed(ask(*engine(), salt(2)));
  expect_all_computed(ask(*engine(), std::nullopt));
  for (const CacheReport::Image& image : ask(*engine(), salt(1)).cache.images) EXPECT_EQ(image.source, Source::kTier);
}

// Text alone, and a prompt that begins with an image's token.
TEST_F(Salts, NoPrefixIsShared) {
  tiers_.clear();
  const std::unique_ptr<Engine> e = engine();
  for (const bool image_first : {false, true}) {
    const auto n_found = [&](int64_t tenant) {
      Request asked = request(*e, nullptr);
      if (!image_first) asked.prompt = e->prepare_tokens(plain_tokens(100));
      if (image_first) asked.prompt = e->prepare_raw("<|image_pad|>", one_image());
      asked.prompt.salt = salt(tenant);
      asked.reuse.prefix = true;
      const int32_t n_others = asked.prompt.n_tokens() - 1;
      const int32_t n = generate(*e, std::move(asked)).cache.n_prefix_tokens;
      EXPECT_TRUE(n == 0 || n == n_others) << n;
      return n;
    };
    EXPECT_EQ(n_found(1), 0);
    EXPECT_GT(n_found(1), 0);
    EXPECT_EQ(n_found(2), 0);
    EXPECT_GT(n_found(2), 0);
  }
}

// A sequence that continues with another salt keeps nothing.
TEST_F(Salts, SequenceKeepsNothingUnderAnotherSalt) {
  const std::unique_ptr<Engine> e = engine();
  Prompt prompt = e->prepare_tokens(plain_tokens(100));
  prompt.salt = salt(1);
  const std::unique_ptr<Sequence> sequence = e->new_sequence(prompt, parse_policy("full"));
  Request asked;
  asked.prompt = prompt.copy();
  asked.sequence = sequence.get();
  asked.options.max_tokens = 1;
  generate(*e, std::move(asked));
  EXPECT_EQ(sequence->continue_with(prompt), 99);
  prompt.salt = salt(2);
  EXPECT_EQ(sequence->continue_with(prompt), 0);
}

}  // namespace
}  // namespace vlcache
