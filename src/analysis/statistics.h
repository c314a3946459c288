// Intervals of mean scores: how far chance may have moved them.
#pragma once

#include <cstdint>
#include <span>

namespace vlcache {

struct Interval {
  double low = 0;
  double high = 0;
};

// Both by the bootstrap, seeded: 95 % of the resamples lie within. Pairs are drawn together, so a sample that is hard
// for both does not count as a difference.
Interval mean_interval(std::span<const double> scores, uint64_t seed);
// Of mean(scores) / mean(others); 1, 1 if the latter is 0.
Interval ratio_interval(std::span<const double> scores, std::span<const double> others, uint64_t seed);

double mean(std::span<const double> scores);

}  // namespace vlcache
