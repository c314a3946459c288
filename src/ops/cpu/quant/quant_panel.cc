#include "ops/cpu/quant/quant_panel.h"

#include <algorithm>
#include <cstring>

#include "base/at.h"
#include "base/error.h"
#include "base/os/threads.h"

namespace vlcache::cpu {
namespace {

// The 32 codes of one output into a unit whose bytes are zero: four codes are a dword, which is shifted as a whole.
void put_codes(int bits, const uint8_t* codes, int64_t output, std::byte* unit) {
  const auto quad = [&](int64_t q) {
    uint32_t four;
    std::memcpy(&four, codes + 4 * q, 4);
    return four;
  };
  const auto put = [&](int64_t line, uint32_t dword) { std::memcpy(unit + (line * kPanel + output) * 4, &dword, 4); };
  if (bits == 8) {
    for (int64_t q = 0; q < kQuads; ++q) put(q, quad(q));
    return;
  }
  constexpr uint32_t kLow = 0x0f0f0f0f;
  for (int64_t q = 0; q < kQuads; q += 2) put(q / 2, (quad(q) & kLow) | (quad(q + 1) & kLow) << 4);
  const int more = bits - 4;
  if (more == 0) return;
  const uint32_t mask = more == 1 ? 0x01010101u : 0x03030303u;
  for (int64_t q = 0, line = kQuads / 2; q < kQuads; ++line) {
    uint32_t dword = 0;
    for (int shift = 0; shift < 8; shift += more, ++q) dword |= (quad(q) >> 4 & mask) << shift;
    put(line, dword);
  }
}

// Code k of an output in its unit.
uint8_t code_at(int bits, int64_t k, int64_t output, const std::byte* unit) {
  const int64_t quad = k / 4, b = k % 4;
  const auto byte = [&](int64_t line) { return std::to_integer<uint32_t>(unit[(line * kPanel + output) * 4 + b]); };
  if (bits == 8) return static_cast<uint8_t>(byte(quad));
  const uint32_t low = byte(quad / 2) >> (quad % 2 * 4) & 0xfu;
  const int more = bits - 4;
  if (more == 0) return static_cast<uint8_t>(low);
  const int64_t per_line = 8 / more;
  const uint32_t high = byte(kQuads / 2 + quad / per_line) >> (quad % per_line * more) & ((1u << more) - 1u);
  return static_cast<uint8_t>(low | high << 4);
}

// 64 scales or minima: [64] of 16 bits, or bytes.
void put_words(const uint16_t* from, int64_t stride, int64_t n, bool bytes, std::byte* to) {
  for (int64_t i = 0; i < n; ++i) {
    if (bytes) {
      to[i] = static_cast<std::byte>(from[i * stride]);
    } else {
      std::memcpy(to + 2 * i, from + i * stride, 2);
    }
  }
}

// One panel from its rows.
void pack_panel(const QuantLayout& layout, const QuantRows& rows, std::byte* panel) {
  const QuantForm& form = layout.form;
  const int64_t n = rows.n_rows, groups = form.n_groups(layout.n_in), shared = form.n_shared(layout.n_in);
  for (int64_t block = 0; block < layout.n_blocks(); ++block) {
    if (shared > 0 && block % layout.sharing() == 0) {
      const int64_t i = block / layout.sharing();
      put_words(rows.shared_scales.data() + i, shared, n, false, panel + layout.shared_at(block));
      if (form.min == MinKind::kU8)
        put_words(rows.shared_mins.data() + i, shared, n, false, panel + layout.shared_at(block) + 2 * kPanel);
    }
    for (int64_t band = 0; band < layout.bands(); ++band) {
      const int64_t group = block * layout.bands() + band;
      if (group >= groups) break;  // the last unit may hold less than a group
      put_words(rows.scales.data() + group, groups, n, form.byte_scales(),
                panel + layout.scales_at(block) + band * layout.scale_bytes() / layout.bands());
      if (form.min != MinKind::kNone)
        put_words(rows.mins.data() + group, groups, n, form.min != MinKind::kF16,
                  panel + layout.mins_at(block) + band * layout.min_bytes() / layout.bands());
    }
    const int64_t begin = block * layout.block_units() * kUnit;
    const int64_t end = std::min(layout.n_in, begin + layout.units_of(block) * kUnit);
    for (int64_t k = begin; k < end; k += kUnit) {
      std::byte* unit = panel + layout.units_at(block) + (k - begin) / kUnit * layout.unit_bytes();
      for (int64_t row = 0; row < n; ++row) {
        uint8_t codes[kUnit] = {};
        std::copy_n(rows.codes.data() + row * layout.n_in + k, std::min(kUnit, end - k), codes);
        put_codes(form.bits, codes, row, unit);
      }
    }
  }
}

}  // namespace

Weight pack_quantised(DType dtype, const QuantSource& rows) {
  CHECK(rows.form().valid());
  Weight w{.n_out = rows.n_out(), .n_in = rows.n_in(), .dtype = dtype};
  const QuantLayout layout{rows.form(), w.n_in};
  const int64_t n_panels = (w.n_out + kPanel - 1) / kPanel;
  const std::span<const int32_t> order = rows.input_order();
  CHECK(order.empty() || std::ssize(order) == w.n_in);
  WeightSegment segment{.n_out = w.n_out,
                        .form = layout.form,
                        .memory = Buffer(n_panels * layout.panel_bytes()),
                        .input_order = {order.begin(), order.end()}};
  static_assert(kQuantBlock == kPanel);
  std::vector<QuantRows> blocks(at(n_threads()));
  parallel_for(n_panels, [&](int64_t p, int thread) {
    QuantRows& block = blocks[at(thread)];
    const int64_t n = std::min(kPanel, w.n_out - p * kPanel);
    rows.read(p * kPanel, n, block);
    CHECK(block.form == layout.form && block.n_rows == n && block.n_in == w.n_in);
    pack_panel(layout, block, segment.memory.data() + p * layout.panel_bytes());
  });
  w.segments.push_back(std::move(segment));
  return w;
}

void dequantise_row(const QuantPanels& w, int64_t row, float* out) {
  const QuantLayout& layout = w.layout;
  const QuantForm& form = layout.form;
  const std::byte* panel = w.panel(row / kPanel);
  const int64_t output = row % kPanel, group = std::min<int64_t>(form.group, kUnit);
  thread_local QuantRows one;  // of one group
  one.resize(form, 1, group);
  const auto word = [&](int64_t at, bool byte) {
    uint16_t value = 0;
    std::memcpy(&value, panel + at + output * (byte ? 1 : 2), byte ? 1 : 2);
    return value;
  };
  for (int64_t k = 0; k < layout.n_in; k += group) {
    const int64_t unit = k / kUnit, block = unit / layout.block_units(), band = k % kUnit / group;
    if (form.byte_scales()) one.shared_scales[0] = word(layout.shared_at(block), false);
    if (form.min == MinKind::kU8) one.shared_mins[0] = word(layout.shared_at(block) + 2 * kPanel, false);
    one.scales[0] = word(layout.scales_at(block) + band * layout.scale_bytes() / layout.bands(), form.byte_scales());
    if (form.min != MinKind::kNone) {
      one.mins[0] = word(layout.mins_at(block) + band * layout.min_bytes() / layout.bands(), form.min != MinKind::kF16);
    }
    const std::byte* codes = panel + layout.units_at(block) + unit % layout.block_units() * layout.unit_bytes();
    for (int64_t i = 0; i < group; ++i) one.codes[at(i)] = code_at(form.bits, k % kUnit + i, output, codes);
    float values[kUnit];
    one.dequantise(0, values);
    for (int64_t i = 0; i < std::min(group, layout.n_in - k); ++i)
      out[w.input_order.empty() ? k + i : w.input_order[at(k + i)]] = values[i];
  }
}

}  // namespace vlcache::cpu
