#include "model/weights/weight_loader.h"

#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <mutex>
#include <numeric>

#include "base/error.h"
#include "base/os/threads.h"
#include "model/weights/code_rows.h"
#include "ops/quantiser.h"

namespace vlcache {
namespace {

template <typename T>
void transpose_values(const Tensor& from, const Tensor& to) {
  parallel_ranges(to.rows(), 16, [&](int64_t begin, int64_t end, int) {
    for (int64_t j = 0; j < from.rows(); ++j) {
      const T* row = from.row<T>(j);
      for (int64_t i = begin; i < end; ++i) to.row<T>(i)[j] = row[i];
    }
  });
}

// to[i, j] = from[j, i], of a type of two or four bytes.
void transpose(const Tensor& from, const Tensor& to) {
  dtype_bytes(from.dtype) == 2 ? transpose_values<uint16_t>(from, to) : transpose_values<uint32_t>(from, to);
}

void scale_to_length_one(const Tensor& rows) {
  parallel_ranges(rows.rows(), 16, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const std::span row(rows.row<float>(i), static_cast<size_t>(rows.row_size()));
      double squares = 0;
      for (const float x : row) squares += double{x} * double{x};
      const float length = std::max(static_cast<float>(std::sqrt(squares)), 1e-12f);
      for (float& x : row) x /= length;
    }
  });
}

// The rows of each head of `size`: even rows first.
void copy_halves_of_pairs(const Tensor& from, int64_t size, const Tensor& to) {
  const int64_t row_bytes = from.row_size() * dtype_bytes(from.dtype);
  for (int64_t row = 0; row < from.rows(); ++row) {
    const int64_t at = row_before_pairing(row, size);
    std::memcpy(to.data + row * row_bytes, from.data + at * row_bytes, static_cast<size_t>(row_bytes));
  }
}

bool quantise(const RowForms& forms) {
  return std::ranges::any_of(forms, [](const RowForm& f) { return f.form.has_value(); });
}

// `asked` as it is for values that are so far from a grid of 16; `distances`: of each part of the rows.
RowForms forms_near_grids(const RowForms& asked, const std::vector<Tensor>& parts,
                          const std::vector<float>& distances) {
  RowForms out;
  size_t at = 0;
  int64_t n_left = parts[0].rows();  // of the part
  for (const RowForm& run : asked) {
    for (int64_t missing = run.n_rows; missing > 0;) {
      if (n_left == 0) n_left = parts[++at].rows();
      const int64_t n = std::min(missing, n_left);
      out.push_back({n, form_near_grid(run.form, distances[at]), run.keep_codes});
      missing -= n, n_left -= n;
    }
  }
  return out;
}

// Tells how many rows were read so far, from a thread that is free to; never two at a time.
class WatchedRows : public QuantSource {
 public:
  WatchedRows(const QuantSource& rows, std::function<void(int64_t)> tell) : rows_(rows), tell_(std::move(tell)) {}
  QuantForm form() const override { return rows_.form(); }
  int64_t n_out() const override { return rows_.n_out(); }
  int64_t n_in() const override { return rows_.n_in(); }
  void read(int64_t first, int64_t n, QuantRows& out) const override {
    rows_.read(first, n, out);
    n_read_ += n;
    const std::unique_lock lock(telling_, std::try_to_lock);
    if (lock) tell_(n_read_);
  }
  std::span<const int32_t> input_order() const override { return rows_.input_order(); }

 private:
  const QuantSource& rows_;
  std::function<void(int64_t)> tell_;
  mutable std::atomic<int64_t> n_read_{0};
  mutable std::mutex telling_;
};

}  // namespace

WeightLoader::HashState WeightLoader::make_hash() {
  HashState state(XXH3_createState(), [](XXH3_state_s* s) { XXH3_freeState(s); });
  CHECK(state != nullptr && XXH3_128bits_reset(state.get()) == XXH_OK);
  return state;
}

