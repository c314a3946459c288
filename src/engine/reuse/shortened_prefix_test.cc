// The KV of a conversation whose oldest turns are gone: that of the turns that stay, at their new positions.
#include "engine/reuse/shortened_prefix.h"

#include <cmath>
#include <numeric>

#include "engine/reuse/stored_images_testing.h"

namespace vlcache {
namespace {

class ShortenedPrefix : public StoredImages {
 protected:
  static constexpr const char* kSystem = "You answer questions about images, shortly and to the point. ";
  static constexpr const char* kFirst = "First of all: what is this, and what was it before it was what it is now? ";
  static constexpr const char* kSecond = "Then: how many of them are there, and where do they stand? <image>\n ";

  Prompt prompt(const std::string& text) const {
    std::vector<Image> images;
    size_t at = 0;
    for (const auto& name : case_["images"]) {
      if ((at = text.find("<image>", at)) == std::string::npos) break;
      ++at;
      images.push_back(load_image(fixture_ / name.get<std::string>()));
    }
    return engine_->prepare_raw(with_placeholders(text), std::move(images));
  }
  GenerateResult answer(Prompt prompt, Sequence* sequence = nullptr) const {
    Request request;
    request.prompt = std::move(prompt);
    request.policy = parse_policy("full");
    request.reuse = {.prefix = true};
    request.options.max_tokens = 4;
    request.options.ignore_eos = true;
    request.sequence = sequence;
    return generate(*engine_, std::move(request));
  }
  // A conversation, after the answer to `prompt`.
  struct Conversation {
    PrefixTokens tokens;
    CachedPrefix kv;
  };
  Conversation conversation(const Prompt& prompt) const {
    const auto sequence = engine_->new_sequence(prompt, parse_policy("full"));
    answer(prompt.copy(), sequence.get());
    PrefixTokens tokens = PrefixReuse::tokens_of(*sequence);
    const auto n = static_cast<int32_t>(tokens.ids.size());
    return {std::move(tokens), {.n = n, .kv = sequence->cache().fork(), .pin = {}}};
  }
  Conversation both_turns() const { return conversation(prompt(std::string(kSystem) + kFirst + kSecond)); }
  std::vector<float> rows(const KvCache& kv, int32_t layer, int32_t head, bool keys) const {
    const int64_t n = kv.n_slots(layer, head), d = kv.shape().layers[0].head_dim;
    std::vector<float> k(static_cast<size_t>(n * d)), v(k.size());
    kv.read(layer, head, Tensor(k.data(), DType::kF32, {n, d}), Tensor(v.data(), DType::kF32, {n, d}));
    return keys ? k : v;
  }

  const std::unique_ptr<Engine> engine_ = engine();
};

TEST_F(ShortenedPrefix, HasTheKvOfTheTurnsThatStayAtTheirNewPlaces) {
  const auto [before, longer] = both_turns();
  Prompt shorter = prompt(std::string(kSystem) + kSecond + "And why?");
  const int32_t gap = prompt(std::string(kSystem) + kFirst + kSecond).spans.back().end - shorter.spans.back().end;
  const int32_t n = shorten_prefix(*engine_, before, longer, shorter);
  ASSERT_GE(n, shorter.spans.back().end);
  const PrefixTokens first{.ids = {shorter.tokens.begin(), shorter.tokens.begin() + n},
                           .spans = shorter.spans,
                           .contents = image_keys(shorter),
                           .keys = image_keys(shorter),
                           .salt = shorter.salt};
  const CachedPrefix kept = PrefixReuse::cached(*engine_, first);
  ASSERT_EQ(kept.n, n);
  const auto differs = std::ranges::mismatch(shorter.tokens, before.ids).in1;
  const auto n_same = static_cast<int32_t>(differs - shorter.tokens.begin());
  const std::span<const float> frequencies = engine_->model().ropes().of(0).frequencies();
  const auto d = static_cast<int32_t>(2 * frequencies.size());
  double worst = 0;
  for (int32_t layer = 0; layer < kept.kv.shape().n_layers(); ++layer) {
    for (int32_t head = 0; head < kept.kv.shape().n_own_heads(layer); ++head) {
      const std::vector<float> from = rows(longer.kv, layer, head, true), to = rows(kept.kv, layer, head, true);
      for (int32_t t = 0; t < n; ++t) {
        const int32_t old = t < n_same ? t : t + gap;
        for (int32_t c = 0; c < d / 2; ++c) {  // as complex numbers
          const auto angle = [&](int32_t p) {
            return static_cast<double>(static_cast<float>(p) * frequencies[static_cast<size_t>(c)]);
          };
          const double by = angle(t) - angle(old);
          const auto at = [&](const std::vector<float>& values, int32_t token, int32_t column) {
            return static_cast<double>(values[static_cast<size_t>(token * d + column)]);
          };
          const double re = at(from, old, c), im = at(from, old, c + d / 2);
          worst = std::max(worst, std::abs(re * std::cos(by) - im * std::sin(by) - at(to, t, c)));
          worst = std::max(worst, std::abs(re * std::sin(by) + im * std::cos(by) - at(to, t, c + d / 2)));
        }
      }
      const std::vector<float> values = rows(longer.kv, layer, head, false), moved = rows(kept.kv, layer, head, false);
      for (int32_t t = 0; t < n; ++t) {
        const int32_t old = t < n_same ? t : t + gap;
        EXPECT_TRUE(std::equal(moved.begin() + t * d, moved.begin() + (t + 1) * d, values.begin() + old * d));
      }
    }
  }
  EXPECT_LT(worst, 1e-5);
}

TEST_F(ShortenedPrefix, IsFoundByItsConversationAlone) {
  const auto [before, longer] = both_turns();
  Prompt shorter = prompt(std::string(kSystem) + kSecond + "And why?");
  const int32_t n = shorten_prefix(*engine_, before, longer, shorter);
  const GenerateResult result = answer(shorter.copy());
  EXPECT_EQ(result.cache.n_prefix_tokens, n);
  for (const CacheReport::Image& image : result.cache.images)
    EXPECT_EQ(image.encoder, CacheReport::Image::Encoder::kSkipped);
  // Without its salt: what is the same from the beginning on, exactly.
  const GenerateResult other = answer(prompt(std::string(kSystem) + kSecond + "And why?"));
  EXPECT_LT(other.cache.n_prefix_tokens, n - 16);
  // Shortened once more.
  Prompt again = prompt(std::string(kSystem) + "And why?");
  const auto [tokens, kv] = conversation(shorter);
  EXPECT_GT(shorten_prefix(*engine_, tokens, kv, again), 10);
  EXPECT_NE(again.salt, shorter.salt);
}

TEST_F(ShortenedPrefix, OtherImagesAndNothingKnownKeepTheSalt) {
  Prompt shorter = prompt(std::string(kSystem) + kSecond + "And why?");
  EXPECT_EQ(shorten_prefix(*engine_, {}, PrefixReuse::cached(*engine_, {}), shorter), 0);
  EXPECT_FALSE(shorter.salt);
  auto [before, longer] = both_turns();
  for (Sha256Digest& key : before.keys) key[0] ^= 1;  // of the same size
  const int32_t n = shorten_prefix(*engine_, before, longer, shorter);
  EXPECT_LE(n, shorter.spans.back().begin);
}

}  // namespace
}  // namespace vlcache
