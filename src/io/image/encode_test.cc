#include "io/image/encode.h"

#include <gtest/gtest.h>

namespace vlcache {
namespace {

Image test_image(int64_t width, int64_t height) {
  Image image(width, height);
  for (size_t i = 0; i < image.rgb.size(); ++i) image.rgb[i] = static_cast<uint8_t>(i * 37 % 251);
  return image;
}

TEST(EncodePng, IsDecodedToTheSamePixels) {
  for (const auto& [w, h] : {std::pair{1, 1}, std::pair{17, 5}, std::pair{64, 64}}) {
    const Image image = test_image(w, h);
    const Image back = decode_image(encode_png(image), "test");
    EXPECT_EQ(back.width, w);
    EXPECT_EQ(back.height, h);
    EXPECT_EQ(back.rgb, image.rgb);
  }
}

TEST(Shrink, AveragesTheAreaOfAPixel) {
  Image image(4, 2);
  for (size_t i = 0; i < 8; ++i) image.rgb[3 * i] = static_cast<uint8_t>(10 * i);
  const Image small = shrink(image, 2);
  ASSERT_EQ(small.width, 2);
  ASSERT_EQ(small.height, 1);
  EXPECT_EQ(small.rgb[0], (0 + 10 + 40 + 50) / 4);
  EXPECT_EQ(small.rgb[3], (20 + 30 + 60 + 70) / 4);
  EXPECT_EQ(shrink(image, 100).rgb, image.rgb);
  EXPECT_EQ(shrink(test_image(3, 1000), 10).width, 1);
}

TEST(Base64, PadsAsInTheRfc) {
  const auto of = [](std::string_view text) {
    std::vector<std::byte> bytes;
    for (const char c : text) bytes.push_back(static_cast<std::byte>(c));
    return base64(bytes);
  };
  EXPECT_EQ(of(""), "");
  EXPECT_EQ(of("f"), "Zg==");
  EXPECT_EQ(of("fo"), "Zm8=");
  EXPECT_EQ(of("foobar"), "Zm9vYmFy");
}

}  // namespace
}  // namespace vlcache
