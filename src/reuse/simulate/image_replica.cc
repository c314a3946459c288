// A vlcache server of a replay: the caches of an engine under one budget, and the steps of a request that use them
// (engine/reuse: match_prefix, ImagePlacement, ImageJobs, PrefixReuse::keep). What they decide is in reuse_rules.h.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <random>
#include <unordered_map>

#include "base/error.h"
#include "reuse/choose/reuse_rules.h"
#include "reuse/prefix/prefix_cache.h"
#include "reuse/simulate/replica.h"

namespace vlcache {
namespace {

constexpr Element kForms = 3;  // an element is 3 x the number of its block + its form
enum Form : int8_t { kComputed, kReused, kAnswered };

// The tree of prefixes as a member of the budget.
class PrefixMember final : public CacheBudget::Member {
 public:
  PrefixMember(CacheBudget& budget, int32_t page_size)
      : budget_(budget), prefixes_(budget, owner_, page_size, kPageSlots * kTokenBytes) {
    budget_.join(*this);
  }
  ~PrefixMember() override { budget_.leave(*this); }
  PrefixTree& tree() { return prefixes_.tree(); }
  void keep(std::span<const Element> key, double cost) {
    prefixes_.keep(key, cost, [](int32_t /*page*/) { return NoPages::kPage; });
  }

  int64_t bytes() const override { return prefixes_.tree().n_pages() * kPageSlots * kTokenBytes; }
  double least_priority() const override { return prefixes_.tree().least_priority(); }
  void evict_least() override { tree().evict(1); }

 private:
  CacheBudget& budget_;
  NoPages owner_;
  BudgetedPrefixes prefixes_;
};

Sha256Digest image_key(std::string_view kind, int64_t id) {
  Sha256 hash;
  hash.add(std::as_bytes(std::span(kind)));
  hash.add(id);
  return hash.finish();
}

// A request while it is served.
struct Work {
  const TraceRequest& request;
  std::vector<bool> reused;                          // by image: its KV is loaded, or part of a prefix that loaded it
  int64_t n_prefix = 0;                              // tokens
  bool exact = true;                                 // nothing before the next image was reused
  double n_computed = 0;                             // tokens, those of reused images by the share that is recomputed
  std::vector<size_t> recorded;                      // images whose KV is computed for others
  std::vector<std::pair<size_t, HitSource>> loaded;  // images from tiers
};

class ImageReplica final : public Replica {
 public:
  ImageReplica(const ReplayOptions& options, ReplayTiers& tiers, int32_t number)
      : options_(options),
        tiers_(tiers),
        pages_{static_cast<int32_t>(kPageSlots / options.block_tokens), kPageSlots * kTokenBytes},
        budget_(replay_bytes(options.capacity, options.block_tokens)),
        embeddings_(budget_),
        image_kv_(budget_),
        prefixes_(budget_, pages_.n_elements),
        saver_(tiers, prefixes_.tree(), pages_, options.prefixes),
        random_(static_cast<uint64_t>(options.seed) * 1024 + static_cast<uint64_t>(number)) {}

  int64_t n_known(const TraceRequest& request) override {
    return prefixes_.tree().n_common(key_of(request, std::vector<bool>(request.images.size())));
  }

  ReplayedRequest serve(const TraceRequest& request) override {
    Work work{.request = request, .reused = std::vector<bool>(request.images.size()), .recorded = {}, .loaded = {}};
    ReplayedRequest found;
    const std::vector<HitSource> sources = load_prefix(request);
    PrefixTree::Pin pin = take_prefix(work);
    for (int64_t b = 0; b < work.n_prefix / options_.block_tokens; ++b) {
      const bool was_loaded = b < std::ssize(sources) && sources[static_cast<size_t>(b)] != HitSource::kMiss;
      ++found.blocks[size_t(was_loaded ? sources[static_cast<size_t>(b)] : HitSource::kRam)];
    }
    work.n_computed = static_cast<double>(request.n_tokens - work.n_prefix);
    for (size_t i = 0; i < request.images.size(); ++i) found.images.push_back(place(work, i));
    for (size_t i = 0; i < request.images.size(); ++i) take_embeddings(work, i);
    end_prompt(work, std::move(pin));
    return found;
  }