void WeightLoader::add_to_hash(const std::string& head, const std::byte* data, int64_t bytes) {
  if (packed_.hit() || mode_ == Mode::kList) return;  // a hit's file knows the hash
  XXH3_128bits_update(hash_.get(), head.data(), head.size());
  XXH3_128bits_update(hash_.get(), data, static_cast<size_t>(bytes));
}

WeightHash WeightLoader::hash() const {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(hash_.get()));
  WeightHash hash;
  static_assert(sizeof(hash) == sizeof(canonical));
  std::memcpy(hash.data(), &canonical, sizeof(hash));
  return hash;
}

std::string WeightLoader::prefix(const std::vector<std::string_view>& prefixes, const std::string& probe) const {
  std::string tried;
  for (const std::string_view p : prefixes) {
    if (source_.has(std::string(p) + probe)) return std::string(p);
    tried += (tried.empty() ? "" : ", ") + std::string(p) + probe;
  }
  throw Error(ErrorCode::kNotFound, source_.where() + ": none of these tensors is there: " + tried);
}

Weight WeightLoader::matrix(const std::vector<std::string>& names, const std::vector<int64_t>& n_out, int64_t n_in,
                            const RowForms& forms, const std::vector<int64_t>& pairs) {
  if (auto w = restored(names[0], std::accumulate(n_out.begin(), n_out.end(), int64_t{0}), n_in, forms))
    return std::move(*w);
  const bool keep_codes = std::ranges::any_of(forms, &RowForm::keep_codes);
  // Codes are quantised again from what they stand for, not from its nearest bf16.
  const bool exact = quantise(forms);
  std::vector<Part> parts;
  std::vector<float> distances(names.size());  // from a grid of 16, of values that the checkpoint has as such
  std::vector<Buffer> copies;
  int64_t n_values = 0, n_bytes = 0;
  for (size_t i = 0; i < names.size(); ++i) {
    Part& part = parts.emplace_back();
    part.pairs = pairs.empty() ? 0 : pairs[i];
    part.n_out = n_out[i];
    if (!source_.coded(names[i])) {
      part.values = aligned(names[i], {n_out[i], n_in}, copies);
      part.source_bytes = part.values.bytes();
      distances[i] = distance(part.values, forms);
    } else {
      part.codes = hashed(source_.stored(names[i], n_out[i], n_in));
      for (const StoredTensor& tensor : part.codes->tensors()) part.source_bytes += std::ssize(tensor.bytes);
    }
    n_values += n_out[i] * n_in;
    n_bytes += part.source_bytes;
    if (part.codes != nullptr) {
      if (keep_codes && part.codes->codes() != nullptr) continue;
      part.values =
          values_of(*part.codes, n_out[i], n_in, exact ? DType::kF32 : backend_.compute_dtype(), copies.emplace_back());
      part.codes.reset();
    }
    if (part.pairs == 0) continue;
    const Tensor from = part.values;
    part.values = made(from.dtype, {n_out[i], n_in}, copies.emplace_back(),
                       [&](const Tensor& to) { copy_halves_of_pairs(from, part.pairs, to); });
  }
  Weight w;
  if (std::ranges::any_of(parts, [](const Part& part) { return part.codes != nullptr; })) {
    w = pack_codes(names[0], parts, n_in);
  } else {
    std::vector<Tensor> values;
    for (const Part& part : parts) values.push_back(part.values);
    w = pack_rows(names[0], values, forms, n_bytes, distances);
  }
  for (const std::string& name : names) source_.release(name);
  count(n_values, n_bytes, out_.matrices.back().bytes);
  return w;
}

// 0 where the form does not depend on it.
float WeightLoader::distance(const Tensor& values, const RowForms& forms) const {
  const auto may_change = [](const RowForm& run) { return run.form && run.form->bits < 8; };
  return source_.has_values() && std::ranges::any_of(forms, may_change) ? distance_from_grid(values) : 0;
}

