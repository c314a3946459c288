// Writes, reads and moves slots of one coded page; kv_pages.h has the layout.
#pragma once

#include "ops/cpu/attention/kv_pages.h"

namespace vlcache::cpu {

// Rows [0, n) of f32 become codes of slots [begin, begin + n); a null k or v leaves that part as it is.
void write_coded(const PageRef& page, const HeadRows& rows, int begin, int n);
// K and V of slots[i] % kPageSlots as f32, exactly as decode_head gives them; either may be empty.
void read_coded(const PageRef& page, std::span<const int32_t> slots, const Tensor& k, const Tensor& v);
// Codes and scales of slots from[i] % kPageSlots of `from` become slots to[i] % kPageSlots of the page at `to`, which
// may be the same, in this order.
void move_coded(const PageRef& from, std::byte* to, const SlotMap& slots);

}  // namespace vlcache::cpu
