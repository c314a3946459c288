// Names of images: their owners, the images that they stand for, and eviction.
#include "api/messages/named_images.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "store/fake_tier_testing.h"

namespace vlcache {
namespace {

NamedImages::Bytes image_bytes(int value, size_t n = 10) {
  return std::make_shared<const std::vector<std::byte>>(n, std::byte(value));
}

bool has(NamedImages& images, const NamedImages::Name& name, int value) {
  try {
    return *images.find(name, "here") == *image_bytes(value);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kNotFound);
    EXPECT_TRUE(std::string(e.what()).starts_with("here: ")) << e.what();
    return false;
  }
}

TEST(NamedImages, BelongToTheirOwner) {
  NamedImages images(100);
  images.add({"a", "page"}, image_bytes(1), "here");
  images.add({"b", "page"}, image_bytes(2), "here");
  EXPECT_TRUE(has(images, {"a", "page"}, 1));
  EXPECT_TRUE(has(images, {"b", "page"}, 2));
  EXPECT_FALSE(has(images, {"c", "page"}, 1));
  EXPECT_FALSE(has(images, {"a", "pag"}, 1));
  images.clear();
  EXPECT_FALSE(has(images, {"a", "page"}, 1));
  EXPECT_EQ(images.state().bytes, 0);
}

TEST(NamedImages, NameStaysBoundToItsImage) {
  NamedImages images(100);
  images.add({"a", "page"}, image_bytes(1), "here");
  images.add({"a", "page"}, image_bytes(1), "here");
  EXPECT_EQ(images.state().n_images, 1U);
  EXPECT_THROW(images.add({"a", "page"}, image_bytes(2), "here"), Error);
  EXPECT_THROW(images.add({"a", "page"}, image_bytes(1, 11), "here"), Error);
  EXPECT_TRUE(has(images, {"a", "page"}, 1));
}

// Replicas that share a tier.
TEST(NamedImages, AreFoundThroughTiers) {
  const auto tier = std::make_shared<FakeTier>();
  const std::vector<std::shared_ptr<KvTier>> far = {std::make_shared<FakeTier>(nullptr, "empty"), tier};
  NamedImages one(100, {tier}), two(100, far), alone(100);
  one.add({"a", "page"}, image_bytes(1), "here");
  EXPECT_TRUE(has(two, {"a", "page"}, 1));
  EXPECT_EQ(two.state().n_images, 1U);  // from now on in its own memory
  EXPECT_FALSE(has(alone, {"a", "page"}, 1));
  EXPECT_FALSE(has(two, {"b", "page"}, 1));
  EXPECT_FALSE(has(two, {"apa", "ge"}, 1)) << "owner and name are told apart";
  NamedImages three(100, far);
  EXPECT_THROW(three.add({"a", "page"}, image_bytes(2), "here"), Error);  // bound to its bytes everywhere
  three.add({"a", "page"}, image_bytes(1), "here");
  EXPECT_TRUE(has(three, {"a", "page"}, 1));
  NamedImages small(5, {tier});
  EXPECT_FALSE(has(small, {"a", "page"}, 1)) << "larger than it may be here";
  two.clear();
  EXPECT_TRUE(has(two, {"a", "page"}, 1));
  try {
    two.find({"a", "never"}, "here");
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("this replica has no image of this name"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("send the image's bytes"), std::string::npos) << e.what();
  }
}

TEST(NamedImages, LeastRecentlyUsedImagesAreEvicted) {
  NamedImages images(30);
  for (const int i : {1, 2, 3}) images.add({"", std::to_string(i)}, image_bytes(i), "here");
  EXPECT_TRUE(has(images, {"", "1"}, 1));
  images.add({"", "2"}, image_bytes(2), "here");
  images.add({"", "4"}, image_bytes(4), "here");
  EXPECT_FALSE(has(images, {"", "3"}, 3));
  for (const int i : {1, 2, 4}) EXPECT_TRUE(has(images, {"", std::to_string(i)}, i));
  EXPECT_EQ(images.state().bytes, 30);
  images.add({"", "large"}, image_bytes(5, 31), "here");
  EXPECT_EQ(images.state().n_images, 3U);
  images.add({"", "all"}, image_bytes(5, 30), "here");
  EXPECT_EQ(images.state().n_images, 1U);
  images.add({"", "3"}, image_bytes(6), "here");  // its name is free again
  EXPECT_TRUE(has(images, {"", "3"}, 6));
}

}  // namespace
}  // namespace vlcache
