// Fuzzes the config.json of nanoVLM's checkpoints: any text is read, or refused with an Error.
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "base/error.h"
#include "base/fuzz_target.h"
#include "io/checkpoint/nanovlm_snapshot.h"

namespace {

// A folder of this process, whose one file is written for every input.
const std::filesystem::path& nanovlm_folder() {
  static const std::filesystem::path dir = [] {
    auto path = std::filesystem::temp_directory_path() / ("vlcache_nanovlm_" + std::to_string(::getpid()));
    std::filesystem::create_directories(path);
    return path;
  }();
  return dir;
}

template <typename F>
void try_to_read(const F& read) {
  try {
    read();
  } catch (const vlcache::Error&) {
  }
}

}  // namespace

FUZZ_TARGET(nanovlm_snapshot) {
  using namespace vlcache;
  std::ofstream(nanovlm_folder() / "config.json", std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  is_nanovlm_snapshot(nanovlm_folder());
  const auto reader = read_nanovlm_snapshot(nanovlm_folder(), {});
  try_to_read([&] {
    if (reader->config().json.at("model_type") != "nanovlm") std::abort();
  });
  try_to_read([&] { reader->image_settings(); });
  try_to_read([&] { reader->tokenizer(); });
  try_to_read([&] { reader->tokenizer_config(); });
  try_to_read([&] {
    if (reader->chat_templates().empty()) std::abort();
  });
  return 0;
}