 private:
  double uniform() { return (static_cast<double>(random_() >> 11) + 0.5) * 0x1p-53; }

  // The time of a prompt, in which others are computed, too: those before it on this replica.
  double measured_prompt(double time) {
    const double own = time;
    for (const double other : beside_) time += uniform() * other;
    beside_.push_back(own);
    while (std::ssize(beside_) > n_beside_) beside_.pop_front();
    return measured(time);
  }

  // What a measurement of this time gives: log-normal, by Box and Muller's formula, the same on every machine.
  double measured(double time) {
    if (options_.cost_spread == 0) return time;
    const double radius = std::sqrt(-2 * std::log(uniform()));
    const double normal = radius * std::cos(2 * std::numbers::pi * uniform());
    return time * std::exp(options_.cost_spread * normal);
  }

  int64_t bytes_of(const TraceImage& image) const { return image.n_tokens * kTokenBytes; }
  int64_t embedding_bytes_of(const TraceImage& image) const {
    return static_cast<int64_t>(static_cast<double>(bytes_of(image)) * options_.embedding_bytes);
  }

  // The elements of a prompt in which these images are reused.
  std::vector<Element> key_of(const TraceRequest& request, const std::vector<bool>& reused) {
    std::vector<Element> key;
    for (const Element block : request.blocks) {
      key.push_back(kForms * numbers_.try_emplace(block, std::ssize(numbers_)).first->second + kComputed);
    }
    for (size_t i = 0; i < reused.size(); ++i) {
      if (!reused[i]) continue;
      const TraceImage& image = request.images[i];
      for (int64_t b = image.begin / options_.block_tokens; b * options_.block_tokens < image.end(); ++b) {
        Element& element = key[static_cast<size_t>(b)];
        element = element / kForms * kForms + kReused;
      }
    }
    return key;
  }

  std::vector<PrefixStore::Image> cuts_of(const TraceRequest& request) const {
    std::vector<PrefixStore::Image> images;
    for (const TraceImage& image : request.images) {
      images.push_back({static_cast<int32_t>(image.begin), static_cast<int32_t>(image.end()), {}});
    }
    return images;
  }

  // The records of a prompt's KV, in elements. All replicas call them alike.
  std::vector<PrefixStore::Piece> pieces_of(const TraceRequest& request) const {
    std::vector<PrefixStore::Piece> pieces;
    Sha256Digest name{};
    int32_t begin = 0;
    for (const int32_t token : PrefixStore::ends(static_cast<int32_t>(request.n_tokens), cuts_of(request))) {
      const auto end = static_cast<int32_t>((token + options_.block_tokens - 1) / options_.block_tokens);
      const auto blocks =
          std::span(request.blocks).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
      name = replay_key(name, blocks);
      PrefixStore::Piece& piece = pieces.emplace_back();
      piece = {.begin = begin, .end = end, .key = {.content = name, .layout = {}}, .images = {}};
      for (const TraceImage& image : request.images) {
        if (image.begin >= token) continue;
        piece.images.push_back(image_key("kv", image.id));
        piece.images_end = static_cast<int32_t>(image.end() / kPageSlots * kPageSlots / options_.block_tokens);
      }
      begin = end;
    }
    return pieces;
  }

  // Brings the rest of the prompt's beginning from tiers to memory. Returns the tier of each block that was loaded, and
  // kMiss for those before.
  std::vector<HitSource> load_prefix(const TraceRequest& request) {
    std::vector<HitSource> sources;
    if (saver_.off() || request.n_tokens < kPageSlots) return sources;
    const std::vector<Element> key = key_of(request, std::vector<bool>(request.images.size()));
    const auto n_known = static_cast<size_t>(prefixes_.tree().n_common(key));
    for (const PrefixStore::Piece& piece : pieces_of(request)) {
      const auto end = static_cast<size_t>(piece.end);
      if (end <= n_known) continue;
      const HitSource source = tiers_.read_and_copy(piece.key.content, pages_.bytes_of(piece.end - piece.begin));
      if (source == HitSource::kMiss) break;
      sources.resize(std::max(n_known, sources.size()), HitSource::kMiss);
      sources.resize(end, source);
    }
    if (!sources.empty()) prefixes_.keep(std::span(key).first(sources.size()), 1);
    return sources;
  }

