// Videos without the patches that hardly changed: prompts, keys of caches, answers and reuse.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "base/at.h"
#include "engine/engine_testing.h"
#include "engine/prompt/video_testing.h"
#include "engine/scheduler/scheduler.h"

namespace vlcache {
namespace {

class PrunedVideos : public testing::TestWithParam<std::pair<const char*, int>> {
 protected:
  std::unique_ptr<Engine> load(int32_t chunk = 512) const {
    return fixture_.load({.dtype = DType::kF32, .prefill_chunk = chunk});
  }
  Prompt prepare(const Engine& engine, float share, const std::string& before = "") const {
    InputMedia media = fixture_.media();
    for (InputVideo& video : media.videos) video.options.video_prune = share;
    return engine.prepare_raw(before + fixture_.json["prompt"].get<std::string>(), std::move(media));
  }
  static Request request(Prompt prompt, const char* chooser = nullptr) {
    Request request;
    request.prompt = std::move(prompt);
    request.policy = parse_policy("full");
    request.reuse.prefix = true;
    if (chooser != nullptr) request.reuse.chooser = parse_reuse_chooser(chooser);
    request.options.max_tokens = 8;
    request.options.ignore_eos = true;
    return request;
  }

  const VideoFixture fixture_{GetParam().first, GetParam().second};
};

TEST_P(PrunedVideos, KeptTokensStayWhereTheyAre) {
  const auto engine = load();
  const Prompt whole = prepare(*engine, 0), half = prepare(*engine, 0.5f);
  EXPECT_EQ(whole.contents, fixture_.prompt(*engine).contents);
  ASSERT_EQ(half.images.size(), whole.images.size());
  std::vector<std::vector<Position>> positions(whole.images.size());  // by cell
  for (const ImageSpan& span : whole.spans) {
    const auto begin = whole.positions.begin() + span.begin;
    positions[at(span.image)].insert(positions[at(span.image)].end(), begin, begin + (span.end - span.begin));
  }
  int64_t n_dropped = 0;
  for (const ImageSpan& span : half.spans) {
    const ImageTiles& image = half.images[at(span.image)];
    const auto n = std::ssize(positions[at(span.image)]);
    const bool later = image.unit && !image.unit->first;
    EXPECT_EQ(image.kept.has_value(), later && n > 1) << span.image;
    EXPECT_EQ(half.contents[at(span.image)] == whole.contents[at(span.image)], !image.kept);
    if (image.kept) {
      EXPECT_EQ(image.kept->n_dropped, (n + 1) / 2);
      EXPECT_EQ(image.kept->n_dropped + std::ssize(image.kept->cells), n);
      n_dropped += image.kept->n_dropped;
    }
    for (int32_t i = span.begin; i < span.end; ++i) {
      EXPECT_EQ(half.positions[at(i)], positions[at(span.image)][at(image.cell_of(span.row_of(i)))]) << i;
    }
  }
  EXPECT_GT(n_dropped, 0);
  EXPECT_EQ(half.n_tokens() + n_dropped, whole.n_tokens());
  EXPECT_EQ(half.n_positions(), whole.n_positions());
  EXPECT_EQ(half.positions.back(), whole.positions.back());
  Prompt copy = half.copy();
  for (size_t i = 0; i < copy.images.size(); ++i) EXPECT_EQ(image_key(copy.with_pixels(i)), half.contents[i]);
}

// In pieces of any size, from the caches, and where the video stands elsewhere.
TEST_P(PrunedVideos, AnswersDoNotDependOnTheWay) {
  std::vector<int32_t> expected;
  for (const int32_t chunk : {512, 7}) {
    const auto engine = load(chunk);
    const std::vector<int32_t> first = ids_of(generate(*engine, request(prepare(*engine, 0.5f))));
    if (expected.empty()) expected = first;
    EXPECT_EQ(first, expected) << chunk;
    const GenerateResult again = generate(*engine, request(prepare(*engine, 0.5f)));
    EXPECT_EQ(ids_of(again), expected);
    EXPECT_EQ(again.cache.n_prefix_tokens, again.n_prompt - 1);
  }
}

// What is found is what was stored under the same key: the first units, and later ones under the same share.
TEST_P(PrunedVideos, TwoSharesShareNothing) {
  const auto engine = load();
  std::set<Sha256Digest> stored;
  for (const auto& [share, text] : {std::pair(0.5f, ""), std::pair(0.5f, "Now. "), std::pair(0.0f, "Then. "),
                                    std::pair(0.8f, "Later. "), std::pair(0.5f, "At last. ")}) {
    const GenerateResult found = generate(*engine, request(prepare(*engine, share, text), "static:r=0"));
    std::set<Sha256Digest> seen;
    for (const CacheReport::Image& image : found.cache.images) {
      if (!seen.insert(image.key).second) continue;
      EXPECT_EQ(image.loaded(), stored.contains(image.key)) << text << image.reason;
    }
    EXPECT_EQ(std::ranges::includes(stored, seen), share == 0.5f && *text != '\0') << text;
    stored.merge(seen);
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, PrunedVideos,
                         testing::Values(std::pair("qwen2-vl-nested", 0), std::pair("qwen2.5-vl-nested", 1),
                                         std::pair("qwen3-vl-deepstack", 0)));

}  // namespace
}  // namespace vlcache
