// Names of images: their owners, the images that they stand for, and eviction.
#include "server/protocol/named_images.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace vlcache {
namespace {

NamedImages::Bytes picture(int value, size_t n = 10) {
  return std::make_shared<const std::vector<std::byte>>(n, std::byte(value));
}

bool has(NamedImages& images, const NamedImages::Name& name, int value) {
  try {
    return *images.find(name, "here") == *picture(value);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kNotFound);
    EXPECT_TRUE(std::string(e.what()).starts_with("here: ")) << e.what();
    return false;
  }
}

TEST(NamedImages, BelongToTheirOwner) {
  NamedImages images(100);
  images.add({"a", "page"}, picture(1), "here");
  images.add({"b", "page"}, picture(2), "here");
  EXPECT_TRUE(has(images, {"a", "page"}, 1));
  EXPECT_TRUE(has(images, {"b", "page"}, 2));
  EXPECT_FALSE(has(images, {"c", "page"}, 1));
  EXPECT_FALSE(has(images, {"a", "pag"}, 1));
  images.clear();
  EXPECT_FALSE(has(images, {"a", "page"}, 1));
  EXPECT_EQ(images.state().bytes, 0);
}

TEST(NamedImages, ANameStaysThatPictures) {
  NamedImages images(100);
  images.add({"a", "page"}, picture(1), "here");
  images.add({"a", "page"}, picture(1), "here");
  EXPECT_EQ(images.state().n_images, 1U);
  EXPECT_THROW(images.add({"a", "page"}, picture(2), "here"), Error);
  EXPECT_THROW(images.add({"a", "page"}, picture(1, 11), "here"), Error);
  EXPECT_TRUE(has(images, {"a", "page"}, 1));
}

TEST(NamedImages, ThoseUsedLeastLatelyGo) {
  NamedImages images(30);
  for (const int i : {1, 2, 3}) images.add({"", std::to_string(i)}, picture(i), "here");
  EXPECT_TRUE(has(images, {"", "1"}, 1));
  images.add({"", "2"}, picture(2), "here");
  images.add({"", "4"}, picture(4), "here");
  EXPECT_FALSE(has(images, {"", "3"}, 3));
  for (const int i : {1, 2, 4}) EXPECT_TRUE(has(images, {"", std::to_string(i)}, i));
  EXPECT_EQ(images.state().bytes, 30);
  images.add({"", "large"}, picture(5, 31), "here");
  EXPECT_EQ(images.state().n_images, 3U);
  images.add({"", "all"}, picture(5, 30), "here");
  EXPECT_EQ(images.state().n_images, 1U);
  images.add({"", "3"}, picture(6), "here");  // its name is free again
  EXPECT_TRUE(has(images, {"", "3"}, 6));
}

}  // namespace
}  // namespace vlcache
