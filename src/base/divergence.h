// Measures how far two distributions over the vocabulary are apart.
#pragma once

#include <span>

namespace vlcache {

// Turns logits into log probabilities, in place.
void log_softmax(std::span<float> logits);
// Kullback-Leibler divergence of q from p, both log probabilities, in nats; never below 0.
double divergence(std::span<const float> p, std::span<const float> q);

}  // namespace vlcache
