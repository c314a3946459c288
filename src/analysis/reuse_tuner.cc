// Requests like any others, over a cache that holds what a case says.
#include "analysis/reuse_tuner.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <random>

#include "analysis/divergence.h"
#include "analysis/forks.h"
#include "base/error.h"
#include "engine/batch.h"
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
constexpr std::array<std::string_view, 5> kQuestions{
    "What is this?", "Describe this picture.", "What does the text in this picture say?",
    "What is in the upper left corner?", "How many objects are there?"};

OrderedJson message(std::string_view before, size_t n_images, std::string_view question) {
  OrderedJson content = OrderedJson::array();
  if (!before.empty()) content.push_back({{"type", "text"}, {"text", before}});
  for (size_t i = 0; i < n_images; ++i) content.push_back({{"type", "image"}});
  content.push_back({{"type", "text"}, {"text", question}});
  return OrderedJson::array({{{"role", "user"}, {"content", std::move(content)}}});
}

ReuseOptions recording() { return {.chooser = parse_reuse_chooser("static:r=1"), .required = true}; }

}  // namespace

std::vector<EvalSample> questions_about(const std::vector<std::filesystem::path>& images) {
  std::vector<EvalSample> samples;
  for (const std::filesystem::path& image : images) {
    for (const std::string_view question : kQuestions) {
      EvalSample& sample = samples.emplace_back();
      sample.images = {image};
      sample.turns = {{std::string(question), {""}}};
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
  for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
    const EvalSample& sample = samples[usable[i % usable.size()]];
    const EvalSample& other = samples[usable[(i + 1 + i / usable.size()) % usable.size()]];
    ReuseCase& c = cases.emplace_back();
    c.images = sample.images;
    c.question = sample.turns[0].question;
    c.first_question = other.turns[0].question;
    const size_t turn = (i + i / usable.size()) % (kTextsBefore.size() + 2);
    if (turn < kTextsBefore.size() || sample.images.size() > 1 || other.images[0] == sample.images[0]) {
      c.before = kTextsBefore[turn % kTextsBefore.size()];
      continue;
    }
    c.images.insert(c.images.begin(), other.images[0]);
    c.n_new = turn == kTextsBefore.size() ? 1 : 0;
  }
  return cases;
}

Prompt ReuseTuner::prompt(const ReuseCase& c) const {
  std::vector<Image> images;
  for (const std::filesystem::path& path : c.images) images.push_back(load_image(path));
  const size_t n = images.size();
  return engine_.prepare_chat(message(c.before, n, c.question), std::move(images));
}

ReuseTuner::Answer ReuseTuner::answer(Prompt prompt, ReuseOptions reuse, const std::vector<int32_t>* along) {
  Answer answer;
  Request request;
  request.prompt = std::move(prompt);
  request.policy = parse_policy("full");
  request.reuse = std::move(reuse);
  request.options.max_tokens = along == nullptr ? max_tokens_ : static_cast<int32_t>(along->size());
  request.options.ignore_eos = along != nullptr;
  request.callbacks.choose = [&](std::span<float> logits) {
    answer.logits.emplace_back(logits.begin(), logits.end());
    return along == nullptr ? likeliest(logits) : (*along)[answer.logits.size() - 1];
  };
  const GenerateResult result = generate(engine_, std::move(request));
  for (const GeneratedToken& token : result.tokens) answer.tokens.push_back(token.id);
  return answer;
}

// What the cache holds of a prompt's images.
ReuseTuner::Records ReuseTuner::take(const Prompt& prompt, size_t n_new) {
  Records records(prompt.images.size());
  for (size_t i = n_new; i < records.size(); ++i) {
    records[i] = engine_.image_kv().find<ImageKv>(image_key(prompt.images[i]));
    if (records[i] != nullptr) continue;
    throw Error(ErrorCode::kInput, "the KV of " + std::to_string(records.size()) +
                                       " images does not fit into the cache; --cache-ram gives it more room");
  }
  return records;
}

void ReuseTuner::put(const Prompt& prompt, const Records& records) {
  engine_.image_kv().clear();
  for (size_t i = 0; i < records.size(); ++i) {
    if (records[i] == nullptr) continue;
    engine_.image_kv().put(image_key(prompt.images[i]), records[i], records[i]->bytes(), /*cost=*/1);
  }
}

// As each image has been seen before.
ReuseTuner::Records ReuseTuner::known(const ReuseCase& c, const Prompt& prompt) {
  engine_.image_kv().clear();
  for (size_t i = c.n_new; i < c.images.size(); ++i) {
    Request request;
    request.prompt = engine_.prepare_chat(message("", 1, c.first_question), {load_image(c.images[i])});
    request.policy = parse_policy("full");
    request.reuse = recording();
    request.options.max_tokens = 0;
    generate(engine_, std::move(request));
  }
  return take(prompt, c.n_new);
}

// Of the logits along the first tokens of the full answer: the prompt is followed by them, and all that is not loaded
// is one prefill.
double ReuseTuner::distance(const Prompt& prompt, const Records& records, const Answer& full) {
  put(prompt, records);
  const size_t n = std::min(kProfiledTokens, full.tokens.size());
  Request request;
  request.prompt = prompt.copy();
  for (size_t i = 0; i + 1 < n; ++i) {
    request.prompt.tokens.push_back(full.tokens[i]);
    if (!request.prompt.classes.empty()) request.prompt.classes.push_back(TokenClass::kOther);
  }
  request.policy = parse_policy("full");
  request.reuse = {.chooser = parse_reuse_chooser("static:r=0"), .required = true};
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

std::vector<std::vector<double>> ReuseTuner::profile(const ReuseCase& c, const std::vector<double>& levels) {
  const Prompt prompt = this->prompt(c);
  engine_.image_kv().clear();
  const Answer full = answer(prompt.copy(), recording(), nullptr);
  const Records right = take(prompt, c.n_new), old = known(c, prompt);
  std::vector<std::shared_ptr<ImageKv>> mixed(old.size());  // in one layer right up to a level, elsewhere as before
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
  std::vector<std::vector<double>> loss;
  for (int32_t layer = 0; layer < n_layers; ++layer) {
    std::vector<double>& of_layer = loss.emplace_back();
    for (const double level : levels) {
      copy(right, layer, level);
      of_layer.push_back(level > 0 ? distance(prompt, records, full) : base);
    }
    copy(old, layer, 1);
  }
  return loss;
}

ReuseTuner::Comparison ReuseTuner::compare(const ReuseCase& c, ReuseChooserPtr chooser) {
  const Prompt prompt = this->prompt(c);
  Answer full = answer(prompt.copy(), {}, nullptr);
  put(prompt, known(c, prompt));
  Answer reused = answer(prompt.copy(), {.chooser = std::move(chooser), .required = true}, &full.tokens);
  Comparison comparison{.equal = true};
  for (size_t i = 0; i < full.logits.size(); ++i) {
    std::vector<float>&p = full.logits[i], &q = reused.logits[i];
    comparison.equal = comparison.equal && likeliest(q) == full.tokens[i];
    log_softmax(p);
    log_softmax(q);
    comparison.kl += divergence(p, q) / static_cast<double>(full.logits.size());
  }
  return comparison;
}

}  // namespace vlcache
