// Declares the parts of the op table, one function per file that fills some of it.
#pragma once

#include <vector>

#include "ops/cases/op_cases.h"

namespace vlcache {

using OpCases = std::vector<OpCase>;
void add_matmul_cases(OpCases& cases);
void add_quant_cases(OpCases& cases);
void add_row_cases(OpCases& cases);
void add_expert_cases(OpCases& cases);
void add_vision_cases(OpCases& cases);
void add_kv_cases(OpCases& cases);
void add_attention_cases(OpCases& cases);
void add_matmul_bench(OpCases& cases);
void add_quant_bench(OpCases& cases);
void add_row_bench(OpCases& cases);
void add_attention_bench(OpCases& cases);

}  // namespace vlcache
