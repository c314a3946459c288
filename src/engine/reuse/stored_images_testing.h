// Test helpers for images in tiers: a model with three images in its prompt, M-RoPE and DeepStack, and a tier with
// faults.
#pragma once

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "base/json.h"
#include "engine/engine_testing.h"
#include "engine/scheduler/scheduler.h"
#include "reuse/prefix/prefix_cache.h"
#include "store/disk/tier.h"

namespace vlcache {

// A tier with injected faults.
class FaultyTier final : public KvTier {
 public:
  explicit FaultyTier(std::shared_ptr<KvTier> tier) : tier_(std::move(tier)) {}

  std::set<int32_t> bad_sections;           // of KV records
  std::optional<Sha256Digest> only_of;      // these contents' alone
  std::map<int32_t, int32_t> bad_pages;     // of prefix records: the section that fails, by the record's number
  std::chrono::milliseconds page_delay{0};  // of every section of these
  int32_t n_page_records = 0;               // opened so far
  std::chrono::milliseconds delay{0};       // of every section
  bool gone = false;                        // opens nothing
  bool lies = false;                        // returns other bytes than were stored, as if they were right
  bool near = true;                         // answers at once
  std::string named = "disk";
  std::atomic<int> n_searches{0};

  // Calls of this kind ("exists", "read kv", "read embeddings") block until release().
  void hold(const std::string& what) {
    const std::lock_guard lock(mutex_);
    held_ = what;
  }
  void release() {
    hold("none");
    changed_.notify_all();
  }

  std::string_view name() const override { return named; }
  bool answers_at_once() const override { return near; }
  RecordId id_of(const RecordKey& key) const override { return tier_->id_of(key); }
  std::vector<bool> exists(std::span<const RecordKey> keys, Deadline deadline) override {
    ++n_searches;
    pass("exists");
    return tier_->exists(keys, deadline);
  }
  OpenedRecord open(const RecordKey& key, Deadline deadline) override {
    if (gone) return {nullptr, {MissReason::kIo, "gone"}};
    OpenedRecord opened = tier_->open(key, deadline);
    if (opened.reader == nullptr || (only_of && *only_of != key.content)) return opened;
    opened.reader = std::make_unique<Reader>(*this, std::move(opened.reader));
    return opened;
  }
  PutResult put(const Record& record, Deadline deadline) override { return tier_->put(record, deadline); }
  bool erase(const RecordId& id) override { return tier_->erase(id); }
  bool claim(const RecordKey& key, Clock::duration time, Deadline by) override { return tier_->claim(key, time, by); }
  void release(const RecordKey& key) override { tier_->release(key); }
  std::vector<ListedRecord> list() override { return tier_->list(); }
  TierStats stats() const override { return tier_->stats(); }

 private:
  class Reader final : public RecordReader {
   public:
    Reader(FaultyTier& tier, std::unique_ptr<RecordReader> reader) : tier_(tier), reader_(std::move(reader)) {
      if (header().key.layout.starts_with("pages")) number_ = tier_.n_page_records++;
    }
    const RecordHeader& header() const override { return reader_->header(); }
    std::optional<Miss> read(int32_t section, std::span<std::byte> to, Deadline deadline) override {
      const bool kv = header().key.layout.starts_with("kv");
      if (number_ >= 0) {
        std::this_thread::sleep_for(tier_.page_delay);
        const auto bad = tier_.bad_pages.find(number_);
        if (bad != tier_.bad_pages.end() && bad->second == section) return Miss{MissReason::kChecksum, "pages"};
      }
      tier_.pass(kv ? "read kv" : "read embeddings");
      if (kv) std::this_thread::sleep_for(tier_.delay);
      if (kv && tier_.bad_sections.contains(section)) {
        std::ranges::fill(to, std::byte{0x7f});  // as it may look
        return Miss{MissReason::kChecksum, "section " + std::to_string(section)};
      }
      const std::optional<Miss> miss = reader_->read(section, to, deadline);
      if (kv && tier_.lies) std::ranges::fill(to, std::byte{0x7f});
      return miss;
    }

