#include "model/generation_rules.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/request_limits.h"

namespace vlcache {
namespace {

// Ids in bad_words_ids: every word is looked at before each token.
constexpr size_t kMaxBadWordIds = size_t{1} << 20;

// Keys that change answers and are not applied, with the number that changes nothing; null, false, 0, "", [] and {}
// change nothing either. num_beams and penalty_alpha stand for the keys that need them.
struct UnappliedKey {
  const char* name;
  double neutral = 0;
  bool sampling = false;  // changes answers with do_sample alone
};
constexpr std::array kUnappliedKeys = std::to_array<UnappliedKey>({
    {"num_beams", 1},
    {"num_beam_groups", 1},
    {"diversity_penalty"},
    {"penalty_alpha"},
    {"dola_layers"},
    {"typical_p", 1, true},
    {"epsilon_cutoff", 0, true},
    {"eta_cutoff", 0, true},
    {"top_h", 0, true},
    {"min_length"},
    {"min_new_tokens"},
    {"max_time"},
    {"encoder_repetition_penalty", 1},
    {"encoder_no_repeat_ngram_size"},
    {"force_words_ids"},
    {"constraints"},
    {"forced_decoder_ids"},
    {"forced_eos_token_id"},
    {"exponential_decay_length_penalty"},
    {"sequence_bias"},
    {"token_healing"},
    {"guidance_scale", 1},
    {"watermarking_config"},
});

bool changes_nothing(const Json& value, double neutral) {
  if (value.is_number()) return value == 0 || value == neutral;
  return value == false || value == "" || (value.is_structured() && value.empty());
}

// The ids of a list that are in the vocabulary; nullopt: it is no list of ids.
std::optional<std::vector<int32_t>> ids_in(const Json& list, int64_t vocab_size) {
  if (!list.is_array()) return std::nullopt;
  std::vector<int32_t> ids;
  for (const Json& id : list) {
    if (!id.is_number_integer()) return std::nullopt;
    const double x = id.get<double>();
    if (x >= 0 && x < static_cast<double>(vocab_size)) ids.push_back(id.get<int32_t>());
  }
  return ids;
}

class RuleReader {
 public:
  RuleReader(const JsonObject& file, int64_t vocab_size, std::vector<std::string>& not_applied)
      : file_(file), vocab_size_(vocab_size), not_applied_(not_applied) {}

  std::vector<int32_t> tokens(const char* key) const {
    const Json* value = file_.find(key);
    if (value == nullptr) return {};
    std::optional<std::vector<int32_t>> ids = ids_in(value->is_array() ? *value : Json::array({*value}), vocab_size_);
    if (!ids) return refuse(key, "not a list of token ids"), std::vector<int32_t>();
    std::ranges::sort(*ids);
    ids->erase(std::unique(ids->begin(), ids->end()), ids->end());
    return *std::move(ids);
  }

  std::vector<std::string> texts(const char* key) const {
    const Json* value = file_.find(key);
    std::vector<std::string> texts;
    if (value == nullptr) return texts;
    size_t n_bytes = 0;
    for (const Json& text : value->is_array() ? *value : Json::array({*value})) {
      if (!text.is_string()) return refuse(key, "not a list of texts"), std::vector<std::string>();
      n_bytes += texts.emplace_back(text.get<std::string>()).size();
    }
    if (texts.size() <= kMaxStops && n_bytes <= kMaxStopBytes) return texts;
    return refuse(key, "too many texts"), std::vector<std::string>();
  }

  // Words with an id outside the vocabulary can never be generated.
  std::vector<std::vector<int32_t>> words(const char* key) const {
    const Json* value = file_.find(key);
    std::vector<std::vector<int32_t>> words;
    if (value == nullptr) return words;
    size_t n_ids = 0;
    for (const Json& word : value->is_array() ? *value : Json::array({*value})) {
      std::optional<std::vector<int32_t>> ids = ids_in(word, vocab_size_);
      if (!ids) return refuse(key, "not a list of lists of token ids"), std::vector<std::vector<int32_t>>();
      n_ids += ids->size();
      if (!ids->empty() && ids->size() == word.size()) words.push_back(*std::move(ids));
    }
    if (n_ids <= kMaxBadWordIds) return words;
    return refuse(key, "too many token ids"), std::vector<std::vector<int32_t>>();
  }

  std::optional<int32_t> count(const char* key) const {
    const Json* value = file_.find(key);
    if (value == nullptr) return std::nullopt;
    const double x = value->is_number() ? value->get<double>() : NAN;
    if (x == std::floor(x) && x >= 0 && x <= INT32_MAX) return static_cast<int32_t>(x);
    refuse(key, "not an integer >= 0");
    return std::nullopt;
  }

 private:
  void refuse(const char* key, const char* why) const { not_applied_.push_back(std::string(key) + " (" + why + ")"); }

  const JsonObject& file_;
  const int64_t vocab_size_;
  std::vector<std::string>& not_applied_;
};

}  // namespace

void read_generation_rules(const JsonObject& file, int64_t vocab_size, GenerationDefaults& defaults) {
  const RuleReader reader(file, vocab_size, defaults.not_applied);
  defaults.stop_strings = reader.texts("stop_strings");
  defaults.suppress_tokens = reader.tokens("suppress_tokens");
  defaults.begin_suppress_tokens = reader.tokens("begin_suppress_tokens");
  defaults.bad_words_ids = reader.words("bad_words_ids");
  defaults.no_repeat_ngram_size = reader.count("no_repeat_ngram_size");
  for (const UnappliedKey& key : kUnappliedKeys) {
    const Json* value = file.find(key.name);
    if (value == nullptr || (key.sampling && !defaults.do_sample)) continue;
    if (!changes_nothing(*value, key.neutral)) defaults.not_applied.emplace_back(key.name);
  }
}

}  // namespace vlcache
