#include "engine/reuse/image_claims.h"

#include <algorithm>
#include <thread>

namespace vlcache {
namespace {

constexpr std::chrono::milliseconds kLook{50};  // between two searches for what another process computes

}  // namespace

ImageClaims::~ImageClaims() { release(); }

bool ImageClaims::awaits(const Sha256Digest& image, Deadline until) {
  if (store_ == nullptr || !store_->stores_at_once() || Clock::now() >= by_) return false;
  Claim& claim = claims_[image];
  if (claim.ours) return false;
  if (next_look_ != kNoDeadline && Clock::now() < next_look_) {
    std::this_thread::sleep_until(std::min(until, next_look_));
    return true;
  }
  if (!claim.asked) {
    claim.answer = store_->claim(image);
    claim.asked = true;
    if (by_ == kNoDeadline) by_ = Clock::now() + store_->patience();
  }
  if (!claim.answer.wait(until)) return true;
  claim.asked = false;
  claim.ours = claim.answer.has(0);
  if (claim.ours) return false;
  next_look_ = Clock::now() + kLook;
  return true;
}

bool ImageClaims::look_again() {
  if (next_look_ == kNoDeadline || Clock::now() < next_look_) return false;
  next_look_ = kNoDeadline;
  return true;
}

void ImageClaims::release() {
  for (const auto& [image, claim] : claims_) {
    if (claim.ours) store_->release(image);
  }
  claims_.clear();
}

}  // namespace vlcache
