// A prefill whose hooks observe two slots of every row.
#include "analysis/head_probe.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "base/error.h"
#include "base/os/threads.h"
#include "engine/sequence/sequence.h"
#include "io/tokenizer/tokenizer.h"
#include "policy/registry.h"

namespace vlcache {
namespace {

constexpr int32_t kPaperPeriod = 2500;

// Attention of tokens from `first` on to the slots one period before them, summed per query head.
class ProbeHooks final : public LayerHooks {
 public:
  ProbeHooks(Backend& backend, int32_t n_layers, int32_t first, int32_t period)
      : backend_(backend), first_(first), period_(period), layers_(static_cast<size_t>(n_layers)) {}

  bool after_attention(int layer, const Observed& observed, std::vector<int32_t>&) override {
    const auto begin = std::ranges::lower_bound(observed.tokens, first_) - observed.tokens.begin();
    const int64_t n = std::ssize(observed.tokens) - begin;
    if (n == 0) return false;
    const Tensor q = observed.q.slice_rows(begin, begin + n);
    const int64_t n_heads = q.dim(1), d = q.dim(2), group = n_heads / observed.views.back().n_kv_heads;
    const KvView& view = observed.views.back();
    Sums& sums = layers_[static_cast<size_t>(layer)];
    sums.echo.resize(static_cast<size_t>(n_heads));
    sums.induction.resize(static_cast<size_t>(n_heads));
    // The rows' sums of exponentials equal attention's own; its output is not used.
    const Buffer storage(n * n_heads * (d * (dtype_bytes(q.dtype) + 4) + 4));
    const Tensor out(storage.data(), q.dtype, {n, n_heads, d});
    const Tensor rows(storage.data() + out.bytes(), DType::kF32, {n, n_heads * d});
    const Tensor lse(rows.as<float>() + rows.numel(), DType::kF32, {n, n_heads});
    const AttentionSeq seq{.row_begin = 0, .n_rows = static_cast<int32_t>(n), .kv = view};
    const AttentionArgs args{.scale = observed.scale,
                             .window = observed.window,
                             .positions = observed.tokens.data() + begin,
                             .lse = lse,
                             .sink_logits = observed.sink_logits};
    backend_.attention(q, {&seq, 1}, args, out);
    backend_.convert(q.view({n, n_heads * d}), rows);
    std::vector<int32_t> slots(static_cast<size_t>(n + 1));  // of the rows one period before, and of the one after them
    std::iota(slots.begin(), slots.end(), observed.tokens[static_cast<size_t>(begin)] - period_);
    std::vector<float> all_keys(static_cast<size_t>(view.n_kv_heads * (n + 1) * d));
    const Tensor keys(all_keys.data(), DType::kF32, {view.n_kv_heads * (n + 1), d});
    const auto keys_of = [&](int64_t head) { return keys.slice_rows(head * (n + 1), (head + 1) * (n + 1)); };
    // Slots that are not held lie before the layer's window.
    const auto held = std::ranges::find_if(slots, [&](int32_t slot) { return view.holds(0, slot / kPageSlots); });
    const int64_t n_missing = held - slots.begin();
    for (int head = 0; head < view.n_kv_heads; ++head) {
      backend_.kv_read(view, head, {held, slots.end()}, keys_of(head).slice_rows(n_missing, n + 1), Tensor());
    }
    parallel_for(view.n_kv_heads, [&](int64_t head, int) {
      const Tensor k = keys_of(head);
      const auto attention = [&](int64_t row, int64_t h, int64_t slot, int32_t distance) {
        if (observed.window > 0 && distance >= observed.window) return 0.0;
        const float* x = rows.row<float>(row) + h * d;
        const float dot = std::inner_product(x, x + d, k.row<float>(slot), 0.0f);
        return static_cast<double>(std::exp(observed.scale * dot - lse.row<float>(row)[h]));
      };
      for (int64_t h = head * group; h < (head + 1) * group; ++h) {
        for (int64_t i = 0; i < n; ++i) {
          sums.echo[static_cast<size_t>(h)] += attention(i, h, i, period_);
          sums.induction[static_cast<size_t>(h)] += attention(i, h, i + 1, period_ - 1);
        }
      }
    });
    return false;
  }

