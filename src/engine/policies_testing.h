// Test helpers for all policies there are: their names, and a model on which each of them works.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/engine.h"
#include "policy/registry.h"

namespace vlcache {

// A model that sees images, with scores of its heads and room for long prompts.
class PolicyModel {
 public:
  PolicyModel()
      : dir_(std::filesystem::temp_directory_path() / ("vlcache-policies-" + std::to_string(getpid()))),
        checkpoint_(dir_) {
    namespace fs = std::filesystem;
    const fs::path fixture = fs::path(VLCACHE_SOURCE_DIR) / "tests/fixtures/models/llava-clip";
    fs::create_directories(dir_);
    for (const auto& file : fs::directory_iterator(fixture)) fs::copy(file, dir_, fs::copy_options::overwrite_existing);
    OrderedJson config = parse_ordered_json(read_text_file(dir_ / "config.json"), "config.json");
    config["text_config"]["max_position_embeddings"] = 4096;
    std::ofstream(dir_ / "config.json") << config;
    std::ofstream(dir_ / "heads.json")
        << R"({"echo": [[0.1, 0.9], [0.2, 0.3]], "induction": [[0.2, 0.1], [0.9, 0.4]]})";
  }
  ~PolicyModel() { std::filesystem::remove_all(dir_); }
  const std::filesystem::path& dir() const { return dir_; }
  const Checkpoint& checkpoint() const { return checkpoint_; }
  // In f32.
  std::unique_ptr<Engine> engine(std::string_view backend = "auto", int64_t kv_memory_bytes = 64 << 20) const {
    EngineOptions options;
    options.backend = backend;
    options.dtype = DType::kF32;
    options.kv_memory_bytes = kv_memory_bytes;
    options.cache_bytes = 64 << 20;
    return Engine::load(checkpoint_, options);
  }

 private:
  using OrderedJson = nlohmann::ordered_json;
  std::filesystem::path dir_;
  Checkpoint checkpoint_;
};

inline std::vector<std::string> presets_of(const PolicyInfo& info) {
  std::vector<std::string> presets{""};
  size_t at = info.parameters.find("preset");
  if (at == std::string_view::npos) return presets;
  std::string_view names = info.parameters.substr(at + (info.parameters.substr(at).starts_with("presets") ? 7 : 6));
  while (!names.empty()) {
    const size_t begin = names.find_first_not_of(" ,");
    if (begin == std::string_view::npos) break;
    const size_t end = names.find_first_of(",:", begin);
    presets.push_back("@" + std::string(names.substr(begin, end - begin)));
    const size_t next = names.find(',', begin);
    if (next == std::string_view::npos || names.find('=') < next) break;
    names.remove_prefix(next);
  }
  return presets;
}

// Of this kind, each with each of its presets.
inline std::vector<std::string> names_of(PolicyInfo::Kind kind) {
  std::vector<std::string> names;
  for (const PolicyInfo& info : policy_infos()) {
    if (info.kind != kind) continue;
    for (const std::string& preset : presets_of(info)) names.push_back(std::string(info.name) + preset);
  }
  return names;
}

// Every policy there is, rules and allocators on top of one.
inline std::vector<std::string> all_policies() {
  using Kind = PolicyInfo::Kind;
  std::vector<std::string> all{"pointer@draft+global", "pointer@answer+global", "pointer@answer+global/h2o"};
  for (const Kind kind : {Kind::kPolicy, Kind::kScorer}) {
    for (const std::string& name : names_of(kind)) all.push_back(name);
  }
  for (const std::string& name : names_of(Kind::kAllocator)) all.push_back("snapkv:ahead=4+" + name);
  for (const std::string& name : names_of(Kind::kRule)) {
    all.push_back("knorm/" + name);
    all.push_back("snapkv:ahead=4/" + name);
  }
  // What the model of two layers and short prompts need.
  std::ranges::replace(all, std::string("window_recompute"), std::string("window_recompute:window=40"));
  std::ranges::replace(all, std::string("fastv"), std::string("fastv:k=1,r=0.5"));
  return all;
}

// The first of some budgets that the policy takes.
inline std::string budget_for(const std::string& policy, const Checkpoint* checkpoint = nullptr) {
  const bool has_own = policy.find("k=1,r=") != std::string::npos;
  for (const char* budget : {has_own ? "" : policy.starts_with("hired") ? "0.97" : "0.6", "", "error=0.1"}) {
    try {
      parse_policy(policy, budget, checkpoint);
      return budget;
    } catch (const Error&) {
    }
  }
  ADD_FAILURE() << policy << " takes none of the budgets";
  return "";
}

}  // namespace vlcache
