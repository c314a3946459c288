// Source: compressors/{pack_quantized,naive_quantized,nvfp4} of compressed-tensors 0.20.0.
#include <algorithm>
#include <cmath>

#include "base/at.h"
#include "base/error.h"
#include "io/quantised/compressed_tensors.h"
#include "io/quantised/quant_format.h"

namespace vlcache {
namespace {

// Scales of groups; a matrix of one scale has as many, all alike.
void take_compressed_scales(const CompressedScheme& scheme, ModuleTensors& module, int64_t n_out, int64_t n_groups,
                            CodeLayout& layout) {
  if (!scheme.one_scale) {
    GroupScales scales = module.take_scales("weight_scale", n_out, n_groups);
    layout.scales = std::move(scales.values), layout.scale_kind = scales.kind;
    return;
  }
  const std::vector<float> one = module.take_floats("weight_scale", {{}, {1}, {1, 1}}).values;
  layout.scales.assign(at(n_out), one[0]);
  layout.scale_kind = kind_that_holds(one);
}

// Bytes with a sign as codes without.
uint8_t from_signed(std::byte byte) { return std::to_integer<uint8_t>(byte) ^ 0x80u; }

void check_stored_shape(ModuleTensors& module, int64_t n_out, int64_t n_in) {
  const StoredTensor shape = module.take("weight_shape", "I64", {{2}});
  const auto dim = [&](int64_t i) {
    return static_cast<int64_t>(word_at(shape, 2 * i) | uint64_t{word_at(shape, 2 * i + 1)} << 32);
  };
  if (dim(0) == n_out && dim(1) == n_in) return;
  module.fail(ErrorCode::kShape, "weight_shape",
              "expected [" + std::to_string(n_out) + ", " + std::to_string(n_in) + "] (from config.json), found [" +
                  std::to_string(dim(0)) + ", " + std::to_string(dim(1)) + "]");
}

}  // namespace

std::unique_ptr<StoredMatrix> read_packed(const CompressedScheme& scheme, ModuleTensors& module, int64_t n_out,
                                          int64_t n_in) {
  const int64_t bits = scheme.bits, per_word = 32 / bits, width = parts_of(n_in, per_word);
  CodeLayout layout{.bits = static_cast<int>(bits), .group = scheme.group == 0 ? n_in : scheme.group};
  const int64_t n_groups = parts_of(n_in, layout.group);
  check_stored_shape(module, n_out, n_in);
  const StoredTensor words = module.take("weight_packed", "I32", {{n_out, width}});
  take_compressed_scales(scheme, module, n_out, n_groups, layout);
  if (!scheme.symmetric) {
    const StoredTensor zeros = module.take("weight_zero_point", "I32", {{parts_of(n_out, per_word), n_groups}});
    layout.zeros.resize(at(n_out * n_groups));
    for (int64_t i = 0; i < n_out; ++i) {
      for (int64_t g = 0; g < n_groups; ++g) {
        const uint32_t word = word_at(zeros, i / per_word * n_groups + g);
        layout.zeros[at(i * n_groups + g)] = static_cast<uint8_t>(word >> (i % per_word * bits) & ((1u << bits) - 1u));
      }
    }
  }
  layout.group_of = module.take_groups("weight_g_idx", n_in, layout.group, n_groups);
  layout.unpack = [words, width, n_in, bits](int64_t first, int64_t n, uint8_t* codes) {
    for (int64_t i = 0; i < n; ++i, codes += n_in) {
      const std::byte* row = words.bytes.data() + (first + i) * width * 4;
      for (int64_t k = 0; k < n_in; ++k) {
        const auto byte = std::to_integer<uint8_t>(row[k * bits / 8]);
        codes[k] = bits == 8 ? byte : static_cast<uint8_t>(k % 2 == 0 ? byte & 0xfu : byte >> 4);
      }
    }
  };
  return std::make_unique<GroupedCodes>(n_out, n_in, std::move(layout), module.taken());
}

std::unique_ptr<StoredMatrix> read_ints(const CompressedScheme& scheme, ModuleTensors& module, int64_t n_out,
                                        int64_t n_in) {
  CodeLayout layout{.bits = 8, .group = scheme.group == 0 ? n_in : scheme.group};  // fewer bits are bytes as well
  const int64_t n_groups = parts_of(n_in, layout.group);
  const StoredTensor stored = module.take("weight", "I8", {{n_out, n_in}});
  take_compressed_scales(scheme, module, n_out, n_groups, layout);
  if (!scheme.symmetric) {
    const std::vector<std::vector<int64_t>> one = {{}, {1}, {1, 1}}, each = {{n_out, n_groups}};
    const StoredTensor zeros = module.take("weight_zero_point", "I8", scheme.one_scale ? one : each);
    layout.zeros.resize(at(n_out * n_groups));
    for (size_t i = 0; i < layout.zeros.size(); ++i)
      layout.zeros[i] = from_signed(zeros.bytes[scheme.one_scale ? 0 : i]);
  }
  layout.unpack = [stored, n_in](int64_t first, int64_t n, uint8_t* codes) {
    std::transform(stored.bytes.begin() + first * n_in, stored.bytes.begin() + (first + n) * n_in, codes, from_signed);
  };
  return std::make_unique<GroupedCodes>(n_out, n_in, std::move(layout), module.taken());
}

std::unique_ptr<StoredMatrix> read_floats(const CompressedScheme& scheme, ModuleTensors& module, int64_t n_out,
                                          int64_t n_in) {
  const int64_t rows = scheme.one_scale ? n_out : scheme.block_rows;
  const int64_t inputs = scheme.one_scale || scheme.block_inputs == 0 ? n_in : scheme.block_inputs;
  std::vector<std::vector<int64_t>> shapes = {{parts_of(n_out, rows), parts_of(n_in, inputs)}};
  if (scheme.one_scale) shapes = {{1}, {}, {1, 1}};
  if (rows == 1 && inputs == n_in) shapes.push_back({n_out});
  module.take("weight", "F8_E4M3", {{n_out, n_in}});
  std::vector<float> factors = module.take_floats("weight_scale", shapes).values;
  return std::make_unique<BlockValues>(n_out, n_in, rows, inputs, std::move(factors), module.taken());
}

std::unique_ptr<StoredMatrix> read_nvfp4(const CompressedScheme& scheme, ModuleTensors& module, int64_t n_out,
                                         int64_t n_in) {
  CodeLayout layout{.bits = 4, .table = CodeTable::kFp4, .group = scheme.group};
  const int64_t n_groups = parts_of(n_in, scheme.group), width = parts_of(n_in, 2);
  const StoredTensor pairs = module.take("weight_packed", "U8", {{n_out, width}});
  GroupScales scales = module.take_scales("weight_scale", n_out, n_groups);
  const float divisor = module.take_floats("weight_global_scale", {{1}, {}}).values[0];
  std::vector<float> halves;  // of the doubled values of the table
  bool exact = true;
  for (float& s : scales.values) {
    s /= divisor;
    if (!std::isfinite(s)) {
      module.fail(ErrorCode::kInput, "weight_global_scale",
                  "scales divided by it are infinite or not a number; it is " + std::to_string(divisor));
    }
    halves.push_back(0.5f * s);
    exact = exact && 2.0f * halves.back() == s;
  }
  layout.scale_kind = exact ? kind_that_holds(halves) : std::nullopt;
  layout.scales = std::move(scales.values);
  layout.unpack = [pairs, width, n_in](int64_t first, int64_t n, uint8_t* codes) {
    for (int64_t i = 0; i < n; ++i, codes += n_in) {
      const std::byte* row = pairs.bytes.data() + (first + i) * width;
      for (int64_t k = 0; k < n_in; ++k) {
        const auto byte = std::to_integer<uint8_t>(row[k / 2]);
        codes[k] = static_cast<uint8_t>(k % 2 == 0 ? byte & 0xfu : byte >> 4);
      }
    }
  };
  return std::make_unique<GroupedCodes>(n_out, n_in, std::move(layout), module.taken());
}

}  // namespace vlcache
