#include "model/model.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/sha256.h"
#include "io/quantised/quantised_tensors.h"
#include "io/safetensors.h"
#include "model/projector.h"
#include "ops/quantiser.h"

namespace vlcache {
namespace {

// Rows that are projected in one step.
constexpr int64_t kProjectedRows = 1024;

// The dtype the weights themselves are stored in, for a config.json without one.
DType stored_dtype(const Safetensors& files) {
  for (const std::string_view name : files.names()) {
    const std::optional<DType> dtype = files.find(name)->dtype;
    if (dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16) return *dtype;
  }
  return DType::kF32;
}

// Whether a tensor of that name belongs to the language model, be it one that nothing reads.
bool is_of_text(const ModelConfig& config, std::string_view name) {
  const WeightPrefixes& prefixes = config.family->prefixes;
  const TextNames& names = *config.text.names;
  const auto begins = [&](std::string_view prefix, std::string_view module) {
    return name.starts_with(prefix) && name.substr(prefix.size()).starts_with(module);
  };
  return std::ranges::any_of(prefixes.lm_head, [&](std::string_view p) { return begins(p, names.lm_head); }) ||
         std::ranges::any_of(prefixes.text, [&](std::string_view p) {
           return begins(p, names.embed) || begins(p, names.layers) || begins(p, names.final_norm);
         });
}

// Files of these families may hold the language model alone, beside the whole model's configuration. Then they hold
// nothing else: an encoder under other names than ours must not be left out in silence.
bool lacks_encoder(const ModelConfig& config, const Checkpoint& checkpoint) {
  if (!config.vision || !config.vision->traits.any_grid) return false;
  const std::shared_ptr<const Safetensors> files = checkpoint.tensors();
  std::string tried;
  for (const std::string_view prefix : config.family->prefixes.vision) {
    const std::string patch = std::string(prefix) + std::string(config.vision->names->patch) + "weight";
    if (files->find(patch) != nullptr) return false;
    tried += (tried.empty() ? "" : ", ") + patch;
  }
  for (const std::string_view name : files->names()) {
    if (is_of_text(config, name)) continue;
    throw Error(ErrorCode::kNotFound, files->where() + ": none of these tensors is there: " + tried + "; \"" +
                                          std::string(name.substr(0, 200)) +
                                          "\" is none of the language model's either, so this is no checkpoint of that "
                                          "alone: the names of its vision encoder are not known");
  }
  return true;
}

std::unique_ptr<TensorSource> source_of(const Checkpoint& checkpoint) {
  return checkpoint_source(checkpoint.tensors(), QuantisedTensors::open(checkpoint.config(), checkpoint.tensors()));
}

}  // namespace

std::array<uint8_t, 16> model_fingerprint(const WeightHash& weights, std::span<const LoadedMatrix> matrices,
                                          const Backend& backend, const std::string& config_json,
                                          const std::string& calibration) {
  Sha256 hash;
  hash.add(std::as_bytes(std::span(weights)));
  const auto add = [&](const std::string& text) {
    hash.add(std::ssize(text));
    hash.add(std::as_bytes(std::span(text)));
  };
  add(config_json), add(std::string(backend.name()));
  hash.add(static_cast<int64_t>(backend.compute_dtype()));
  if (backend.activation_bits() == ActivationBits::k8) add("activations of 8 bits");
  for (const LoadedMatrix& matrix : matrices) {
    if (!matrix.quantised) continue;
    const std::string maker = matrix.quantiser == 0 ? "" : " quantiser " + std::to_string(matrix.quantiser);
    add(matrix.name + " " + matrix.form + maker);
  }
  if (!calibration.empty()) add("calibration " + calibration);
  std::array<uint8_t, 16> fingerprint{};
  std::ranges::copy_n(hash.finish().begin(), std::ssize(fingerprint), fingerprint.begin());
  return fingerprint;
}

namespace {

[[noreturn]] void no_images(const ModelConfig& config) {
  throw Error(ErrorCode::kInput, "an image was given to a model (" + config.model_type + ") that takes text only");
}

}  // namespace

Tensor VisionOutput::record() const {
  const int64_t n = embeds.rows(), width = embeds.row_size();
  CHECK(embeds.dense() && embeds.data == storage.data());
  for (size_t i = 0; i < extra.size(); ++i) {
    CHECK(extra[i].dense() && extra[i].data == storage.data() + static_cast<int64_t>(1 + i) * embeds.bytes());
  }
  return Tensor(storage.data(), embeds.dtype, {n, static_cast<int64_t>(1 + extra.size()) * width});
}

ModelConfig Model::read_config(const Checkpoint& checkpoint) {
  const Json* generation = checkpoint.generation_config();
  const JsonObject root = checkpoint.config();
  ModelConfig config = parse_model_config(root.raw(), root.where(), generation);
  if (!config.states_dtype) config.dtype = stored_dtype(*checkpoint.tensors());
  if (lacks_encoder(config, checkpoint)) config.vision.reset();
  return config;
}

std::unique_ptr<Model> Model::load(const Checkpoint& checkpoint, const ModelConfig& config, Backend& backend,
                                   const LoadOptions& options) {
  const std::string config_json = checkpoint.config().raw().dump();
  LoadOptions with_identity = options;
  with_identity.source_identity = checkpoint.tensors()->identity() + "config " + config_json + "\n";
  Weights weights = load_weights(config, source_of(checkpoint), backend, with_identity);
  return std::unique_ptr<Model>(new Model(config, std::move(weights), backend, config_json));
}

Model::Listing Model::list(const Checkpoint& checkpoint, const ModelConfig& config, Backend& backend,
                           const WeightForms& forms, bool hashed, const std::string& calibration) {
  Listing listing{.weights = list_weights(config, source_of(checkpoint), backend, forms, hashed), .fingerprint = {}};
  if (hashed) {
    listing.fingerprint = model_fingerprint(listing.weights.hash, listing.weights.matrices, backend,
                                            checkpoint.config().raw().dump(), calibration);
  }
  return listing;
}

std::string Model::weights_form(const Checkpoint& checkpoint, const WeightForms& forms, ActivationBits bits,
                                const std::string& calibration) {
  const bool coded = QuantisedTensors::open(checkpoint.config(), checkpoint.tensors()) != nullptr;
  const auto name = [&](WeightChoice choice) {
    return std::string(weight_choice_name(choice == WeightChoice::kAuto && !coded ? WeightChoice::kDense : choice));
  };
  std::string form = name(forms.text);
  if (const std::string vision = name(forms.vision); vision != "dense") form += ", vision " + vision;
  if (forms.quantised()) form += ", quantiser " + std::to_string(kQuantiserVersion);
  if (!calibration.empty()) form += ", calibration " + calibration;
  if (bits == ActivationBits::k8) form += ", activations int8";
  return form;
}

std::unique_ptr<Model> Model::load(const Checkpoint& checkpoint, Backend& backend, const LoadOptions& options) {
  return load(checkpoint, read_config(checkpoint), backend, options);
}

std::unique_ptr<Model> Model::random(const ModelConfig& config, Backend& backend, uint64_t seed,
                                     const LoadOptions& options) {
  Weights weights = load_weights(config, random_source(seed, !config.text.tied_embeddings), backend, options);
  return std::unique_ptr<Model>(new Model(config, std::move(weights), backend, config.model_type));
}

Model::Model(const ModelConfig& config, Weights weights, Backend& backend, const std::string& config_json)
    : config_(config), weights_(std::move(weights)), backend_(backend), decoder_(config_.text, weights_.text, backend) {
  if (config_.vision) encoder_.emplace(*config_.vision, *weights_.vision, backend);
  fingerprint_ = model_fingerprint(weights_.hash, weights_.matrices, backend, config_json, weights_.calibration);
}

int64_t Model::n_image_tokens(const ImageTiles& image) const {
  if (!sees_images()) no_images(config_);
  encoder_->tokens_per_tile(image.height, image.width);  // throws for sizes it does not accept
  return static_cast<int64_t>(config_.family->token_rows(config_, image).size());
}

VisionOutput Model::allocate_rows(int64_t n, int64_t width, size_t n_extra) const {
  VisionOutput out;
  const int64_t bytes = n * width * dtype_bytes(compute_dtype());
  out.storage = Buffer(bytes * static_cast<int64_t>(1 + n_extra));
  out.embeds = Tensor(out.storage.data(), compute_dtype(), {n, width});
  for (size_t i = 0; i < n_extra; ++i)
    out.extra.emplace_back(out.storage.data() + static_cast<int64_t>(1 + i) * bytes, compute_dtype(),
                           std::initializer_list<int64_t>{n, width});
  return out;
}

// Allocates room for the encoder's features.
VisionOutput Model::features_of(const ImageTiles& image) const {
  if (!sees_images()) no_images(config_);
  int64_t tokens = encoder_->tokens_per_tile(image.height, image.width);
  if (image.kept) tokens = std::ssize(image.kept->cells) * config_.vision->merge * config_.vision->merge;
  return allocate_rows(image.n_tiles * tokens, config_.vision->feature_size(), n_extra());
}

VisionOutput Model::encode_features(const ImageTiles& image, VisionCapture* capture) {
  VisionOutput out = features_of(image);
  encoder_->forward(VisionInput(image), {.main = out.embeds, .taps = out.extra}, capture);
  return out;
}

VisionOutput Model::encode_image(const ImageTiles& image, VisionCapture* capture) {
  Encoding encoding = begin_encoding(image, capture);
  while (encoding.step()) {
  }
  return encoding.finish();
}

Model::Encoding Model::begin_encoding(const ImageTiles& image, VisionCapture* capture, bool tile_by_tile) {
  if (!sees_images()) no_images(config_);
  return {*this, image, capture, tile_by_tile};
}

double Model::encoding_flops(const ImageTiles& image) const {
  if (!sees_images()) no_images(config_);
  const VisionConfig& vision = *config_.vision;
  const int64_t n_all = (image.height / vision.patch_size) * (image.width / vision.patch_size);
  return encoder_->flops(image.n_tiles,
                         image.kept ? std::ssize(image.kept->cells) * vision.merge * vision.merge : n_all);
}

Model::Encoding::Encoding(Model& model, const ImageTiles& image, VisionCapture* capture, bool tile_by_tile)
    : model_(model),
      image_(image),
      order_(model.config_.family->token_rows(model.config_, image)),
      features_(model.features_of(image)),
      pass_(model.encoder_->begin(VisionInput(image), {.main = features_.embeds, .taps = features_.extra}, capture,
                                  tile_by_tile)) {}

bool Model::Encoding::step() {
  if (!encoded_) {
    if (pass_.step()) return true;
    encoded_ = true;
    projection_ = model_.begin_projection(image_, features_);
    return projection_.n_rows > kProjectedRows;
  }
  return model_.project_piece(image_, features_, projection_);
}

VisionOutput Model::Encoding::finish() {
  CHECK(encoded_);
  while (model_.project_piece(image_, features_, projection_)) {
  }
  return model_.in_order(std::move(projection_), std::move(order_));
}

Model::Projection Model::begin_projection(const ImageTiles& image, const VisionOutput& features) const {
  const ProjectorConfig& config = config_.projector;
  Projection projection;
  if (image.n_tiles > 0) {
    projection.n_rows = image.n_tiles * config.kind->n_rows(config, features.embeds.rows() / image.n_tiles);
  }
  // The newline follows the projected rows, so that one gather puts everything in order.
  CHECK(!config.newline || features.extra.empty());
  projection.out = allocate_rows(projection.n_rows + config.newline, config_.text.hidden_size, features.extra.size());
  return projection;
}

bool Model::project_piece(const ImageTiles& image, const VisionOutput& features, Projection& projection) const {
  const ProjectorConfig& config = config_.projector;
  const int64_t n_rows = projection.n_rows, n_all = n_rows * (1 + std::ssize(features.extra));
  if (projection.n_done >= n_all) return false;
  const auto extra = static_cast<size_t>(projection.n_done / n_rows);  // 0: the embeddings
  const int64_t begin = projection.n_done % n_rows;
  const int64_t end = config.kind->by_rows ? std::min(begin + kProjectedRows, n_rows) : n_rows;
  const Tensor& all = extra == 0 ? features.embeds : features.extra[extra - 1];
  const Tensor& out = extra == 0 ? projection.out.embeds : projection.out.extra[extra - 1];
  const int64_t per_row = all.rows() / n_rows, width = all.row_size();
  const Tensor from = config.kind->by_rows
                          ? all.slice_rows(begin * per_row, end * per_row).view({1, (end - begin) * per_row, width})
                          : all.view({image.n_tiles, all.rows() / image.n_tiles, width});
  if (extra == 0) {
    config.kind->project(config, weights_.projector, backend_, from, out.slice_rows(begin, end));
  } else {
    config.kind->project_tap(config, weights_.taps[extra - 1], backend_, from, out.slice_rows(begin, end));
  }
  projection.n_done += end - begin;
  return projection.n_done < n_all;
}

// The rows of the image's tokens, in their order.
VisionOutput Model::in_order(Projection projection, std::vector<int32_t> order) const {
  VisionOutput& out = projection.out;
  const int64_t n_rows = projection.n_rows, n_all = out.embeds.rows();
  const Tensor all = out.embeds;
  out.embeds = all.slice_rows(0, n_rows);
  if (config_.projector.newline) {
    const int32_t first[] = {0};
    backend_.gather_rows(weights_.projector.newline, first, all.slice_rows(n_rows, n_all));
  }
  bool as_they_come = std::ssize(order) == n_rows;
  for (size_t i = 0; i < order.size(); ++i) {
    if (order[i] == kNewlineRow) order[i] = static_cast<int32_t>(n_rows);
    CHECK(order[i] >= 0 && order[i] < n_all);
    as_they_come = as_they_come && order[i] == static_cast<int32_t>(i);
  }
  if (as_they_come) return std::move(out);
  VisionOutput ordered = allocate_rows(std::ssize(order), config_.text.hidden_size, out.extra.size());
  backend_.gather_rows(all, order, ordered.embeds);
  for (size_t i = 0; i < out.extra.size(); ++i) backend_.gather_rows(out.extra[i], order, ordered.extra[i]);
  return ordered;
}

}  // namespace vlcache
