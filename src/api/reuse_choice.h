// ReuseChoice: the meaning of --reuse for a model: whether it has a reuse plan, for which model, form of images' KV and
// codec of KV, and how well the plan's answers agreed.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/contracts/model_files.h"
#include "base/kv_codec_name.h"
#include "engine/request.h"
#include "reuse/evidence/reuse_counts.h"
#include "reuse/evidence/reuse_plan.h"
#include "reuse/image/image_kv_form.h"

namespace vlcache {

class Engine;

// Throws Error(kInput) unless it is auto, off, exact, or a chooser (parse_reuse_chooser).
void check_reuse(std::string_view how);

struct ReuseFlags {
  std::string how = "auto";
  std::string plan;          // empty: reuse_plan.json beside the model
  double margin = 0.01;      // GateRule::margin: what `auto` lets reuse change beyond the noise floor
  std::string former_bound;  // --reuse-bound, an error that names --reuse-margin
  bool keep_exact = false;   // --cache-exact
  std::string origin = "first";
  double shadow = 0.05;  // share of requests that are compared once the verdict is in; 0: none ever are
};

// How a model answers, as far as evidence of reuse depends on it.
struct AnsweringForm {
  std::string weights = "dense";      // Model::weights_form
  KvCodec values = KvCodec::kBF16;    // value_codec
  KvCodec kv_codec = KvCodec::kBF16;  // default of requests
};

class ReuseChoice {
 public:
  // Reads the plan if there is one. Throws Error(kInput) for a plan that was named and cannot be used. `form`: of the
  // KV to be reused; `answering` is called if there is a plan of this model: it reads files.
  ReuseChoice(const ReuseFlags& flags, const ModelFiles& model, const ImageKvForm& form,
              const std::function<AnsweringForm()>& answering);

  // `auto` goes by what servers count while they run (ReuseCounts) where no plan decides: opens the counts of this
  // engine's model, in `folder` (--cache-disk), or in memory if that is empty. `compares`: this process counts, too.
  // Before any other thread uses this object.
  void open_counts(const Engine& engine, const std::filesystem::path& folder, bool compares);
  // Null: this process counts nothing.
  ReuseCountsByCodec* counts() const { return compares_ ? counts_.get() : nullptr; }

  // For a prompt with that many images, whose KV has the codec.
  ReuseOptions options(std::string_view how, size_t n_images, KvCodec codec) const;
  // What was measured of answers under --reuse, by requests that name no codec, and what follows from it, in lines; "":
  // images are not reused.
  std::string explanation() const;
  // The same in a line: of a plan that decides, without the counts.
  std::string in_short() const;

 private:
  bool counts_speak() const;
  bool has_plan(KvCodec codec) const { return plan_ && plan_->form == form_ && plan_codec_ == codec; }
  bool decides(KvCodec codec) const;
  std::string other_codec_text(KvCodec codec) const;
  std::unique_ptr<ReuseCounts> make_counts(const Engine& engine, const std::filesystem::path& folder,
                                           KvCodec codec) const;
  ReuseOptions counted_options(ReuseOptions exact, size_t n_images, KvCodec codec) const;

  std::string how_;
  GateRule rule_;
  bool keep_exact_;
  ReuseOrigin origin_;
  std::string form_;
  KvCodec codec_ = KvCodec::kBF16;  // default of requests; without a plan, as open_counts finds it
  std::optional<ReusePlan> plan_;
  KvCodec plan_codec_ = KvCodec::kBF16;
  PlanVerdict verdict_;   // of the plan
  std::string why_none_;  // why there is no plan
  double shadow_;
  bool compares_ = false;
  std::unique_ptr<ReuseCountsByCodec> counts_;  // null: never opened
  // Requests that could be compared, since the verdict was in.
  mutable std::atomic<uint64_t> n_comparable_ = 0;
};

}  // namespace vlcache
