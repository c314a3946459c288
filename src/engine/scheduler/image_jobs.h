// ImageJobs: the images of a request from its arrival to its prompt's end: the search for them in tiers, their
// embeddings, which are loaded or encoded, and the reuse of their KV.
#pragma once

#include <deque>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "engine/engine.h"
#include "engine/engine_caches.h"
#include "engine/request.h"
#include "engine/reuse/image_charges.h"
#include "engine/reuse/image_claims.h"
#include "engine/reuse/image_placement.h"
#include "engine/scheduler/encode_steps.h"

namespace vlcache {

class ImageJobs {
 public:
  // All outlive this object, which keeps the result's cache report and vision_ms up to date. `kv`: of the request's
  // codec.
  ImageJobs(Engine& engine, KvCaches& kv, Request& request, GenerateResult& result);
  ~ImageJobs();

  // ---- while the request is queued --------------------------------------------------------------------------------
  // The prompt's images as the sequence will take them, or has taken them.
  const PromptImages& list() const { return images_; }
  ImageSearch& search() { return stored_.tiers; }
  // Whether tiers are still being searched, or another process computes an image, at `until` at the latest, for images
  // after the first n_done tokens.
  bool awaits_search(int32_t n_done, Deadline until);

  // ---- once it is admitted ----------------------------------------------------------------------------------------
  // `sequence` has taken the prompt, and the KV of a cached prefix. Decides what is reused, loaded and encoded. Throws
  // Error(kInput) if a chooser was requested that the policy or the prompt does not allow.
  void start(Sequence& sequence);
  // The same for what has not been computed, after a load has failed or an image has been recorded for its second
  // occurrence.
  void start_rest();
  // Requests that must be computed before this one continues, after start() and start_rest(): usually none. Otherwise
  // nothing is loaded or encoded before the next start().
  std::vector<Request> take_origins() { return std::exchange(origins_, {}); }
  // One of these requests has ended.
  void origin_done(const GenerateResult& origin);
  // Takes the embeddings that have been loaded; images whose load failed are to be encoded.
  void take_loaded();
  // Whether there are images to encode, without which there is no next step.
  bool encodes() const { return !to_encode_.empty(); }
  // Continues with the first of them, for at least one step of the encoder, until it is encoded or `until`. `told`: of
  // every step. Throws Error.
  void encode(Deadline until, const WorkTold& told);
  // FLOPs of the encoder that are left for them.
  double flops_left() const;
  // Whether a load is under way, at `until` at the latest, without which there is no next step.
  bool awaits_load(Deadline until);
  // The same for a step that may stall: it computes beside a load of KV, unless one has stalled before.
  bool awaits_load_to_stall(Deadline until);
  // After a failed step: whether it failed for KV that was still on its way, or that was missed.
  ImagePlacement::Want take_want();

  // ---- in steps ---------------------------------------------------------------------------------------------------
  // By image, as far as they are needed.
  std::span<const VisionOutput> embeddings() const { return embeddings_; }
  // From start() to the prompt's end or stop().
  ImagePlacement* reuse() { return reuse_.get(); }
  // The prompt is complete, and nothing repeats it: embeddings are not needed any more.
  void prompt_done();

  // ---- at an end --------------------------------------------------------------------------------------------------
  void stop_reuse() { reuse_.reset(); }
  // The request is preempted: what it has reused is reused when it starts again, what it has computed is computed.
  void keep_decisions();
  // Ends loads and encoding; the request may start again. What it has computed itself will not count as a hit then.
  void stop();
  // The request ends: the report is final.
  void finish();

 private:
  bool searches() const;
  void note_sources();
  void take_selected();
  void place();
  void find_embeddings();
  bool take_known(size_t image);
  bool awaits_others(int32_t n_done, Deadline until);
  void take_encoded(double ms);
  void take(size_t image, std::shared_ptr<const VisionOutput> output, CacheReport::Image::Encoder encoder);
  void forget_encoding();

  Engine& engine_;
  KvCaches& kv_;
  Request& request_;
  GenerateResult& result_;
  Sequence* sequence_ = nullptr;  // from start() on
  PromptImages images_;
  ImagesInTiers stored_;
  ImageClaims claims_;
  std::vector<VisionOutput> embeddings_;
  std::vector<std::shared_ptr<const VisionOutput>> shared_;                // that lie in the cache, too
  std::vector<std::pair<size_t, EngineCaches::LoadedEmbeddings>> coming_;  // by image
  std::deque<size_t> to_encode_;                                           // images
  std::unique_ptr<Model::Encoding> encoding_;                              // of the first of them; null: not begun
  double encoding_ms_ = 0;                                                 // of it, so far
  bool has_stalled_ = false;  // a step has waited in vain for KV that was to come
  std::vector<Request> origins_;
  std::set<Sha256Digest> origins_asked_;
  ImageCharges computed_;
  std::unique_ptr<ImagePlacement> reuse_;
};

}  // namespace vlcache
