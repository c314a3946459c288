// Defines the one layout of quantised weights, whatever their form.
//
// As packed.h: panels of 64 outputs, each a stream along the inputs that is read front to back. In it, of every 64
// outputs beside each other:
//   byte scales and minima with one factor a row: the factors (f16), first of all
//   every 256 inputs, if they share a factor: the factors (f16)
//   every block, a group of 32 inputs and more or two of 16: scales, then minima (16 bits, or bytes)
//   every unit of 32 inputs, cut into eight quads of four:
//     4 bits: [quad / 2][64] dwords, input b of the even quad in the low half of byte b, of the odd one in the high
//
//     5 bits: the same with the lower 4 bits of each code, then [64] dwords, bit `quad` of byte b
//
//     6 bits: the same, then [quad / 4][64] dwords, bits 2 (quad % 4) of byte b, and the next
//
//     8 bits: [quad][64] dwords, input b in byte b
//
// So each line of a panel is 16 outputs' dwords, from which two operations make four codes an output: what dot products
// of bytes take. n_out is padded to 64 and n_in to 32, with zero; sections are multiples of a cache line.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "ops/backend.h"
#include "ops/cpu/packed.h"

namespace vlcache::cpu {

inline constexpr int64_t kUnit = 32;  // inputs
inline constexpr int64_t kQuads = 8;  // of a unit

// Where the parts of a panel lie, as bytes from its start.
struct QuantLayout {
  QuantForm form;
  int64_t n_in;

  int64_t bands() const { return form.group < kUnit ? 2 : 1; }  // groups of a unit, or of a block
  int64_t block_units() const { return form.group < kUnit ? 1 : form.group / kUnit; }
  int64_t n_units() const { return (n_in + kUnit - 1) / kUnit; }
  int64_t n_blocks() const { return (n_units() + block_units() - 1) / block_units(); }
  int64_t unit_bytes() const { return form.bits * kUnit * kPanel / 8; }
  int64_t scale_bytes() const { return bands() * kPanel * (form.byte_scales() ? 1 : 2); }
  int64_t min_bytes() const {
    return form.min == MinKind::kNone ? 0 : bands() * kPanel * (form.min == MinKind::kF16 ? 2 : 1);
  }
  int64_t shared_bytes() const { return !form.byte_scales() ? 0 : (form.min == MinKind::kU8 ? 4 : 2) * kPanel; }
  int64_t block_bytes() const { return scale_bytes() + min_bytes() + block_units() * unit_bytes(); }
  // Blocks with one factor.
  int64_t sharing() const {
    return form.scale == ScaleKind::kS8Of256 ? 256 / (block_units() * kUnit) : std::max<int64_t>(1, n_blocks());
  }

  // The factors of a block, which are followed by the first block that has them.
  int64_t shared_at(int64_t block) const { return block / sharing() * (shared_bytes() + sharing() * block_bytes()); }
  int64_t scales_at(int64_t block) const {
    return shared_at(block) + shared_bytes() + block % sharing() * block_bytes();
  }
  int64_t mins_at(int64_t block) const { return scales_at(block) + scale_bytes(); }
  int64_t units_at(int64_t block) const { return mins_at(block) + min_bytes(); }
  int64_t units_of(int64_t block) const { return std::min(block_units(), n_units() - block * block_units()); }
  int64_t panel_bytes() const {
    const int64_t last = n_blocks() - 1;
    return last < 0 ? 0 : units_at(last) + units_of(last) * unit_bytes();
  }
};

// A block of a panel.
struct QuantBlock {
  const std::byte *shared, *scales, *mins, *units;
  int64_t n_units;
};

// The blocks of a panel in their order, without QuantLayout's divisions for each: while (walk.next()) walk.block().
class BlockWalk {
 public:
  BlockWalk(const QuantLayout& layout, const std::byte* panel) : BlockWalk(layout, layout.n_units(), panel) {}
  // The same of at most n inputs from input `first` on; both are multiples of 128, as blocks begin.
  BlockWalk(const QuantLayout& layout, const std::byte* panel, int64_t first, int64_t n)
      : BlockWalk(layout, (std::min(n, layout.n_in - first) + kUnit - 1) / kUnit, panel) {
    const int64_t block = first / kUnit / block_units_;
    if (block % sharing_ == 0) {
      next_ += layout.shared_at(block);
    } else {
      block_.shared = panel + layout.shared_at(block);
      next_ += layout.scales_at(block);
      blocks_left_ = sharing_ - block % sharing_;
    }
  }

  bool next() {
    if (units_left_ == 0) return false;
    if (blocks_left_ == 0) {
      blocks_left_ = sharing_;
      block_.shared = next_;
      next_ += shared_bytes_;
    }
    --blocks_left_;
    block_.scales = next_;
    block_.mins = block_.scales + scale_bytes_;
    block_.units = block_.mins + min_bytes_;
    block_.n_units = std::min(units_left_, block_units_);
    units_left_ -= block_.n_units;
    next_ = block_.units + block_.n_units * unit_bytes_;
    return true;
  }
  const QuantBlock& block() const { return block_; }

 private:
  BlockWalk(const QuantLayout& layout, int64_t n_units, const std::byte* panel)
      : scale_bytes_(layout.scale_bytes()),
        min_bytes_(layout.min_bytes()),
        unit_bytes_(layout.unit_bytes()),
        shared_bytes_(layout.shared_bytes()),
        sharing_(layout.sharing()),
        block_units_(layout.block_units()),
        units_left_(n_units),
        next_(panel) {}

  int64_t scale_bytes_, min_bytes_, unit_bytes_, shared_bytes_, sharing_, block_units_;
  int64_t units_left_, blocks_left_ = 0;  // blocks_left_: before the next factors
  const std::byte* next_;
  QuantBlock block_{};
};

// A matrix of such panels.
struct QuantPanels {
  const std::byte* data;
  QuantLayout layout;
  int64_t n_out;
  std::span<const int32_t> input_order = {};  // of the codes, as QuantSource has it

  const std::byte* panel(int64_t i) const { return data + i * layout.panel_bytes(); }
  // Memory of at most n inputs of panel i from input `first` on; both are multiples of 128.
  std::span<const std::byte> inputs(int64_t i, int64_t first, int64_t n) const {
    const int64_t units = layout.block_units() * kUnit, begin = layout.scales_at(first / units);
    const int64_t end = first + n < layout.n_in ? layout.scales_at((first + n) / units) : layout.panel_bytes();
    return {panel(i) + begin, static_cast<size_t>(end - begin)};
  }
};

inline QuantPanels quant_panels_of(const Weight& w, const WeightSegment& segment) {
  return {segment.memory.data(), {*segment.form, w.n_in}, segment.n_out, segment.input_order};
}

// Backend::pack of quantised rows. `dtype`: the compute dtype. Runs on all threads.
Weight pack_quantised(DType dtype, const QuantSource& rows);

// Row `row` as f32, each weight in its input's place.
void dequantise_row(const QuantPanels& w, int64_t row, float* out);

}  // namespace vlcache::cpu
