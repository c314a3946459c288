// Lines that are available, that come later, and that never come.
#include "cli/terminal/line_source.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <thread>

#include "base/error.h"

namespace vlcache {
namespace {

class LineSourceTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(::pipe(ends_.data()), 0); }
  void TearDown() override {
    ::close(ends_[0]);
    close_writer();
  }
  void write(std::string_view text) {
    ASSERT_EQ(::write(ends_[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  void close_writer() {
    if (ends_[1] >= 0) ::close(std::exchange(ends_[1], -1));
  }
  int reader() const { return ends_[0]; }

 private:
  std::array<int, 2> ends_{-1, -1};
};

TEST_F(LineSourceTest, ReturnsAvailableLinesWithoutWaiting) {
  LineSource source(reader(), {});
  std::string line;
  EXPECT_FALSE(source.next(line, /*wait=*/false));
  write("one\n\ntw");
  EXPECT_TRUE(source.next(line, true));
  EXPECT_EQ(line, "one");
  EXPECT_TRUE(source.next(line, false));
  EXPECT_EQ(line, "");
  EXPECT_FALSE(source.next(line, false));  // "tw" is no complete line yet
  write("o\nlast");
  EXPECT_TRUE(source.next(line, false));
  EXPECT_EQ(line, "two");
  EXPECT_FALSE(source.next(line, false));
  close_writer();
  EXPECT_TRUE(source.next(line, false));
  EXPECT_EQ(line, "last");
  EXPECT_FALSE(source.next(line, true));
  EXPECT_FALSE(source.next(line, false));
}

TEST_F(LineSourceTest, WaitsForALineInPieces) {
  LineSource source(reader(), {});
  const std::string part(100'000, 'x');
  std::thread writer([&] {
    for (int i = 0; i < 3; ++i) write(part);
    write("\n");
  });
  std::string line;
  EXPECT_TRUE(source.next(line, true));
  writer.join();
  EXPECT_EQ(line, part + part + part);
}

TEST_F(LineSourceTest, StopsWaitingWhenCancelled) {
  int asked = 0;
  LineSource source(reader(), [&] { return ++asked > 2; });
  std::string line;
  EXPECT_FALSE(source.next(line, true));
  EXPECT_EQ(asked, 3);
}

TEST_F(LineSourceTest, AMarkBeforeTheFirstLineIsLeftOut) {
  LineSource source(reader(), {});
  std::string line;
  write("\xef\xbb");
  EXPECT_FALSE(source.next(line, false));
  write("\xbf{}\n\xef\xbb\xbf{}\n");
  EXPECT_TRUE(source.next(line, true));
  EXPECT_EQ(line, "{}");
  EXPECT_TRUE(source.next(line, true));
  EXPECT_EQ(line, "\xef\xbb\xbf{}");
}

TEST_F(LineSourceTest, ReadsFilesAndRejectsMissingOnes) {
  const std::string path = testing::TempDir() + "vlcache_line_source_" + std::to_string(::getpid());
  std::ofstream(path) << "a\nb";
  LineSource source(path, {});
  std::string line;
  EXPECT_TRUE(source.next(line, false));
  EXPECT_EQ(line, "a");
  EXPECT_TRUE(source.next(line, false));
  EXPECT_EQ(line, "b");
  EXPECT_FALSE(source.next(line, true));
  ::unlink(path.c_str());
  EXPECT_THROW(LineSource(path, {}), Error);
  EXPECT_THROW(LineSource(testing::TempDir(), {}), Error);
}

}  // namespace
}  // namespace vlcache
