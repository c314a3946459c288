// tokenizer_config.json and its older companions. Keys are read in the order of the file, because it decides the ids.
#include "io/tokenizer/tokenizer_config.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr const char* kStandardNames[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                          "pad_token", "cls_token", "mask_token"};

// "<s>" or {"content": "<s>", ...}; other values give no token.
bool read_token(const OrderedJson& json, const std::string& where, AddedToken& token) {
  if (json.is_string()) {
    token = {.content = json.get<std::string>(), .normalized = false, .special = true};
    return true;
  }
  if (!json.is_object() || !json.contains("content")) return false;
  const Json unordered = Json::parse(json.dump());
  token = parse_added_token(JsonObject(unordered, where));
  return true;
}

class ConfigReader {
 public:
  ConfigReader(const OrderedJson& config, const OrderedJson& special_tokens_map, const OrderedJson& added_tokens,
               const std::string& where)
      : where_(where), config_(config), map_(special_tokens_map), added_(added_tokens) {}

  TokenizerConfig read() {
    const auto decoder = config_.find("added_tokens_decoder");
    if (decoder != config_.end() && !decoder->is_null()) {
      read_listed(*decoder);
    } else {
      merge_special_tokens_map();
      read_added_tokens();
    }
    for (const char* name : kStandardNames) read_named(config_, name);
    for (const auto& [key, value] : config_.items()) {
      if (key.ends_with("_token") && !is_standard(key)) read_named(config_, key);
    }
    read_extra("extra_special_tokens");
    if (!has_extra_) read_extra("additional_special_tokens");
    for (const char* name : kStandardNames) {  // names only: see the header
      AddedToken token;
      if (!result_.names.contains(name) && map_.contains(name) && read_token(map_[name], where_, token)) {
        result_.names[name] = token.content;
        if (!listed(token.content)) result_.named_or_extra.push_back(token);
      }
    }
    for (AddedToken& token : result_.listed) {
      const bool is_named = std::any_of(result_.names.begin(), result_.names.end(),
                                        [&](const auto& entry) { return entry.second == token.content; });
      token.special = token.special || is_named;
    }
    return std::move(result_);
  }

 private:
  static bool is_standard(const std::string& key) {
    return std::any_of(std::begin(kStandardNames), std::end(kStandardNames), [&](const char* n) { return key == n; });
  }

  const AddedToken* listed(const std::string& content) const {
    for (const AddedToken& token : result_.listed) {
      if (token.content == content) return &token;
    }
    return nullptr;
  }

  void read_listed(const OrderedJson& decoder) {
    if (!decoder.is_object())
      throw Error(ErrorCode::kInput, where_ + ": added_tokens_decoder: expected an object of ids and tokens");
    std::map<int64_t, AddedToken> by_id;
    for (const auto& [key, value] : decoder.items()) {
      const std::string where = where_ + ": added_tokens_decoder: " + key.substr(0, 40);
      int64_t id = -1;
      const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
      AddedToken token;
      if (error != std::errc() || end != key.data() + key.size() || id < 0 || !value.is_object() ||
          !read_token(value, where, token)) {
        throw Error(ErrorCode::kInput, where + ": expected an id and an object with the token's content");
      }
      by_id[id] = token;
    }
    for (auto& [id, token] : by_id) result_.listed.push_back(std::move(token));
  }

  // Before added_tokens_decoder existed: the map overrides the configuration.
  void merge_special_tokens_map() {
    for (const auto& [key, value] : map_.items()) {
      config_[key] = value;
      if (value.is_object() && key.ends_with("_token")) config_[key]["special"] = true;
    }
  }

  void read_added_tokens() {
    std::vector<std::string> special;
    for (const char* name : kStandardNames) {
      AddedToken token;
      if (config_.contains(name) && read_token(config_[name], where_, token)) special.push_back(token.content);
    }
    std::map<int64_t, AddedToken> by_id;
    for (const auto& [content, id] : added_.items()) {
      if (!id.is_number_integer())
        throw Error(ErrorCode::kInput, where_ + ": added_tokens.json: expected tokens and their ids");
      const bool is_special = std::find(special.begin(), special.end(), content) != special.end();
      by_id[id.get<int64_t>()] = {.content = content, .normalized = !is_special, .special = is_special};
    }
    for (auto& [id, token] : by_id) result_.named_or_extra.push_back(std::move(token));
  }

  void read_named(const OrderedJson& from, const std::string& name) {
    AddedToken token;
    const auto it = from.find(name);
    if (it == from.end() || it->is_null()) return;
    if (!read_token(*it, where_ + ": " + name, token)) {
      if (is_standard(name))
        throw Error(ErrorCode::kInput,
                    where_ + ": " + name + ": expected a token, found " + std::string(it->type_name()));
      return;  // such as add_bos_token
    }
    token.special = true;
    result_.names[name] = token.content;
    if (!listed(token.content)) result_.named_or_extra.push_back(token);
  }

  void read_extra(const char* key) {
    const auto it = config_.find(key);
    if (it == config_.end() || it->is_null() || it->empty()) return;
    has_extra_ = true;
    if (it->is_object()) {
      for (const auto& [name, value] : it->items()) read_named(*it, name);
      return;
    }
    if (!it->is_array())
      throw Error(ErrorCode::kInput, where_ + ": " + key + ": expected a list of tokens or an object of named ones");
    for (const OrderedJson& value : *it) {
      AddedToken token;
      if (!read_token(value, where_ + ": " + key, token)) {
        throw Error(ErrorCode::kInput,
                    where_ + ": " + key + ": expected tokens, found " + std::string(value.type_name()));
      }
      if (!listed(token.content)) result_.named_or_extra.push_back(token);
    }
  }

  std::string where_;
  OrderedJson config_;
  const OrderedJson &map_, &added_;
  TokenizerConfig result_;
  bool has_extra_ = false;
};

}  // namespace

TokenizerConfig parse_tokenizer_config(const OrderedJson& config, const OrderedJson& special_tokens_map,
                                       const OrderedJson& added_tokens, const std::string& where) {
  return ConfigReader(config, special_tokens_map, added_tokens, where).read();
}

}  // namespace vlcache
