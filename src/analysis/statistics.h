// Means of scores and how far chance may have moved them.
#pragma once

#include <cstdint>
#include <span>

namespace vlcache {

struct Interval {
  double low = 0;
  double high = 0;
};

// Both by the bootstrap, seeded: 95 % of resamples of the samples lie within. Pairs are drawn together, so what makes a
// sample hard for both does not count.
Interval mean_interval(std::span<const double> scores, uint64_t seed);
// Of mean(scores) / mean(others); 1, 1 where the latter is 0.
Interval ratio_interval(std::span<const double> scores, std::span<const double> others, uint64_t seed);

double mean(std::span<const double> scores);

}  // namespace vlcache
