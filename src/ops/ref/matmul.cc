#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/at.h"
#include "base/os/threads.h"
#include "ops/ref/ref_impl.h"
#include "ops/ref/rows.h"

namespace vlcache {
namespace {

// Packed here means: plain rows in the compute dtype, or for each quantised row its codes, and then its scales, minima
// and their shared factors as QuantRows has them.
struct QuantRecord {
  QuantForm form;
  int64_t n_in;

  int64_t n_words() const {
    const int64_t scales = form.n_groups(n_in), shared = form.n_shared(n_in);
    return (form.min == MinKind::kNone ? 1 : 2) * scales + (form.min == MinKind::kU8 ? 2 : 1) * shared;
  }
  int64_t bytes() const { return n_in + n_words() * int64_t{sizeof(uint16_t)}; }

  // Calls copy(vector's values of one row, bytes, place in the record) for each part of a row.
  template <typename Copy>
  void for_each(QuantRows& rows, int64_t row, const Copy& copy) const {
    int64_t place = 0;
    const auto part = [&](auto& values) {
      if (values.empty()) return;
      const auto n = std::ssize(values) / rows.n_rows;
      const auto bytes = n * static_cast<int64_t>(sizeof(values[0]));
      copy(values.data() + row * n, bytes, place);
      place += bytes;
    };
    part(rows.codes), part(rows.scales), part(rows.mins), part(rows.shared_scales), part(rows.shared_mins);
    CHECK(place == bytes());
  }
};

// ActivationBits::k8: each 32 values of a row as a signed byte times a scale. A row that is not finite stays.
void round_to_bytes(float* x, int64_t n) {
  for (int64_t begin = 0; begin < n; begin += 32) {
    const int64_t end = std::min(n, begin + 32);
    float largest = 0;
    for (int64_t i = begin; i < end; ++i) largest = std::max(largest, std::abs(x[i]));
    if (largest == 0 || !std::isfinite(largest)) continue;
    for (int64_t i = begin; i < end; ++i) x[i] = std::nearbyint(x[i] * (127.0f / largest)) * (largest / 127.0f);
  }
}

// Rows of n_in values with those that follow each other in `order` rounded together.
std::vector<float> in_bytes(std::vector<float> rows, int64_t n_in, const std::vector<int32_t>& order) {
  std::vector<float> row(at(n_in));
  for (auto x = rows.begin(); x != rows.end(); x += n_in) {
    const auto place = [&](int64_t k) -> float& { return x[order.empty() ? k : order[at(k)]]; };
    for (int64_t k = 0; k < n_in; ++k) row[at(k)] = place(k);
    round_to_bytes(row.data(), n_in);
    for (int64_t k = 0; k < n_in; ++k) place(k) = row[at(k)];
  }
  return rows;
}

// Reads rows of a weight as f32, whatever they are stored as.
class RowReader {
 public:
  explicit RowReader(const Weight& w) : w_(w) {}

  // The row's segment; 0 of plain rows.
  size_t read(int64_t row, float* out) {
    if (!w_.packed()) return load_row(w_.rows, row, out), 0;
    for (size_t i = 0; i < w_.segments.size(); ++i) {
      const WeightSegment& segment = w_.segments[i];
      if (row < segment.n_out) return read_packed(segment, row, out), i;
      row -= segment.n_out;
    }
    CHECK(false);
  }

 private:
  void read_packed(const WeightSegment& segment, int64_t row, float* out) {
    if (!segment.form) return load_row(Tensor(segment.memory.data(), w_.dtype, {segment.n_out, w_.n_in}), row, out);
    const QuantRecord record{*segment.form, w_.n_in};
    if (quantised_.n_rows == 0 || quantised_.form != record.form) quantised_.resize(record.form, 1, w_.n_in);
    const std::byte* from = segment.memory.data() + row * record.bytes();
    record.for_each(quantised_, 0,
                    [&](auto* to, int64_t bytes, int64_t place) { std::memcpy(to, from + place, at(bytes)); });
    if (segment.input_order.empty()) return quantised_.dequantise(0, out);
    stored_.resize(at(w_.n_in));
    quantised_.dequantise(0, stored_.data());
    for (size_t k = 0; k < stored_.size(); ++k) out[segment.input_order[k]] = stored_[k];
  }

