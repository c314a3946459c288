// Images from a directory to memory before any request needs them: within the budget, and never damaged ones.
#include "reuse/image/image_prefetch.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "store/disk/tier.h"

namespace vlcache {
namespace {

constexpr int32_t kImageTokens = 100;

class ImagePrefetchTest : public testing::Test {
 protected:
  ImagePrefetchTest()
      : dir_(std::filesystem::temp_directory_path() / ("vlcache-image-prefetch-" + std::to_string(getpid()))),
        chain_(
            {std::make_shared<DiskTier>(DiskTierOptions{.dir = dir_, .max_bytes = 64 << 20, .ttl_ms = 0, .salt = ""})},
            64 << 20),
        store_(chain_, {.deadline_ms = 60'000}, {}, shape_, {}, DType::kBF16, 16),
        budget_(2 * image_bytes_ + image_bytes_ / 2),
        images_(budget_) {
    for (uint8_t i = 1; i <= 3; ++i) {
      auto kv = std::make_shared<ImageKv>(shape_, ImageKvForm(), kImageTokens);
      for (int32_t layer = 0; layer < kv->n_layers(); ++layer) std::ranges::fill(kv->layer_bytes(layer), std::byte{i});
      store_.used(key(i), kv, /*computed=*/true);
    }
    chain_.flush(kNoDeadline);
  }
  ~ImagePrefetchTest() override { std::filesystem::remove_all(dir_); }

  static Sha256Digest key(uint8_t i) {
    Sha256Digest digest{};
    digest[0] = i;
    return digest;
  }
  // For an image that the directory has.
  bool start(ImagePrefetch& prefetch, const Sha256Digest& image) {
    ImageSearch search = store_.search({&image, 1});
    EXPECT_TRUE(search.wait(0, kNoDeadline));
    ChainedTier* const from = search.kv(0);
    return from != nullptr && prefetch.start(image, kImageTokens, *from);
  }
  // Until no load is pending.
  void wait(ImagePrefetch& prefetch) {
    while (prefetch.bytes() > 0) {
      prefetch.take_in();
      EXPECT_LE(budget_.used_bytes(), budget_.max_bytes());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  const KvShape shape_ = KvShape::uniform(3, 2, 16, KvCodec::kBF16);
  const int64_t image_bytes_ = ImageKv::bytes_of(shape_, {}, kImageTokens);
  std::filesystem::path dir_;
  TierChain chain_;
  ImageStore store_;
  CacheBudget budget_;
  DigestCache images_;
};

TEST_F(ImagePrefetchTest, LoadsImagesFromTiers) {
  ImagePrefetch prefetch(budget_, images_, store_, shape_, {});
  EXPECT_TRUE(start(prefetch, key(1)));
  EXPECT_TRUE(start(prefetch, key(1)));  // pending
  EXPECT_EQ(prefetch.bytes(), image_bytes_);
  wait(prefetch);
  const std::shared_ptr<const ImageKv> image = images_.find<ImageKv>(key(1));
  ASSERT_NE(image, nullptr);
  EXPECT_EQ(image->layer_bytes(2).back(), std::byte{1});
  EXPECT_EQ(budget_.used_bytes(), image_bytes_);
}

TEST_F(ImagePrefetchTest, StaysWithinTheBudget) {
  ImagePrefetch prefetch(budget_, images_, store_, shape_, {});
  EXPECT_TRUE(start(prefetch, key(1)));
  EXPECT_TRUE(start(prefetch, key(2)));
  EXPECT_FALSE(start(prefetch, key(3)));  // two at a time, and no room for more
  wait(prefetch);
  {
    const CacheHold one = images_.hold(key(1)), two = images_.hold(key(2));
    EXPECT_FALSE(start(prefetch, key(3)));  // entries held for other requests are not evicted for it
    EXPECT_EQ(prefetch.bytes(), 0);
  }
  EXPECT_TRUE(start(prefetch, key(3)));
  wait(prefetch);
  EXPECT_TRUE(images_.contains(key(3)));
  EXPECT_NE(images_.contains(key(1)), images_.contains(key(2)));
}

TEST_F(ImagePrefetchTest, HandsOverPendingLoads) {
  ImagePrefetch prefetch(budget_, images_, store_, shape_, {});
  EXPECT_FALSE(prefetch.take(key(1)));
  start(prefetch, key(1));
  const std::optional<LoadingImage> image = prefetch.take(key(1));
  ASSERT_TRUE(image);
  EXPECT_EQ(prefetch.bytes(), 0);
  for (size_t layer = 0; layer < 3; ++layer) {
    ASSERT_EQ(image->load->wait(layer, kNoDeadline), ImageLoad::State::kReady);
  }
  EXPECT_EQ(image->kv->layer_bytes(0).front(), std::byte{1});
  prefetch.take_in();
  EXPECT_FALSE(images_.contains(key(1)));
}

TEST_F(ImagePrefetchTest, DiscardsDamagedRecords) {
  for (const auto& file : std::filesystem::recursive_directory_iterator(dir_)) {
    if (file.path().extension() == ".vlr") std::filesystem::resize_file(file.path(), file.file_size() - 1);
  }
  ImagePrefetch prefetch(budget_, images_, store_, shape_, {});
  EXPECT_TRUE(start(prefetch, key(1)));
  wait(prefetch);
  EXPECT_FALSE(images_.contains(key(1)));
  EXPECT_EQ(budget_.used_bytes(), 0);
}

}  // namespace
}  // namespace vlcache
