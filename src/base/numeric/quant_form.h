// QuantForm: how a matrix is stored in 4 to 8 bits a weight. QuantRows: some of its rows as codes and scales, the
// common form between the code that reads or quantises weights and the backends that lay them out.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace vlcache {

// How the scale s of a group is stored. Bytes are multiplied by an f16 that several groups share.
enum class ScaleKind : uint8_t {
  kF16,
  kBF16,     // of checkpoints in bf16; also holds the powers of two of MXFP4, which f16 does not
  kS8Of256,  // a signed byte; one f16 for 256 inputs
  kU8OfRow,  // an unsigned byte; one f16 for a row
};

// The addend of s * code.
enum class MinKind : uint8_t {
  kNone,       // nothing: codes are signed
  kF16,        // an f16
  kU8,         // minus an unsigned byte times an f16 of its own, which is shared as that of the scale is
  kZeroPoint,  // minus s * z, z an unsigned byte
};

// What 4-bit codes stand for.
enum class CodeTable : uint8_t {
  kLinear,  // themselves
  kNl4,     // 16 values from -127 to 113, denser around 0 (IQ4_NL)
  kFp4,     // 0 0.5 1 1.5 2 3 4 6 and their negatives, doubled (E2M1)
};

// A weight is w = s * c + m: c = q without a sign (kF16, kU8), q - 2^(bits - 1) (kNone), q - z (kZeroPoint), or its
// value in the table. Every product of the supported forms but products of 8-bit scales and 6-bit codes is exact in
// f32; the sum with m is rounded once.
struct QuantForm {
  uint8_t bits = 4;    // 4, 5, 6 or 8
  uint8_t group = 32;  // consecutive inputs that share a scale: 16 (not with 5 bits), 32, 64 or 128
  ScaleKind scale = ScaleKind::kF16;
  MinKind min = MinKind::kNone;
  CodeTable table = CodeTable::kLinear;  // another: 4 bits, without a minimum
  bool operator==(const QuantForm&) const = default;

  bool byte_scales() const { return scale == ScaleKind::kS8Of256 || scale == ScaleKind::kU8OfRow; }
  // Inputs that share an f16 which multiplies byte scales; n_in where a row has one. 0: none.
  int64_t shared_inputs(int64_t n_in) const {
    return scale == ScaleKind::kS8Of256 ? 256 : scale == ScaleKind::kU8OfRow ? n_in : 0;
  }
  int64_t n_groups(int64_t n_in) const { return (n_in + group - 1) / group; }
  // f16 factors of byte scales in a row, and as many of byte minima.
  int64_t n_shared(int64_t n_in) const {
    const int64_t inputs = shared_inputs(n_in);
    return inputs == 0 ? 0 : (n_in + inputs - 1) / inputs;
  }
  // Codes, scales and minima of a row of n_in weights, divided by them.
  double bits_per_weight(int64_t n_in) const;
  // Whether it is one of the combinations described above.
  bool valid() const;
  // "4 bits g32 u8*f16/row -u8*f16/row".
  std::string describe() const;
};

// The value of a 4-bit code in a table.
int table_value(CodeTable table, int code);

// What `--weights` makes of matrices.
inline constexpr QuantForm kInt4{.bits = 4, .group = 32, .scale = ScaleKind::kU8OfRow, .min = MinKind::kU8};
inline constexpr QuantForm kInt6{.bits = 6, .group = 32, .scale = ScaleKind::kU8OfRow, .min = MinKind::kU8};
inline constexpr QuantForm kInt8{.bits = 8, .group = 32, .scale = ScaleKind::kF16, .min = MinKind::kNone};

// Rows of one form. Scales and minima are bits of 16-bit floats, or bytes (a signed one as its two's complement).
struct QuantRows {
  QuantForm form;
  int64_t n_rows = 0, n_in = 0;
  std::vector<uint8_t> codes;                        // [n_rows, n_in], unsigned
  std::vector<uint16_t> scales, mins;                // [n_rows, n_groups]; mins: empty without
  std::vector<uint16_t> shared_scales, shared_mins;  // [n_rows, n_shared] f16; of bytes

  QuantRows() = default;
  QuantRows(const QuantForm& form, int64_t n_rows, int64_t n_in) { resize(form, n_rows, n_in); }
  void resize(const QuantForm& new_form, int64_t new_rows, int64_t new_in);

  // The scale and minimum of a group, as they enter w = s * c + m (a zero point's is -s * z).
  float scale(int64_t row, int64_t group) const;
  float min(int64_t row, int64_t group) const;
  // The n_in weights of a row, by the formula.
  void dequantise(int64_t row, float* out) const;
};

// Rows of a quantised matrix from a file or a quantiser. Threads may read at the same time.
class QuantSource {
 public:
  virtual ~QuantSource() = default;
  virtual QuantForm form() const = 0;
  virtual int64_t n_out() const = 0;
  virtual int64_t n_in() const = 0;
  // Rows [first, first + n), n up to kQuantBlock, into `out`, which is resized.
  virtual void read(int64_t first, int64_t n, QuantRows& out) const = 0;
  // [n_in] the inputs in the order in which read() has their weights, each of them once; empty: as they are.
  virtual std::span<const int32_t> input_order() const { return {}; }
};

// Rows that a backend reads at a time: outputs of a panel.
inline constexpr int64_t kQuantBlock = 64;

}  // namespace vlcache
