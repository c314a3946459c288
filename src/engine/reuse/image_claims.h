// ImageClaims: of several processes that are asked about a new image at once, one computes it, and the others wait
// until its record is in a tier, for a limited time.
#pragma once

#include <map>

#include "base/clock.h"
#include "base/sha256.h"
#include "reuse/image/image_store.h"

namespace vlcache {

// The claims of one request.
class ImageClaims {
 public:
  // Null: nothing outlives the process, and nothing is claimed. The store must outlive this.
  explicit ImageClaims(ImageStore* store) : store_(store) {}
  ~ImageClaims();
  ImageClaims(const ImageClaims&) = delete;
  ImageClaims& operator=(const ImageClaims&) = delete;

  // Whether another process computes the image, as far as is known at `until`: called again and again while it does.
  // Otherwise this request is to compute it.
  bool awaits(const Sha256Digest& image, Deadline until);
  // Whether the tiers are to be searched again before awaits(): now and then while another process computes.
  bool look_again();
  // The images are computed and stored, or will not be.
  void release();

 private:
  struct Claim {
    RecordAnswer answer;
    bool asked = false, ours = false;
  };
  ImageStore* store_;
  std::map<Sha256Digest, Claim> claims_;
  Deadline by_ = kNoDeadline;  // the end of waiting, which begins with the first claim
  Deadline next_look_ = kNoDeadline;
};

}  // namespace vlcache
