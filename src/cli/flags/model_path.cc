#include "cli/flags/model_path.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "base/json.h"

namespace vlcache {
namespace {

namespace fs = std::filesystem;

std::string variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? "" : value;
}

// "~" and "~/x" as a shell expands them, then "$NAME" and "${NAME}" of variables that are set: files of settings are
// read without one. Unlike a shell's, an unset variable stays as it is written (os.path.expandvars of Python).
std::string expanded(std::string text) {
  if (text == "~" || text.starts_with("~/")) {
    std::string home = variable("HOME");
    const passwd* user = home.empty() ? ::getpwuid(::getuid()) : nullptr;
    if (user != nullptr) home = user->pw_dir;
    while (home.ends_with('/')) home.pop_back();
    if (!home.empty() || text.size() > 1) text.replace(0, 1, home);
  }
  for (size_t at = 0; (at = text.find('$', at)) != text.npos;) {
    const bool braces = at + 1 < text.size() && text[at + 1] == '{';
    const size_t begin = at + (braces ? 2 : 1);
    size_t end = begin;
    while (end < text.size() && (std::isalnum(static_cast<unsigned char>(text[end])) != 0 || text[end] == '_')) ++end;
    const std::string name = text.substr(begin, end - begin);
    const size_t after = braces ? end + 1 : end;
    const bool whole = !name.empty() && (!braces || (end < text.size() && text[end] == '}'));
    if (!whole || std::getenv(name.c_str()) == nullptr) {
      at = begin;
      continue;
    }
    const std::string value = variable(name);
    text.replace(at, after - at, value);
    at += value.size();
  }
  return text;
}

// As huggingface_hub finds it.
fs::path hub_cache() {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (!variable(name).empty()) return expanded(variable(name));
  }
  if (!variable("HF_HOME").empty()) return fs::path(expanded(variable("HF_HOME"))) / "hub";
  const std::string cache = variable("XDG_CACHE_HOME").empty() ? "~/.cache" : variable("XDG_CACHE_HOME");
  return fs::path(expanded(cache)) / "huggingface" / "hub";
}

bool is_model(const fs::path& dir) {
  std::error_code error;
  return fs::is_regular_file(dir / "config.json", error);
}

// ORG/NAME: two parts of the characters that names on the hub have.
bool is_hub_name(const std::string& text) {
  const size_t slash = text.find('/');
  if (slash == text.npos || slash == 0 || slash + 1 == text.size() || text[0] == '.') return false;
  return text.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_./") == text.npos &&
         text.find('/', slash + 1) == text.npos;
}

// Whether the weights that a snapshot with config.json has, or names in its index, are there.
bool has_weights(const fs::path& dir) {
  std::error_code error;
  if (fs::is_regular_file(dir / "model.safetensors", error)) return true;
  const fs::path index = dir / "model.safetensors.index.json";
  if (!fs::is_regular_file(index, error)) return false;
  try {
    const Json json = load_json(index);
    const JsonObject shards = JsonObject(json, index.string()).object("weight_map");
    return std::ranges::all_of(shards.raw(), [&](const Json& shard) {
      return shard.is_string() && fs::exists(dir / shard.get<std::string>(), error);
    });
  } catch (const Error&) {
    return false;
  }
}

// The snapshot that refs/main names; else the newest one with config.json and all weights, or with config.json alone.
// Where no snapshot has config.json, the one that a download began: its reader names the missing file. "": there is
// none.
fs::path snapshot_of(const fs::path& repository) {
  std::error_code error;
  std::string commit;
  std::ifstream(repository / "refs" / "main") >> commit;
  const fs::path snapshots = repository / "snapshots";
  if (commit.find('/') != commit.npos || commit == "..") commit.clear();
  if (!commit.empty() && is_model(snapshots / commit)) return snapshots / commit;
  using Rank = std::tuple<bool, bool, fs::file_time_type, fs::path>;
  std::optional<Rank> best;
  for (const auto& entry : fs::directory_iterator(snapshots, error)) {
    const fs::path& dir = entry.path();
    std::error_code problem;
    if (!fs::is_directory(dir, problem)) continue;
    const bool model = is_model(dir);
    const Rank rank{model, model && has_weights(dir), fs::last_write_time(dir, problem), dir};
    if (!best || *best < rank) best = rank;
  }
  if (best && (std::get<0>(*best) || commit.empty())) return std::get<3>(*best);
  return commit.empty() ? fs::path() : snapshots / commit;
}

}  // namespace

std::string model_path(const std::string& text) {
  std::error_code error;
  const fs::path path = text;
  if (fs::is_directory(path, error)) {
    if (is_model(path)) return text;
    std::vector<fs::path> inside;
    for (const auto& entry : fs::directory_iterator(path, error)) {
      if (is_model(entry.path())) inside.push_back(entry.path());
    }
    if (inside.size() == 1) return inside[0];
    const fs::path snapshot = inside.empty() ? snapshot_of(path) : fs::path();
    if (!snapshot.empty()) return snapshot;
    return text;
  }
  if (fs::exists(path, error) || !is_hub_name(text)) return text;
  std::string folder = "models--" + text;
  folder.replace(folder.find('/'), 1, "--");
  const fs::path snapshot = snapshot_of(hub_cache() / folder);
  return snapshot.empty() ? text : snapshot.string();
}

}  // namespace vlcache
