// Models of Hugging Face's cache: where it lies, and which snapshot counts.
#include "cli/flags/model_path.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>

namespace vlcache {
namespace {

namespace fs = std::filesystem;

class ModelPath : public testing::Test {
 protected:
  ModelPath() {
    for (const char* name : {"HOME", "DIR", "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"}) {
      const char* value = std::getenv(name);
      before_[name] = value == nullptr ? std::nullopt : std::optional<std::string>(value);
      ::unsetenv(name);
    }
    ::setenv("HOME", root_.c_str(), 1);
    ::setenv("DIR", root_.c_str(), 1);
  }
  ~ModelPath() override {
    fs::remove_all(root_);
    for (const auto& [name, value] : before_) {
      value ? ::setenv(name.c_str(), value->c_str(), 1) : ::unsetenv(name.c_str());
    }
  }
  void write(const fs::path& file, const std::string& text = "{}") const {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }
  // The path of the name with one variable set.
  std::string with(const char* name, const std::string& value) const {
    ::setenv(name, value.c_str(), 1);
    std::string path = model_path("acme/doc");
    ::unsetenv(name);
    return path;
  }

  const fs::path root_ = fs::temp_directory_path() / ("vlcache_hub_" + std::to_string(::getpid()));
  const fs::path repository_ = "x/hub/models--acme--doc";
  std::map<std::string, std::optional<std::string>> before_;
};

TEST_F(ModelPath, TheCacheIsWhereHuggingFaceLooks) {
  write(repository_ / "snapshots/1/config.json");
  const std::string found = (root_ / repository_ / "snapshots/1").string();
  for (const auto& [name, value] : {std::pair{"HF_HOME", "~/x"},
                                    {"HF_HOME", "$HOME/x"},
                                    {"HF_HOME", "${DIR}/x"},
                                    {"HF_HUB_CACHE", "$DIR/x/hub"},
                                    {"HF_HUB_CACHE", "~/x/hub"},
                                    {"HUGGINGFACE_HUB_CACHE", "${HOME}/x/hub"},
                                    {"HUGGINGFACE_HUB_CACHE", "~/x/hub"}}) {
    EXPECT_EQ(with(name, value), found) << name << "=" << value;
  }
  for (const char* other : {"$NONE/x", "${DIR/x", "${}/x", "$/x", "~x", "x~/x", "$DIRx/x", "~$DIR"}) {
    EXPECT_EQ(with("HF_HOME", other), "acme/doc") << other;
  }
  write("y/huggingface/hub/models--acme--doc/snapshots/2/config.json");
  EXPECT_EQ(with("XDG_CACHE_HOME", "~/y"), (root_ / "y/huggingface/hub/models--acme--doc/snapshots/2").string());
  write(".cache/huggingface/hub/models--acme--doc/snapshots/3/config.json");
  EXPECT_EQ(model_path("acme/doc"), (root_ / ".cache/huggingface/hub/models--acme--doc/snapshots/3").string());
  write("odd$NONE/hub/models--acme--doc/snapshots/4/config.json");
  EXPECT_EQ(with("HF_HOME", "$DIR/odd$NONE"), (root_ / "odd$NONE/hub/models--acme--doc/snapshots/4").string());
}

TEST_F(ModelPath, TheNewestCompleteSnapshotCountsUnlessRefsNameOne) {
  const auto found = [&] { return fs::path(with("HF_HOME", "~/x")).filename().string(); };
  const auto snapshot = [&](const std::string& name, int age, const char* weights) {
    write(repository_ / "snapshots" / name / "config.json");
    if (weights != nullptr)
      write(repository_ / "snapshots" / name / weights, R"({"weight_map": {"a": "a.safetensors"}})");
    fs::last_write_time(root_ / repository_ / "snapshots" / name,
                        fs::file_time_type::clock::now() - std::chrono::hours(age));
  };
  EXPECT_EQ(found(), "doc");
  snapshot("old", 3, "model.safetensors");
  EXPECT_EQ(found(), "old");
  snapshot("newer", 2, "model.safetensors");
  EXPECT_EQ(found(), "newer");
  snapshot("broken", 1, nullptr);
  EXPECT_EQ(found(), "newer");
  snapshot("sharded", 1, "model.safetensors.index.json");
  EXPECT_EQ(found(), "newer") << "its only shard is not there";
  write(repository_ / "snapshots/sharded/a.safetensors");
  EXPECT_EQ(found(), "sharded");
  write(repository_ / "refs/main", "old");
  EXPECT_EQ(found(), "old");
  write(repository_ / "refs/main", "begun");  // an update that broke off
  EXPECT_EQ(found(), "sharded");
}

TEST_F(ModelPath, ADownloadThatBrokeOffIsNamedByItsSnapshot) {
  write(repository_ / "refs/main", "begun\n");
  EXPECT_EQ(with("HF_HOME", "~/x"), (root_ / repository_ / "snapshots/begun").string());
  write(repository_ / "snapshots/begun/tokenizer.json");
  EXPECT_EQ(with("HF_HOME", "~/x"), (root_ / repository_ / "snapshots/begun").string());
  fs::create_symlink("../../blobs/none", root_ / repository_ / "snapshots/begun/config.json");
  EXPECT_EQ(model_path((root_ / repository_).string()), (root_ / repository_ / "snapshots/begun").string());
  write(repository_ / "refs/main", "../../..");
  EXPECT_EQ(with("HF_HOME", "~/x"), (root_ / repository_ / "snapshots/begun").string());
}

}  // namespace
}  // namespace vlcache
