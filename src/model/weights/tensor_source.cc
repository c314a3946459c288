#include "model/weights/tensor_source.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numbers>
#include <optional>
#include <vector>

#include "base/buffer.h"
#include "base/error.h"
#include "base/os/threads.h"
#include "base/splitmix.h"

namespace vlcache {
namespace {

// Of a matrix's tensor, if the name is one; else empty.
std::string_view module_of(std::string_view name) {
  return name.ends_with(".weight") ? name.substr(0, name.rfind('.')) : std::string_view();
}

class CheckpointSource : public TensorSource {
 public:
  CheckpointSource(std::shared_ptr<const Safetensors> files, std::unique_ptr<const QuantisedTensors> quantised)
      : files_(std::move(files)), quantised_(std::move(quantised)) {}
  bool has(std::string_view name) const override { return files_->find(name) != nullptr || coded(name); }
  bool coded(std::string_view name) const override {
    const std::string_view module = module_of(name);
    return quantised_ != nullptr && !module.empty() && quantised_->has(module);
  }
  std::unique_ptr<StoredMatrix> stored(const std::string& name, int64_t n_out, int64_t n_in) override {
    return noted(name, quantised_->matrix(std::string(module_of(name)), n_out, n_in));
  }
  bool coded_stack(const std::string& name) const override {
    return quantised_ != nullptr && quantised_->has_stack(name);
  }
  std::unique_ptr<StoredMatrix> stored(const std::string& name, const StackPlace& place, int64_t n_out,
                                       int64_t n_in) override {
    return noted(name, quantised_->stacked(name, place, n_out, n_in));
  }
  std::string format() const override { return quantised_ == nullptr ? "" : quantised_->name(); }
  bool has_shape(std::string_view name, std::span<const int64_t> shape) const override {
    const SafetensorsEntry* entry = files_->find(name);
    return entry != nullptr && std::ranges::equal(entry->shape, shape);
  }
  Tensor get(const std::string& name, std::span<const int64_t> shape) override { return files_->get(name, shape); }
  void release(const std::string& name) override {
    files_->release(name);
    if (const auto parts = parts_.find(name); parts != parts_.end()) {
      for (const std::string& part : parts->second) files_->release(part);
    }
  }
  void release_part(const std::string& name, int64_t begin, int64_t end) override {
    files_->release_part(name, begin, end);
  }
  int64_t total_bytes() const override { return files_->data_bytes(); }
  std::string where() const override { return files_->where(); }

 private:
  // What release() of the name is to release.
  std::unique_ptr<StoredMatrix> noted(const std::string& name, std::unique_ptr<StoredMatrix> matrix) {
    std::vector<std::string>& names = parts_[name];
    names.clear();
    for (const StoredTensor& tensor : matrix->tensors()) names.push_back(tensor.name);
    return matrix;
  }

  std::shared_ptr<const Safetensors> files_;
  std::unique_ptr<const QuantisedTensors> quantised_;
  std::map<std::string, std::vector<std::string>> parts_;  // tensors of the matrices that stored() returned
};

// Mixes well enough for weights, with one multiply-chain per 64 bits.
uint64_t mix(uint64_t x) { return splitmix(x + kSplitmixStep); }

class RandomSource : public TensorSource {
 public:
  // Without a seed: zeros.
  RandomSource(std::optional<uint64_t> seed, bool with_lm_head) : seed_(seed), with_lm_head_(with_lm_head) {
    if (!seed) return;
    normals_.resize(kTable);
    // Box and Muller over a table of hashes: drawing a weight is then one look-up.
    for (size_t i = 0; i < kTable; ++i) {
      const double u = (static_cast<double>(mix(2 * i) >> 11) + 0.5) * 0x1p-53;
      const double v = static_cast<double>(mix(2 * i + 1) >> 11) * 0x1p-53;
      normals_[i] = static_cast<float>(std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v));
    }
  }
  // Experts come one by one.
  bool has(std::string_view name) const override {
    return (with_lm_head_ || !name.ends_with("head.weight")) && !name.ends_with("experts.gate_up_proj");
  }
  bool has_shape(std::string_view name, std::span<const int64_t>) const override { return has(name); }
  bool has_values() const override { return seed_.has_value(); }

  Tensor get(const std::string& name, std::span<const int64_t> shape) override {
    Tensor t;
    t.dtype = DType::kBF16;
    t.rank = static_cast<int>(std::min(shape.size(), t.shape.size()));
    for (size_t i = 0; i < shape.size(); ++i) {
      if (i < t.shape.size()) {
        t.shape[i] = shape[i];
      } else {
        t.shape.back() *= shape[i];
      }
    }
    t.stride = t.row_size();
    Buffer& memory = tensors_[name] = Buffer(t.bytes());
    t.data = memory.data();
    if (seed_) fill(name, t);
    return t;
  }
  void release(const std::string& name) override { tensors_.erase(name); }
  int64_t total_bytes() const override { return 0; }
  std::string where() const override { return "random weights"; }

 private:
  static constexpr size_t kTable = 1 << 16;

  void fill(const std::string& name, const Tensor& t) const {
    auto* out = reinterpret_cast<bf16*>(t.data);
    const bool is_norm = t.rank == 1 && name.ends_with("weight");
    if (is_norm || name.ends_with("bias")) {
      std::fill(out, out + t.numel(), to_bf16(is_norm ? 1.0f : 0.0f));
      return;
    }
    const float scale = 1.0f / std::sqrt(static_cast<float>(t.rank > 1 ? t.row_size() : t.rows()));
    std::vector<bf16> table(kTable);
    for (size_t i = 0; i < kTable; ++i) table[i] = to_bf16(normals_[i] * scale);
    const uint64_t key = mix(*seed_ ^ std::hash<std::string>()(name));
    parallel_ranges(t.numel(), 4, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; i += 4) {
        uint64_t bits = mix(key + static_cast<uint64_t>(i));
        for (int64_t j = i; j < std::min(i + 4, end); ++j, bits >>= 16) out[j] = table[bits & (kTable - 1)];
      }
    });
  }

  std::optional<uint64_t> seed_;
  bool with_lm_head_;
  std::vector<float> normals_;
  std::map<std::string, Buffer> tensors_;
};

}  // namespace

std::unique_ptr<StoredMatrix> TensorSource::stored(const std::string&, int64_t, int64_t) { CHECK(false); }
std::unique_ptr<StoredMatrix> TensorSource::stored(const std::string&, const StackPlace&, int64_t, int64_t) {
  CHECK(false);
}

std::unique_ptr<TensorSource> checkpoint_source(std::shared_ptr<const Safetensors> files,
                                                std::unique_ptr<const QuantisedTensors> quantised) {
  return std::make_unique<CheckpointSource>(std::move(files), std::move(quantised));
}

std::unique_ptr<TensorSource> random_source(uint64_t seed, bool with_lm_head) {
  return std::make_unique<RandomSource>(seed, with_lm_head);
}

std::unique_ptr<TensorSource> shape_source(bool with_lm_head) {
  return std::make_unique<RandomSource>(std::nullopt, with_lm_head);
}

}  // namespace vlcache
