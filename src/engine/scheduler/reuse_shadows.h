// ReuseShadows compares answers that were given with what reuse, or full computation in another order, would have
// answered: while the engine is idle, by requests that leave no trace (Shadow), one step at a time.
#pragma once

#include <deque>
#include <memory>

#include "engine/engine.h"
#include "engine/request.h"
#include "reuse/evidence/reuse_counts.h"

namespace vlcache {

// Called by the thread that drives the engine.
class ReuseShadows {
 public:
  // Both outlive this.
  ReuseShadows(Engine& engine, ReuseCountsByCodec& counts);
  ~ReuseShadows();

  // Queues an answer to compare (GenerateCallbacks::on_answered); the oldest is given up if too many wait.
  void add(AnsweredPrompt answered);
  bool idle() const { return queue_.empty(); }
  // One step of the first in the queue: of a few rows, so that a request that comes meanwhile waits for a moment. An
  // answer is compared token for token along the answer that was given; one of four with full computation in pieces of
  // another size, for the noise floor, the others with reuse. Given up where memory has not all that it takes: the
  // images' embeddings and KV, and room for the sequences.
  void step();
  // Frees all KV of the comparison under way, which begins again with the next step.
  void abandon();

 private:
  class Comparison;
  bool possible(const AnsweredPrompt& answered) const;
  int32_t n_rows() const;

  Engine& engine_;
  ReuseCountsByCodec& counts_;
  struct Waiting {
    AnsweredPrompt answered;
    int n_abandoned = 0;
  };
  std::deque<Waiting> queue_;
  std::unique_ptr<Comparison> comparison_;  // of the first of them; null: not begun
  int64_t n_compared_ = 0;
};

}  // namespace vlcache
