#include "ops/cpu/onednn.h"

#include <omp.h>

#include <algorithm>
#include <dnnl.hpp>
#include <list>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "base/threads.h"
#include "ops/cpu/matmul.h"

namespace vlcache::cpu {
namespace {

using Tag = dnnl::memory::format_tag;
using Desc = dnnl::memory::desc;

dnnl::memory::data_type type_of(DType dtype) {
  CHECK(dtype == DType::kF32 || dtype == DType::kBF16);
  return dtype == DType::kF32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
}

Tag weight_tag(const OneDnn::Shape& shape) {
  if (!shape.packed) return Tag::ab;
  return shape.dtype == DType::kF32 ? Tag::BA16a64b : Tag::BA16a64b2a;  // ops/cpu/packed.h
}

dnnl::matmul::primitive_desc describe(const OneDnn::Shape& shape, const dnnl::engine& engine) {
  const Desc x({shape.m, shape.k}, type_of(shape.dtype), Tag::ab);
  const Desc w({shape.k, shape.n}, type_of(shape.dtype), weight_tag(shape));
  const Desc sums({shape.m, shape.n}, type_of(DType::kF32), Tag::ab);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return {dnnl::matmul::desc(x, w, sums), attributes, engine};
}

// oneDNN is built on OpenMP, whose threads would spin beside those of base/threads.h: it runs on the calling thread
// alone. OpenMP keeps this setting per thread.
void one_omp_thread() { omp_set_num_threads(1); }

// One thread's memory objects of a primitive: their handles are set before every run.
struct Lane {
  dnnl::memory x, w, sums, scratch;
  std::unordered_map<int, dnnl::memory> args;  // all of the above
};

// Four shapes of tiles for every shape of a model x row counts in use: prefill chunks, their remainders, image tiles. A
// product is some tens of KiB of code.
constexpr size_t kMaxProducts = 512;

}  // namespace

struct OneDnn::Product {
  Shape shape;
  bool fast = false;
  dnnl::matmul::primitive_desc desc;
  dnnl::matmul primitive;
  std::vector<Lane> lanes;  // one per thread
};

struct OneDnn::State {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  std::list<Product> products;   // most recently used first
  std::vector<Scratch> scratch;  // one per thread

  Product& find(const Shape& shape) {
    const auto at = std::find_if(products.begin(), products.end(), [&](const Product& p) { return p.shape == shape; });
    if (at != products.end()) {
      products.splice(products.begin(), products, at);
    } else {
      if (products.size() >= kMaxProducts) products.pop_back();
      products.push_front(make(shape));
    }
    return products.front();
  }

  Product make(const Shape& shape) const {
    Product product{.shape = shape};
    try {
      product.desc = describe(shape, engine);
      // "ref" and unpacked "gemm" implementations of a packed layout are slower than our own path by orders of
      // magnitude.
      product.fast = !shape.packed || std::string_view(product.desc.impl_info_str()).starts_with("brg");
      if (product.fast) product.primitive = dnnl::matmul(product.desc);
    } catch (const dnnl::error& error) {
      if (error.status == dnnl_out_of_memory)
        throw Error(ErrorCode::kMemory, "out of memory while preparing a matrix product");
      product.fast = false;  // not implemented for this CPU
    }
    return product;
  }

  Lane make_lane(const Product& product) const {
    Lane lane;
    const auto bind = [&](dnnl::memory& memory, int arg, const Desc& desc) {
      memory = dnnl::memory(desc, engine, nullptr);
      lane.args.emplace(arg, memory);
    };
    bind(lane.x, DNNL_ARG_SRC, product.desc.src_desc());
    bind(lane.w, DNNL_ARG_WEIGHTS, product.desc.weights_desc());
    bind(lane.sums, DNNL_ARG_DST, product.desc.dst_desc());
    bind(lane.scratch, DNNL_ARG_SCRATCHPAD, product.desc.scratchpad_desc());
    return lane;
  }
};

OneDnn::OneDnn() : state_(std::make_unique<State>()) {}
OneDnn::~OneDnn() = default;

int64_t OneDnn::scratch_bytes() const {
  int64_t bytes = 0;
  for (const Scratch& scratch : state_->scratch) bytes += scratch.bytes();
  return bytes;
}

OneDnn::Product* OneDnn::prepare(const Shape& shape) {
  one_omp_thread();  // a primitive is created for a fixed number of threads
  Product& product = state_->find(shape);
  if (!product.fast) return nullptr;
  const size_t n = static_cast<size_t>(n_threads());
  while (product.lanes.size() < n) product.lanes.push_back(state_->make_lane(product));
  if (state_->scratch.size() < n) state_->scratch.resize(n);
  for (Scratch& scratch : state_->scratch) scratch.get(static_cast<int64_t>(product.desc.scratchpad_desc().get_size()));
  return &product;
}

void OneDnn::run(Product& product, const Operands& operands, int thread) {
  one_omp_thread();
  Lane& lane = product.lanes[static_cast<size_t>(thread)];
  lane.x.set_data_handle(const_cast<std::byte*>(operands.x));  // only read: oneDNN's handles have no const variant
  lane.w.set_data_handle(const_cast<std::byte*>(operands.w));
  lane.sums.set_data_handle(operands.sums);
  lane.scratch.set_data_handle(state_->scratch[static_cast<size_t>(thread)].get(0));
  dnnl::stream stream(state_->engine);
  product.primitive.execute(stream, lane.args);
  stream.wait();
}

}  // namespace vlcache::cpu
