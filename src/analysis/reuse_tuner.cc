// Ordinary requests, over a cache that holds the records of a case.
#include "analysis/reuse_tuner.h"

#include <algorithm>
#include <array>
#include <deque>
#include <nlohmann/json.hpp>
#include <random>

#include "analysis/forks.h"
#include "api/request_builder.h"
#include "base/error.h"
#include "base/numeric/divergence.h"
#include "engine/answer_text.h"
#include "engine/scheduler/scheduler.h"
#include "io/image/image.h"
#include "policy/registry.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr size_t kProfiledTokens = 8;  // of an answer
constexpr std::array<std::string_view, 3> kTextsBefore{
    "Here is a page.",
    "You are given a picture. Look at all of it before you answer, and answer in as few words as you can.",
    "The following was sent to us this morning by a customer who would like to know more about what it says. Please "
    "read it with care, from the first line to the last, and then reply to the question below it."};
constexpr size_t kPlaces = 5;  // in which a case's image may stand
constexpr std::array<std::string_view, 5> kQuestions{
    "What is this?", "Describe this picture.", "What does the text in this picture say?",
    "What is in the upper left corner?", "How many objects are there?"};

std::vector<int32_t> tokens_of_last_image(const Prompt& prompt) {
  const auto last = static_cast<int32_t>(prompt.images.size()) - 1;
  std::vector<int32_t> tokens;
  for (const ImageSpan& span : prompt.spans) {
    for (int32_t t = span.begin; span.image == last && t < span.end; ++t) tokens.push_back(t);
  }
  return tokens;
}

// The text before the images is a turn of its own: many templates put a message's images before its text.
OrderedJson conversation(std::string_view before, size_t n_images, std::string_view question) {
  const auto text = [](std::string_view t) { return OrderedJson{{"type", "text"}, {"text", t}}; };
  OrderedJson messages = OrderedJson::array(), content = OrderedJson::array();
  if (!before.empty()) {
    messages.push_back({{"role", "user"}, {"content", OrderedJson::array({text(before)})}});
    messages.push_back({{"role", "assistant"}, {"content", OrderedJson::array({text("Yes.")})}});
  }
  for (size_t i = 0; i < n_images; ++i) content.push_back({{"type", "image"}});
  content.push_back(text(question));
  messages.push_back({{"role", "user"}, {"content", std::move(content)}});
  return messages;
}

// The position at which the last image begins.
int32_t begin_of_last(const Prompt& prompt) { return tokens_of_last_image(prompt).front(); }

ReuseOptions recording() { return {.chooser = parse_reuse_chooser("static:r=1"), .required = true}; }

ReuseOptions loading() { return {.chooser = parse_reuse_chooser("static:r=0"), .required = true}; }

// The prompt with the first tokens of its answer, as many as a profile compares.
Prompt followed(const Prompt& prompt, std::span<const int32_t> answer) {
  Prompt longer = prompt.copy();
  for (size_t i = 0; i + 1 < std::min(kProfiledTokens, answer.size()); ++i) {
    longer.tokens.push_back(answer[i]);
    if (!longer.classes.empty()) longer.classes.push_back(TokenClass::kOther);
  }
  return longer;
}

// Computes the n reused tokens of one place, and loads the others.
class ComputeRange final : public ReuseChooser {
 public:
  ComputeRange(const TokenRun& place, int32_t n) : place_(place), n_(n) {}

  std::string name() const override {
    return "range:" + std::to_string(place_.begin) + "-" + std::to_string(place_.end);
  }
  RecomputePlan plan(int32_t n_layers, int32_t n_tokens) const override {
    return RecomputePlan::uniform(n_layers, std::min(1.0, static_cast<double>(n_) / n_tokens));
  }
  Preview preview(int32_t) const override { return {.first_layer = 0, .n_layers = 1, .reused_tokens = false}; }
  void score(const PreviewedLayer& seen, const Tensor& scores) const override {
    for (size_t i = 0; i < seen.tokens.size(); ++i) {
      scores.row<float>(0)[i] = place_.begin <= seen.tokens[i] && seen.tokens[i] < place_.end ? 1.0f : 0.0f;
    }
  }

 private:
  TokenRun place_;
  int32_t n_;
};

}  // namespace

std::vector<EvalSample> questions_about(const std::vector<std::filesystem::path>& images) {
  std::vector<EvalSample> samples;
  for (const std::filesystem::path& image : images) {
    for (const std::string_view question : kQuestions) {
      EvalSample& sample = samples.emplace_back();
      sample.images = {image};
      sample.turns = {{std::string(question), {}}};
    }
  }
  return samples;
}

