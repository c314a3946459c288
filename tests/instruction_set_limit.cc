// Test programs run as on a machine that has no more than VLCACHE_MAX_ISA names, as `vlcache --max-isa` has it.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "ops/cpu/cpu_features.h"

namespace vlcache {
namespace {

bool limit() {
  const char* const name = std::getenv("VLCACHE_MAX_ISA");
  if (name == nullptr) return false;
  const auto* const named = std::ranges::find(cpu::kInstructionSets, name, &cpu::InstructionSet::name);
  if (named == cpu::kInstructionSets.end()) {
    std::fprintf(stderr, "VLCACHE_MAX_ISA: no instruction set is named '%s'\n", name);
    std::exit(2);
  }
  cpu::limit_machine(*named);
  return true;
}

[[maybe_unused]] const bool limited = limit();

}  // namespace
}  // namespace vlcache
