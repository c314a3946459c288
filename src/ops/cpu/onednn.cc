// oneDNN primitives by shape.
#include "ops/cpu/onednn.h"

#include <dnnl.hpp>
#include <list>
#include <string_view>
#include <unordered_map>

#include "base/error.h"
#include "ops/cpu/matmul.h"

namespace vlcache::cpu {
namespace {

using Tag = dnnl::memory::format_tag;
using Desc = dnnl::memory::desc;

dnnl::memory::data_type type_of(DType dtype) {
  CHECK(dtype == DType::kF32 || dtype == DType::kBF16);
  return dtype == DType::kF32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
}

// The residual is added in place when it is y itself.
enum class Residual : uint8_t { kNone, kInPlace, kOther };

struct Key {
  int64_t m, n, k;
  DType x, y, bias;
  bool packed, has_bias;
  Activation act;
  Residual residual;
  bool operator==(const Key&) const = default;
};

struct Entry {
  Key key;
  bool fast = false;
  dnnl::matmul primitive;
  dnnl::memory x, w, y, bias, residual, scratch;
  std::unordered_map<int, dnnl::memory> args;  // all of the above; the handles are set before every run
  int64_t scratch_bytes = 0;
};

// Shapes of a model x row counts in use: prefill chunks, their remainders, image tiles. An entry is some tens of KiB of
// code.
constexpr size_t kMaxEntries = 256;

void append_activation(dnnl::post_ops& ops, Activation act) {
  using dnnl::algorithm;
  switch (act) {
    case Activation::kNone:
      return;
    case Activation::kSilu:
      return ops.append_eltwise(1.0f, algorithm::eltwise_swish, 1.0f, 0.0f);
    case Activation::kGelu:
      return ops.append_eltwise(1.0f, algorithm::eltwise_gelu_erf, 0.0f, 0.0f);
    case Activation::kGeluTanh:
      return ops.append_eltwise(1.0f, algorithm::eltwise_gelu_tanh, 0.0f, 0.0f);
    case Activation::kQuickGelu:
      return ops.append_eltwise(1.0f, algorithm::eltwise_swish, 1.702f, 0.0f);
    case Activation::kRelu:
      return ops.append_eltwise(1.0f, algorithm::eltwise_relu, 0.0f, 0.0f);
  }
}

Tag weight_tag(const Key& key) {
  if (!key.packed) return Tag::ab;
  return key.x == DType::kF32 ? Tag::BA16a64b : Tag::BA16a64b2a;  // ops/cpu/packed.h
}

dnnl::matmul::primitive_desc describe(const Key& key, const dnnl::engine& engine) {
  const Desc x({key.m, key.k}, type_of(key.x), Tag::ab), w({key.k, key.n}, type_of(key.x), weight_tag(key));
  const Desc y({key.m, key.n}, type_of(key.y), Tag::ab);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  dnnl::post_ops ops;
  append_activation(ops, key.act);
  if (key.residual == Residual::kInPlace) ops.append_sum(1.0f);
  if (key.residual == Residual::kOther) ops.append_binary(dnnl::algorithm::binary_add, y);
  attributes.set_post_ops(ops);
  if (!key.has_bias) return {dnnl::matmul::desc(x, w, y), attributes, engine};
  const Desc bias({1, key.n}, type_of(key.bias), Tag::ab);
  return {dnnl::matmul::desc(x, w, bias, y), attributes, engine};
}

}  // namespace

struct OneDnn::State {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::list<Entry> entries;  // most recently used first
  Scratch scratch;

  Entry& find(const Key& key) {
    for (auto it = entries.begin(); it != entries.end(); ++it) {
      if (it->key == key) {
        entries.splice(entries.begin(), entries, it);
        return entries.front();
      }
    }
    if (entries.size() >= kMaxEntries) entries.pop_back();
    entries.push_front(make(key));
    return entries.front();
  }

