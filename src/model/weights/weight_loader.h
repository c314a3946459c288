// WeightLoader: reads a model's tensors by name, checks their shapes, packs or converts them, and releases the source;
// or does all that except packing, to list the tensors.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/weights/weights.h"

struct XXH3_state_s;  // of xxhash.h

namespace vlcache {

class WeightLoader {
 public:
  enum class Mode : uint8_t {
    kLoad,
    kHash,  // matrices are listed, not packed; every byte of the source is read for its hash
    kList,  // the same without a hash
  };
  // All must outlive the loader. Converted tensors are owned by `out`, which also counts them.
  WeightLoader(TensorSource& source, Backend& backend, const LoadOptions& options, PackedWeights& packed, Weights& out,
               Mode mode = Mode::kLoad)
      : source_(source),
        backend_(backend),
        options_(options),
        packed_(packed),
        out_(out),
        mode_(mode),
        hash_(make_hash()) {}

  // All n rows of a matrix of the language model, or of the vision encoder, in the form that is asked for.
  RowForms text_form(int64_t n_rows, MatrixRole role) const { return form(n_rows, options_.forms.text, role); }
  RowForms vision_form(int64_t n_rows) const { return form(n_rows, options_.forms.vision, MatrixRole::kUsual); }

  // The first prefix under which `probe` exists. Throws Error(kNotFound) listing all that were tried.
  std::string prefix(const std::vector<std::string_view>& prefixes, const std::string& probe) const;
  bool has(const std::string& name) const { return source_.has(name); }
  bool has_shape(const std::string& name, const std::vector<int64_t>& shape) const {
    return source_.has_shape(name, shape);
  }
  // Whether the checkpoint stores the matrix as codes.
  bool coded(const std::string& name) const { return source_.coded(name); }
  std::string where() const { return source_.where(); }

  // One packed matrix of several stacked ones, [sum of n_out, n_in]. `pairs`: empty, or for each of them the size of
  // the heads that its rows are, whose rotation pairs the rows (2c, 2c + 1) of a head: they become rows c and c + size
  // / 2, as Backend::rope expects; 0: the rows stay. `forms`, here and below: of the rows as they are stacked.
  Weight matrix(const std::vector<std::string>& names, const std::vector<int64_t>& n_out, int64_t n_in,
                const RowForms& forms = {}, const std::vector<int64_t>& pairs = {});
  Weight matrix(const std::string& name, int64_t n_out, int64_t n_in, const RowForms& forms = {}) {
    return matrix(std::vector{name}, {n_out}, n_in, forms);
  }
  // A matrix that is stored as [n_in, n_out].
  Weight transposed_matrix(const std::string& name, int64_t n_out, int64_t n_in, const RowForms& forms);
  // A matrix whose rows are divided by their length, or by 1e-12 if that is more.
  Weight unit_rows(const std::string& name, int64_t n_out, int64_t n_in, const RowForms& forms);
  // The kernel of a convolution whose stride is its size, [n_out, C, p, p] or [n_out, C, n_frames, p, p], as a matrix
  // whose columns are those of frame after frame.
  Weight patch_matrix(const std::string& name, const VisionConfig& v);
  // A stored matrix [n_out, a, b, n] (n may be 1) as [n_out, b * a * n]: the second and third dimension are exchanged.
  Weight exchanged_matrix(const std::string& name, std::span<const int64_t> stored, const std::array<int64_t, 4>& dims);
  // n matrices [n_out, n_in] of one tensor [n, n_out, n_in], or, `transposed`, [n, n_in, n_out].
  struct Stack {
    std::string name;
    int64_t n, n_out, n_in;
    bool transposed;
  };
  std::vector<Weight> stacked(const Stack& stack, const RowForms& forms);
  // Several vectors end to end, in the compute dtype.
  Tensor vector(const std::vector<std::string>& names, const std::vector<int64_t>& sizes);
  Tensor vector(const std::string& name, int64_t n) { return vector(std::vector{name}, {n}); }
  // A small table of rows in the compute dtype; `stored` is its shape in the checkpoint.
  Tensor rows(const std::string& name, int64_t n, int64_t width, std::vector<int64_t> stored);
  // An embedding table that is only looked up: it stays in the file, in its own dtype.
  Weight table(const std::string& name, int64_t n, int64_t width);
  // Whether two tensors are the same to the bit. Codes equal nothing.
  bool equal(const std::string& a, const std::string& b, std::initializer_list<int64_t> shape);

  // Hash (XXH3) of name, type, shape and every byte of all tensors read, in order; none of a packed file's hit.
  WeightHash hash() const;

