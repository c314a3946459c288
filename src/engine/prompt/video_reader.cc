#include "engine/prompt/video_reader.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "model/images/unit_pruning.h"

namespace vlcache {
namespace {

TokenBounds bounds_of(const ImageOptions& options) {
  return {.least = options.min_tokens, .most = options.max_tokens, .fewest = options.least_detail};
}

}  // namespace

ShownFrames VideoReader::choose_frames(const InputVideo& video, Extent& size) const {
  if (video.height < 1 || video.width < 1) throw Error(ErrorCode::kInput, video.where + ": frames without pixels");
  try {
    ShownFrames shown = processor_->choose(video.timing, video.sampling);
    size = processor_->extent({video.height, video.width}, std::ssize(shown.indices), bounds_of(video.options));
    return shown;
  } catch (const Error& e) {
    throw Error(e.code(), video.where + ": " + e.what());
  }
}

int32_t VideoReader::unit_time(const ShownFrames& shown, size_t k) const {
  const ModelConfig& config = model_.config();
  if (config.family->unit_time == nullptr) return 0;
  const auto per_unit = static_cast<size_t>(processor_->frames_per_unit());
  double seconds_per_unit = static_cast<double>(per_unit) / shown.fps;
  if (shown.own_times && k > 0) seconds_per_unit = shown.seconds[k * per_unit] / static_cast<double>(k);  // until this
  return config.family->unit_time(config, static_cast<int64_t>(k), seconds_per_unit);
}

void VideoReader::read(const InputVideo& video, Prompt& prompt) const {
  Extent size;
  const ShownFrames choice = choose_frames(video, size);
  const std::vector<int64_t>& indices = choice.indices;
  const Extent original{video.height, video.width};
  const auto per_unit = static_cast<size_t>(processor_->frames_per_unit()),
             n_units = (indices.size() + per_unit - 1) / per_unit;
  check_size(video, size, static_cast<int64_t>(n_units), choice);
  const auto frames = std::make_shared<const std::vector<Image>>(read_frames(video, indices, size));
  const ModelConfig& config = model_.config();
  for (size_t k = 0; k < n_units; ++k) {
    const size_t begin = k * per_unit, end = std::min(begin + per_unit, indices.size());
    const VideoUnit unit = {.first = k == 0,
                            .seconds = (choice.seconds[begin] + choice.seconds[end - 1]) / 2,  // the middle
                            .t = unit_time(choice, k)};
    const std::span shown = std::span(*frames).subspan(begin, end - begin);
    std::optional<KeptCells> kept;
    if (k > 0 && video.options.video_prune > 0) {
      kept = prune_unit(shown, std::span(*frames).subspan(begin - per_unit, per_unit), config.vision->cell(),
                        video.options.video_prune);
    }
    auto make = [processor = processor_, frames, shown, original, unit, kept = std::move(kept)] {
      ImageTiles tiles = processor->unit(shown, original);
      tiles.unit = unit;
      tiles.kept = kept;
      return tiles;
    };
    const ImageTiles tiles = make();
    prompt.contents.push_back(image_key(tiles));
    prompt.images.push_back(tiles.without_pixels());
    prompt.pixel_sources.emplace_back(std::move(make));
  }
}

std::vector<Image> VideoReader::read_frames(const InputVideo& video, std::span<const int64_t> indices,
                                            Extent to) const {
  const Extent original{video.height, video.width};
  std::vector<Image> frames;
  video.read(indices, [&](Image frame) {
    if (frame.height != original.height || frame.width != original.width) {
      throw Error(ErrorCode::kInput, video.where + ": frame " + std::to_string(frames.size()) + " of those shown has " +
                                         std::to_string(frame.width) + " x " + std::to_string(frame.height) +
                                         " pixels; expected " + std::to_string(original.width) + " x " +
                                         std::to_string(original.height));
    }
    if (frames.size() == indices.size()) return;
    const bool same = frame.height == to.height && frame.width == to.width;
    frames.push_back(same ? std::move(frame) : resize(frame, to.width, to.height, processor_->resample()));
  });
  if (frames.size() < indices.size()) {
    throw Error(ErrorCode::kInput, video.where + ": " + std::to_string(frames.size()) + " of " +
                                       std::to_string(indices.size()) + " frames could be read");
  }
  return frames;
}

// The context limit counts positions; a video takes fewer than tokens where its units share rows and columns.
void VideoReader::check_size(const InputVideo& video, Extent extent, int64_t n_units, const ShownFrames& shown) const {
  ImageTiles unit;
  unit.n_tiles = 1;
  unit.height = extent.height;
  unit.width = extent.width;
  unit.n_frames = processor_->frames_per_unit();
  const ModelConfig& config = model_.config();
  const Family& family = *config.family;
  const int64_t n = model_.n_image_tokens(unit), context = config.text.max_positions;
  int64_t side = n;
  if (family.image_positions != nullptr) side = family.image_positions(config, unit).back().largest() + 1;
  const int64_t n_positions =
      family.unit_time != nullptr ? unit_time(shown, static_cast<size_t>(n_units - 1)) + side : n_units * side;
  const ImageOptions& options = video.options;
  const bool fits = (options.max_tokens == 0 || n <= options.max_tokens) && n >= options.min_tokens;
  const std::string begin = video.where + ": frames of " + std::to_string(video.width) + " x " +
                            std::to_string(video.height) + " pixels have " + std::to_string(n) + " tokens for each " +
                            std::to_string(unit.n_frames) + " of them";
  if (!fits)
    throw Error(ErrorCode::kInput, begin + "; expected a number between min_image_tokens and max_image_tokens");
  const std::string all = begin + ", " + std::to_string(n * n_units) + " in all",
                    advice = "; show fewer frames (fps, max_frames), or bound their tokens (max_image_tokens)";
  if (n_positions > context) {
    throw Error(ErrorCode::kInput, all + ", more than the context of " + std::to_string(context) + advice);
  }
  if (n_units * unit.n_frames > kMaxHeldBytes / (3 * unit.height * unit.width)) {
    throw Error(ErrorCode::kMemory, all + ", and more than " + std::to_string(kMaxHeldBytes >> 20) + " MiB" + advice);
  }
}

}  // namespace vlcache
