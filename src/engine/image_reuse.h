// What becomes of the KV of a prompt's images: what is known is placed, what is new is recorded for other prompts.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/request.h"
#include "engine/reused_images.h"

namespace vlcache {

class Engine;

// Why a prompt's KV must be its own, all of it computed for it; "": it need not be.
std::string reuse_obstacle(const Policy& policy, const Prompt& prompt);

// What the KV of an image is known by where a chooser's plan is followed for it: not to be confused with what is
// computed.
Sha256Digest reused_content(const Sha256Digest& image_key, const RecomputePlan& plan, int32_t n_tokens);

// Images that were to be loaded and could not be, and why.
using MissedImages = std::map<Sha256Digest, std::string>;

class ImageReuse final : public LayerHooks {
 public:
  // `sequence` has taken `prompt`; what of it is pending is computed next. Notes in `report` where each image comes
  // from; those of `missed` are not loaded again. Throws Error(kInput) where a chooser was asked for that the policy or
  // the prompt does not allow.
  ImageReuse(Engine& engine, Sequence& sequence, const Prompt& prompt, const ReuseOptions& options,
             const MissedImages& missed, CacheReport& report);
  ~ImageReuse() override;  // the sequence goes on without

  // Whether the steps of the prompt need these hooks.
  bool active() const { return !finished_ && (!reused_.empty() || recorder_.size() > 0); }
  // Whether some of the image's tokens are computed.
  bool needs_embeddings(size_t image) const { return needs_embeddings_[image]; }
  // Behind the prompt, which took so long: what was recorded or loaded is found in memory from now on.
  void finish(double prefill_ms);
  // Of the load for which the last step failed: its image, and why. Null: no load has failed.
  const MissedImages::value_type* missed();

  bool after_attention(int layer, const Observed& observed, std::vector<int32_t>& keep) override;

 private:
  // An image of the prompt, as far as it matters here.
  struct Found {
    std::vector<ImageSpan> spans;
    int32_t n_tokens = 0;
    bool whole = false;  // all of its rows, in order, none of them computed yet
  };
  std::vector<Found> list_images(const Prompt& prompt) const;
  void place(size_t image, const Found& found, const ReuseChooser& chooser, CacheReport::Image& report);
  void keep(size_t image, const std::shared_ptr<const ImageKv>& kv, double ms_per_token);
  void record(size_t image, const Found& found, CacheReport::Image& report);
  void end_work();

  Engine& engine_;
  Sequence& sequence_;
  ReusedImages reused_;
  ImageRecorder recorder_;
  const MissedImages& missed_;
  // An image of the prompt that is reused, in the order of reused_.
  struct Placed {
    size_t image;
    std::shared_ptr<const ImageKv> kv;
    std::shared_ptr<ImageLoad> load;  // null: it was in memory
  };
  std::vector<Placed> placed_;
  std::optional<MissedImages::value_type> failed_;
  std::vector<size_t> recorded_;       // images of the prompt, by number in recorder_
  std::vector<Sha256Digest> in_work_;  // those that nobody else was recording
  std::vector<bool> needs_embeddings_;
  bool finished_ = false;
};

}  // namespace vlcache