  // The means, of each group of query heads the best.
  HeadScores scores(const PolicySlots& slots) const {
    HeadScores scores;
    for (int32_t l = 0; l < slots.n_layers(); ++l) {
      const Sums& sums = layers_[static_cast<size_t>(l)];
      const auto n = static_cast<size_t>(std::max(1, slots.n_kv_heads(l))), group = sums.echo.size() / n;
      const auto best = [&](const std::vector<double>& of, size_t head) {
        const auto begin = of.begin() + static_cast<int64_t>(head * group);
        return static_cast<float>(*std::max_element(begin, begin + static_cast<int64_t>(group)) / period_);
      };
      std::vector<float>&echo = scores.echo.emplace_back(), &induction = scores.induction.emplace_back();
      for (size_t head = 0; head < n; ++head) {
        echo.push_back(best(sums.echo, head));
        induction.push_back(best(sums.induction, head));
      }
    }
    return scores;
  }

 private:
  struct Sums {
    std::vector<double> echo, induction;  // [H]
  };
  Backend& backend_;
  int32_t first_, period_;
  std::vector<Sums> layers_;
};

// Ordinary tokens only: special ones attract attention of their own.
std::vector<int32_t> random_text(const Engine& engine, int32_t n, uint64_t seed) {
  const ModelConfig& config = engine.model().config();
  int64_t n_known = config.text.vocab_size;
  if (engine.has_tokenizer()) n_known = std::min(n_known, engine.tokenizer().vocab_size());
  std::vector<int32_t> ordinary;
  for (int32_t id = 0; id < n_known; ++id) {
    if (config.is_vision_token(id)) continue;
    if (!engine.has_tokenizer() || !engine.tokenizer().is_special(id)) ordinary.push_back(id);
  }
  if (ordinary.empty()) throw Error(ErrorCode::kInput, "the model has no ordinary tokens to probe it with");
  std::mt19937_64 random(seed);
  std::vector<int32_t> tokens(static_cast<size_t>(n));
  for (int32_t& t : tokens) t = ordinary[random() % ordinary.size()];
  return tokens;
}

}  // namespace

HeadScores probe_heads(Engine& engine, const ProbeOptions& options) {
  const int32_t context = engine.max_positions();
  const int32_t period = options.period > 0 ? options.period : std::min(kPaperPeriod, context / options.repeats);
  if (period < 2 || int64_t{period} * options.repeats > context) {
    throw Error(ErrorCode::kInput, "a probe of " + std::to_string(options.repeats) + " times " +
                                       std::to_string(period) +
                                       " tokens needs a period of at least 2 and as much context; the model's is " +
                                       std::to_string(context));
  }
  const std::vector<int32_t> text = random_text(engine, period, options.seed);
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < options.repeats; ++i) tokens.insert(tokens.end(), text.begin(), text.end());
  const auto n = static_cast<int32_t>(tokens.size());
  const auto sequence = engine.new_sequence(engine.prepare_tokens(std::move(tokens)), parse_policy("full"));
  ProbeHooks hooks(engine.backend(), engine.kv_shape().n_layers(), n - period, period);
  std::vector<TokenRun> runs;
  while (sequence->n_pending() > 0) {
    if (options.cancelled && options.cancelled()) break;
    sequence->next_runs(engine.options().prefill_chunk, runs);
    StepItem item;
    item.sequence = sequence.get();
    item.runs = runs;
    item.hooks = &hooks;
    engine.stepper().step({&item, 1});
    if (options.progress) options.progress(sequence->n_done(), n);
  }
  if (sequence->n_pending() > 0) return {};
  return hooks.scores(sequence->slots());
}

}  // namespace vlcache
