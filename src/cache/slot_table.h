// SlotTable: the token, bias and running sums of each slot, per kv head, of one layer of one sequence. It
// holds no K and V.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/contracts/kv.h"

namespace vlcache {

// Slots lie in the order of their tokens. A merged slot's token is negative: it stands in the place of its first
// source.
constexpr int32_t merged_token(int32_t first_source) { return -1 - first_source; }
constexpr int32_t first_token(int32_t slot_token) { return slot_token < 0 ? -1 - slot_token : slot_token; }

class SlotTable {
 public:
  explicit SlotTable(int32_t n_heads);

  int32_t n_heads() const { return static_cast<int32_t>(n_slots_.size()); }
  int32_t stride() const { return stride_; }
  // Makes room for this many slots a head, at least the slots in use. Tables move if the room changes.
  void set_stride(int32_t stride);
  // Gives every slot n planes of one f32, zero for new slots. Dropped planes lose their values, new ones begin at zero.
  void set_planes(int32_t n);

  int64_t bytes() const;  // room included

  int32_t n_slots(int32_t head) const { return n_slots_[at(head)]; }  // hidden ones included
  int32_t n_hidden(int32_t head) const { return n_hidden_[at(head)]; }
  int32_t longest() const;
  const int32_t* lengths() const { return n_slots_.data(); }  // [n_heads]
  std::span<const int32_t> tokens(int32_t head) const { return row(tokens_, head); }
  // [n_slots] first_token() of each: what windows count.
  std::span<const int32_t> places(int32_t head) const { return row(places_, head); }
  std::span<const float> biases(int32_t head) const { return row(biases_, head); }
  std::span<float> plane(int32_t head, int32_t plane);
  // For a KvView: [n_heads, stride], or null while they are trivial.
  const int32_t* view_places() const { return shifted_ ? places_.data() : nullptr; }
  const float* view_biases() const { return biased_ ? biases_.data() : nullptr; }
  // Whether slot i is token i, everywhere, and no slot is biased.
  bool complete() const { return !biased_ && !reordered_; }
  void list_visible(int32_t head, std::vector<int32_t>& visible) const;
  // Number of slots that stand for tokens up to this one.
  int32_t n_until(int32_t head, int32_t token) const;

  // Appends a slot for each of `tokens`, which ascend and follow the existing slots. biases: one per slot; empty: 0.
  void append(int32_t head, std::span<const int32_t> tokens, std::span<const float> biases = {});
  void shorten(int32_t head, int32_t n_slots);
  void set_bias(int32_t head, int32_t slot, float bias);
  void hide(int32_t head, int32_t slot);

  // Slot i becomes old slot from[i]; `from` ascends. Where merges[i] is set (`merges`: empty, or one per slot), it
  // becomes the merge of those slots: planes hold running sums, so the merge has the sum of its sources'.
  void gather(int32_t head, std::span<const int32_t> from, std::span<const KeepPlan::Merge* const> merges = {});
  // Checks whether places and biases are still not trivial, after slots were removed.
  void refresh();

  // Notes lengths; `forget` drops the slots appended since.
  void note();
  int32_t noted(int32_t head) const { return noted_[at(head)]; }
  void forget();

 private:
  static size_t at(int32_t i) { return static_cast<size_t>(i); }
  size_t begin_of(int32_t head) const { return at(head) * at(stride_); }
  template <typename T>
  std::span<const T> row(const std::vector<T>& table, int32_t head) const {
    return {table.data() + begin_of(head), at(n_slots_[at(head)])};
  }

  int32_t stride_ = 0;
  int32_t n_planes_ = 0;
  std::vector<int32_t> n_slots_, n_hidden_;  // [n_heads]
  std::vector<int32_t> tokens_, places_;     // [n_heads, stride]
  std::vector<float> biases_;                // [n_heads, stride]; always allocated, so that hiding allocates nothing
  std::vector<float> planes_;                // [n_planes, n_heads, stride]
  bool shifted_ = false;                     // some slot's place is not its index
  bool reordered_ = false;                   // some slot's token is not its index
  bool biased_ = false;                      // some slot's bias is not 0
  std::vector<int32_t> noted_;               // [n_heads]
  bool noted_shifted_ = false, noted_reordered_ = false;
};

}  // namespace vlcache
