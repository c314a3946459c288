// TensorSource: provides weights, from a checkpoint's files or as random numbers of the same shapes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/tensor.h"
#include "io/quantised/module_tensors.h"
#include "io/quantised/quantised_tensors.h"
#include "io/safetensors.h"

namespace vlcache {

class TensorSource {
 public:
  virtual ~TensorSource() = default;
  virtual bool has(std::string_view name) const = 0;
  // The tensor with exactly this shape, of which dimensions beyond the fourth are joined to it; valid until
  // release(name). Its data may be misaligned for its type (safetensors promises nothing). Throws Error(kNotFound /
  // kShape / kUnsupported) naming tensor and file.
  virtual Tensor get(const std::string& name, std::span<const int64_t> shape) = 0;
  // Whether tensors have values; else they are zeros, which stand for any.
  virtual bool has_values() const { return true; }
  // Whether it is there with this shape.
  virtual bool has_shape(std::string_view name, std::span<const int64_t> shape) const = 0;
  // Whether a matrix ("....weight") is stored as codes. has() is then true, but get() has no values of it.
  virtual bool coded(std::string_view) const { return false; }
  // Such a matrix. Throws Error naming the tensor that does not fit.
  virtual std::unique_ptr<StoredMatrix> stored(const std::string& name, int64_t n_out, int64_t n_in);
  // The same of a tensor of stacked matrices, [n, n_out, n_in], and of one of them.
  virtual bool coded_stack(const std::string&) const { return false; }
  virtual std::unique_ptr<StoredMatrix> stored(const std::string& name, const StackPlace& place, int64_t n_out,
                                               int64_t n_in);
  // The format of such matrices, "AWQ"; empty: the source knows none.
  virtual std::string format() const { return ""; }
  // The caller has copied what it needs: the tensor's memory may be freed.
  virtual void release(const std::string& name) = 0;
  // The memory of bytes [begin, end) of the tensor may be freed; it is still valid.
  virtual void release_part(const std::string&, int64_t, int64_t) {}
  virtual int64_t total_bytes() const = 0;  // of all tensors; 0 if unknown
  virtual std::string where() const = 0;    // for errors
};

// A checkpoint's files, mapped while the source lives. Views of tensors that are not released stay valid that long.
// `quantised`: the matrices that they store as codes; null: none.
std::unique_ptr<TensorSource> checkpoint_source(std::shared_ptr<const Safetensors> files,
                                                std::unique_ptr<const QuantisedTensors> quantised = nullptr);

// Any tensor of any shape, bf16: matrices normal with variance 1 / fan_in, norms 1, biases 0. The same seed gives the
// same weights. `with_lm_head`: whether the source reports an output matrix apart from the embeddings.
std::unique_ptr<TensorSource> random_source(uint64_t seed, bool with_lm_head);

// The same shapes without values: zeros that use no memory before they are read.
std::unique_ptr<TensorSource> shape_source(bool with_lm_head);

}  // namespace vlcache
