// The schemes of compressed-tensors' configuration, and the readers of its layouts.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/json.h"
#include "io/quantised/module_patterns.h"
#include "io/quantised/module_tensors.h"
#include "io/quantised/stored_matrix.h"

namespace vlcache {

enum class CompressedLayout : uint8_t { kPacked, kInts, kFloats, kNvfp4 };

// One of "config_groups": how the weights of its targets are stored.
struct CompressedScheme {
  std::string where;  // in config.json, for errors
  CompressedLayout layout = CompressedLayout::kPacked;
  int64_t bits = 0;
  int64_t group = 0;                         // inputs that share a scale; 0: all
  int64_t block_rows = 1, block_inputs = 0;  // of floats that share a scale; inputs 0: all
  bool one_scale = false;                    // for the whole matrix
  bool symmetric = true;
  int activation_bits = 16;
  ModulePatterns targets;
};

// `format`: for groups that name none. Throws Error(kUnsupported / kInput) for formats that are not read.
CompressedScheme parse_compressed_scheme(const JsonObject& group, const std::string& format);

// "pack-quantized": weight_packed I32 [N, K b / 32], code i at bit i b of a row, weight_scale [N, K / g],
// weight_shape; weight_zero_point I32 [N b / 32, K / g], packed along the outputs; weight_g_idx I32 [K]. Codes and zero
// points are stored plus 2^(b - 1). w = (q - z) * s.
std::unique_ptr<StoredMatrix> read_packed(const CompressedScheme& scheme, ModuleTensors& module, int64_t n_out,
                                          int64_t n_in);
// "int-quantized": weight I8 [N, K], weight_scale and weight_zero_point I8 of a row, a group or the matrix.
std::unique_ptr<StoredMatrix> read_ints(const CompressedScheme& scheme, ModuleTensors& module, int64_t n_out,
                                        int64_t n_in);
// "float-quantized": weight F8_E4M3 [N, K], weight_scale of a row, a block, a group or the matrix.
std::unique_ptr<StoredMatrix> read_floats(const CompressedScheme& scheme, ModuleTensors& module, int64_t n_out,
                                          int64_t n_in);
// "nvfp4-pack-quantized": weight_packed U8 [N, K / 2], E2M1, the low half first; weight_scale F8_E4M3 [N, K / 16];
// weight_global_scale F32 [1], by which the scales are divided. w = code * (s / global).
std::unique_ptr<StoredMatrix> read_nvfp4(const CompressedScheme& scheme, ModuleTensors& module, int64_t n_out,
                                         int64_t n_in);

}  // namespace vlcache
