// ImagePlacement places the known KV of a prompt's images in the prompt, and records new KV for other prompts.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/prompt/prompt_images.h"
#include "engine/request.h"
#include "engine/reuse/loaded_image_source.h"
#include "engine/reuse/preview_hooks.h"
#include "engine/reuse/similar_kv.h"

namespace vlcache {

class Engine;
class KvCaches;

// Why all of a prompt's KV must be computed for it; "": it need not be.
std::string reuse_obstacle(const Policy& policy, const Prompt& prompt);

// A prompt as reuse identifies it.
struct KnownPrompt {
  std::span<const TokenInfo> tokens;
  const PromptImages& images;
  std::optional<Sha256Digest> salt;
  KvCodec codec;  // under which its KV is computed
};
KnownPrompt prompt_of(const Sequence& sequence);

// Identifies the KV of an image of the prompt that a chooser recomputes in part, in the engine's cache form: not to be
// confused with computed KV. If the chooser looks at the prompt, the digest is this prompt's alone. `similar`: the
// image whose KV it is, if it is another one.
Sha256Digest reused_content(const Engine& engine, const KnownPrompt& prompt, size_t image, const ReuseChooser& chooser,
                            int32_t n_tokens, const std::optional<Sha256Digest>& similar = {});

// The images of a request in the tiers beyond this process.
struct ImagesInTiers {
  ImageSearch tiers;
  std::map<size_t, LoadingImage> loads;  // by image of the prompt: each begins once, and a missed one stays missed
};

// size: one member for each way in which an image of a prompt gets its KV, and what the steps must know of it.
class ImagePlacement final : public LayerHooks {
 public:
  // `sequence` has taken `prompt`, which outlives this object; its pending tokens are computed next. Notes in `report`
  // the source of each image. Throws Error(kInput) if a chooser was requested that the policy or the prompt does not
  // allow.
  ImagePlacement(Engine& engine, Sequence& sequence, const Prompt& prompt, const ReuseOptions& options,
                 ImagesInTiers& stored, CacheReport& report);
  ~ImagePlacement() override;  // the sequence continues without

  // Whether the steps of the prompt need these hooks.
  bool active() const { return !finished_ && (!reused_.empty() || recorder_.size() > 0); }
  // Tokens before the first that is computed, or that a preview may still choose to compute.
  int32_t n_done() const { return std::min(sequence_.n_done(), preview_ == nullptr ? INT32_MAX : preview_->begin()); }
  // Whether some of the image's tokens are computed.
  bool needs_embeddings(size_t image) const { return needs_embeddings_[image]; }
  // Images whose KV is to be computed in a prompt of its own (image_origin.h) before this prompt: then they can be
  // reused.
  std::span<const size_t> without_origin() const { return without_origin_; }
  // Cuts the next runs of the sequence to what these hooks need. True: the next step is part of a chooser's preview.
  bool cut(std::vector<TokenRun>& runs);
  // Whether an image that occurs twice in this prompt has been recorded for its second occurrence: finish() keeps it,
  // and the rest of the prompt is looked up again.
  bool halts() const { return !finished_ && sequence_.n_done() >= halt_; }
  // To be called after such a step. When the preview is complete, the chooser chooses, and the prompt is computed again
  // from its first image.
  void after_preview_step();
  // To be called after the prompt, which took `prefill_ms`: recorded and loaded KV is in memory from now on. Does
  // nothing until it is known which tokens are kept.
  void finish(double prefill_ms);
  // Whether KV is still being loaded, at `until` at the latest.
  bool loading(Deadline until) const;
  // Whether the last step failed for KV that was being loaded: it is still on its way, or was missed.
  enum class Want : uint8_t { kNone, kComes, kMissed };
  Want take_want();

  bool after_attention(int layer, const Observed& observed, std::vector<int32_t>& keep) override;

 private:
  // Whether the prompt has all of the image's rows, and none of them is computed yet.
  bool is_whole(const Prompt& prompt, size_t image) const;
  // Why none of the image's tokens can be loaded, whether or not their KV is known; "": some can.
  std::string place_obstacle(size_t image, const RecomputePlan& plan) const;
  // `before`: what of it is reused again after preemption.
  void place(size_t image, CacheReport::Image& report, const ReusedBefore* before);
  // Takes the KV of a similar image, if there is one; of `again`, if that is given.
  std::string unknown_reason(const Sha256Digest& key) const;
  void place_similar(size_t image, const RecomputePlan& plan, CacheReport::Image& report,
                     const std::optional<Sha256Digest>& again);
  void measure(size_t image, CacheReport::Image& report);
  // Null: no tier has it.
  const LoadingImage* load_stored(size_t image);
  void keep(size_t image, const std::shared_ptr<const ImageKv>& kv, double ms_per_token);
  bool is_recorded(const Sha256Digest& key) const;  // in this prompt
  bool halt_before(const Sha256Digest& key);
  bool could_be_kept(size_t image, CacheReport::Image& report) const;
  void record(size_t image, CacheReport::Image& report);
  void begin_reuse();
  void supply();
  void choose();
  void end_work();

  Engine& engine_;
  KvCaches& kv_;
  Sequence& sequence_;
  const PromptImages& images_;  // the sequence's
  LoadedImageSource reused_;
  ImageRecorder recorder_;
  ReuseChooserPtr chooser_;
  std::shared_ptr<const KeptTokens> kept_tokens_;
  SimilarKv similar_;
  bool measures_;       // the chooser is not permitted yet
  bool leaves_traces_;  // in caches
  CacheReport& report_;
  std::unique_ptr<PreviewHooks> preview_;  // null: all is chosen
  bool in_preview_ = false;                // the next step is a part of it
  ImagesInTiers& stored_;
  // An image of the prompt that is reused, in the order of reused_.
  struct Placed {
    size_t image;
    std::shared_ptr<const ImageKv> kv;
    std::shared_ptr<ImageLoad> load = nullptr;           // null: it was in memory
    std::optional<Sha256Digest> similar = std::nullopt;  // the image whose KV it is, if it is another one's
  };
  std::vector<Placed> placed_;
  std::vector<size_t> recorded_;       // images of the prompt, by number in recorder_
  std::vector<Sha256Digest> in_work_;  // those that no other request was recording
  std::vector<bool> needs_embeddings_;
  std::vector<size_t> without_origin_;
  int32_t halt_ = INT32_MAX;  // end of the image that is recorded for a second occurrence
  bool finished_ = false;
};

}  // namespace vlcache
