#include "ops/cases/op_cases.h"

#include <algorithm>

#include "ops/cases/op_case_tables.h"

namespace vlcache {

std::vector<OpInfo> op_infos() {
  return {
      {"pack", "one weight matrix from parts stacked by rows, in the backend's layout", ""},
      {"matmul", "y = act(x W^T + bias) + residual", "residual may be y"},
      {"embed", "y[i] = W[ids[i]]", ""},
      {"rms_norm", "y = x / sqrt(mean(x^2) + eps) * w", "y may be x"},
      {"layer_norm", "y = (x - mean) / sqrt(var + eps) * w + b", "y may be x"},
      {"add", "y = a + b; one row of b is added to every row", "y may be a or b"},
      {"scale", "y = factor x", "y may be x"},
      {"gated_act", "y = act(gate) * up", ""},
      {"activate", "y = act(x)", "y may be x"},
      {"gather_rows", "y[i] = x[rows[i]], byte for byte", ""},
      {"scatter_rows", "y[rows[i]] = x[i], byte for byte", ""},
      {"convert", "y = x in another dtype", ""},
      {"rope", "rotation of (c, c + d/2) pairs by a table of cos and sin", "y may be x"},
      {"route", "the k experts of each row, and their shares of the softmax", ""},
      {"grouped_matmul", "y = x W_g^T for consecutive groups of rows, each with a matrix of its own", ""},
      {"combine_rows", "y[i] = x[i] + sum of weights[i, j] rows[at[i, j]]", "y may be x"},
      {"patchify", "the rows that a patch convolution multiplies with its kernel", ""},
      {"dense_attention", "softmax(scale q k^T) v inside each image; CLS probabilities", ""},
      {"kv_write", "rows of K and V into the last slots of every head's pages", ""},
      {"kv_read", "slots of one head as f32", ""},
      {"kv_move", "slots of one head to others: copied or encoded", "pages may overlap, moving down"},
      {"kv_set", "one slot overwritten (merges)", ""},
      {"attention",
       "softmax(scale q k^T + slot_bias) v over pages, with lse, windows, sinks, hidden slots; logits of single rows",
       ""},
      {"merge_attention", "attention over two disjoint sets of slots made one", "o may be oa, lse may be la"},
      {"attention_stats",
       "column sums, all and of a band, column maxima, below-threshold counts and seen counts of a group of queries",
       ""},
  };
}

std::vector<OpCase> op_cases() {
  OpCases cases;
  add_matmul_cases(cases);
  add_quant_cases(cases);
  add_row_cases(cases);
  add_expert_cases(cases);
  add_vision_cases(cases);
  add_kv_cases(cases);
  add_attention_cases(cases);
  return cases;
}

std::vector<OpCase> op_bench_cases() {
  OpCases cases;
  add_matmul_bench(cases);
  add_quant_bench(cases);
  add_row_bench(cases);
  add_attention_bench(cases);
  return cases;
}

std::string ops_markdown() {
  std::string text =
      "# Ops\n\n"
      "What every backend does; shapes and exact formulas are in `src/ops/backend.h`. Made from the table in\n"
      "`src/ops/cases/op_cases.cc`, which also drives the tests and `bench/op_bench`. `ref` and `cpu` implement every "
      "op,\n"
      "in f32 and bf16; `cpu` is compared with `ref` on each case. Do not edit: `vlcache_ops_test` says "
      "how to\n"
      "renew this file.\n\n"
      "| op | computes | aliasing | cases |\n|---|---|---|---:|\n";
  const std::vector<OpCase> cases = op_cases();
  for (const OpInfo& info : op_infos()) {
    const auto n = std::ranges::count_if(cases, [&](const OpCase& c) { return c.op == info.op; });
    text += "| `" + std::string(info.op) + "` | " + std::string(info.computes) + " | " + std::string(info.aliasing) +
            " | " + std::to_string(n) + " |\n";
  }
  return text;
}

}  // namespace vlcache