std::vector<ReuseCase> make_reuse_cases(const std::vector<EvalSample>& samples, int32_t n, uint64_t seed) {
  std::vector<size_t> usable;
  for (size_t i = 0; i < samples.size(); ++i) {
    if (!samples[i].images.empty()) usable.push_back(i);
  }
  if (usable.size() < 2) throw Error(ErrorCode::kInput, "tuning reuse takes questions about two images at least");
  std::mt19937_64 random(seed);
  std::shuffle(usable.begin(), usable.end(), random);
  std::vector<ReuseCase> cases;
  for (size_t i = 0; i < std::min(usable.size(), static_cast<size_t>(n)); ++i) {
    const EvalSample& sample = samples[usable[i]];
    const EvalSample& other = samples[usable[(i + 1) % usable.size()]];
    ReuseCase& c = cases.emplace_back();
    c.images = sample.images;
    c.question = sample.turns[0].question;
    c.first_question = other.turns[0].question;
    c.metric = sample.metric;
    c.right_answers = sample.turns[0].answers;
    const std::string_view text = kTextsBefore[i / kPlaces % kTextsBefore.size()];
    const bool takes_another = sample.images.size() == 1 && other.images[0] != sample.images[0];
    switch (i % kPlaces) {
      case 0:  // first after a text, then without it
        c.first_before = text;
        break;
      case 1:  // beside a new page
      case 2:  // beside a known one
        if (!takes_another) {
          c.before = text;
          break;
        }
        c.images.insert(c.images.begin(), other.images[0]);
        c.n_new = i % kPlaces == 1 ? 1 : 0;
        break;
      default:  // first without a text, then after it
        c.before = text;
    }
  }
  return cases;
}

Prompt ReuseTuner::prompt(const ReuseCase& c) const {
  std::vector<Image> images;
  for (const std::filesystem::path& path : c.images) images.push_back(load_image(path));
  const size_t n = images.size();
  return prepare_chat(engine_, conversation(c.before, n, c.question), std::move(images));
}

Request ReuseTuner::request(Prompt prompt, ReuseOptions reuse) const {
  Request request;
  request.prompt = std::move(prompt);
  request.policy = parse_policy("full");
  request.reuse = std::move(reuse);
  request.options.max_tokens = max_tokens_;
  return request;
}

ReuseTuner::Answer ReuseTuner::answer(Prompt prompt, ReuseOptions reuse, const std::vector<int32_t>* along) {
  Answer answer;
  Request request = this->request(std::move(prompt), std::move(reuse));
  if (along != nullptr) request.options.max_tokens = static_cast<int32_t>(along->size());
  request.options.ignore_eos = along != nullptr;
  request.callbacks.choose = [&](std::span<float> logits) {
    answer.logits.emplace_back(logits.begin(), logits.end());
    return along == nullptr ? likeliest(logits) : (*along)[answer.logits.size() - 1];
  };
  const GenerateResult result = generate(engine_, std::move(request));
  for (const GeneratedToken& token : result.tokens) answer.tokens.push_back(token.id);
  return answer;
}

ReuseTuner::Answer ReuseTuner::full(const ReuseCase& c) { return answer(prompt(c), {}, nullptr); }

double ReuseTuner::score(const ReuseCase& c, std::span<const int32_t> tokens) const {
  return score_answer(c.metric, answer_text(engine_, tokens), c.right_answers);
}

// The records that the cache holds of a prompt's images.
ReuseTuner::Records ReuseTuner::take(const Prompt& prompt, size_t n_new) {
  Records records(prompt.images.size());
  for (size_t i = n_new; i < records.size(); ++i) {
    records[i] = engine_.kv().find_image_kv(image_key(prompt.images[i]));
    if (records[i] != nullptr) continue;
    throw Error(ErrorCode::kInput, "the KV of " + std::to_string(records.size()) +
                                       " images does not fit into the cache; --cache-ram gives it more room");
  }
  return records;
}

void ReuseTuner::put(const Prompt& prompt, const Records& records) {
  engine_.kv().forget_image_kv();
  for (size_t i = 0; i < records.size(); ++i) {
    if (records[i] == nullptr) continue;
    engine_.kv().put_image_kv(image_key(prompt.images[i]), records[i]);
  }
}

