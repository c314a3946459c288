// The loop over steps: which rows go next, what becomes of their logits.
#include "engine/generate.h"

#include <algorithm>
#include <chrono>
#include <memory>

#include "base/error.h"
#include "engine/stop_filter.h"
#include "io/tokenizer/tokenizer.h"

namespace vlcache {
namespace {

using Clock = std::chrono::steady_clock;

// Answers up to this length find room in the page tables, so that their steps allocate nothing.
constexpr int32_t kRoomTokens = 1024;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// One item while it runs.
class Run {
 public:
  Run(Engine& engine, GenerateItem& item, Clock::time_point start)
      : item_(item),
        sampler_(item.options.sampling, engine.model().config().text.vocab_size),
        filter_(item.options.stop),
        stream_(engine.tokenizer(), /*skip_special_tokens=*/true),
        start_(start),
        max_positions_(engine.max_positions()) {
    if (item.options.max_tokens < 1) {
      throw Error(ErrorCode::kInput,
                  "max_tokens: expected an integer >= 1, found " + std::to_string(item.options.max_tokens));
    }
    check_prompt_fits(engine, item.sequence->mode(), item.sequence->n_tokens());
    stop_ids_ = item.options.stop_tokens;
    if (!item.options.ignore_eos) std::ranges::copy(engine.stop_token_ids(), std::back_inserter(stop_ids_));
    item.sequence->cache().reserve(item.sequence->n_tokens() + std::min(item.options.max_tokens, kRoomTokens));
    sampler_.add_prompt(item.sequence->tokens());
    result_.has_logprobs = item.options.sampling.n_logprobs >= 0;
    result_.timings.load_ms = engine.load_ms();
    result_.n_prompt = static_cast<int32_t>(item.sequence->prompt().tokens.size());
    result_.n_vision = item.sequence->prompt().n_vision_tokens();
  }

  Sequence& sequence() { return *item_.sequence; }
  bool done() const { return !result_.finish_reason.empty(); }
  GenerateResult& result() { return result_; }

  void encode_images(Engine& engine) {
    const auto begin = Clock::now();
    engine.encode_images(sequence());
    result_.timings.vision_ms = ms_since(begin);
  }

  bool check_cancelled() {
    if (!done() && item_.callbacks.cancelled && item_.callbacks.cancelled()) finish("cancelled");
    return done();
  }

  // A step that took `ms` has computed rows of this item; `logits` is empty while its prompt is not finished.
  void after_step(const Tensor& logits, double ms) {
    if (result_.tokens.empty()) {
      result_.timings.prefill_ms += ms;
      const int32_t done = logits.rows() > 0 ? result_.n_prompt : sequence().n_computed();
      if (item_.callbacks.on_prefill) item_.callbacks.on_prefill(std::min(done, result_.n_prompt), result_.n_prompt);
    }
    if (logits.rows() == 0) return;
    SampledToken token = sampler_.sample({logits.as<float>(), static_cast<size_t>(logits.row_size())});
    if (result_.tokens.empty()) {
      result_.timings.ttft_ms = ms_since(start_);
      first_token_ = Clock::now();
    }
    result_.tokens.push_back({token.token, token.logprob, std::move(token.top)});
    take(token.token);
  }

  void report() {
    const KvCache& cache = sequence().cache();
    result_.kv.mode = sequence().mode().name;
    result_.kv.bytes = cache.bytes();
    result_.kv.peak_bytes = sequence().peak_kv_bytes();
    for (int32_t l = 0; l < cache.shape().n_layers(); ++l) {
      std::vector<int32_t>& heads = result_.kv.slots.emplace_back();
      for (int32_t h = 0; h < cache.shape().layers[static_cast<size_t>(l)].n_kv_heads; ++h)
        heads.push_back(cache.n_slots(l, h));
    }
  }

 private:
  void take(int32_t token) {
    if (std::ranges::find(stop_ids_, token) != stop_ids_.end()) {
      finish("stop");
      return;
    }
    emit(filter_.push(stream_.push(token)));
    if (filter_.stopped()) {
      finish("stop");
    } else if (static_cast<int32_t>(result_.tokens.size()) >= item_.options.max_tokens ||
               (sequence().mode().window == 0 && sequence().n_tokens() + 1 >= max_positions_)) {
      finish("length");
    } else {
      sequence().add_token(token);
    }
  }

  void finish(std::string_view reason) {
    if (!filter_.stopped()) {
      emit(filter_.push(stream_.finish()));
      emit(filter_.finish());
    }
    if (!result_.tokens.empty()) result_.timings.decode_ms = ms_since(first_token_);
    result_.finish_reason = reason;
  }

  void emit(const std::string& text) {
    if (text.empty()) return;
    result_.text += text;
    if (item_.callbacks.on_text) item_.callbacks.on_text(text);
  }

  GenerateItem& item_;
  Sampler sampler_;
  StopFilter filter_;
  StreamDecoder stream_;
  Clock::time_point start_, first_token_;
  int32_t max_positions_;
  std::vector<int32_t> stop_ids_;
  GenerateResult result_;
};

// Rows of the next step: the one pending token of every decoding sequence, then prompt pieces up to the chunk size,
// first come first served. Recomputing sequences (mode `none`) are prompts in every step.
void plan_step(std::vector<std::unique_ptr<Run>>& runs, int32_t chunk, std::vector<StepItem>& items,
               std::vector<Run*>& owners) {
  items.clear();
  owners.clear();
  int32_t room = chunk;
  for (const bool decoding : {true, false}) {
    for (auto& run : runs) {
      const int32_t pending = run->sequence().n_pending();
      if (run->done() || (pending == 1) != decoding || (!decoding && room <= 0)) continue;
      items.push_back({&run->sequence(), std::min(pending, decoding ? 1 : room)});
      owners.push_back(run.get());
      room -= items.back().n_rows;
    }
  }
}

}  // namespace

void check_prompt_fits(const Engine& engine, const CacheMode& mode, int32_t n_tokens) {
  if (mode.window > 0 || n_tokens < engine.max_positions()) return;
  throw Error(ErrorCode::kInput, "the prompt has " + std::to_string(n_tokens) + " tokens; the model's context is " +
                                     std::to_string(engine.max_positions()) + " and must hold the answer too");
}

std::vector<GenerateResult> generate(Engine& engine, std::span<GenerateItem> items) {
  const auto start = Clock::now();
  std::vector<std::unique_ptr<Run>> runs;
  for (GenerateItem& item : items) runs.push_back(std::make_unique<Run>(engine, item, start));
  for (auto& run : runs) {
    if (!run->check_cancelled()) run->encode_images(engine);
  }

  std::vector<StepItem> step_items;
  std::vector<Run*> owners;
  while (true) {
    for (auto& run : runs) run->check_cancelled();
    plan_step(runs, engine.options().prefill_chunk, step_items, owners);
    if (step_items.empty()) break;
    const auto begin = Clock::now();
    const std::span<const Tensor> logits = engine.stepper().step(step_items);
    const double ms = ms_since(begin);
    for (size_t i = 0; i < owners.size(); ++i) owners[i]->after_step(logits[i], ms);
  }

  std::vector<GenerateResult> results;
  for (auto& run : runs) {
    run->report();
    results.push_back(std::move(run->result()));
  }
  return results;
}

}  // namespace vlcache
