// Reads distributions over the vocabulary, and measures how far two of them are apart.
#pragma once

#include <cstdint>
#include <span>

namespace vlcache {

// The index of the largest, the first of equals.
int32_t likeliest(std::span<const float> logits);
// Turns logits into log probabilities, in place.
void log_softmax(std::span<float> logits);
// Kullback-Leibler divergence of q from p, both log probabilities, in nats; never below 0.
double divergence(std::span<const float> p, std::span<const float> q);

}  // namespace vlcache
