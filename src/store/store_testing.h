// For tests of this folder: temporary directories, and records whose every byte follows from their key.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/splitmix.h"
#include "store/disk/tier.h"

namespace vlcache {

using Bytes = std::vector<std::byte>;

inline Bytes random_bytes(size_t n, uint64_t seed) {
  Bytes bytes(n);
  for (size_t i = 0; i < n; ++i) bytes[i] = static_cast<std::byte>(splitmix(seed * 1'000'003 + i));
  return bytes;
}

// Differs in every field that a number can change; n decides the contents.
inline RecordKey make_key(int n, uint8_t model = 1) {
  RecordKey key;
  key.model.fill(model);
  key.content.fill(7);
  std::memcpy(key.content.data(), &n, sizeof(n));
  key.layout = "bf16 22x4x64";
  return key;
}

// A record that owns its bytes.
struct Stored {
  Record record;
  std::vector<Bytes> sections;
};
inline Stored make_record(const RecordKey& key, const std::vector<size_t>& sizes) {
  struct Owned {
    std::vector<Bytes> sections;
  };
  auto owned = std::make_shared<Owned>();
  Stored stored{{key, {}, nullptr, 0}, {}};
  uint64_t seed = 0;
  for (const uint8_t byte : key.content) seed = seed * 31 + byte;
  for (const size_t size : sizes) owned->sections.push_back(random_bytes(size, ++seed));
  for (const Bytes& section : owned->sections) stored.record.sections.emplace_back(section);
  stored.sections = owned->sections;
  stored.record.owner = std::move(owned);
  return stored;
}

// All of a record's sections, or the miss.
struct ReadAll {
  std::vector<Bytes> sections;
  std::optional<Miss> miss;
};
inline ReadAll read_all(KvTier& tier, const RecordKey& key, Deadline deadline = kNoDeadline) {
  ReadAll all;
  OpenedRecord opened = tier.open(key, deadline);
  if (!opened.reader) {
    all.miss = opened.miss;
    return all;
  }
  for (size_t i = 0; i < opened.reader->header().sections.size(); ++i) {
    all.sections.emplace_back(static_cast<size_t>(opened.reader->header().sections[i].bytes));
    all.miss = opened.reader->read(static_cast<int32_t>(i), all.sections.back(), deadline);
    if (all.miss) break;
  }
  return all;
}

inline Bytes read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}
inline void write_file(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  std::filesystem::permissions(path, std::filesystem::perms(0600));  // as the tier writes it, whatever the umask is
}

// Names of all files below a directory that end like this.
inline std::vector<std::string> files_in(const std::filesystem::path& root, std::string_view suffix = "") {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_regular_file() && name.ends_with(suffix)) names.push_back(name);
  }
  std::ranges::sort(names);
  return names;
}

// A directory of the test's own, removed after it.
class StoreTest : public testing::Test {
 protected:
  void SetUp() override {
    static int n = 0;
    root_ = std::filesystem::path(testing::TempDir()) /
            ("vlcache-store-" + std::to_string(getpid()) + "-" + std::to_string(n++));
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  DiskTierOptions options(int64_t max_bytes = int64_t{1} << 30) const {
    DiskTierOptions options;
    options.dir = root_ / "cache";
    options.max_bytes = max_bytes;
    return options;
  }

  std::filesystem::path root_;
};

// The name of the miss, or "hit".
inline std::string reason(const std::optional<Miss>& miss) {
  return miss ? std::string(miss_reason_name(miss->reason)) : "hit";
}

}  // namespace vlcache