   private:
    FaultyTier& tier_;
    std::unique_ptr<RecordReader> reader_;
    int32_t number_ = -1;  // of a prefix record
  };

  void pass(std::string_view what) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !what.starts_with(held_); });
  }

  std::shared_ptr<KvTier> tier_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string held_ = "none";
};

class StoredImages : public testing::Test {
 protected:
  explicit StoredImages(const char* fixture = "qwen3-vl-deepstack")
      : fixture_(std::filesystem::path(VLCACHE_SOURCE_DIR) / "tests/fixtures/models" / fixture),
        case_(parse_ordered_json(read_text_file(fixture_ / "case.json"), "case.json")),
        dir_(std::filesystem::temp_directory_path() / ("vlcache-stored-images-" + std::to_string(getpid()))),
        disk_(std::make_shared<DiskTier>(DiskTierOptions{.dir = dir_, .max_bytes = 64 << 20, .ttl_ms = 0, .salt = ""})),
        tier_(std::make_shared<FaultyTier>(disk_)),
        tiers_{tier_} {}
  ~StoredImages() override { std::filesystem::remove_all(dir_); }

  // `text` with the model's form of an image for every <image>.
  static std::string with_placeholders(std::string text) {
    constexpr std::string_view kAny = "<image>", kOwn = "<|vision_start|><|image_pad|><|vision_end|>";
    for (size_t at = 0; (at = text.find(kAny, at)) != text.npos; at += kOwn.size()) text.replace(at, kAny.size(), kOwn);
    return text;
  }
  // A process of its own, as far as memory is concerned.
  std::unique_ptr<Engine> engine(double deadline_ms = 60'000, int32_t admit = 1, const ImageKvForm& form = {}) const {
    EngineOptions options = engine_options();
    options.cache_form = form;
    options.cache_deadline_ms = deadline_ms;
    options.cache_admit = admit;
    return Engine::load(Checkpoint(fixture_), options);
  }
  EngineOptions engine_options() const {
    EngineOptions options;
    options.dtype = DType::kF32;
    options.kv_memory_bytes = 64 << 20;
    options.cache_bytes = 64 << 20;
    options.tiers = tiers_;
    return options;
  }

  Request request(Engine& engine, const char* chooser, bool other_image = false) const {
    std::vector<Image> images;
    for (const auto& name : case_["images"]) images.push_back(load_image(fixture_ / name.get<std::string>()));
    if (other_image) {
      for (uint8_t& value : images.back().rgb) value ^= 0x80;
    }
    Request request;
    request.prompt = engine.prepare_raw(case_["prompt"].get<std::string>(), std::move(images));
    request.policy = parse_policy("full");
    if (chooser != nullptr) request.reuse = {.chooser = parse_reuse_chooser(chooser), .required = true};
    request.options.max_tokens = static_cast<int32_t>(greedy().size());
    request.options.ignore_eos = true;
    return request;
  }

  Request without_image(Engine& engine) const {
    Request request;
    request.prompt = engine.prepare_raw("No picture.", {});
    request.policy = parse_policy("full");
    request.options.max_tokens = 12;
    request.options.ignore_eos = true;
    return request;
  }

  std::vector<int32_t> greedy() const { return case_["greedy"].get<std::vector<int32_t>>(); }
  static std::vector<int32_t> ids(const GenerateResult& result) {
    std::vector<int32_t> ids;
    for (const GeneratedToken& token : result.tokens) ids.push_back(token.id);
    return ids;
  }
  // Stores the case's image in the tier.
  void store(const ImageKvForm& form = {}) const {
    const std::unique_ptr<Engine> e = engine(60'000, 1, form);
    EXPECT_EQ(ids(generate(*e, request(*e, "static:r=0"))), greedy());
  }

  std::filesystem::path fixture_;
  nlohmann::ordered_json case_;
  std::filesystem::path dir_;
  std::shared_ptr<DiskTier> disk_;
  std::shared_ptr<FaultyTier> tier_;
  std::vector<std::shared_ptr<KvTier>> tiers_;  // of the next engine
};

}  // namespace vlcache
