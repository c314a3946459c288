// A decode step allocates nothing: neither from the heap nor from the kernel. Counted by standing in for malloc and
// mmap, which operator new and Buffer end in. Not in sanitizer builds, whose own malloc must stay.
#include <gtest/gtest.h>

#ifndef VLCACHE_REF_ONLY

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "engine/engine.h"
#include "policy/registry.h"

namespace {
std::atomic<int> g_allocations{0};
}

extern "C" {
void* __libc_malloc(size_t bytes);
void* malloc(size_t bytes) noexcept {
  ++g_allocations;
  return __libc_malloc(bytes);
}
void* mmap(void* at, size_t bytes, int protection, int flags, int fd, off_t offset) noexcept {
  ++g_allocations;
  return reinterpret_cast<void*>(syscall(SYS_mmap, at, bytes, protection, flags, fd, offset));
}
}

namespace vlcache {
namespace {

std::unique_ptr<Engine> make_engine(std::string_view dtype) {
  Json config = parse_json(
      R"({"model_type": "llama", "vocab_size": 3000, "hidden_size": 256, "intermediate_size": 512,
    "num_attention_heads": 8, "num_key_value_heads": 2, "num_hidden_layers": 2, "max_position_embeddings": 4096})",
      "test");
  config["torch_dtype"] = dtype;
  EngineOptions options;
  options.kv_memory_bytes = 64 << 20;
  return Engine::random(parse_model_config(config, "test"), options, /*seed=*/5);
}

int allocations_of_a_step(Engine& engine, std::vector<std::unique_ptr<Sequence>>& sequences) {
  std::vector<std::vector<TokenRun>> runs;
  std::vector<StepItem> items(sequences.size());
  for (size_t i = 0; i < sequences.size(); ++i) {
    sequences[i]->add_token(3);
    sequences[i]->next_runs(512, runs.emplace_back());
  }
  for (size_t i = 0; i < sequences.size(); ++i) {
    items[i].sequence = sequences[i].get();
    items[i].runs = runs[i];
  }
  const int before = g_allocations;
  engine.stepper().step(items);
  for (auto& s : sequences) s->apply_policy();
  return g_allocations - before;
}

class DecodeAllocations : public testing::TestWithParam<std::tuple<const char*, int, const char*>> {};

TEST_P(DecodeAllocations, ThereAreNone) {
  const auto [dtype, n_sequences, policy] = GetParam();
  const std::unique_ptr<Engine> engine = make_engine(dtype);
  std::vector<std::unique_ptr<Sequence>> sequences;
  for (int i = 0; i < n_sequences; ++i) {
    const int32_t n_tokens = 100 + 150 * i;
    sequences.push_back(engine->new_sequence(
        engine->prepare_tokens(std::vector<int32_t>(static_cast<size_t>(n_tokens), 7)), parse_policy(policy)));
    sequences.back()->reserve(200);  // as a generation does before the first token
  }
  EXPECT_GT(allocations_of_a_step(*engine, sequences), 0) << "the counter does not count";  // workspaces
  allocations_of_a_step(*engine, sequences);
  // Long enough for rules to hide, move and give back pages.
  for (int i = 0; i < 150; ++i) EXPECT_EQ(allocations_of_a_step(*engine, sequences), 0) << "step " << i;
}

INSTANTIATE_TEST_SUITE_P(Dtypes, DecodeAllocations,
                         testing::Combine(testing::Values("float32", "bfloat16"), testing::Values(1, 3),
                                          testing::Values("full", "streaming:sinks=4,window=70")));

}  // namespace
}  // namespace vlcache

#endif
