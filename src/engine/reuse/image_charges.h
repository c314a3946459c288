// ImageCharges: what was computed of a request's images before its last start, by origin requests or by itself before
// it gave its KV back. None of that counts as a cache hit.
#pragma once

#include <map>
#include <vector>

#include "base/sha256.h"
#include "engine/prompt/prompt_images.h"
#include "engine/request.h"

namespace vlcache {

class ImageCharges {
 public:
  // An origin request has computed the image for this request.
  void add_origin(const CacheReport::Image& image) { origins_.emplace(image.key, image); }
  // The request gives its KV back. `reports`: of its images, of whose tokens those before n_done are computed.
  void add_own(const PromptImages& images, const std::vector<CacheReport::Image>& reports, int32_t n_done);
  // Corrects the reports at the request's end. An image that an origin request has computed is a hit from its second
  // occurrence on.
  void charge(std::vector<CacheReport::Image>& reports);

 private:
  std::map<Sha256Digest, CacheReport::Image> origins_;
  std::vector<CacheReport::Image> own_;  // by image of the prompt; default: nothing computed
};

}  // namespace vlcache
