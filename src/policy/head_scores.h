// Head scores: how much each kv head looks back, as measured by a probe or learnt in training. They decide which heads
// keep everything (razor, duo).
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "policy/policy.h"

namespace vlcache {

class Parameters;

inline constexpr std::string_view kHeadFileName = "heads.json";  // beside a model

// [n_layers][n_kv_heads], the best of each group of query heads.
using HeadMatrix = std::vector<std::vector<float>>;

struct HeadScores {
  std::string model{};   // ModelFiles::fingerprint; empty: unknown
  HeadMatrix echo;       // mean attention to the same token, one period back; empty: unknown
  HeadMatrix induction;  // to its successor; or another measure of how much the head needs the whole context
};

// Reads the output of head_scores_json, or DuoAttention's full_attention_heads.tsv: a line of numbers per layer, a
// number per kv head. Throws Error(kInput) naming `where` for any other text, and for numbers that are not finite.
HeadScores parse_head_scores(std::string_view text, std::string_view where);
std::string head_scores_json(const HeadScores& scores);

// The file of parameter `heads`, by default heads.json beside the model. If it is missing or was made for another
// model, throws Error(kInput) that names the command that makes one.
struct HeadFile {
  std::string path;
  HeadScores scores;
};
HeadFile read_head_file(Parameters& p);

// The set of heads that keep everything.
class HeadSet {
 public:
  explicit HeadSet(const HeadMatrix& shape);
  // Adds the `n` heads of the largest scores; of equals the later one.
  void add_best(const HeadMatrix& scores, int64_t n);
  bool has(int32_t layer, int32_t head) const { return in_[static_cast<size_t>(layer)][static_cast<size_t>(head)]; }
  int64_t n_heads() const;  // number of heads, in the set or not
  // Throws Error(kInput) naming `file` unless the model has the same layers and kv heads.
  void check_fits(const PolicySlots& slots, const std::string& file) const;

 private:
  std::vector<std::vector<bool>> in_;
};

}  // namespace vlcache