 private:
  using HashState = std::unique_ptr<XXH3_state_s, void (*)(XXH3_state_s*)>;
  static HashState make_hash();
  static RowForms form(int64_t n_rows, WeightChoice choice, MatrixRole role) {
    return {{n_rows, form_of(choice, role), choice == WeightChoice::kAuto}};
  }
  void add_to_hash(const std::string& head, const std::byte* data, int64_t bytes);
  // A matrix of codes, once it is part of the hash, and the same as values of `dtype` in `memory`.
  std::unique_ptr<StoredMatrix> hashed(std::unique_ptr<StoredMatrix> matrix);
  Tensor values_of(const StoredMatrix& stored, int64_t n_out, int64_t n_in, DType dtype, Buffer& memory);
  Tensor aligned(const std::string& name, std::span<const int64_t> shape, std::vector<Buffer>& copies);
  Tensor aligned(const std::string& name, std::initializer_list<int64_t> shape, std::vector<Buffer>& copies) {
    return aligned(name, std::span(shape.begin(), shape.size()), copies);
  }
  // aligned() of values in two steps, between which a tensor may be cut into pieces that are taken in their order.
  Tensor found(const std::string& name, std::span<const int64_t> shape);
  Tensor hashed(Tensor t, std::vector<Buffer>& copies);
  // A matrix that a packed file has.
  std::optional<Weight> restored(const std::string& name, int64_t n_out, int64_t n_in, const RowForms& forms = {});
  bool restored(const std::string& name, const Tensor& to);
  // `forms`, here and in keep(): the requested forms; without, the quantiser made none of its codes.
  void list(const std::string& name, const Weight& w, const RowForms& forms);
  Weight pack(const std::vector<std::string>& names, const std::vector<Tensor>& parts, const RowForms& forms = {});
  float distance(const Tensor& values, const RowForms& forms) const;  // from a grid of 16
  // source_bytes, here and below: what the progress moves by. distances: of each part, from a grid of 16
  // (form_near_grid); empty: they do not matter.
  Weight pack_rows(const std::string& name, const std::vector<Tensor>& parts, const RowForms& forms,
                   int64_t source_bytes, const std::vector<float>& distances = {});
  // A matrix of rows that `fill(matrix)` writes, which is not done where nothing is packed.
  template <typename Fill>
  Tensor made(DType dtype, std::array<int64_t, 2> shape, Buffer& memory, const Fill& fill) const {
    if (mode_ != Mode::kLoad) return Tensor(nullptr, dtype, {shape[0], shape[1]});
    const int64_t bytes = shape[0] * shape[1] * dtype_bytes(dtype);
    if (memory.bytes() != bytes) memory = Buffer(bytes);
    const Tensor matrix(memory.data(), dtype, {shape[0], shape[1]});
    fill(matrix);
    return matrix;
  }
  // Values, or codes that are kept.
  struct Part {
    Tensor values;
    std::unique_ptr<StoredMatrix> codes;
    int64_t pairs = 0, n_out = 0, source_bytes = 0;
  };
  Weight pack_codes(const std::string& name, const std::vector<Part>& parts, int64_t n_in);
  Weight pack_run(const std::string& name, const std::vector<Tensor>& parts, const std::optional<QuantForm>& form,
                  int64_t source_bytes);
  Weight pack_watched(const QuantSource& rows, int64_t source_bytes);
  Weight listed(int64_t n_out, int64_t n_in, const std::optional<QuantForm>& form) const;
  Weight keep(const std::string& name, std::vector<Weight> segments, const RowForms& forms = {});
  Tensor own(std::initializer_list<int64_t> shape);
  void convert(const std::string& name, std::span<const int64_t> shape, const Tensor& to);
  void convert(const std::string& name, std::initializer_list<int64_t> shape, const Tensor& to) {
    convert(name, std::span(shape.begin(), shape.size()), to);
  }
  void count(int64_t n_parameters, int64_t source_bytes, int64_t kept_bytes);
  void tell_progress(int64_t more) const;
  std::vector<float> input_weights(const std::string& name);

  TensorSource& source_;
  Backend& backend_;
  const LoadOptions& options_;
  PackedWeights& packed_;
  Weights& out_;
  Mode mode_;
  HashState hash_;
  std::optional<InputStatistics> inputs_;    // of a calibration, once they are needed
  int64_t done_bytes_ = 0, part_bytes_ = 0;  // bytes of the source: counted, and of the matrix in work
};

}  // namespace vlcache
