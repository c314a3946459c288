#include "model/weight_loader.h"

#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <mutex>
#include <numeric>

#include "base/error.h"
#include "base/threads.h"
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

// The rows of each head of `size`: those of even number first.
void copy_halves_of_pairs(const Tensor& from, int64_t size, const Tensor& to) {
  const int64_t row_bytes = from.row_size() * dtype_bytes(from.dtype);
  for (int64_t row = 0; row < from.rows(); ++row) {
    const int64_t head = row / size * size, c = row - head;
    const int64_t at = head + c / 2 + (c % 2 == 0 ? 0 : size / 2);
    std::memcpy(to.data + at * row_bytes, from.data + row * row_bytes, static_cast<size_t>(row_bytes));
  }
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

void WeightLoader::add_to_hash(const std::string& name, const Tensor& t) {
  if (packed_.hit()) return;  // the file knows the hash
  const std::string head = name + " " + t.describe() + "\n";
  XXH3_128bits_update(hash_.get(), head.data(), head.size());
  XXH3_128bits_update(hash_.get(), t.data, static_cast<size_t>(t.bytes()));
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
  if (auto w = restored(names[0], std::accumulate(n_out.begin(), n_out.end(), int64_t{0}), n_in)) return std::move(*w);
  std::vector<Tensor> parts;
  std::vector<Buffer> copies;
  for (size_t i = 0; i < names.size(); ++i) {
    parts.push_back(aligned(names[i], {n_out[i], n_in}, copies));
    if (pairs.empty() || pairs[i] == 0) continue;
    const Tensor from = parts.back();
    parts.back() = made(from.dtype, {n_out[i], n_in}, copies.emplace_back(),
                        [&](const Tensor& to) { copy_halves_of_pairs(from, pairs[i], to); });
  }
  return pack(names, parts, forms);
}

Weight WeightLoader::transposed_matrix(const std::string& name, int64_t n_out, int64_t n_in, const RowForms& forms) {
  if (auto w = restored(name, n_out, n_in)) return std::move(*w);
  std::vector<Buffer> copies;
  const Tensor from = aligned(name, {n_in, n_out}, copies);
  Buffer memory;
  return pack({name}, {made(from.dtype, {n_out, n_in}, memory, [&](const Tensor& to) { transpose(from, to); })}, forms);
}

Weight WeightLoader::unit_rows(const std::string& name, int64_t n_out, int64_t n_in, const RowForms& forms) {
  if (auto w = restored(name, n_out, n_in)) return std::move(*w);
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
  const auto name_of = [&](int64_t i) { return name + "[" + std::to_string(i) + "]"; };
  while (std::ssize(weights) < n) {
    auto w = restored(name_of(std::ssize(weights)), n_out, n_in);
    if (!w) break;
    weights.push_back(std::move(*w));
  }
  const int64_t n_restored = std::ssize(weights);
  if (n_restored == n) return weights;
  std::vector<Buffer> copies;
  const Tensor all = aligned(name, {n, rows, width}, copies);
  Buffer turned;
  int64_t kept_bytes = 0;
  for (int64_t i = n_restored; i < n; ++i) {
    const Tensor stored = all.slice_rows(i, i + 1).view({rows, width});
    const Tensor part =
        transposed ? made(all.dtype, {n_out, n_in}, turned, [&](const Tensor& to) { transpose(stored, to); }) : stored;
    weights.push_back(pack_rows(name_of(i), {part}, forms));
    kept_bytes += out_.matrices.back().bytes;
  }
  source_.release(name);
  count((n - n_restored) * n_out * n_in, all.bytes(), kept_bytes);
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
  const std::string question = a + " = " + b;
  if (const std::optional<bool> known = packed_.answer(question)) return *known;
  const Tensor x = source_.get(a, shape), y = source_.get(b, shape);
  const bool same = x.dtype == y.dtype && std::memcmp(x.data, y.data, static_cast<size_t>(x.bytes())) == 0;
  source_.release(b);
  packed_.add(question, same);
  return same;
}

// A tensor of float type, at an address its type allows. Files may place tensors anywhere: misaligned ones are copied.
Tensor WeightLoader::aligned(const std::string& name, std::span<const int64_t> shape, std::vector<Buffer>& copies) {
  Tensor t = source_.get(name, shape);
  if (t.dtype != DType::kF32 && t.dtype != DType::kBF16 && t.dtype != DType::kF16) {
    throw Error(ErrorCode::kUnsupported,
                source_.where() + ": tensor \"" + name + "\": expected f32, bf16 or f16, found " + t.describe());
  }
  if (mode_ != Mode::kList) add_to_hash(name, t);
  if (reinterpret_cast<uintptr_t>(t.data) % static_cast<uintptr_t>(dtype_bytes(t.dtype)) != 0) {
    Buffer& copy = copies.emplace_back(t.bytes());
    std::memcpy(copy.data(), t.data, static_cast<size_t>(t.bytes()));
    t.data = copy.data();
  }
  return t;
}

std::optional<Weight> WeightLoader::restored(const std::string& name, int64_t n_out, int64_t n_in) {
  std::optional<Weight> w = packed_.matrix(name, n_out, n_in);
  if (w) {
    list(name, *w);
    count(n_out * n_in, 0, w->bytes());
  }
  return w;
}

bool WeightLoader::restored(const std::string& name, const Tensor& to) {
  if (!packed_.values(name, to)) return false;
  count(to.numel(), 0, to.bytes());
  return true;
}

// Adds the matrix to the list of those that are loaded; its segments may be without memory.
void WeightLoader::list(const std::string& name, const Weight& w) {
  LoadedMatrix loaded{.name = name, .n_parameters = w.n_out * w.n_in};
  for (const WeightSegment& segment : w.segments) {
    loaded.bytes += backend_.packed_bytes(segment.form, segment.n_out, w.n_in);
    loaded.form += (loaded.form.empty() ? "" : " | ") +
                   (segment.form ? segment.form->describe() : std::string(dtype_name(w.dtype)));
    loaded.quantised |= segment.form.has_value();
  }
  out_.matrices.push_back(std::move(loaded));
}

Weight WeightLoader::pack(const std::vector<std::string>& names, const std::vector<Tensor>& parts,
                          const RowForms& forms) {
  Weight w = pack_rows(names[0], parts, forms);
  int64_t n = 0, bytes = 0;
  for (const Tensor& part : parts) {
    n += part.numel();
    bytes += part.bytes();
  }
  for (const std::string& name : names) source_.release(name);
  count(n, bytes, out_.matrices.back().bytes);
  return w;
}

// Rows that neighbours share a form with become one segment, whichever parts they come from.
Weight WeightLoader::pack_rows(const std::string& name, const std::vector<Tensor>& parts, const RowForms& forms) {
  int64_t n_rows = 0;
  for (const Tensor& part : parts) n_rows += part.rows();
  RowForms runs;
  for (const RowForm& next : forms.empty() ? RowForms{{n_rows, std::nullopt}} : forms) {
    if (!runs.empty() && runs.back().form == next.form) {
      runs.back().n_rows += next.n_rows;
    } else {
      runs.push_back(next);
    }
  }
  if (mode_ != Mode::kLoad) {
    Weight w{.n_out = n_rows, .n_in = parts[0].row_size(), .dtype = backend_.compute_dtype()};
    for (const auto& [n, form] : runs) w.segments.push_back({.n_out = n, .form = form});
    list(name, w);
    return w;
  }
  std::vector<Weight> weights;
  std::vector<Tensor> left = parts;
  size_t at = 0;
  for (const auto& [n, form] : runs) {
    std::vector<Tensor> of_run;
    for (int64_t missing = n; missing > 0;) {
      CHECK(at < left.size());
      const int64_t taken = std::min(missing, left[at].rows());
      of_run.push_back(left[at].slice_rows(0, taken));
      left[at] = left[at].slice_rows(taken, left[at].rows());
      missing -= taken;
      if (left[at].rows() == 0) ++at;
    }
    weights.push_back(pack_run(name, of_run, form));
  }
  CHECK(at == left.size());
  Weight w = weights.size() == 1 ? std::move(weights[0]) : stack(std::move(weights));
  list(name, w);
  packed_.add(name, w);
  return w;
}

Weight WeightLoader::pack_run(const std::string& name, const std::vector<Tensor>& parts,
                              const std::optional<QuantForm>& form) {
  if (!form) return backend_.pack(parts);
  const QuantisedRows rows(*form, parts);
  const int64_t row_bytes = parts[0].row_size() * dtype_bytes(parts[0].dtype), done = part_bytes_;
  const WatchedRows watched(rows, [&](int64_t n_read) { tell_progress(done + n_read * row_bytes); });
  Weight w = backend_.pack(watched);
  part_bytes_ = done + rows.n_out() * row_bytes;
  if (rows.all_finite()) return w;
  throw Error(ErrorCode::kInput, source_.where() + ": \"" + name +
                                     "\" holds values that are infinite or not a number, which cannot be quantised; "
                                     "--weights dense loads them as they are");
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
  backend_.convert(flat, to.view({to.rows(), width}));
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