Weight WeightLoader::transposed_matrix(const std::string& name, int64_t n_out, int64_t n_in, const RowForms& forms) {
  if (auto w = restored(name, n_out, n_in, forms)) return std::move(*w);
  if (source_.coded(name)) return matrix(name, n_out, n_in, forms);  // codes are always of outputs
  std::vector<Buffer> copies;
  const Tensor from = aligned(name, {n_in, n_out}, copies);
  Buffer memory;
  return pack({name}, {made(from.dtype, {n_out, n_in}, memory, [&](const Tensor& to) { transpose(from, to); })}, forms);
}

Weight WeightLoader::unit_rows(const std::string& name, int64_t n_out, int64_t n_in, const RowForms& forms) {
  if (auto w = restored(name, n_out, n_in, forms)) return std::move(*w);
  std::vector<Buffer> copies;
  const Tensor from = aligned(name, {n_out, n_in}, copies);
  const auto scale_all = [&](const Tensor& to) {
    constexpr int64_t kBlock = 1024;  // rows that are held in f32
    Buffer block(std::min(kBlock, n_out) * n_in * dtype_bytes(DType::kF32));
    for (int64_t at = 0; at < n_out; at += kBlock) {
      const int64_t n = std::min(kBlock, n_out - at);
      const Tensor values(block.data(), DType::kF32, {n, n_in});
      backend_.convert(from.slice_rows(at, at + n), values);
      scale_to_length_one(values);
      backend_.convert(values, to.slice_rows(at, at + n));
    }
  };
  Buffer memory;
  return pack({name}, {made(backend_.compute_dtype(), {n_out, n_in}, memory, scale_all)}, forms);
}

Weight WeightLoader::patch_matrix(const std::string& name, const VisionConfig& v) {
  const int64_t area = v.patch_size * v.patch_size;
  if (v.n_frames > 1) {
    const int64_t stored[] = {v.hidden_size, v.n_channels, v.n_frames, v.patch_size, v.patch_size};
    return exchanged_matrix(name, stored, {v.hidden_size, v.n_channels, v.n_frames, area});
  }
  if (auto w = restored(name, v.hidden_size, v.n_channels * area)) return std::move(*w);
  std::vector<Buffer> copies;
  const Tensor kernel = aligned(name, {v.hidden_size, v.n_channels, v.patch_size, v.patch_size}, copies);
  const std::vector<Tensor> parts = {kernel.view({v.hidden_size, v.n_channels * area})};
  return pack({name}, parts);
}

Weight WeightLoader::exchanged_matrix(const std::string& name, std::span<const int64_t> stored,
                                      const std::array<int64_t, 4>& dims) {
  const auto [n_out, a, b, n] = dims;
  if (auto w = restored(name, n_out, a * b * n)) return std::move(*w);
  std::vector<Buffer> copies;
  const Tensor from = aligned(name, stored, copies);
  const int64_t bytes = n * dtype_bytes(from.dtype);
  const auto exchange = [&, a = a, b = b](const Tensor& to) {
    for (int64_t row = 0; row < to.rows(); ++row) {
      const std::byte* in = from.data + row * a * b * bytes;
      std::byte* out = to.data + row * a * b * bytes;
      for (int64_t i = 0; i < a; ++i) {
        for (int64_t j = 0; j < b; ++j)
          std::memcpy(out + (j * a + i) * bytes, in + (i * b + j) * bytes, static_cast<size_t>(bytes));
      }
    }
  };
  Buffer memory;
  return pack({name}, {made(from.dtype, {n_out, a * b * n}, memory, exchange)});
}

