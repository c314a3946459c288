#include "engine/prompt/image_reader.h"

#include <algorithm>
#include <set>
#include <span>

#include "base/error.h"
#include "model/images/cell_hashes.h"

namespace vlcache {
namespace {

constexpr int64_t kMaxKnownBytes = int64_t{16} << 20;
constexpr size_t kMaxChanged = 64;

int64_t bytes_of(const ImageTiles& tiles) {
  const size_t n_kept = tiles.kept ? tiles.kept->cells.size() : tiles.hashes != nullptr ? tiles.hashes->size() : 0;
  return static_cast<int64_t>(sizeof(ImageTiles) + tiles.shown.size() * sizeof(PixelRect) + n_kept * 8) + 256;
}

void add(Sha256& hash, std::span<const std::byte> bytes) {
  hash.add(std::ssize(bytes));
  hash.add(bytes);
}

// Digest of the file, and of all that decides its tiles.
Sha256Digest digest_of(const EncodedImage& image) {
  Sha256 hash;
  const ImageOptions& o = image.options;
  add(hash, std::as_bytes(std::span(image.owner)));
  add(hash, std::as_bytes(std::span(o.settings)));
  for (const int64_t number :
       {int64_t{o.min_tokens}, int64_t{o.max_tokens}, int64_t{o.least_detail}, int64_t{o.compared},
        image.limits.max_pixels, image.limits.max_side, image.limits.max_bytes}) {
    hash.add(number);
  }
  if (o.dedup) {
    add(hash, std::as_bytes(std::span(&o.dedup->tolerance, 1)));
    hash.add(int64_t{o.dedup->weighted});
  }
  add(hash, *image.bytes);
  return hash.finish();
}

}  // namespace

ImageReader::ImageReader(const Model& model, ProcessorPtr processor, MakeProcessor make)
    : model_(model), make_(std::move(make)), processor_(std::move(processor)) {}

void ImageReader::read(InputImages images, Prompt& prompt) const {
  if (auto* decoded = std::get_if<std::vector<Image>>(&images)) {
    for (const Image& image : *decoded) prompt.images.push_back(processor_->process(image));
    return;
  }
  int64_t held_bytes = 0;
  for (EncodedImage& image : std::get<std::vector<EncodedImage>>(images)) {
    read(std::move(image), prompt, held_bytes);
  }
}

void ImageReader::read(EncodedImage image, Prompt& prompt, int64_t& held_bytes) const {
  const Sha256Digest file = digest_of(image);
  KnownPtr known = find(file);
  if (known != nullptr) {
    prompt.images.push_back(known->tiles.copy());
  } else {
    if (image.options.dedup) check_takes_dedup(model_.config());
    Fitted fitted = fit(decode_image(*image.bytes, image.where, image.limits), image);
    if (image.options.dedup) {
      fitted.tiles.kept = dedup_cells(fitted.tiles, model_.config().vision->cell(), fitted.processor->value_range(),
                                      *image.options.dedup);
    }
    if (image.options.compared) {
      fitted.tiles.hashes = std::make_shared<const std::vector<uint64_t>>(cell_hashes(model_.config(), fitted.tiles));
    }
    known = std::make_shared<const Known>(
        Known{fitted.tiles.without_pixels(), image_key(fitted.tiles), std::move(fitted.processor)});
    remember(file, known);
    held_bytes += fitted.tiles.pixels.bytes();
    prompt.images.push_back(held_bytes <= kMaxHeldBytes ? std::move(fitted.tiles) : known->tiles.copy());
  }
  prompt.contents.push_back(known->content);
  prompt.pixel_sources.push_back([known, image = std::move(image)] {
    ImageTiles tiles = known->processor->process(decode_image(*image.bytes, image.where, image.limits));
    tiles.kept = known->tiles.kept;
    tiles.hashes = known->tiles.hashes;
    return tiles;
  });
}

ImageReader::KnownPtr ImageReader::find(const Sha256Digest& file) const {
  const std::lock_guard lock(mutex_);
  const auto at = known_.find(file);
  return at == known_.end() ? nullptr : at->second;
}

void ImageReader::remember(const Sha256Digest& file, const KnownPtr& known) const {
  const int64_t bytes = bytes_of(known->tiles);
  const std::lock_guard lock(mutex_);
  if (known_bytes_ + bytes > kMaxKnownBytes) {
    known_.clear();
    known_bytes_ = 0;
  }
  if (known_.emplace(file, known).second) known_bytes_ += bytes;
}

ImageReader::ProcessorPtr ImageReader::processor(const std::string& settings) const {
  if (settings.empty()) return processor_;
  const std::lock_guard lock(mutex_);
  if (const auto at = changed_.find(settings); at != changed_.end()) return at->second;
  ProcessorPtr made = make_(settings);
  if (changed_.size() == kMaxChanged) changed_.clear();
  return changed_[settings] = made;
}

// The tiles of an image under its options, and the processor that made them.
ImageReader::Fitted ImageReader::fit(const Image& image, const EncodedImage& encoded) const {
  const ImageOptions& options = encoded.options;
  Fitted fitted{.processor = processor(options.settings), .tiles = {}};
  if (options.min_tokens > 0 || options.max_tokens > 0 || options.least_detail) {
    const TokenBounds bounds = {
        .least = options.min_tokens, .most = options.max_tokens, .fewest = options.least_detail};
    if (ProcessorPtr bounded = fitted.processor->bounded(bounds); bounded != nullptr)
      fitted.processor = std::move(bounded);
  }
  std::set<int64_t> found;
  while (fitted.processor != nullptr) {
    fitted.tiles = fitted.processor->process(image);
    const int64_t n_tokens = model_.n_image_tokens(fitted.tiles);
    ProcessorPtr coarser = fitted.processor->coarser();
    const bool coarse_enough = !options.least_detail || coarser == nullptr;
    const bool few_enough = options.max_tokens == 0 || n_tokens <= options.max_tokens;
    if (coarse_enough && few_enough && n_tokens >= options.min_tokens) return fitted;
    found.insert(n_tokens);
    fitted.processor = std::move(coarser);
  }
  std::string counts;
  for (const int64_t n : found) counts += (counts.empty() ? "" : ", ") + std::to_string(n);
  throw Error(ErrorCode::kInput, encoded.where + ": an image of " + std::to_string(image.width) + " x " +
                                     std::to_string(image.height) + " pixels can have " + counts +
                                     " tokens; expected one of these between min_image_tokens and max_image_tokens");
}

}  // namespace vlcache
