// How far two distributions over the vocabulary lie apart.
#pragma once

#include <span>

namespace vlcache {

// Makes logits log probabilities.
void log_softmax(std::span<float> logits);
// Kullback-Leibler divergence of q from p, both log probabilities, in nats; never below 0.
double divergence(std::span<const float> p, std::span<const float> q);

}  // namespace vlcache