std::vector<Weight> WeightLoader::stacked(const Stack& stack, const RowForms& forms) {
  const auto& [name, n, n_out, n_in, transposed] = stack;
  const int64_t rows = transposed ? n_in : n_out, width = transposed ? n_out : n_in;
  std::vector<Weight> weights;
  const auto name_of = [&stack](int64_t i) { return stack.name + "[" + std::to_string(i) + "]"; };
  while (std::ssize(weights) < n) {
    auto w = restored(name_of(std::ssize(weights)), n_out, n_in, forms);
    if (!w) break;
    weights.push_back(std::move(*w));
  }
  const int64_t n_restored = std::ssize(weights);
  if (n_restored == n) return weights;
  const int64_t shape[] = {n, rows, width};
  const bool coded = source_.coded_stack(name);
  const Tensor all = coded ? Tensor() : found(name, shape);
  Buffer turned, values;
  // One form for all of them, so that a product reads them together.
  const float from_grid = coded || transposed ? 0 : distance(all.view({n * rows, width}), forms);
  int64_t kept_bytes = 0, source_bytes = 0;
  for (int64_t i = n_restored; i < n; ++i) {  // one by one, so that one of them is in memory at a time
    std::vector<Buffer> copies;
    Tensor part;
    int64_t bytes = rows * width;  // of the file
    if (coded) {
      const std::unique_ptr<StoredMatrix> codes = hashed(source_.stored(name, {.i = i, .n = n}, rows, width));
      part = values_of(*codes, rows, width, quantise(forms) ? DType::kF32 : backend_.compute_dtype(), values);
    } else {
      part = hashed(all.slice_rows(i, i + 1).view({rows, width}), copies);
      bytes = part.bytes();
    }
    if (transposed) {
      const Tensor from = part;
      part = made(from.dtype, {n_out, n_in}, turned, [&](const Tensor& to) { transpose(from, to); });
    }
    weights.push_back(pack_rows(name_of(i), {part}, forms, bytes, {from_grid}));
    kept_bytes += out_.matrices.back().bytes;
    source_bytes += bytes;
    source_.release_part(name, i * bytes, (i + 1) * bytes);
  }
  source_.release(name);
  count((n - n_restored) * n_out * n_in, source_bytes, kept_bytes);
  return weights;
}

Tensor WeightLoader::vector(const std::vector<std::string>& names, const std::vector<int64_t>& sizes) {
  int64_t n = 0;
  for (const int64_t size : sizes) n += size;
  const Tensor out = own({n});
  if (restored(names[0], out)) return out;
  int64_t at = 0;
  for (size_t i = 0; i < names.size(); ++i) {
    convert(names[i], {sizes[i]}, out.slice_rows(at, at + sizes[i]));
    at += sizes[i];
  }
  packed_.add(names[0], out);
  return out;
}

Tensor WeightLoader::rows(const std::string& name, int64_t n, int64_t width, std::vector<int64_t> stored) {
  if (!source_.has_shape(name, stored)) source_.get(name, stored);  // throws before memory is taken for such a size
  const Tensor out = own({n, width});
  if (restored(name, out)) return out;
  convert(name, stored, out);
  packed_.add(name, out);
  return out;
}

Weight WeightLoader::table(const std::string& name, int64_t n, int64_t width) {
  std::vector<Buffer> copies;
  Weight w;
  w.n_out = n;
  w.n_in = width;
  w.rows = aligned(name, {n, width}, copies);
  w.dtype = w.rows.dtype;
  if (!copies.empty()) {
    w.owned = std::move(copies[0]);
    source_.release(name);
  }
  count(w.rows.numel(), w.rows.bytes(), w.rows.bytes());
  return w;
}

bool WeightLoader::equal(const std::string& a, const std::string& b, std::initializer_list<int64_t> shape) {
  if (source_.coded(a) || source_.coded(b)) return false;
  const std::string question = a + " = " + b;
  if (const std::optional<bool> known = packed_.answer(question)) return *known;
  const Tensor x = source_.get(a, shape), y = source_.get(b, shape);
  bool same = x.dtype == y.dtype;
  constexpr int64_t kPiece = int64_t{8} << 20;  // the largest tensors of a model are not both in memory at once
  for (int64_t at = 0; same && at < x.bytes(); at += kPiece) {
    const int64_t end = std::min(at + kPiece, x.bytes());
    same = std::memcmp(x.data + at, y.data + at, static_cast<size_t>(end - at)) == 0;
    source_.release_part(a, at, end);
    source_.release_part(b, at, end);
  }
  source_.release(b);
  packed_.add(question, same);
  return same;
}

