// RequestProgress tells a request's client how far the work before its first token is (GenerateCallbacks::on_progress).
#pragma once

#include <cstdint>
#include <exception>
#include <vector>

#include "engine/engine.h"
#include "engine/request.h"
#include "engine/scheduler/image_jobs.h"
#include "engine/scheduler/progress_meter.h"

namespace vlcache {

// FLOPs of the layers for n_rows tokens of a sequence after n_before others. The weights are read once for all rows of
// a step: few cost as much as kFewRows.
inline constexpr double kFewRows = 8;
double rows_flops(const TextConfig& config, double n_before, double n_rows);

// Does nothing where no client listens.
class RequestProgress {
 public:
  // Both outlive this object. The first call of another member comes when the images have been listed.
  RequestProgress(Engine& engine, const Request& request) : engine_(engine), request_(request) {}

  // Whether the client is still to be told: there is no token yet.
  bool wanted() const { return request_.callbacks.on_progress != nullptr && !finished_; }

  // ---- while the request is queued --------------------------------------------------------------------------------
  // Other requests are computed first. Throws the client's errors, as all members do but layers_done().
  void wait();
  // It is about to start: a policy may choose among the image tokens first, for which the images are encoded.
  void start();
  // After start(): these requests are computed first, for this one alone; the share of one of them.
  void await_origins(const std::vector<Request>& origins, const Sequence& sequence);
  void origin_computes(size_t origin, double share);

  // ---- while it runs ----------------------------------------------------------------------------------------------
  // Its sequence has the cached KV, and its images are listed.
  void begin(const Sequence& sequence, const ImageJobs& images, int32_t n_cached);
  // A step of the encoder has done this work.
  void encoded(const ComputeWork& done);
  // The work that is left may have changed otherwise: an image was found in a cache.
  void look(const Sequence& sequence, const ImageJobs& images);
  // A step of this item is about to run, and has run.
  void begin_step(const StepItem& item, const ImageJobs& images);
  void layers_done(double share) noexcept;
  void end_step(const Sequence& sequence, const ImageJobs& images);
  // The first token is about to be chosen.
  void finish();

 private:
  struct Origin {
    double flops = 0, share = 0;
  };
  void tell(bool waiting = false);
  ComputeWork left(const Sequence& sequence, const ImageJobs& images) const;
  double lookahead_flops(const Sequence& sequence) const;

  Engine& engine_;
  const Request& request_;
  ProgressMeter meter_;
  ComputeWork left_;             // as of the last look
  double step_flops_ = 0;        // all rows of the running step
  double lookahead_left_ = 0;    // FLOPs
  bool looks_ahead_ = false;     // the step computes lookahead tokens
  bool previews_ = false;        // the step's tokens are computed once more
  std::vector<Origin> origins_;  // that it waits for
  std::exception_ptr error_;     // the client's, thrown while a step ran
  PromptProgress told_;
  bool finished_ = false;
};

}  // namespace vlcache
