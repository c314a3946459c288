#include "engine/prompt/prompt.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "base/error.h"

namespace vlcache {

Prompt Prompt::copy() const {
  CHECK(!selection);
  Prompt other;
  other.tokens = tokens;
  other.classes = classes;
  other.spans = spans;
  other.positions = positions;
  for (size_t i = 0; i < images.size(); ++i) copy_image(i, other);
  other.keys = keys;
  other.salt = salt;
  other.query_aware = query_aware;
  other.evict_every = evict_every;
  other.replay_text = replay_text;
  other.n_template = n_template;
  other.in_thought = in_thought;
  return other;
}

void Prompt::copy_image(size_t image, Prompt& to) const {
  to.images.push_back(can_decode(image) ? images[image].without_pixels() : images[image].copy());
  if (!pixel_sources.empty()) to.pixel_sources.push_back(pixel_sources[image]);
  if (!contents.empty()) to.contents.push_back(contents[image]);
}

void Prompt::move_image(size_t image, Prompt& to) {
  to.contents.push_back(contents.empty() ? image_key(images[image]) : contents[image]);
  to.pixel_sources.push_back(pixel_sources.empty() ? nullptr : std::move(pixel_sources[image]));
  to.images.push_back(std::move(images[image]));
}

bool Prompt::can_decode(size_t image) const { return !pixel_sources.empty() && pixel_sources[image] != nullptr; }

const ImageTiles& Prompt::with_pixels(size_t image) {
  if (images[image].pixels.bytes() == 0 && can_decode(image)) images[image] = pixel_sources[image]();
  return images[image];
}

void Prompt::let_pixels_go(size_t image) {
  if (can_decode(image)) images[image].pixels = {};
}

int32_t Prompt::n_vision_tokens() const {
  int32_t n = 0;
  for (const ImageSpan& s : spans) n += s.end - s.begin;
  return n;
}

int32_t Prompt::n_positions() const {
  int32_t n = positions.empty() ? n_tokens() : 0;
  for (const Position& p : positions) n = std::max(n, p.largest() + 1);
  return n;
}

PromptShape Prompt::shape() const { return shape_until(n_tokens()); }

PromptShape Prompt::shape_until(int32_t n) const {
  PromptShape shape{.n_tokens = n, .n_vision = 0, .n_after_vision = n, .n_template = std::min(n_template, n)};
  for (const ImageSpan& s : spans) {
    if (s.begin >= n) break;
    const int32_t end = std::min(s.end, n);
    shape.n_vision += end - s.begin;
    shape.n_after_vision = n - end;
  }
  return shape;
}

PromptShape Prompt::acting_shape() const {
  return query_aware || spans.empty() ? shape() : shape_until(spans.back().end);
}

std::vector<TokenInfo> Prompt::token_infos() const {
  std::vector<TokenInfo> infos(tokens.size());
  for (size_t i = 0; i < infos.size(); ++i) {
    infos[i].id = tokens[i];
    if (!classes.empty()) infos[i].token_class = classes[i];
    infos[i].meta.position = positions.empty() ? Position::all(static_cast<int32_t>(i)) : positions[i];
  }
  for (const ImageSpan& s : spans) {
    const KeptCells* weights = nullptr;
    if (!images.empty() && images[static_cast<size_t>(s.image)].kept)
      weights = &*images[static_cast<size_t>(s.image)].kept;
    for (int32_t i = s.begin; i < s.end; ++i) {
      SlotMeta& meta = infos[static_cast<size_t>(i)].meta;
      meta.modality = Modality::kVision;
      meta.segment = s.image;
      if (weights != nullptr && weights->weighted)
        meta.bias = std::log(static_cast<float>(weights->counts[static_cast<size_t>(s.row_of(i))]));
    }
  }
  return infos;
}

PromptExtent extent_seen(const Prompt& prompt, const Policy& policy) {
  const int32_t n = policy.n_seen(prompt.shape());
  return {n, n < prompt.n_tokens() ? n : prompt.n_positions()};
}

std::vector<Position> place_tokens(const ModelConfig& config, int32_t n_tokens, std::span<const ImageSpan> spans,
                                   std::span<const ImageTiles> images) {
  std::vector<Position> positions;
  if (spans.empty() || config.family->image_positions == nullptr) return positions;
  int32_t next = 0, base = 0, last = -1;
  const auto add_text = [&](int32_t end) {
    while (std::ssize(positions) < end) positions.push_back(Position::all(next++));
  };
  for (const ImageSpan& span : spans) {
    const ImageTiles& image = images[static_cast<size_t>(span.image)];
    const bool goes_on =
        image.unit && !image.unit->first && span.image == last + 1 && span.begin == std::ssize(positions);
    add_text(span.begin);
    if (!goes_on) base = next;
    const std::vector<Position> own = config.family->image_positions(config, image);
    const auto place = [&](int32_t cell) {
      Position p = own[static_cast<size_t>(cell)].moved(base);
      if (image.unit) p.t += image.unit->t;
      return p;
    };
    for (int32_t i = span.begin; i < span.end; ++i) positions.push_back(place(image.cell_of(span.row_of(i))));
    // Dropped cells take their places all the same.
    for (int32_t cell = 0; cell < std::ssize(own); ++cell) next = std::max(next, place(cell).largest() + 1);
    last = span.image;
  }
  add_text(n_tokens);
  return positions;
}

Sha256Digest image_key(const ImageTiles& image) {
  Sha256 hash;
  for (const int64_t size : {image.n_tiles, image.height, image.width, image.original_height, image.original_width,
                             image.tile_rows, image.tile_cols, image.overview}) {
    hash.add(size);
  }
  if (image.n_frames > 1) hash.add(image.n_frames);
  if (image.kept) {
    hash.add(std::ssize(image.kept->setting));
    hash.add(std::as_bytes(std::span(image.kept->setting)));
    hash.add(std::as_bytes(std::span(image.kept->cells)));
  }
  hash.add({image.pixels.data(), static_cast<size_t>(image.tensor().bytes())});
  return hash.finish();
}

std::vector<Sha256Digest> image_keys(const Prompt& prompt) {
  if (prompt.keys.size() == prompt.images.size()) return prompt.keys;
  std::vector<Sha256Digest> keys = prompt.contents;
  for (size_t i = keys.size(); i < prompt.images.size(); ++i) keys.push_back(image_key(prompt.images[i]));
  for (Sha256Digest& key : keys) {
    if (!prompt.salt) continue;
    Sha256 hash;
    hash.add(std::as_bytes(std::span(*prompt.salt)));
    hash.add(std::as_bytes(std::span(key)));
    key = hash.finish();
  }
  return keys;
}

}  // namespace vlcache
