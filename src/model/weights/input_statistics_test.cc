// What inputs weigh, by hand; and that each matrix that is quantised by weights is observed.
#include "model/weights/input_statistics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "base/at.h"
#include "model/contiguous_kv.h"
#include "model/model.h"
#include "ops/factory.h"
#include "tests/testing.h"

namespace vlcache {
namespace {

using testing::ElementsAre;
using testing::FloatEq;
using testing::HasSubstr;
using testing::IsEmpty;

Tensor input_rows(std::vector<float>& values, int64_t n_in) {
  return Tensor(values.data(), DType::kF32, {std::ssize(values) / n_in, n_in});
}

TEST(InputStatistics, MeanSquaresDrawnToTheMedian) {
  std::vector<float> first = {1, -2, 0, 3, -1, 0}, second = {2, 0, 0};
  InputStatistics inputs;
  inputs.add("m", input_rows(first, 3));
  inputs.add("m", input_rows(second, 3));
  // Squares 14, 5, 0 of 3 rows; their median, 5 / 3 a row, is seen 8 more times.
  const float usual = 8.0f * 5.0f / 3.0f;
  EXPECT_THAT(inputs.weights("m"),
              ElementsAre(FloatEq((14 + usual) / 11), FloatEq((5 + usual) / 11), FloatEq(usual / 11)));
  std::vector<bf16> halves;
  for (const float x : {1.0f, -2.0f, 0.0f, 3.0f, -1.0f, 0.0f, 2.0f, 0.0f, 0.0f}) halves.push_back(to_bf16(x));
  inputs.add("b", Tensor(halves.data(), DType::kBF16, {3, 3}));
  EXPECT_EQ(inputs.weights("b"), inputs.weights("m"));
  std::vector<float> zeros(6), broken = {1, std::numeric_limits<float>::infinity(), 0};
  inputs.add("zero", input_rows(zeros, 3));
  inputs.add("broken", input_rows(broken, 3));
  EXPECT_THAT(inputs.weights("zero"), IsEmpty());
  EXPECT_THAT(inputs.weights("unknown"), IsEmpty());
  EXPECT_THAT(error_of([&] { inputs.weights("broken"); }), HasSubstr("inputs of \"broken\" are infinite"));
  std::vector<float> sparse = {0, 0, 0, 0, 4};  // whose median is zero: a thousandth of the mean instead
  inputs.add("sparse", input_rows(sparse, 5));
  EXPECT_FLOAT_EQ(inputs.weights("sparse")[0], 8 * 0.0032f / 9);
}

TEST(InputStatistics, AnExpertOfFewRowsIsDrawnToItsRouter) {
  std::vector<float> all = {1, 2, 3, 2}, own = {3, 2};
  InputStatistics inputs;
  inputs.add("router", input_rows(all, 2));  // mean squares 5 and 4
  inputs.add("seen", input_rows(own, 2), "router");
  inputs.add("unseen", input_rows(own, 2).slice_rows(0, 0), "router");
  EXPECT_THAT(inputs.weights("seen"), ElementsAre(FloatEq((9 + 8 * 5) / 9.0f), FloatEq(4)));
  EXPECT_THAT(inputs.weights("unseen"), ElementsAre(FloatEq(5), FloatEq(4)));
  inputs.add("alone", input_rows(own, 2).slice_rows(0, 0));
  EXPECT_THAT(inputs.weights("alone"), IsEmpty());
}

// Runs n tokens through a model, with logits of all.
void compute_tokens(Model& model, int32_t n) {
  const TextConfig& text = model.config().text;
  std::vector<int32_t> ids(at(n)), places(at(n));
  std::iota(places.begin(), places.end(), 0);
  for (int32_t i = 0; i < n; ++i) ids[at(i)] = static_cast<int32_t>((i * 31 + i * i % 13) % text.vocab_size);
  ContiguousKv kv(text, model.backend(), KvCodec::kF32, 2 * n);
  Buffer x(n * text.hidden_size * 4), logits(n * text.vocab_size * 4);
  const std::vector<Position> positions = as_text(places);
  const std::vector<RowRun> runs = {{0, 0, n}};
  StepInput step;
  step.x = Tensor(x.data(), DType::kF32, {n, text.hidden_size});
  step.logits = Tensor(logits.data(), DType::kF32, {n, text.vocab_size});
  step.tokens = places, step.positions = positions, step.runs = runs, step.logit_rows = places, step.kv = &kv;
  model.embed(ids, step.x);
  model.forward(step);
}

TEST(InputStatistics, EveryWeighedMatrixIsObserved) {
  for (const char* name : {"llama-gqa4", "gpt2-tied", "baichuan2", "glm-ocr-two", "qwen3-vl-moe",
                           "qwen3-vl-moe-published", "qwen2.5-vl-text"}) {
    SCOPED_TRACE(name);
    const Checkpoint checkpoint(fixture_model(name));
    const auto backend = make_backend("auto", DType::kF32);
    const auto dense = Model::load(checkpoint, *backend);
    InputStatistics inputs;
    dense->observe_inputs(&inputs);
    compute_tokens(*dense, 21);
    dense->observe_inputs(nullptr);
    const InputStatistics whole = inputs;
    compute_tokens(*dense, 21);
    const auto quantised = Model::load(checkpoint, *backend, {.forms = {.text = WeightChoice::kInt4Plus}});
    int n_weighed = 0;
    for (const LoadedMatrix& matrix : quantised->weights().matrices) {
      if (!matrix.quantised || matrix.form.starts_with("8 bits")) continue;
      ++n_weighed;
      EXPECT_THAT(inputs.weights(matrix.name), testing::SizeIs(testing::Gt(0))) << matrix.name;
      EXPECT_EQ(inputs.weights(matrix.name), whole.weights(matrix.name)) << matrix.name;  // nothing was added
    }
    EXPECT_GE(n_weighed, 4 * dense->config().text.n_layers);
  }
}

}  // namespace
}  // namespace vlcache
