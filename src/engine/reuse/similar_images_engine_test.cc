// A page with an edit takes the KV of the page before it, except around the edit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "base/at.h"
#include "engine/engine.h"
#include "engine/engine_caches.h"
#include "engine/engine_testing.h"
#include "engine/page_testing.h"
#include "engine/scheduler/scheduler.h"
#include "model/images/cell_hashes.h"
#include "tests/fixture_cases.h"

namespace vlcache {
namespace {

class SimilarPages : public testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<Engine> load(int32_t prefill_chunk = 512) const {
    return load_fixture_engine(GetParam(), prefill_chunk);
  }
  // A page of noise; `edit`: with a block of another colour.
  static Image page(int edit) {
    Image image(96, 96);
    std::mt19937 random(11);
    for (uint8_t& value : image.rgb) value = static_cast<uint8_t>(random());
    for (int64_t y = 2; edit > 0 && y < 6; ++y) {
      for (int64_t x = 2; x < 6; ++x) {
        const int colour[] = {edit, 255 - edit, edit * 7};
        for (int64_t c = 0; c < 3; ++c) image.row(y)[3 * x + c] = static_cast<uint8_t>(colour[c]);
      }
    }
    return image;
  }
  Prompt prepare(const Engine& engine, const Image& page, const std::string& before, bool compared = true,
                 std::optional<Sha256Digest> salt = {}) const {
    const EncodedImage image = encoded_page(page, {.settings = "", .dedup = {}, .compared = compared});
    const bool grid = std::string_view(GetParam()).starts_with("qwen");
    Prompt prompt =
        engine.prepare_raw(before + (grid ? "<|vision_start|><|image_pad|><|vision_end|>" : "<image>") + "What is it?",
                           std::vector{image});
    prompt.salt = salt;
    return prompt;
  }
  static Request request(Prompt prompt, const char* chooser = "static:r=0.1", bool similar = true) {
    Request request;
    request.prompt = std::move(prompt);
    request.policy = parse_policy("full");
    request.options.max_tokens = 3;
    request.options.ignore_eos = true;
    request.reuse.chooser = chooser == nullptr ? nullptr : parse_reuse_chooser(chooser);
    request.reuse.similar = similar;
    return request;
  }
  // K and V of a layer's tokens, [n, Hk, 2 d].
  static std::vector<std::vector<float>> rows(const Sequence& sequence, int32_t layer, int32_t n) {
    const int32_t heads = sequence.cache().shape().layers[at(layer)].n_kv_heads,
                  d = sequence.cache().shape().layers[at(layer)].head_dim;
    std::vector<std::vector<float>> rows(at(n));
    std::vector<float> k(at(n * d)), v(k.size());
    for (int32_t head = 0; head < heads; ++head) {
      sequence.cache().read(layer, head, Tensor(k.data(), DType::kF32, {n, d}), Tensor(v.data(), DType::kF32, {n, d}));
      for (int32_t t = 0; t < n; ++t) {
        rows[at(t)].insert(rows[at(t)].end(), k.begin() + t * d, k.begin() + (t + 1) * d);
        rows[at(t)].insert(rows[at(t)].end(), v.begin() + t * d, v.begin() + (t + 1) * d);
      }
    }
    return rows;
  }
};

// In the first layer K and V come from the embeddings alone: around the edit they are those of the edited page as it is
// when all of it is computed, elsewhere those of the page before.
TEST_P(SimilarPages, AreComputedAroundTheEdit) {
  for (const int32_t chunk : {512, 5}) {
    SCOPED_TRACE(chunk);
    const auto engine = load(chunk);
    Prompt old = prepare(*engine, page(0), ""), edited = prepare(*engine, page(3), "Then: ");
    ASSERT_NE(old.images[0].hashes, nullptr);
    const std::vector<bool> changed =
        changed_tokens(engine->model().config(), edited.images[0], *old.images[0].hashes, *edited.images[0].hashes);
    const auto n_changed = static_cast<int32_t>(std::ranges::count(changed, true));
    ASSERT_GT(n_changed, 0);
    ASSERT_LT(n_changed, std::ssize(changed));
    const Sha256Digest old_key = image_keys(old)[0], new_key = image_keys(edited)[0];
    generate(*engine, request(std::move(old)));
    const ImageSpan span = edited.spans[0];
    const auto whole = engine->new_sequence(edited, parse_policy("full")),
               before = engine->new_sequence(prepare(*engine, page(0), "Then: "), parse_policy("full")),
               similar = engine->new_sequence(edited, parse_policy("full"));
    for (const auto& [sequence, edit] : {std::pair(whole.get(), 3), std::pair(before.get(), 0)}) {
      Request computed = request(prepare(*engine, page(edit), "Then: "), nullptr);
      computed.sequence = sequence;
      generate(*engine, std::move(computed));
    }
    Request asked = request(edited.copy(), "static:r=0");
    asked.sequence = similar.get();
    const GenerateResult result = generate(*engine, std::move(asked));
    const CacheReport::Image& report = result.cache.images[0];
    EXPECT_TRUE(report.loaded());
    EXPECT_EQ(report.similar, old_key);
    EXPECT_EQ(report.n_changed, n_changed);
    EXPECT_DOUBLE_EQ(report.n_recomputed, n_changed);
    EXPECT_EQ(report.encoder, CacheReport::Image::Encoder::kHit);         // the whole of it was encoded, above
    EXPECT_FALSE(engine->caches().usual().image_kv().contains(new_key));  // never an origin
    EXPECT_FALSE(similar->exact());
    const auto of_whole = rows(*whole, 0, span.end), of_before = rows(*before, 0, span.end),
               found = rows(*similar, 0, span.end);
    for (int32_t t = span.begin; t < span.end; ++t) {
      const bool is_changed = changed[at(span.row_of(t))];
      EXPECT_THAT(found[at(t)],
                  testing::Pointwise(testing::FloatNear(1e-5f), is_changed ? of_whole[at(t)] : of_before[at(t)]))
          << t;
      // The encoder lets every patch see the edit, so the two differ at any token.
      EXPECT_NE(of_whole[at(t)], of_before[at(t)]) << t;
    }
  }
}

TEST_P(SimilarPages, TakeOtherKvOnceAndNeverFromOtherTenants) {
  const auto engine = load();
  const auto source = [&](Prompt prompt, const char* chooser = "static:r=0.1", bool similar = true) {
    const GenerateResult result = generate(*engine, request(std::move(prompt), chooser, similar));
    return result.cache.images[0].similar.has_value();
  };
  Sha256 hash;
  const Sha256Digest salt = hash.finish();
  EXPECT_FALSE(source(prepare(*engine, page(0), "")));
  EXPECT_FALSE(source(prepare(*engine, page(1), "", /*compared=*/true, salt)));
  EXPECT_FALSE(source(prepare(*engine, page(2), ""), "static:r=0.1", /*similar=*/false));
  EXPECT_FALSE(source(prepare(*engine, page(3), "", /*compared=*/false)));
  EXPECT_FALSE(source(prepare(*engine, page(4), ""), /*chooser=*/nullptr));
  EXPECT_FALSE(source(prepare(*engine, page(5), ""), "asked:r=0.2"));  // looks at KV that may be outdated
  EXPECT_TRUE(source(prepare(*engine, page(6), "")));
  // The second time it is computed and recorded, from then on it has KV of its own.
  EXPECT_FALSE(source(prepare(*engine, page(6), "")));
  const GenerateResult third = generate(*engine, request(prepare(*engine, page(6), "Then: ")));
  EXPECT_TRUE(third.cache.images[0].loaded());
  EXPECT_FALSE(third.cache.images[0].similar.has_value());
  // Nothing is left after a reset.
  engine->kv().reset();
  EXPECT_FALSE(source(prepare(*engine, page(7), "")));
}

// Pages with an edit each, asked about after one another: no answer is that of a page before it, wherever those
// differ; and what is kept of one approximation serves no other.
TEST_P(SimilarPages, AnswersDependOnTheirOwnPage) {
  const auto engine = load();
  generate(*engine, request(prepare(*engine, page(0), "")));
  const int n_pages = only_ref() ? 6 : 30;
  int n_similar = 0;
  std::set<Sha256Digest> contents;
  for (int edit = 1; edit <= n_pages; ++edit) {
    Prompt prompt = prepare(*engine, page(edit * 8), "Now: ");
    const auto sequence = engine->new_sequence(prompt, parse_policy("full"));
    Request asked = request(std::move(prompt), "static:r=0");
    asked.sequence = sequence.get();
    const GenerateResult result = generate(*engine, std::move(asked));
    n_similar += result.cache.images[0].similar.has_value();
    EXPECT_TRUE(contents.insert(sequence->images().contents()[0]).second);
  }
  EXPECT_EQ(n_similar, n_pages);
}

INSTANTIATE_TEST_SUITE_P(, SimilarPages, testing::Values("qwen3-vl-deepstack", "qwen2.5-vl-nested", "llava-clip"),
                         fixture_test_name<const char*>);

}  // namespace
}  // namespace vlcache
