// Means, quantiles, and bounds of shares: how far chance may have moved them.
#pragma once

#include <span>

namespace vlcache {

double mean(std::span<const double> scores);

// The quantile of values in ascending order, p in [0, 1]: at place p (n - 1), counted from 0, by linear interpolation
// between the values at its two sides (Hyndman and Fan's definition 7; numpy's and llama.cpp's). 0 without values.
double quantile(std::span<const float> sorted, double p);

// The regularised incomplete beta function I_x(a, b), the distribution function of Beta(a, b); a, b > 0. Relative error
// about 1e-12 while a and b are below 1e6.
double beta_distribution(double x, double a, double b);
// Its inverse in x.
double beta_quantile(double p, double a, double b);

// The one-sided bounds of Clopper and Pearson (Biometrika 26, 1934) of the probability of an event that occurred in
// `n_hits` of `n` independent trials: it is at most share_at_most(..), and at least share_at_least(..), with this
// confidence each. n_hits need not be whole, so that a share can be extrapolated to other n. 1 and 0 without trials.
double share_at_most(double n_hits, double n, double confidence);
double share_at_least(double n_hits, double n, double confidence);

// The same upper bound for counts that are looked at after every trial: with this confidence it holds at all of those
// looks together. By the likelihood ratio to a mixture, Beta(1, 1 / expected) (Robbins, Annals of Mathematical
// Statistics 41, 1970, 1397); `expected`, in (0, 1], is the share near which the bound is to be narrow.
double share_at_most_at_any_time(double n_hits, double n, double confidence, double expected);

// Of n samples that two methods were scored on, the first is better in n_gained and worse in n_lost. The lower bound,
// at this confidence, of the difference of their probabilities of being right: the score interval of Tango (Statistics
// in Medicine 17, 1998, 891). -1 without samples.
double paired_gain_at_least(double n_gained, double n_lost, double n, double confidence);
// The upper bound of the share that is lost on balance: -paired_gain_at_least, and never below the bound of no loss in
// n samples (Clopper and Pearson), below which Tango's approximation lies for few samples. 1 without samples.
double paired_loss_at_most(double n_gained, double n_lost, double n, double confidence);

// The quantile of the standard normal distribution.
double normal_quantile(double p);

}  // namespace vlcache
