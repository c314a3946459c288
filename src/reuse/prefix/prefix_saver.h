// PrefixSaver decides when exact prefixes of this process are stored beyond it: a prompt with images after its first
// use, while nothing is computed, and others at their second use, before memory evicts them, or at its end.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "reuse/prefix/hourly_bytes.h"
#include "reuse/prefix/prefix_places.h"

namespace vlcache {

enum class PrefixSaving : uint8_t {
  kOff,     // prefixes are neither written to tiers nor read from them
  kAuto,    // written after the first use while idle (images), at the second, before memory evicts them, at the end
  kAlways,  // written as soon as they are computed
};

// Called by the thread that drives the engine.
class PrefixSaver {
 public:
  // first_uses: bounds the bytes written of prompts that were used once; savers may share it. It must outlive this.
  PrefixSaver(std::unique_ptr<PrefixPlaces> places, PrefixSaving when, HourlyBytes& first_uses);
  ~PrefixSaver();
  PrefixSaver(const PrefixSaver&) = delete;

  PrefixSaving when() const { return when_; }
  struct Use {
    double ms_per_token;  // what computing the prefix took
    bool stays = true;    // the prefix cache will hold it
    bool salted = false;  // one caller alone may hit it: it is not stored at its first use
  };
  // A request has used this prefix. `key`: its name in the prefix cache. `kv`: returns a copy of its KV, computed as in
  // a prompt by itself.
  using KvOf = FunctionRef<std::unique_ptr<PrefixKv>()>;
  void used(std::vector<Element> key, std::vector<PrefixStore::Piece> pieces, KvOf kv, const Use& use);
  // A piece was found in a tier: it is not stored for its first use in this process.
  void found(const PrefixStore::Piece& piece);
  // Called while nothing is computed: queues a piece of a prompt with images that was used once, up to the end of its
  // last image and nine tenths of the prompt. At most one, so that a request that comes does not wait. False: nothing
  // is left to be stored. True: more may be, if only when the queues have room.
  bool save_first_use(Clock::time_point now = Clock::now());
  bool has_first_uses() const { return !first_uses_.empty(); }
  // In bytes of pieces.
  struct FirstUseStats {
    int64_t queued = 0;                               // to be stored
    int64_t beyond_bound = 0, evicted = 0, late = 0;  // not: for the bound an hour, by memory, because too many waited
    int64_t hour = 0, most_an_hour = 0;               // bytes of the last hour, and its bound
  };
  FirstUseStats first_use_stats(Clock::time_point now = Clock::now());
  // Queues what is in the prefix cache and was not stored yet, the most time saved first, as far as the queue has room.
  void save_all();
  // The same until everything is stored, or the deadline.
  void save_all(Deadline deadline);

 private:
  struct Prefix {
    std::vector<PrefixStore::Piece> pieces;
    double ms_per_token = 0;
    int64_t n_uses = 0, used_at = 0;
  };
  enum class Saving : uint8_t { kUsual, kYielding, kFirstUse };  // Record::yields, first_use
  struct PieceState {
    int32_t n_uses = 0;
    bool queued = false;  // to be stored
    bool once = false;    // as a record that yields
    // What a record of it is worth. If it was used again, it does not yield.
    PrefixStore::Worth worth(double ms_per_token, Saving how) const;
  };
  // A prompt that was used once, and its pieces that are not stored for that yet.
  struct FirstUse {
    std::vector<Element> key;
    std::deque<PrefixStore::Piece> pieces;
    double ms_per_token;
  };
  using Prefixes = std::map<std::vector<Element>, Prefix>;
  using Pieces = std::vector<PrefixStore::Piece>;

  void wait_for_idle(const std::vector<Element>& key, std::deque<PrefixStore::Piece> pieces, double ms_per_token);
  int64_t bytes_of(const std::deque<PrefixStore::Piece>& pieces) const;
  void note(std::vector<Element> key, Pieces pieces, double ms_per_token);
  void forget_oldest();
  // Pieces of noted prefixes that memory holds and tiers do not, as save_all() stores them.
  std::vector<std::pair<Prefixes::const_iterator, Pieces>> unsaved() const;
  int64_t save(std::span<const PrefixStore::Piece> pieces, PrefixKv& kv, double ms_per_token, Saving how);
  int64_t save_from_memory(const std::vector<Element>& key, const Pieces& pieces, double ms_per_token,
                           Saving how = Saving::kUsual);
  void evicting(std::span<const Element> key, std::span<const PageGroup> groups, int64_t n_left);
  // The noted prefix with the longest common beginning, and its length; the end: none.
  std::pair<Prefixes::const_iterator, int64_t> nearest(std::span<const Element> key) const;

  std::unique_ptr<PrefixPlaces> places_;
  PrefixSaving when_;
  Prefixes prefixes_;
  std::map<Sha256Digest, PieceState> pieces_;                // by the content of a piece
  std::map<int64_t, Prefixes::const_iterator> by_last_use_;  // of prefixes_
  int64_t n_uses_ = 0;
  std::deque<FirstUse> first_uses_;
  HourlyBytes& hour_;
  FirstUseStats first_use_stats_;
};

}  // namespace vlcache