  // As match_prefix: the longest cached beginning, in which images may be reused where their KV is known. The last
  // token is always computed.
  PrefixTree::Pin take_prefix(Work& work) {
    const TraceRequest& request = work.request;
    const auto n_asked = static_cast<size_t>(std::max<int64_t>(0, request.n_tokens - 1) / options_.block_tokens);
    const auto tokens_known = [&](std::span<const Element> key) {
      return prefixes_.tree().n_common(key.first(n_asked)) * options_.block_tokens;
    };
    std::vector<Element> key = key_of(request, work.reused);
    const int64_t n_exact = work.n_prefix = tokens_known(key);
    std::vector<bool> wanted(request.images.size());
    for (size_t i = 0; i < wanted.size(); ++i) {
      const TraceImage& image = request.images[i];
      const Sha256Digest name = image_key("kv", image.id);
      wanted[i] = may_be_reused_in_prefix(image.range(), n_exact) && (image_kv_.contains(name) || tiers_.has(name));
    }
    if (std::ranges::find(wanted, true) != wanted.end()) {
      key = key_of(request, wanted);
      work.n_prefix = tokens_known(key);
      for (size_t i = 0; i < wanted.size(); ++i) {
        if (!wanted[i]) continue;
        work.n_prefix =
            cut_before(request.images[i].range(), work.n_prefix) / options_.block_tokens * options_.block_tokens;
      }
      for (size_t i = 0; i < wanted.size(); ++i) work.reused[i] = wanted[i] && request.images[i].end() <= work.n_prefix;
    }
    work.exact = std::ranges::find(work.reused, true) == work.reused.end();
    if (work.n_prefix == 0) return {};
    const std::span<const Element> prefix =
        std::span(key).first(static_cast<size_t>(work.n_prefix / options_.block_tokens));
    prefixes_.tree().match(prefix);
    return prefixes_.tree().pin(prefix);
  }

  // As ImagePlacement: whether the image is loaded, recorded, or only computed.
  HitSource place(Work& work, size_t i) {
    const TraceImage& image = work.request.images[i];
    if (is_in_prefix(image.range().n_after(work.n_prefix), image.n_tokens)) return HitSource::kPrefix;
    if (!is_after_prefix(image.range(), work.n_prefix)) return HitSource::kMiss;
    const Sha256Digest name = image_key("kv", image.id);
    if (ends_prompt(image.range(), work.request.n_tokens)) {
      if (work.exact && !image_kv_.contains(name)) work.recorded.push_back(i);
      return HitSource::kMiss;
    }
    HitSource source = HitSource::kRam;
    const bool recorded_here =
        std::ranges::any_of(work.recorded, [&](size_t other) { return work.request.images[other].id == image.id; });
    if (!recorded_here && image_kv_.find<void>(name) == nullptr) {
      source = tiers_.read_and_copy(name, bytes_of(image));
      if (source == HitSource::kMiss) return compute(work, i);
      work.loaded.emplace_back(i, source);
    }
    reuse(work, i);
    return source;
  }

  void reuse(Work& work, size_t i) {
    work.reused[i] = true;
    work.exact = false;
    work.n_computed -= (1 - options_.recompute) * static_cast<double>(work.request.images[i].n_tokens);
  }

  HitSource compute(Work& work, size_t i) {
    const TraceImage& image = work.request.images[i];
    if (work.exact) {
      work.recorded.push_back(i);
    } else if (bytes_of(image) <= budget_.max_bytes() && without_origin_.again(image_key("kv", image.id))) {
      // Computed in a prompt of its own, then reused here.
      take_embeddings(work, i);
      store(image, measured(1));
      reuse(work, i);
    }
    return HitSource::kMiss;
  }

