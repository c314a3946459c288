// CaptureHooks fills a Capture while a prompt is prefilled, in any number of chunks: a thin extra pass of the backend
// over what a layer has just attended to.
#pragma once

#include <cstdint>
#include <vector>

#include "base/contracts/capture.h"
#include "base/contracts/layer_hooks.h"
#include "base/function_ref.h"
#include "engine/hooks/lookahead.h"
#include "engine/hooks/query_moments.h"
#include "ops/backend.h"

namespace vlcache {

// Of one sequence whose prompt has n_prompt tokens; the tokens after them are lookahead. Rows are identified by their
// token index: some may come from a cache or be supplied by a source; the window then is what is left of it. No slot
// may be evicted before the prompt is complete.
class CaptureHooks final : public LayerHooks {
 public:
  CaptureHooks(Backend& backend, int32_t n_layers, int32_t n_prompt, Capture& capture);

  bool after_attention(int layer, const Observed& observed, std::vector<int32_t>& keep) override;
  // The tokens after the prompt belong to `lookahead` from now on.
  void begin(const Lookahead& lookahead);

 private:
  // The window's rows in a layer, as far as they have been computed.
  struct Window {
    std::vector<int32_t> places;  // tokens of the rows
    std::vector<int32_t> n_seen;  // slots of head 0 up to and with the row's own
    std::vector<float> weights;   // empty: 1
    std::vector<float> lse;       // [rows, H]
    int32_t n_summed = 0;         // rows so far
    int32_t next_token = 0;       // the first that has not been counted
    Tensor queries;               // [window + ahead, H, d], not all of them filled
  };
  void prepare(Window& window, LayerCapture& layer, const Observed& observed);
  void sum_rows(int layer, const Observed& observed, int64_t n_old);
  void add_moments(int layer, const Observed& observed, int32_t first);
  void keep_window(int layer, const Observed& observed, int64_t n_old);
  void keep_replayed(int layer, const Observed& observed, int64_t n_old);
  void copy_queries(Window& window, const Observed& observed) const;
  static bool codes_change(const Window& window, const Observed& observed);
  void sum_window(int layer, const Observed& observed);
  void sum_draft(int layer, const Observed& observed, int64_t n_old);
  void sum_replay(int layer, const Observed& observed, int64_t n_old);
  // The same slots with biases of `extra` added.
  KvView biased(const KvView& view, FunctionRef<float(int32_t head, int32_t slot)> extra);
  AttentionStats window_stats(const Observed& observed);
  void join_window(const AttentionStats& stats, int32_t n_columns, LayerCapture& layer) const;
  void reduce(const Tensor& heads, int32_t n_columns, bool maxima, const Tensor& sum) const;
  Tensor scratch(int32_t i, const Observed& observed);
  void note_seen(const Observed& observed);

  Backend& backend_;
  int32_t n_prompt_;
  Capture& capture_;
  std::vector<Window> windows_;        // [n_layers]
  std::vector<QueryMoments> moments_;  // [n_layers], if requested
  std::vector<int32_t> n_seen_, n_after_, rows_;
  std::vector<float> biases_;  // of a view, [Hk, slot_stride]
  Buffer scratch_;             // [4, H, slots] f32
  Lookahead lookahead_;
};

}  // namespace vlcache
