// The rules by which a prompt's images are found in a cached prefix, loaded, or recorded: for the engine and for its
// simulation (replay.h), which must decide alike. An image is tokens [begin, end) of the prompt; a prefix is its
// length.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>

#include "base/contracts/kv.h"
#include "base/sha256.h"

namespace vlcache {

struct TokenRange {
  int64_t begin = 0, end = 0;
  // Tokens after the prefix.
  int64_t n_after(int64_t prefix) const { return end - std::clamp(prefix, begin, end); }
};

// Whether a longer cached prefix may have the image reused, whose KV is known: whole pages are cached as a rule, so an
// image that the exact prefix ends in is continued only if it has more than a page left.
inline bool may_be_reused_in_prefix(const TokenRange& image, int64_t exact_prefix) {
  return image.end - exact_prefix > (image.begin < exact_prefix ? kPageSlots : 0);
}

// The part of a prefix that does not end inside a reused image.
inline int64_t cut_before(const TokenRange& reused, int64_t prefix) {
  return reused.begin < prefix && prefix < reused.end ? reused.begin : prefix;
}

// Whether the image counts as found in the prefix: it has half of its tokens or more.
inline bool is_in_prefix(int64_t n_after, int64_t n_tokens) { return 2 * n_after <= n_tokens; }

// Only a whole image is loaded or recorded.
inline bool is_after_prefix(const TokenRange& image, int64_t prefix) { return image.begin >= prefix; }

// The last token of a prompt is computed for its logits, and with it an image at its end.
inline bool ends_prompt(const TokenRange& image, int64_t n_prompt_tokens) { return image.end == n_prompt_tokens; }

// Images that were computed once where they could not be recorded.
class ImagesWithoutOrigin {
 public:
  // Notes the image. True every second time: then it is computed by itself.
  bool again(const Sha256Digest& image) {
    if (images_.erase(image) > 0) return true;
    if (images_.size() >= kMost) images_.clear();
    images_.insert(image);
    return false;
  }

 private:
  static constexpr size_t kMost = 1 << 16;
  std::set<Sha256Digest> images_;
};

}  // namespace vlcache