std::unique_ptr<StoredMatrix> WeightLoader::hashed(std::unique_ptr<StoredMatrix> matrix) {
  for (const StoredTensor& t : matrix->tensors())
    add_to_hash(t.name + " " + t.describe() + "\n", t.bytes.data(), std::ssize(t.bytes));
  return matrix;
}

Tensor WeightLoader::values_of(const StoredMatrix& stored, int64_t n_out, int64_t n_in, DType dtype, Buffer& memory) {
  const Tensor all = made(dtype, {n_out, n_in}, memory, [&](const Tensor& values) {
    constexpr int64_t kBlock = 64;
    parallel_ranges(n_out, kBlock, [&](int64_t begin, int64_t end, int) {
      std::vector<float> rows;
      for (int64_t at = begin; at < end; at += kBlock) {
        const int64_t n = std::min(kBlock, end - at);
        if (dtype == DType::kF32) {
          stored.values(at, n, values.row<float>(at));
          continue;
        }
        rows.resize(static_cast<size_t>(n * n_in));
        stored.values(at, n, rows.data());
        std::ranges::transform(rows, values.row<bf16>(at), to_bf16);
      }
    });
  });
  ++out_.stored.n_widened;
  out_.stored.widened_bytes += all.bytes();
  for (const StoredTensor& tensor : stored.tensors()) out_.stored.widened_bytes_stored += std::ssize(tensor.bytes);
  return all;
}

// A tensor of float type, at an address its type allows. Files may place tensors anywhere: misaligned ones are copied.
Tensor WeightLoader::aligned(const std::string& name, std::span<const int64_t> shape, std::vector<Buffer>& copies) {
  if (shape.size() == 2 && source_.coded(name)) {
    const std::unique_ptr<StoredMatrix> codes = hashed(source_.stored(name, shape[0], shape[1]));
    return values_of(*codes, shape[0], shape[1], backend_.compute_dtype(), copies.emplace_back());
  }
  return hashed(found(name, shape), copies);
}

// The hash of a tensor begins with what it is; its bytes may follow in pieces.
Tensor WeightLoader::found(const std::string& name, std::span<const int64_t> shape) {
  const Tensor t = source_.get(name, shape);
  if (t.dtype != DType::kF32 && t.dtype != DType::kBF16 && t.dtype != DType::kF16) {
    throw Error(ErrorCode::kUnsupported,
                source_.where() + ": tensor \"" + name + "\": expected f32, bf16 or f16, found " + t.describe());
  }
  add_to_hash(name + " " + t.describe() + "\n", nullptr, 0);
  return t;
}

Tensor WeightLoader::hashed(Tensor t, std::vector<Buffer>& copies) {
  add_to_hash("", t.data, t.bytes());
  const bool misaligned = reinterpret_cast<uintptr_t>(t.data) % static_cast<uintptr_t>(dtype_bytes(t.dtype)) != 0;
  if (misaligned && mode_ == Mode::kLoad) {
    Buffer& copy = copies.emplace_back(t.bytes());
    std::memcpy(copy.data(), t.data, static_cast<size_t>(t.bytes()));
    t.data = copy.data();
  }
  return t;
}

std::optional<Weight> WeightLoader::restored(const std::string& name, int64_t n_out, int64_t n_in,
                                             const RowForms& forms) {
  std::optional<Weight> w = packed_.matrix(name, n_out, n_in);
  if (w) {
    w->name = name;
    list(name, *w, forms);
    count(n_out * n_in, 0, w->bytes());
  }
  return w;
}

bool WeightLoader::restored(const std::string& name, const Tensor& to) {
  if (!packed_.values(name, to)) return false;
  count(to.numel(), 0, to.bytes());
  return true;
}