// The records of the images, each computed as it was seen before.
ReuseTuner::Records ReuseTuner::known(const ReuseCase& c, const Prompt& prompt) {
  engine_.kv().forget_image_kv();
  for (size_t i = c.n_new; i < c.images.size(); ++i) {
    Request request;
    request.prompt =
        prepare_chat(engine_, conversation(c.first_before, 1, c.first_question), std::vector{load_image(c.images[i])});
    if (i + 1 == c.images.size() && begin_of_last(request.prompt) == begin_of_last(prompt)) {
      throw Error(ErrorCode::kInput,
                  "the chat template puts an image where it stands alone, whatever is said before it");
    }
    request.policy = parse_policy("full");
    request.reuse = recording();
    request.options.max_tokens = 0;
    generate(engine_, std::move(request));
  }
  return take(prompt, c.n_new);
}

// The difference of the logits along the first tokens of the full answer: they are appended to the prompt, and all
// tokens that are not loaded are one prefill.
double ReuseTuner::distance(const Prompt& prompt, const Records& records, const Answer& full) {
  put(prompt, records);
  const size_t n = std::min(kProfiledTokens, full.tokens.size());
  Request request;
  request.prompt = followed(prompt, full.tokens);
  request.policy = parse_policy("full");
  request.reuse = loading();
  request.options.max_tokens = 0;
  const int32_t first = prompt.n_tokens() - 1;
  double sum = 0;
  request.callbacks.on_logits = [&](int32_t begin, const Tensor& logits) {
    for (int64_t i = 0; i < logits.rows(); ++i) {
      if (begin + i < first) continue;
      const std::vector<float>& right = full.logits[static_cast<size_t>(begin + i - first)];
      double square = 0;
      for (size_t j = 0; j < right.size(); ++j) {
        const double d = logits.row<float>(i)[j] - right[j];
        square += d * d;
      }
      sum += square / static_cast<double>(right.size());
    }
  };
  const GenerateResult result = generate(engine_, std::move(request));
  for (size_t i = 0; i < records.size(); ++i) {
    CHECK((result.cache.images[i].source == CacheReport::Image::Source::kRam) == (records[i] != nullptr));
  }
  return sum / static_cast<double>(n);
}

// The prompt's sequence, computed with what the cache holds.
std::unique_ptr<Sequence> ReuseTuner::compute(const Prompt& prompt, ReuseOptions reuse) {
  std::unique_ptr<Sequence> sequence = engine_.new_sequence(prompt, parse_policy("full"));
  Request request;
  request.prompt = prompt.copy();
  request.sequence = sequence.get();
  request.reuse = std::move(reuse);
  request.options.max_tokens = 0;
  generate(engine_, std::move(request));
  return sequence;
}

// Errors of the last image, at every second place, and of the tokens after it: computed after the cached tokens of the
// image. The tokens of a place are computed together, earlier tokens are loaded.
KvError ReuseTuner::errors_after_loaded(const Prompt& prompt, const Sequence& right) {
  const std::vector<int32_t> tokens = tokens_of_last_image(prompt);
  const TokenRun image{tokens.front(), tokens.back() + 1};
  const auto error = [&](ReuseOptions reuse, const TokenRun& counted) {
    const std::unique_ptr<Sequence> sequence = compute(prompt, std::move(reuse));
    return kv_error(engine_.backend(), sequence->cache(), right.cache(), image, counted);
  };
  KvError sum = error(loading(), {image.end, prompt.n_tokens()});
  for (size_t place = 0; place < KvError::kPlacesOfImage; place += 2) {
    const size_t first = place * tokens.size() / KvError::kPlacesOfImage;
    const size_t after = (place + 1) * tokens.size() / KvError::kPlacesOfImage;
    if (first == after) continue;
    const TokenRun piece{tokens[first], tokens[after - 1] + 1};
    const auto chooser = std::make_shared<ComputeRange>(piece, static_cast<int32_t>(after - first));
    sum.add(error({.chooser = chooser, .required = true}, piece));
  }
  return sum;
}

