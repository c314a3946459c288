// Which of the cached images a new one is most like.
#include "reuse/image/similar_image_index.h"

#include <gtest/gtest.h>

namespace vlcache {
namespace {

Sha256Digest image_digest(int i) {
  Sha256 hash;
  hash.add(int64_t{i});
  return hash.finish();
}

SimilarImageIndex::Cells make_cells(std::vector<uint64_t> values) {
  return std::make_shared<const std::vector<uint64_t>>(std::move(values));
}

const Sha256Digest kShape = image_digest(100);

// The number of the image that is found, of those put as 0, 1, 2, ...; -1: none.
int found_image(SimilarImageIndex& images, const std::vector<uint64_t>& of, const Sha256Digest& shape = kShape,
                int image = 50, int unusable = -1) {
  const auto other = images.find(image_digest(image), shape, of,
                                 [&](const Sha256Digest& key) { return key != image_digest(unusable); });
  if (!other) return -1;
  for (int i = 0; i < 100; ++i) {
    if (image_digest(i) == other->image) return i;
  }
  return -2;
}

TEST(SimilarImageIndex, TheOneWithMostInCommonIsFound) {
  SimilarImageIndex images;
  EXPECT_EQ(found_image(images, {1, 2, 3, 4}), -1);
  images.put(image_digest(0), kShape, make_cells({1, 2, 9, 9}));
  images.put(image_digest(1), kShape, make_cells({1, 2, 3, 9}));
  images.put(image_digest(2), kShape, make_cells({1, 9, 9, 9}));
  EXPECT_EQ(found_image(images, {1, 2, 3, 4}), 1);
  EXPECT_EQ(found_image(images, {1, 2, 3, 4}, kShape, 50, /*unusable=*/1), 0);
  EXPECT_EQ(found_image(images, {1, 2, 3, 4}, kShape, /*image=*/1), 0);  // another one than itself
  EXPECT_EQ(found_image(images, {1, 7, 7, 7}), -1);                      // less than half
  EXPECT_EQ(found_image(images, {1, 2, 7, 7}, kShape, 50, 1), 0);        // half
  EXPECT_EQ(found_image(images, {1, 2, 3, 4}, image_digest(101)), -1);   // of another shape
  EXPECT_EQ(found_image(images, {1, 2, 3}), -1);
  images.put(image_digest(1), kShape, make_cells({5, 6, 7, 8}));  // its cells are replaced
  EXPECT_EQ(found_image(images, {1, 2, 3, 4}), 0);
  images.clear();
  EXPECT_EQ(found_image(images, {1, 2, 3, 4}), -1);
}

TEST(SimilarImageIndex, TheLeastRecentlyUsedAreForgotten) {
  SimilarImageIndex images;
  images.put(image_digest(0), kShape, make_cells({0, 0}));
  images.put(image_digest(1), kShape, make_cells({1, 1}));
  for (size_t i = 0; i + 2 < SimilarImageIndex::kMaxImages; ++i)
    images.put(image_digest(static_cast<int>(i) + 200), kShape, make_cells({7, 7}));
  EXPECT_EQ(found_image(images, {0, 0}), 0);  // used again
  images.put(image_digest(2), kShape, make_cells({2, 2}));
  EXPECT_EQ(found_image(images, {0, 0}), 0);
  EXPECT_EQ(found_image(images, {1, 1}), -1);
  EXPECT_EQ(found_image(images, {2, 2}), 2);
}

TEST(SimilarImageIndex, BoundsTheMemoryOfItsCells) {
  SimilarImageIndex images;
  const std::vector<uint64_t> half(SimilarImageIndex::kMaxCells / 2, 3);
  images.put(image_digest(0), kShape, make_cells(half));
  images.put(image_digest(1), kShape, make_cells(half));
  EXPECT_EQ(found_image(images, half), 1);
  EXPECT_EQ(found_image(images, half, kShape, 50, 1), 0);
  images.put(image_digest(2), kShape, make_cells({1}));
  EXPECT_EQ(found_image(images, half, kShape, 50, /*unusable=*/0), -1);  // 1 was the least recently used
  const std::vector<uint64_t> larger_than_all(SimilarImageIndex::kMaxCells + 1, 3);
  images.put(image_digest(3), kShape, make_cells(larger_than_all));
  EXPECT_EQ(found_image(images, half), 0);
}

TEST(SimilarImageIndex, AnImageTakesOtherKvOnce) {
  SimilarImageIndex images;
  EXPECT_TRUE(images.first_time(image_digest(0)));
  EXPECT_FALSE(images.first_time(image_digest(0)));
  EXPECT_TRUE(images.first_time(image_digest(1)));
}

}  // namespace
}  // namespace vlcache
