#include "api/messages/named_images.h"

#include <span>

#include "base/error.h"
#include "base/sha256.h"

namespace vlcache {

void NamedImages::add(const Name& name, Bytes bytes, const std::string& where) {
  if (std::ssize(*bytes) > max_bytes_) return;
  Bytes before = known(name);
  const bool is_here = before != nullptr;
  if (!is_here) before = load(name);
  if (before != nullptr && *before != *bytes) {
    throw Error(ErrorCode::kInput, where + ": another image has this name already; give each its own");
  }
  if (before == nullptr) save(name, bytes);
  if (!is_here) insert(name, std::move(bytes));
}

NamedImages::Bytes NamedImages::find(const Name& name, const std::string& where) {
  Bytes bytes = known(name);
  if (bytes != nullptr) return bytes;
  bytes = load(name);
  if (bytes == nullptr) {
    throw Error(ErrorCode::kNotFound, where + ": this replica has no image of this name, or no longer" +
                                          (tiers_.empty() ? "" : ", and no cache that it shares has it") +
                                          "; send the image's bytes with the name");
  }
  insert(name, bytes);
  return bytes;
}

// The image in memory, which becomes the most recently used one; null: none.
NamedImages::Bytes NamedImages::known(const Name& name) {
  const std::lock_guard lock(mutex_);
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return nullptr;
  images_.splice(images_.begin(), images_, found->second);
  return found->second->bytes;
}

void NamedImages::insert(const Name& name, Bytes bytes) {
  const auto size = std::ssize(*bytes);
  const std::lock_guard lock(mutex_);
  if (size > max_bytes_ || by_name_.contains(name)) return;
  while (bytes_ + size > max_bytes_) {
    bytes_ -= std::ssize(*images_.back().bytes);
    by_name_.erase(images_.back().name);
    images_.pop_back();
  }
  images_.push_front({name, std::move(bytes)});
  by_name_.emplace(name, images_.begin());
  bytes_ += size;
}

// Owners share no record: the owner's digest (of its tenant and cache_salt) is part of the key.
RecordKey NamedImages::key_of(const Name& name) const {
  Sha256 hash;
  for (const std::string* part : {&name.first, &name.second}) {
    const std::string size = std::to_string(part->size()) + ":";
    hash.add(std::as_bytes(std::span(size)));
    hash.add(std::as_bytes(std::span(*part)));
  }
  return {.kind = RecordKind::kFile, .model = model_, .content = hash.finish(), .layout = "named image"};
}

// From the nearest tier that has it; null: none, or not in time.
NamedImages::Bytes NamedImages::load(const Name& name) const {
  const RecordKey key = key_of(name);
  for (const std::shared_ptr<KvTier>& tier : tiers_) {
    const Deadline deadline = Clock::now() + kTierTime;
    const OpenedRecord opened = tier->open(key, deadline);
    if (opened.reader == nullptr) continue;
    const std::vector<SectionInfo>& sections = opened.reader->header().sections;
    if (sections.size() != 1 || sections[0].bytes > max_bytes_) continue;
    std::vector<std::byte> bytes(static_cast<size_t>(sections[0].bytes));
    opened.reader->expect(std::vector<int32_t>{0});
    if (opened.reader->read(0, bytes, deadline)) continue;
    return std::make_shared<const std::vector<std::byte>>(std::move(bytes));
  }
  return nullptr;
}

// Before the request is answered, so that every replica finds it from then on.
void NamedImages::save(const Name& name, const Bytes& bytes) const {
  for (const std::shared_ptr<KvTier>& tier : tiers_) {
    tier->put({.key = key_of(name), .sections = {std::span(*bytes)}, .owner = nullptr}, Clock::now() + kTierTime);
  }
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
