// Placeholders of images and videos in the text of a prompt.
#include <algorithm>
#include <optional>

#include "base/error.h"
#include "model/families/families.h"

namespace vlcache {
namespace {

struct Placeholder {
  size_t begin = 0, end = 0;
  PlaceholderKind kind = PlaceholderKind::kImage;
};

// The first one at or after `from`.
std::optional<Placeholder> find_placeholder(const Family& family, std::string_view text, size_t from) {
  std::optional<Placeholder> first;
  for (const PlaceholderKind kind : {PlaceholderKind::kImage, PlaceholderKind::kVideo}) {
    const std::string_view name = kind == PlaceholderKind::kImage ? family.image_placeholder : family.video_placeholder;
    const size_t at = name.empty() ? text.npos : text.find(name, from);
    if (at != text.npos && (!first || at < first->begin)) first = {at, at + name.size(), kind};
  }
  return first;
}

std::vector<PlaceholderKind> kinds_of(std::span<const ImageTiles> images) {
  std::vector<PlaceholderKind> kinds;
  for (const ImageTiles& image : images) {
    if (!image.unit || image.unit->first)
      kinds.push_back(image.unit ? PlaceholderKind::kVideo : PlaceholderKind::kImage);
  }
  return kinds;
}

// An image, or all units of a video.
size_t n_units(std::span<const ImageTiles> images) {
  size_t n = 1;
  while (n < images.size() && images[n].unit && !images[n].unit->first) ++n;
  return n;
}

// number: of an image.
std::string text_of(const ModelConfig& config, const Placeholder& found, std::span<const ImageTiles> units,
                    const ImageNumber& number) {
  const Family& family = *config.family;
  if (found.kind == PlaceholderKind::kImage && family.image_text != nullptr)
    return family.image_text(config, units[0], number);
  if (found.kind == PlaceholderKind::kVideo && family.video_text != nullptr) return family.video_text(config, units);
  int64_t n_tokens = 0;
  for (const ImageTiles& unit : units) n_tokens += std::ssize(family.token_rows(config, unit));
  return repeat(found.kind == PlaceholderKind::kImage ? family.image_placeholder : family.video_placeholder, n_tokens);
}

// A video's placeholder with the text around it.
Placeholder widened(const Family& family, std::string_view text, Placeholder found, size_t from) {
  const std::string_view before = family.before_video, after = family.after_video;
  if (found.kind == PlaceholderKind::kVideo && text.substr(from, found.begin - from).ends_with(before) &&
      text.substr(found.end).starts_with(after)) {
    found.begin -= before.size();
    found.end += after.size();
  }
  return found;
}

void check_number(std::string_view placeholder, std::string_view what, size_t n_found, size_t n_given) {
  if (n_found == n_given) return;
  throw Error(ErrorCode::kInput, "the prompt has " + std::to_string(n_found) + " " + std::string(placeholder) +
                                     " placeholder(s) for " + std::to_string(n_given) + " " + std::string(what) +
                                     "(s); expected one for each");
}

}  // namespace

bool ModelConfig::is_vision_token(int32_t token) const {
  if (!vision || token < 0) return false;
  return token == image_token_id || (token == video_token_id && !family->video_placeholder.empty());
}

std::vector<PlaceholderKind> media_order(const ModelConfig& config, std::string_view text, size_t n_images,
                                         size_t n_videos) {
  const Family& family = *config.family;
  if (family.image_placeholder.empty() && n_images + n_videos > 0) {
    throw Error(ErrorCode::kInput, std::to_string(n_images + n_videos) + (n_images > 0 ? " image(s)" : " video(s)") +
                                       " for a model (" + config.model_type + ") that takes text only");
  }
  std::vector<PlaceholderKind> order;
  for (auto found = find_placeholder(family, text, 0); found; found = find_placeholder(family, text, found->end)) {
    order.push_back(found->kind);
  }
  const auto n_found = [&](PlaceholderKind kind) { return static_cast<size_t>(std::ranges::count(order, kind)); };
  check_number(family.image_placeholder, "image", n_found(PlaceholderKind::kImage), n_images);
  check_number(family.video_placeholder, "video", n_found(PlaceholderKind::kVideo), n_videos);
  return order;
}

std::string expand_prompt(const ModelConfig& config, std::string_view text, std::span<const ImageTiles> images) {
  const std::vector<PlaceholderKind> given = kinds_of(images);
  const auto n_images = static_cast<size_t>(std::ranges::count(given, PlaceholderKind::kImage));
  if (media_order(config, text, n_images, given.size() - n_images) != given) {
    throw Error(ErrorCode::kInput, "the prompt's images and videos are given in another order than its placeholders");
  }
  std::string out;
  size_t begin = 0;
  ImageNumber number{.index = 0, .count = static_cast<int64_t>(n_images)};
  while (!images.empty()) {
    const auto found = *find_placeholder(*config.family, text, begin);
    const Placeholder replaced = widened(*config.family, text, found, begin);
    const size_t n = n_units(images);
    out.append(text.substr(begin, replaced.begin - begin));
    out += text_of(config, found, images.first(n), number);
    if (found.kind == PlaceholderKind::kImage) ++number.index;
    images = images.subspan(n);
    begin = replaced.end;
  }
  out.append(text.substr(begin));
  return out;
}

}  // namespace vlcache
