// Scores how right an answer is, 0 .. 1, as the field's benchmarks do.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace vlcache {

enum class Metric : uint8_t {
  kExact,       // the answer itself, except for white space around it
  kNormalised,  // the same without case, punctuation, articles and runs of white space
  kAnls,        // DocVQA: 1 - edit distance / longer length, 0 where that is below 0.5
  kRelaxed,     // ChartQA: numbers within 5 %, other answers without case
  kVqa,         // VQA: a third for each of the annotators that gave it, at most 1
  kChoice,      // MathVista: the letter of a multiple choice
};

std::optional<Metric> metric_from_name(std::string_view name);
std::string_view metric_name(Metric metric);
std::string metric_names();  // for messages

// The best over `answers` (of kVqa: all annotators' answers together).
double score_answer(Metric metric, std::string_view given, std::span<const std::string> answers);

}  // namespace vlcache