// Adds the matrix to the list of loaded matrices; its segments may be without memory.
void WeightLoader::list(const std::string& name, const Weight& w, const RowForms& forms) {
  LoadedMatrix loaded{.name = name, .n_parameters = w.n_out * w.n_in};
  const WeightSegment* before = nullptr;
  for (const WeightSegment& segment : w.segments) {
    loaded.bytes += backend_.packed_bytes(segment.form, segment.n_out, w.n_in) + segment.order_bytes();
    // Segments that differ in their order of inputs alone are one run of rows in one form.
    if (before == nullptr || before->form != segment.form) {
      loaded.form += (before == nullptr ? "" : " | ") +
                     (segment.form ? segment.form->describe() : std::string(dtype_name(w.dtype)));
    }
    before = &segment;
    loaded.quantised |= segment.form.has_value();
    loaded.ordered |= !segment.input_order.empty();
  }
  if (quantise(forms)) loaded.quantiser = kQuantiserVersion;
  const auto is_int8 = [](const auto& rows) { return rows.form == kInt8; };
  loaded.near_grid =
      quantise(forms) && std::ranges::any_of(w.segments, is_int8) && !std::ranges::any_of(forms, is_int8);
  CHECK(mode_ != Mode::kLoad || loaded.bytes == w.bytes());
  out_.matrices.push_back(std::move(loaded));
}

Weight WeightLoader::pack(const std::vector<std::string>& names, const std::vector<Tensor>& parts,
                          const RowForms& forms) {
  int64_t n = 0, bytes = 0;
  for (const Tensor& part : parts) {
    n += part.numel();
    bytes += part.bytes();
  }
  Weight w = pack_rows(names[0], parts, forms, bytes);
  for (const std::string& name : names) source_.release(name);
  count(n, bytes, out_.matrices.back().bytes);
  return w;
}

// Rows that neighbours share a form with become one segment, whichever parts they come from.
Weight WeightLoader::pack_rows(const std::string& name, const std::vector<Tensor>& parts, const RowForms& forms,
                               int64_t source_bytes, const std::vector<float>& distances) {
  int64_t n_rows = 0;
  for (const Tensor& part : parts) n_rows += part.rows();
  RowForms kept = forms.empty() ? RowForms{{n_rows, std::nullopt}} : forms;
  if (!distances.empty()) kept = forms_near_grids(kept, parts, distances);
  RowForms runs;
  for (const RowForm& next : kept) {
    if (!runs.empty() && runs.back().form == next.form) {
      runs.back().n_rows += next.n_rows;
    } else {
      runs.push_back(next);
    }
  }
  std::vector<Weight> weights;
  if (mode_ != Mode::kLoad) {
    for (const RowForm& run : runs) weights.push_back(listed(run.n_rows, parts[0].row_size(), run.form));
    return keep(name, std::move(weights), forms);
  }
  std::vector<Tensor> left = parts;
  size_t at = 0;
  for (const RowForm& run : runs) {
    const std::optional<QuantForm>& form = run.form;
    std::vector<Tensor> of_run;
    for (int64_t missing = run.n_rows; missing > 0;) {
      CHECK(at < left.size());
      const int64_t taken = std::min(missing, left[at].rows());
      of_run.push_back(left[at].slice_rows(0, taken));
      left[at] = left[at].slice_rows(taken, left[at].rows());
      missing -= taken;
      if (left[at].rows() == 0) ++at;
    }
    weights.push_back(pack_run(name, of_run, form, source_bytes * run.n_rows / n_rows));
  }
  CHECK(at == left.size());
  return keep(name, std::move(weights), forms);
}

