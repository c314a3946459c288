// For tests of workers and chains: FakeTier, a tier in memory that logs its calls, and Gate, which blocks them.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "store/store_testing.h"

namespace vlcache {

// Opens once, for all waiting threads.
class Gate {
 public:
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void pass() {
    std::unique_lock lock(mutex_);
    ++n_waiting_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_; });
  }
  void await(int n_waiting) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return n_waiting_ >= n_waiting; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
  int n_waiting_ = 0;
};

// Records in memory; every operation is logged, and a hook may wait or throw before it is done.
class FakeTier final : public KvTier {
 public:
  using Hook = std::function<void(const std::string&)>;
  explicit FakeTier(Hook hook = nullptr, std::string name = "fake", bool near = false)
      : hook_(std::move(hook)), name_(std::move(name)), near_(near) {}

  std::string_view name() const override { return name_; }
  bool answers_at_once() const override { return near_; }
  RecordId id_of(const RecordKey& key) const override { return seal_.id(key); }
  std::vector<bool> exists(std::span<const RecordKey> keys, Deadline) override {
    std::string which;
    for (const RecordKey& key : keys) which += " " + std::to_string(key.content[0]);
    log("exists" + which);
    const std::lock_guard lock(mutex_);
    std::vector<bool> there;
    for (const RecordKey& key : keys) there.push_back(records_.contains(id_of(key)));
    return there;
  }
  OpenedRecord open(const RecordKey& key, Deadline) override {
    log("open " + std::to_string(key.content[0]));
    const std::lock_guard lock(mutex_);
    const auto found = records_.find(id_of(key));
    if (found == records_.end()) return {nullptr, {MissReason::kAbsent, "fake"}};
    return {std::make_unique<Reader>(*this, found->second), {}};
  }
  PutResult put(const Record& record, Deadline) override {
    log("put " + std::to_string(record.key.content[0]));
    std::vector<Bytes> sections;
    for (const auto& section : record.sections) sections.emplace_back(section.begin(), section.end());
    const std::lock_guard lock(mutex_);
    records_[id_of(record.key)] = {make_header(seal_, record), std::move(sections)};
    return {};
  }
  bool erase(const RecordId& id) override {
    log("erase");
    const std::lock_guard lock(mutex_);
    return records_.erase(id) > 0;
  }
  std::vector<ListedRecord> list() override { return {}; }
  TierStats stats() const override { return {}; }

  std::vector<std::string> done() const {
    const std::lock_guard lock(mutex_);
    return log_;
  }
  int bad_section = -1;
  std::vector<int32_t> expected;  // the sections that the last reader was told to expect

 private:
  struct Kept {
    RecordHeader header;
    std::vector<Bytes> sections;
  };
  class Reader final : public RecordReader {
   public:
    Reader(FakeTier& tier, Kept kept) : tier_(tier), kept_(std::move(kept)) {}
    const RecordHeader& header() const override { return kept_.header; }
    void expect(std::span<const int32_t> sections) override { tier_.expected.assign(sections.begin(), sections.end()); }
    std::optional<Miss> read(int32_t section, std::span<std::byte> to, Deadline) override {
      tier_.log("read " + std::to_string(kept_.header.key.content[0]) + "." + std::to_string(section));
      if (section == tier_.bad_section) return Miss{MissReason::kChecksum, "fake"};
      std::ranges::copy(kept_.sections[static_cast<size_t>(section)], to.begin());
      return std::nullopt;
    }

   private:
    FakeTier& tier_;
    Kept kept_;
  };

  void log(const std::string& what) {
    if (hook_) hook_(what);
    const std::lock_guard lock(mutex_);
    log_.push_back(what);
  }

  const Hook hook_;
  const std::string name_;
  const bool near_;
  const RecordSeal seal_;
  mutable std::mutex mutex_;
  std::map<RecordId, Kept> records_;
  std::vector<std::string> log_;
};

}  // namespace vlcache
