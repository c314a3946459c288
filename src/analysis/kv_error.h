// KvError: how far K and V are from those of full computation, over the place of a token in a reused image and after it
// (VLCache, arXiv:2512.12977, Fig. 2).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "cache/kv_cache.h"
#include "engine/sequence/layered_prompt.h"

namespace vlcache {

struct KvError {
  // A place is a 32nd of the image; places continue for a quarter of its length after it.
  static constexpr int kPlacesOfImage = 32, kPlaces = 40;

  std::array<double, kPlaces> k{}, v{};  // sums over tokens of |x - right| / |right|, of all layers and heads together
  std::array<double, kPlaces> n{};       // tokens

  void add(const KvError& other);
};

// The error of the prompt's tokens in `counted`, which both caches hold in full; the image is at `image`.
KvError kv_error(Backend& backend, const KvCache& cache, const KvCache& right, const TokenRun& image,
                 const TokenRun& counted);

// Two charts, of K and of V: the mean error at each place, a line each.
struct NamedKvError {
  std::string name;
  KvError error;
};
std::string kv_error_charts(const std::vector<NamedKvError>& errors);

}  // namespace vlcache