  const Weight& w_;
  QuantRows quantised_;
  std::vector<float> stored_;  // a row in the order of its segment
};

}  // namespace

Weight RefBackend::pack(std::span<const Tensor> parts) {
  CHECK(!parts.empty());
  Weight w{.n_in = parts[0].dim(1), .dtype = compute_dtype_};
  for (const Tensor& part : parts) {
    CHECK(part.rank == 2 && part.dim(1) == w.n_in);
    w.n_out += part.rows();
  }
  WeightSegment segment{.n_out = w.n_out, .memory = Buffer(w.n_out * w.n_in * dtype_bytes(w.dtype))};
  Tensor all(segment.memory.data(), w.dtype, {w.n_out, w.n_in});
  for (const Tensor& part : parts) {
    convert(part, all.slice_rows(0, part.rows()));
    all = all.slice_rows(part.rows(), all.rows());
  }
  w.segments.push_back(std::move(segment));
  return w;
}

Weight RefBackend::pack(const QuantSource& rows) {
  const QuantRecord record{rows.form(), rows.n_in()};
  CHECK(record.form.valid());
  Weight w{.n_out = rows.n_out(), .n_in = rows.n_in(), .dtype = compute_dtype_};
  const std::span<const int32_t> order = rows.input_order();
  CHECK(order.empty() || std::ssize(order) == w.n_in);
  WeightSegment segment{.n_out = w.n_out,
                        .form = record.form,
                        .memory = Buffer(w.n_out * record.bytes()),
                        .input_order = {order.begin(), order.end()}};
  parallel_for((w.n_out + kQuantBlock - 1) / kQuantBlock, [&](int64_t i, int) {
    const int64_t first = i * kQuantBlock, n = std::min(kQuantBlock, w.n_out - first);
    QuantRows block;
    rows.read(first, n, block);
    CHECK(block.form == record.form && block.n_rows == n && block.n_in == w.n_in);
    for (int64_t row = 0; row < n; ++row) {
      std::byte* to = segment.memory.data() + (first + row) * record.bytes();
      record.for_each(block, row, [&](const auto* from, int64_t bytes, int64_t place) {
        std::memcpy(to + place, from, at(bytes));
      });
    }
  });
  w.segments.push_back(std::move(segment));
  return w;
}

int64_t RefBackend::packed_bytes(const std::optional<QuantForm>& form, int64_t n_out, int64_t n_in) const {
  return n_out * (form ? QuantRecord{*form, n_in}.bytes() : n_in * dtype_bytes(compute_dtype_));
}

void RefBackend::matmul(const Tensor& x, const Weight& w, const Tensor& y, const Epilogue& epilogue) {
  const int64_t n = x.rows(), n_in = w.n_in, n_out = w.n_out;
  check_compute(x);
  CHECK(x.row_size() == n_in && y.rows() == n && y.row_size() == n_out);
  CHECK(y.dtype == compute_dtype_ || y.dtype == DType::kF32);
  const Tensor* residual = epilogue.residual;
  if (residual != nullptr) CHECK(residual->rows() == n && residual->row_size() == n_out && residual->dtype == y.dtype);
  std::vector<float> bias(static_cast<size_t>(n_out));
  if (epilogue.bias != nullptr) bias = vector_of(*epilogue.bias, n_out);

  std::vector<float> x32(static_cast<size_t>(n * n_in));
  for (int64_t i = 0; i < n; ++i) load_row(x, i, x32.data() + i * n_in);
  // x as a segment takes it, where that is not x32; of plain rows there is none.
  std::vector<std::vector<float>> coded(std::max<size_t>(1, w.segments.size()));
  if (compute_dtype_ == DType::kBF16 && activation_bits_ == ActivationBits::k8) {
    for (size_t i = 0; i < w.segments.size(); ++i) {
      if (w.segments[i].form) coded[i] = in_bytes(x32, n_in, w.segments[i].input_order);
    }
  }
  parallel_ranges(n_out, kRowGrain, [&](int64_t begin, int64_t end, int) {
    RowReader rows(w);
    std::vector<float> weight(static_cast<size_t>(n_in));
    for (int64_t o = begin; o < end; ++o) {
      const std::vector<float>& of_segment = coded[rows.read(o, weight.data())];
      const std::vector<float>& input = of_segment.empty() ? x32 : of_segment;
      for (int64_t i = 0; i < n; ++i) {
        float value = dot(input.data() + i * n_in, weight.data(), n_in) + bias[static_cast<size_t>(o)];
        value = apply_activation(epilogue.act, value);
        if (residual != nullptr) {
          float r;
          load_values(*residual, i * residual->stride + o, 1, &r);
          value += r;
        }
        store_values(&value, 1, y, i * y.stride + o);
      }
    }
  });
}

void RefBackend::embed(std::span<const int32_t> ids, const Weight& w, const Tensor& y) {
  check_compute(y);
  CHECK(y.rows() == static_cast<int64_t>(ids.size()) && y.row_size() == w.n_in);
  RowReader rows(w);
  std::vector<float> row(static_cast<size_t>(w.n_in));
  for (size_t i = 0; i < ids.size(); ++i) {
    CHECK(ids[i] >= 0 && ids[i] < w.n_out);
    rows.read(ids[i], row.data());
    store_row(row.data(), y, static_cast<int64_t>(i));
  }
}

}  // namespace vlcache
