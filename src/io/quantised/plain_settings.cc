#include "io/quantised/plain_settings.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <span>

#include "base/error.h"

namespace vlcache {
namespace {

constexpr std::string_view kNumbers[] = {"bits",         "w_bit",      "num_bits",          "group_size",
                                         "q_group_size", "block_size", "weight_block_size", "block_structure"};
constexpr std::string_view kBooleans[] = {"sym", "symmetric", "zero_point", "desc_act"};
constexpr std::string_view kNames[] = {"quant_method",   "checkpoint_format", "format",    "version",  "pack_dtype",
                                       "packing_format", "data_type",         "fmt",       "strategy", "type",
                                       "backend",        "activation_scheme", "quant_algo"};

bool is_one_of(std::string_view key, std::span<const std::string_view> keys) {
  return std::ranges::find(keys, key) != keys.end();
}

std::string written_small(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

Json plain_number(const Json& value) {
  if (value.is_array()) {
    Json all = Json::array();
    for (const Json& item : value) all.push_back(item.is_array() ? item : plain_number(item));
    return all;
  }
  if (value.is_number_float()) {
    const double x = value.get<double>();
    return x == std::floor(x) && std::abs(x) < 1e15 ? Json(static_cast<int64_t>(x)) : value;
  }
  if (!value.is_string()) return value;
  const std::string& text = value.get_ref<const std::string&>();
  double x = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), x);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(x)) return value;
  return plain_number(Json(x));
}

Json plain_boolean(const Json& value) {
  const std::string text = value.is_string()   ? written_small(value.get<std::string>())
                           : value.is_number() ? plain_number(value).dump()
                                               : "";
  if (text == "true" || text == "1") return true;
  if (text == "false" || text == "0") return false;
  return value;
}

Json plain_value(std::string_view key, const Json& value) {
  if (value.is_object()) return plain_settings(value);
  if (is_one_of(key, kNumbers)) return plain_number(value);
  if (is_one_of(key, kBooleans)) return plain_boolean(value);
  if (is_one_of(key, kNames) && value.is_string()) return written_small(value.get<std::string>());
  return value;
}

}  // namespace

Json plain_settings(const Json& settings) {
  Json plain = Json::object();
  for (const auto& [key, value] : settings.items()) plain[key] = plain_value(key, value);
  return plain;
}

std::string quant_method_of(const JsonObject& settings, std::string_view fallback) {
  if (settings.has("quant_method")) {
    std::string method = settings.string("quant_method");
    std::ranges::replace(method, '_', '-');
    if (method == "modelopt" && settings.string("quant_algo", "") == "fp8") return "fp8";
    if (method.starts_with("intel/")) method.erase(0, std::string_view("intel/").size());
    return method;
  }
  const auto has_any = [&](std::initializer_list<std::string_view> keys) {
    return std::ranges::any_of(keys, [&](std::string_view key) { return settings.has(key); });
  };
  if (has_any({"packing_format", "autoround_version"})) return "auto-round";
  if (has_any({"w_bit", "q_group_size", "zero_point"})) return "awq";
  if (has_any({"desc_act", "checkpoint_format", "damp_percent"})) return "gptq";
  return std::string(fallback);
}

Json auto_round_settings(const JsonObject& settings) {
  const auto refuse = [&](std::string_view key, std::string_view expected) {
    throw Error(ErrorCode::kUnsupported, settings.where() + ": " + std::string(key) + ": expected " +
                                             std::string(expected) + ", found " + shown_json(*settings.find(key)));
  };
  if (settings.string("data_type", "int") != "int")
    refuse("data_type", "\"int\", the only codes that are read of AutoRound");
  Json plain = settings.raw();
  for (const char* key : {"format", "checkpoint_format", "version"}) plain.erase(key);
  // Older versions name the layout by the program that reads it: "auto_round:gptq:exllamav2".
  const char* key = settings.has("packing_format") || !settings.has("backend") ? "packing_format" : "backend";
  const std::string packing = settings.string(key, "auto_round:auto_gptq");
  if (packing.find("awq") != std::string::npos) {
    plain["quant_method"] = "awq";
    plain["zero_point"] = !settings.boolean("sym", true);
    return plain;
  }
  const bool own = packing == "auto_round" || packing == "auto_round:gptqmodel";       // the zero points themselves
  const bool others = packing.find("gptq") != std::string::npos || packing == "auto";  // less one
  if (!own && !others)
    refuse(key, "auto_round:auto_gptq, auto_round:auto_awq or auto_round, the layouts that are read");
  plain["quant_method"] = "gptq";
  plain["checkpoint_format"] = own ? "gptq_v2" : "gptq";
  if (settings.has("extra_config")) plain["dynamic"] = *settings.find("extra_config");
  return plain;
}

}  // namespace vlcache