// Neighbours of one form with their inputs in one order, or of values, become one segment.
Weight WeightLoader::pack_codes(const std::string& name, const std::vector<Part>& parts, int64_t n_in) {
  const auto source = [](const Part& part) { return part.codes == nullptr ? nullptr : part.codes->codes(); };
  const auto alike = [](const QuantSource* a, const QuantSource* b) {
    if (a == nullptr || b == nullptr) return a == b;
    return a->form() == b->form() && std::ranges::equal(a->input_order(), b->input_order());
  };
  std::vector<Weight> weights;
  for (size_t i = 0; i < parts.size();) {
    const QuantSource* shared = source(parts[i]);
    std::vector<Tensor> values;
    std::vector<CodeRows::Part> codes;
    int64_t n_rows = 0, source_bytes = 0;
    for (; i < parts.size() && alike(source(parts[i]), shared); ++i) {
      if (shared != nullptr) codes.push_back({source(parts[i]), parts[i].pairs});
      if (shared == nullptr) values.push_back(parts[i].values);
      n_rows += parts[i].n_out, source_bytes += parts[i].source_bytes;
    }
    out_.stored.n_kept += std::ssize(codes);
    if (mode_ != Mode::kLoad) {
      weights.push_back(listed(n_rows, n_in, shared == nullptr ? std::nullopt : std::optional(shared->form())));
      if (shared != nullptr) {
        weights.back().segments[0].input_order.assign(shared->input_order().begin(), shared->input_order().end());
      }
    } else {
      weights.push_back(shared != nullptr ? pack_watched(CodeRows(codes), source_bytes) : backend_.pack(values));
    }
  }
  return keep(name, std::move(weights));
}

// A segment that is not packed.
Weight WeightLoader::listed(int64_t n_out, int64_t n_in, const std::optional<QuantForm>& form) const {
  Weight w{.n_out = n_out, .n_in = n_in, .dtype = backend_.compute_dtype()};
  w.segments.push_back({.n_out = n_out, .form = form});
  return w;
}

Weight WeightLoader::keep(const std::string& name, std::vector<Weight> segments, const RowForms& forms) {
  Weight w = segments.size() == 1 ? std::move(segments[0]) : stack(std::move(segments));
  w.name = name;
  list(name, w, forms);
  packed_.add(name, w);
  return w;
}

Weight WeightLoader::pack_run(const std::string& name, const std::vector<Tensor>& parts,
                              const std::optional<QuantForm>& form, int64_t source_bytes) {
  if (!form) return backend_.pack(parts);
  const QuantisedRows rows(*form, parts, input_weights(name));
  Weight w = pack_watched(rows, source_bytes);
  if (rows.all_finite()) return w;
  throw Error(ErrorCode::kInput, source_.where() + ": \"" + name +
                                     "\" holds values that are infinite or not a number, which cannot be quantised; "
                                     "--weights dense loads them as they are");
}

// Of each input of a matrix that is quantised; empty without a calibration.
std::vector<float> WeightLoader::input_weights(const std::string& name) {
  if (options_.calibration.digest.empty()) return {};
  if (!inputs_) inputs_ = options_.calibration.measure();
  return inputs_->weights(name);
}

Weight WeightLoader::pack_watched(const QuantSource& rows, int64_t source_bytes) {
  const int64_t done = part_bytes_;
  const WatchedRows watched(rows, [&](int64_t n_read) { tell_progress(done + source_bytes * n_read / rows.n_out()); });
  Weight w = backend_.pack(watched);
  part_bytes_ = done + source_bytes;
  return w;
}

Tensor WeightLoader::own(std::initializer_list<int64_t> shape) {
  Tensor t(nullptr, backend_.compute_dtype(), shape);
  t.data = out_.vectors.emplace_back(t.bytes()).data();
  return t;
}

void WeightLoader::convert(const std::string& name, std::span<const int64_t> shape, const Tensor& to) {
  std::vector<Buffer> copies;
  const Tensor from = aligned(name, shape, copies);
  const int64_t width = to.row_size();
  Tensor flat(from.data, from.dtype, {to.rows(), width});
  if (mode_ == Mode::kLoad) backend_.convert(flat, to.view({to.rows(), width}));
  source_.release(name);
  count(from.numel(), from.bytes(), to.bytes());
}

void WeightLoader::count(int64_t n_parameters, int64_t source_bytes, int64_t kept_bytes) {
  out_.n_parameters += n_parameters;
  out_.bytes += kept_bytes;
  done_bytes_ += source_bytes;
  part_bytes_ = 0;
  tell_progress(0);
}

// `more`: bytes of the matrix in work.
void WeightLoader::tell_progress(int64_t more) const {
  if (options_.progress && !packed_.hit()) options_.progress(done_bytes_ + more, source_.total_bytes());
}

}  // namespace vlcache
