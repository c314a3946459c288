#include "server/protocol/named_images.h"

#include "base/error.h"

namespace vlcache {

void NamedImages::add(const Name& name, Bytes bytes, const std::string& where) {
  const auto size = std::ssize(*bytes);
  const std::lock_guard lock(mutex_);
  if (const auto known = by_name_.find(name); known != by_name_.end()) {
    if (*known->second->bytes != *bytes) {
      throw Error(ErrorCode::kInput, where + ": another picture has this name already; give each its own");
    }
    images_.splice(images_.begin(), images_, known->second);
    return;
  }
  if (size > max_bytes_) return;
  while (bytes_ + size > max_bytes_) {
    bytes_ -= std::ssize(*images_.back().bytes);
    by_name_.erase(images_.back().name);
    images_.pop_back();
  }
  images_.push_front({name, std::move(bytes)});
  by_name_.emplace(name, images_.begin());
  bytes_ += size;
}

NamedImages::Bytes NamedImages::find(const Name& name, const std::string& where) {
  const std::lock_guard lock(mutex_);
  const auto known = by_name_.find(name);
  if (known == by_name_.end()) {
    throw Error(ErrorCode::kNotFound,
                where + ": no picture of this name is here, or no longer; send the picture with it");
  }
  images_.splice(images_.begin(), images_, known->second);
  return known->second->bytes;
}

void NamedImages::clear() {
  const std::lock_guard lock(mutex_);
  images_.clear();
  by_name_.clear();
  bytes_ = 0;
}

NamedImages::State NamedImages::state() const {
  const std::lock_guard lock(mutex_);
  return {.n_images = images_.size(), .bytes = bytes_, .max_bytes = max_bytes_};
}

}  // namespace vlcache
