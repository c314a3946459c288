// Writes an inspection as JSON, as a page, and as heat maps of the kept tokens over the images.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "analysis/inspection.h"
#include "io/image/image.h"

namespace vlcache {

// {n_prompt, tau, vision_spans: [[begin, end)..], layers: [{sparsity, budget, heads: [{kept: [prompt token ..]}]}], ..}
nlohmann::ordered_json to_json(const Inspection& inspection);

// Per token of `image`, the share of (layer, kv head) pairs that keep it; `layer` >= 0: of that layer's heads only.
std::vector<double> kept_shares(const Inspection& inspection, const InspectedImage& image, int32_t layer = -1);

// The image (as decoded, or smaller) under a veil that is thinner where more of a token is kept.
Image heat_map(const Image& image, double scale, const InspectedImage& inspected, std::span<const double> shares);

// `images`: the prompt's images, in its order.
std::string inspection_page(const Inspection& inspection, std::string_view question, std::span<const Image> images);

}  // namespace vlcache
