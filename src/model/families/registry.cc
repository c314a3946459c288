#include <array>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "model/families/families.h"

namespace vlcache {

namespace {

constexpr std::array<const Family*, 11> kVisionFamilies = {&kLlava,       &kLlavaNext, &kIdefics3, &kSmolVlm,
                                                           &kQwen2Vl,     &kQwen2_5Vl, &kQwen3Vl,  &kQwen3VlMoe,
                                                           &kPaddleOcrVl, &kGlmOcr,    &kNanoVlm};

// A language model by itself.
std::vector<Family> text_models() {
  std::vector<Family> models;
  for (const TextFamily& family : text_families()) {
    // "": a decoder saved without its head, and GPT-2 as published; "transformer.": GPT-2 since; the others: the text
    // part of a vision model.
    models.push_back({.model_type = family.model_type,
                      .prefixes = {.text = {"model.", "", "transformer.", "model.language_model.", "language_model."},
                                   .lm_head = {""},
                                   .vision = {},
                                   .projector = {}},
                      .read_config = [](const JsonObject& root, ModelConfig& out) {
                        out.text = parse_text_config(root, out.model_type);
                      }});
  }
  return models;
}

}  // namespace

const Family& find_family(std::string_view model_type, std::string_view where) {
  static const std::vector<Family> kTextModels = text_models();
  std::string known;
  const auto matches = [&](const Family& family) {
    known += (known.empty() ? "" : ", ") + std::string(family.model_type);
    return family.model_type == model_type;
  };
  for (const Family& family : kTextModels) {
    if (matches(family)) return family;
  }
  for (const Family* family : kVisionFamilies) {
    if (matches(*family)) return *family;
  }
  throw Error(ErrorCode::kUnsupported, std::string(where) + ": model_type " +
                                           shown_json(Json(std::string(model_type))) +
                                           " is not supported; supported: " + known);
}

std::string repeat(std::string_view text, int64_t n) {
  std::string out;
  out.reserve(text.size() * static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) out.append(text);
  return out;
}

}  // namespace vlcache
