// ReuseTuner measures how much of a reused image a model has to recompute, in cases in which an image comes after
// another context than the one that its KV comes from (VLCache, arXiv:2512.12977).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "analysis/dataset.h"
#include "analysis/kv_error.h"
#include "engine/engine.h"
#include "engine/request.h"
#include "reuse/evidence/reuse_plan.h"
#include "reuse/image/image_kv.h"

namespace vlcache {

// A prompt whose images, except the first n_new of them, have been seen in other prompts: each alone, after the turn
// `first_before` if that is not empty, before another question.
struct ReuseCase {
  std::vector<std::filesystem::path> images;
  size_t n_new = 0;
  std::string before;  // a turn before the first image; empty: none
  std::string question;
  std::string first_before;
  std::string first_question;  // asked about each image before
  Metric metric = Metric::kExact;
  std::vector<std::string> right_answers;  // empty: not known
};

// A case for each of the samples with images, `n` at most, in an order that `seed` determines: no question counts
// twice. A single image is known from a prompt without a turn before it and stands after one, or the other way round,
// or after a new or a known image, in rotation; samples of several images keep them, each known from a prompt of its
// own.
std::vector<ReuseCase> make_reuse_cases(const std::vector<EvalSample>& samples, int32_t n, uint64_t seed);
// The same about images alone, with built-in questions.
std::vector<EvalSample> questions_about(const std::vector<std::filesystem::path>& images);

inline constexpr std::array kErrorShares{0.0, 0.1, 0.3};  // of the paper's Fig. 2

class ReuseTuner {
 public:
  // Empties the engine's cache for every case.
  ReuseTuner(Engine& engine, int32_t max_tokens) : engine_(engine), max_tokens_(max_tokens) {}

  int32_t max_tokens() const { return max_tokens_; }

  struct Profile {
    // [n_layers][n_levels] Mean squared difference of the logits, along the first tokens of the answer, from those of
    // full computation, if every layer loads the images' KV except one, which has the right K and V of the first
    // `level` of their tokens.
    std::vector<std::vector<double>> loss;
    // Of the last image: the error of the loaded tokens, then, for each of kErrorShares, of its tokens and those after
    // it as they are computed after images of which that share is right and the rest loaded.
    std::vector<KvError> errors;
  };
  // Throws Error(kInput) if --cache-ram does not hold the images.
  Profile profile(const ReuseCase& c, const std::vector<double>& levels);

  struct Answer {
    std::vector<int32_t> tokens;
    std::vector<std::vector<float>> logits;  // from which each token was chosen
  };
  // The case's greedy answer, everything computed.
  Answer full(const ReuseCase& c);
  // Of an answer to the case; 0 if right answers are not known.
  double score(const ReuseCase& c, std::span<const int32_t> tokens) const;

  struct Comparison {
    bool equal = false;  // the answers are equal, token for token
    double kl = 0;       // mean over the answer's tokens
    int gain = 0;        // the score of the answer rises (1) or falls (-1); 0 if right answers are not known
  };
  // The case under each of the choosers, compared with `full`.
  std::vector<Comparison> compare(const ReuseCase& c, const Answer& full, std::span<const ReuseChooserPtr> choosers);

  // Whether the cases' greedy answers are `answers` [n_cases] when they are computed together, nothing reused, and, if
  // prefill_chunk > 0, with that chunk.
  std::vector<bool> unchanged(std::span<const ReuseCase> cases, std::span<const std::vector<int32_t>> answers,
                              int32_t prefill_chunk);

 private:
  using Records = std::vector<std::shared_ptr<const ImageKv>>;  // by image; null: of a new image

  Prompt prompt(const ReuseCase& c) const;
  Request request(Prompt prompt, ReuseOptions reuse) const;
  Answer answer(Prompt prompt, ReuseOptions reuse, const std::vector<int32_t>* along);
  Records take(const Prompt& prompt, size_t n_new);
  void put(const Prompt& prompt, const Records& records);
  Records known(const ReuseCase& c, const Prompt& prompt);
  double distance(const Prompt& prompt, const Records& records, const Answer& full);
  std::unique_ptr<Sequence> compute(const Prompt& prompt, ReuseOptions reuse);
  KvError errors_after_loaded(const Prompt& prompt, const Sequence& right);

  Engine& engine_;
  int32_t max_tokens_;
};

}  // namespace vlcache