ReuseTuner::Profile ReuseTuner::profile(const ReuseCase& c, const std::vector<double>& levels) {
  const Prompt prompt = this->prompt(c);
  engine_.kv().forget_image_kv();
  const Answer full = answer(prompt.copy(), recording(), nullptr);
  const Records right = take(prompt, c.n_new), old = known(c, prompt);
  std::vector<std::shared_ptr<ImageKv>> mixed(old.size());  // right in one layer up to a level, elsewhere as before
  const auto copy = [&](const Records& from, int32_t layer, double level) {
    for (size_t i = 0; i < mixed.size(); ++i) {
      if (mixed[i] == nullptr) continue;
      const int32_t n = RecomputePlan({level}).n_tokens(0, mixed[i]->n_tokens());
      mixed[i]->take_rows(*from[i], layer, n);
    }
  };
  for (size_t i = 0; i < old.size(); ++i) {
    if (old[i] == nullptr) continue;
    mixed[i] = std::make_shared<ImageKv>(engine_.kv_shape(), engine_.options().cache_form, old[i]->n_tokens());
  }
  const int32_t n_layers = engine_.kv_shape().n_layers();
  for (int32_t layer = 0; layer < n_layers; ++layer) copy(old, layer, 1);
  const Records records(mixed.begin(), mixed.end());
  const double base = distance(prompt, records, full);
  Profile found;
  for (int32_t layer = 0; layer < n_layers; ++layer) {
    std::vector<double>& of_layer = found.loss.emplace_back();
    for (const double level : levels) {
      copy(right, layer, level);
      of_layer.push_back(level > 0 ? distance(prompt, records, full) : base);
    }
    copy(old, layer, 1);
  }
  const Prompt longer = followed(prompt, full.tokens);
  engine_.kv().forget_image_kv();
  const std::unique_ptr<Sequence> all_computed = compute(longer, {});
  put(prompt, records);
  const std::vector<int32_t> tokens = tokens_of_last_image(longer);
  const TokenRun image{tokens.front(), tokens.back() + 1};
  found.errors.push_back(
      kv_error(engine_.backend(), compute(longer, loading())->cache(), all_computed->cache(), image, image));
  for (const double share : kErrorShares) {
    for (int32_t layer = 0; layer < n_layers; ++layer) copy(right, layer, share);
    put(prompt, records);
    found.errors.push_back(errors_after_loaded(longer, *all_computed));
  }
  return found;
}

std::vector<ReuseTuner::Comparison> ReuseTuner::compare(const ReuseCase& c, const Answer& full,
                                                        std::span<const ReuseChooserPtr> choosers) {
  const Prompt prompt = this->prompt(c);
  const Records records = known(c, prompt);
  std::vector<Comparison> comparisons;
  for (const ReuseChooserPtr& chooser : choosers) {
    const ReuseOptions reuse{.chooser = chooser, .required = true};
    put(prompt, records);
    Answer reused = answer(prompt.copy(), reuse, &full.tokens);
    Comparison& found = comparisons.emplace_back(Comparison{.equal = true});
    for (size_t i = 0; i < full.logits.size(); ++i) {
      std::vector<float> p = full.logits[i], &q = reused.logits[i];
      found.equal = found.equal && likeliest(q) == full.tokens[i];
      log_softmax(p);
      log_softmax(q);
      found.kl += divergence(p, q) / static_cast<double>(full.logits.size());
    }
    if (found.equal || c.right_answers.empty()) continue;
    put(prompt, records);
    const double old_score = score(c, full.tokens),
                 score = this->score(c, answer(prompt.copy(), reuse, nullptr).tokens);
    found.gain = score > old_score ? 1 : score < old_score ? -1 : 0;
  }
  return comparisons;
}

std::vector<bool> ReuseTuner::unchanged(std::span<const ReuseCase> cases, std::span<const std::vector<int32_t>> answers,
                                        int32_t prefill_chunk) {
  std::vector<Request> requests;
  std::vector<size_t> n_chosen(cases.size(), 0);
  std::deque<bool> same(cases.size(), true);
  for (size_t i = 0; i < cases.size(); ++i) {
    Request& request = requests.emplace_back(this->request(prompt(cases[i]), {}));
    request.options.max_tokens = static_cast<int32_t>(answers[i].size());
    request.options.ignore_eos = true;
    request.callbacks.choose = [&, i](std::span<float> logits) {
      const int32_t right = answers[i][n_chosen[i]++];
      same[i] = same[i] && likeliest(logits) == right;
      return right;
    };
    request.callbacks.cancelled = [&, i] { return !same[i]; };  // the rest of the answer does not matter
  }
  for (const GenerateResult& result : generate(engine_, std::move(requests), {.prefill_chunk = prefill_chunk})) {
    if (result.error) throw *result.error;
  }
  return {same.begin(), same.end()};
}

}  // namespace vlcache