  Entry make(const Key& key) const {
    Entry entry{.key = key};
    try {
      const dnnl::matmul::primitive_desc pd = describe(key, engine);
      // "ref" and unpacked "gemm" implementations of a packed layout are slower than our own path by orders of
      // magnitude.
      entry.fast = !key.packed || std::string_view(pd.impl_info_str()).starts_with("brg");
      if (!entry.fast) return entry;
      const auto bind = [&](dnnl::memory& memory, int arg, const Desc& desc) {
        memory = dnnl::memory(desc, engine, nullptr);
        entry.args.emplace(arg, memory);
      };
      bind(entry.x, DNNL_ARG_SRC, pd.src_desc());
      bind(entry.w, DNNL_ARG_WEIGHTS, pd.weights_desc());
      bind(entry.y, DNNL_ARG_DST, pd.dst_desc());
      bind(entry.scratch, DNNL_ARG_SCRATCHPAD, pd.scratchpad_desc());
      if (key.has_bias) bind(entry.bias, DNNL_ARG_BIAS, pd.bias_desc());
      const int residual_at = key.act == Activation::kNone ? 0 : 1;
      if (key.residual == Residual::kOther) {
        bind(entry.residual, DNNL_ARG_ATTR_MULTIPLE_POST_OP(residual_at) | DNNL_ARG_SRC_1, pd.dst_desc());
      }
      entry.scratch_bytes = static_cast<int64_t>(pd.scratchpad_desc().get_size());
      entry.primitive = dnnl::matmul(pd);
    } catch (const dnnl::error& error) {
      if (error.status == dnnl_out_of_memory)
        throw Error(ErrorCode::kMemory, "out of memory while preparing a matrix product");
      entry.fast = false;  // not implemented for this CPU
    }
    return entry;
  }

  void run(Entry& entry) {
    entry.scratch.set_data_handle(scratch.get(entry.scratch_bytes));
    entry.primitive.execute(stream, entry.args);
    stream.wait();
  }
};

OneDnn::OneDnn() : state_(std::make_unique<State>()) {}
OneDnn::~OneDnn() = default;

int64_t OneDnn::scratch_bytes() const { return state_->scratch.bytes(); }

bool OneDnn::packed_matmul(const Tensor& x, const Weight& w, const Tensor& y, const Epilogue& epilogue) {
  Key key{.m = x.rows(),
          .n = w.n_out,
          .k = w.n_in,
          .x = x.dtype,
          .y = y.dtype,
          .bias = x.dtype,
          .packed = true,
          .has_bias = epilogue.bias != nullptr,
          .act = epilogue.act,
          .residual = Residual::kNone};
  if (epilogue.bias != nullptr) key.bias = epilogue.bias->dtype;
  if (epilogue.residual != nullptr)
    key.residual = epilogue.residual->data == y.data ? Residual::kInPlace : Residual::kOther;
  Entry& entry = state_->find(key);
  if (!entry.fast) return false;
  entry.x.set_data_handle(x.data);
  entry.w.set_data_handle(w.owned.data());
  entry.y.set_data_handle(y.data);
  if (key.has_bias) entry.bias.set_data_handle(epilogue.bias->data);
  if (key.residual == Residual::kOther) entry.residual.set_data_handle(epilogue.residual->data);
  state_->run(entry);
  return true;
}

void OneDnn::plain_matmul(const Tensor& x, const Tensor& b, const Tensor& y) {
  const Key key{.m = x.rows(),
                .n = b.row_size(),
                .k = b.rows(),
                .x = DType::kF32,
                .y = DType::kF32,
                .bias = DType::kF32,
                .packed = false,
                .has_bias = false,
                .act = Activation::kNone,
                .residual = Residual::kNone};
  CHECK(x.row_size() == key.k && y.row_size() == key.n && x.dense() && b.dense() && y.dense());
  Entry& entry = state_->find(key);
  CHECK(entry.fast);
  entry.x.set_data_handle(x.data);
  entry.w.set_data_handle(b.data);
  entry.y.set_data_handle(y.data);
  state_->run(entry);
}

}  // namespace vlcache::cpu
