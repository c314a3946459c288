#include "base/keyed_hash.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace vlcache {
namespace {

TEST(KeyedHash, DependsOnEveryByteAndTheLength) {
  std::set<uint64_t> seen;
  for (size_t n = 0; n < 40; ++n) {
    const std::string text(n, 'a');
    EXPECT_EQ(keyed_hash(text), keyed_hash(std::string(n, 'a')));
    EXPECT_TRUE(seen.insert(keyed_hash(text)).second) << n;
    for (size_t i = 0; i < n; ++i) {
      std::string other = text;
      other[i] = 'b';
      EXPECT_TRUE(seen.insert(keyed_hash(other)).second) << n << ", " << i;
    }
  }
}

}  // namespace
}  // namespace vlcache
