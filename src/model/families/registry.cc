// The list of families, and what is common to all: finding one, expanding a prompt.
#include <array>

#include "base/error.h"
#include "model/families/families.h"

namespace vlcache {

std::span<const Family* const> all_families() {
  static constexpr std::array<const Family*, 8> kFamilies = {&kLlama, &kMistral,   &kQwen2,    &kQwen3,
                                                             &kLlava, &kLlavaNext, &kIdefics3, &kSmolVlm};
  return kFamilies;
}

std::span<const TextFamily* const> all_text_families() {
  static constexpr std::array<const TextFamily*, 4> kFamilies = {&kLlamaText, &kMistralText, &kQwen2Text, &kQwen3Text};
  return kFamilies;
}

Family text_model(std::string_view model_type) {
  return {.name = model_type,
          .model_types = {model_type},
          // The second spelling is a decoder saved without its head.
          .prefixes = {.text = {"model.", ""}, .lm_head = {""}, .vision = {}, .projector = {}},
          .read_config = [](const JsonObject& root, ModelConfig& out) {
            out.text = parse_text_config(root, out.model_type);
          }};
}

const Family& find_family(std::string_view model_type, std::string_view where) {
  std::string known;
  for (const Family* family : all_families()) {
    for (const std::string_view type : family->model_types) {
      if (type == model_type) return *family;
      known += (known.empty() ? "" : ", ") + std::string(type);
    }
  }
  throw Error(ErrorCode::kUnsupported, std::string(where) + ": model_type \"" + std::string(model_type.substr(0, 100)) +
                                           "\" is not supported; supported: " + known);
}

std::string repeat(std::string_view text, int64_t n) {
  std::string out;
  out.reserve(text.size() * static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) out.append(text);
  return out;
}

std::string expand_prompt(const ModelConfig& config, std::string_view text, std::span<const ImageTiles> images) {
  const Family& family = *config.family;
  if (family.image_text == nullptr) {
    if (images.empty()) return std::string(text);
    throw Error(ErrorCode::kInput, std::to_string(images.size()) + " image(s) for a model (" + config.model_type +
                                       ") that takes text only");
  }
  const std::string_view placeholder = family.image_placeholder;
  size_t n_placeholders = 0;
  for (size_t at = text.find(placeholder); at != std::string_view::npos;
       at = text.find(placeholder, at + placeholder.size())) {
    ++n_placeholders;
  }
  if (n_placeholders != images.size()) {
    throw Error(ErrorCode::kInput, "the prompt has " + std::to_string(n_placeholders) + " " + std::string(placeholder) +
                                       " placeholder(s) for " + std::to_string(images.size()) +
                                       " image(s); expected one for each");
  }
  std::string out;
  size_t begin = 0;
  for (const ImageTiles& image : images) {
    const size_t at = text.find(placeholder, begin);
    out.append(text.substr(begin, at - begin));
    out += family.image_text(config, image);
    begin = at + placeholder.size();
  }
  out.append(text.substr(begin));
  return out;
}

}  // namespace vlcache
