// Fuzzes quantised checkpoints: a line of config.json, then a safetensors file. A matrix that is read has the sizes
// that were asked for, and codes and values agree.
#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/at.h"
#include "base/error.h"
#include "base/fuzz_target.h"
#include "io/quantised/module_tensors.h"
#include "io/quantised/quantised_tensors.h"
#include "io/safetensors.h"

namespace {

constexpr int64_t kFuzzedWeights = 1 << 16;

void read_all(const vlcache::StoredMatrix& matrix, int64_t n_out, int64_t n_in) {
  using namespace vlcache;
  std::vector<float> values(at(n_out * n_in)), row(at(n_in));
  matrix.values(0, n_out, values.data());
  const QuantSource* codes = matrix.codes();
  if (codes == nullptr) return;
  if (!codes->form().valid() || codes->n_out() != n_out || codes->n_in() != n_in) std::abort();
  QuantRows rows;
  const std::span<const int32_t> order = codes->input_order();
  for (int64_t first = 0; first < n_out; first += kQuantBlock) {
    codes->read(first, std::min(kQuantBlock, n_out - first), rows);
    for (int64_t i = 0; i < rows.n_rows; ++i) {
      rows.dequantise(i, row.data());
      for (int64_t k = 0; k < n_in; ++k) {
        const float value = values[at((first + i) * n_in + (order.empty() ? k : order[at(k)]))];
        // Products beyond f32 are infinite in one way and may be NaN in the other: largest scales times zero points.
        if (row[at(k)] != value && std::isfinite(value) && std::isfinite(row[at(k)])) std::abort();
      }
    }
  }
}

}  // namespace

FUZZ_TARGET(quantised) {
  using namespace vlcache;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const size_t end = text.find('\n');
  if (end == std::string_view::npos) return 0;
  const int file = ::memfd_create("fuzz", MFD_CLOEXEC);
  if (file < 0) std::abort();
  const std::string_view tensors = text.substr(end + 1);
  if (::write(file, tensors.data(), tensors.size()) != std::ssize(tensors)) std::abort();
  try {
    const Json json = parse_json(text.substr(0, end), "fuzz");
    const auto files = std::make_shared<const Safetensors>(Safetensors::open("/proc/self/fd/" + std::to_string(file)));
    if (const auto quantised = QuantisedTensors::open(JsonObject(json, "fuzz"), files)) {
      for (const std::string& module : quantised->modules()) {
        const auto [n_out, n_in] = quantised->shape(module);
        if (n_out < 1 || n_in < 1 || n_out > kFuzzedWeights || n_in > kFuzzedWeights / n_out) continue;
        read_all(*quantised->matrix(module, n_out, n_in), n_out, n_in);
      }
      for (const std::string& stack : quantised->stacks()) {
        const auto [n, n_out, n_in] = quantised->stack_shape(stack);
        if (n_out < 1 || n_in < 1 || n_out > kFuzzedWeights || n_in > kFuzzedWeights / n_out) continue;
        for (const int64_t i : {int64_t{0}, n - 1})
          read_all(*quantised->stacked(stack, {i, n}, n_out, n_in), n_out, n_in);
      }
    }
  } catch (const Error&) {
  }
  ::close(file);
  return 0;
}