  void store(const TraceImage& image, double cost_per_token) {
    const Sha256Digest name = image_key("kv", image.id);
    image_kv_.put(name, contents_, bytes_of(image), cost_per_token * static_cast<double>(image.n_tokens));
    tiers_.write_claimed(name, bytes_of(image));
  }

  // Of an image of which a token is computed.
  void take_embeddings(Work& work, size_t i) {
    const TraceImage& image = work.request.images[i];
    if (image.end() <= work.n_prefix || options_.embedding_bytes == 0) return;
    if (work.reused[i] && options_.recompute == 0) return;
    const Sha256Digest name = image_key("embeddings", image.id);
    if (embeddings_.find<void>(name) != nullptr) return;
    const int64_t bytes = embedding_bytes_of(image);
    double cost = 0;  // loading takes next to no time
    if (tiers_.read_and_copy(name, bytes) == HitSource::kMiss) {
      cost = options_.encoder_cost * measured(static_cast<double>(image.n_tokens));
      tiers_.write_claimed(name, bytes);
    }
    embeddings_.put(name, contents_, bytes, cost);
  }

  void end_prompt(const Work& work, PrefixTree::Pin pin) {
    const TraceRequest& request = work.request;
    const double time = measured_prompt(work.n_computed);
    const double per_token = time / static_cast<double>(std::max<int64_t>(1, request.n_tokens));
    for (const size_t i : work.recorded) store(request.images[i], per_token);
    for (const auto& [i, source] : work.loaded) {
      const TraceImage& image = request.images[i];
      image_kv_.put(image_key("kv", image.id), contents_, bytes_of(image),
                    per_token * static_cast<double>(image.n_tokens));
    }
    std::vector<Element> key = key_of(request, work.reused);
    const double cost = time / static_cast<double>(std::max<int64_t>(1, request.n_tokens - work.n_prefix));
    if (work.exact && !saver_.off() && request.n_tokens >= kPageSlots) saver_.used(key, pieces_of(request), cost);
    const auto page = static_cast<size_t>(pages_.n_elements);
    prefixes_.keep(std::span(key).first(key.size() / page * page), cost);
    const int64_t n_answer = std::max<int64_t>(0, request.n_answer - 1);  // the last token is never computed
    for (int64_t n = 0; n < n_answer; n += options_.block_tokens) key.push_back(kForms * n_answers_++ + kAnswered);
    running_.push_back({std::move(key), cost, std::move(pin)});
    n_beside_ = static_cast<int64_t>(options_.beside + uniform());  // options_.beside, on average
    while (std::ssize(running_) > n_beside_) end_request();
    if (running_.empty()) saver_.idle();
  }

  // The oldest running request ends: pages that were evicted since the end of its prompt are cached again.
  void end_request() {
    prefixes_.keep(running_.front().key, running_.front().cost);
    running_.pop_front();
  }

  struct Running {
    std::vector<Element> key;  // with the answer
    double cost;
    PrefixTree::Pin pin;
  };

  ReplayOptions options_;
  ReplayTiers& tiers_;
  ReplayPages pages_;
  CacheBudget budget_;
  DigestCache embeddings_, image_kv_;
  PrefixMember prefixes_;
  ReplicaSaver saver_;
  std::deque<Running> running_;
  std::shared_ptr<const int> contents_ = std::make_shared<int>();
  std::unordered_map<Element, Element> numbers_;  // of blocks
  ImagesWithoutOrigin without_origin_;
  Element n_answers_ = 0;
  std::mt19937_64 random_;
  int64_t n_beside_ = 0;
  std::deque<double> beside_;  // times of the latest prompts
};

}  // namespace

std::unique_ptr<Replica> make_image_replica(const ReplayOptions& options, ReplayTiers& tiers, int32_t number) {
  return std::make_unique<ImageReplica>(options, tiers, number);
}

}  // namespace vlcache
