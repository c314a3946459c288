// PrefixSaver decides when exact prefixes of this process are stored beyond it: at their second use, before memory
// evicts them, or at its end.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "reuse/prefix/prefix_places.h"

namespace vlcache {

enum class PrefixSaving : uint8_t {
  kOff,     // prefixes are neither written to tiers nor read from them
  kAuto,    // written at the second use, before memory evicts them, and what memory has when the process ends
  kAlways,  // written as soon as they are computed
};

// Called by the thread that drives the engine.
class PrefixSaver {
 public:
  PrefixSaver(std::unique_ptr<PrefixPlaces> places, PrefixSaving when);
  ~PrefixSaver();
  PrefixSaver(const PrefixSaver&) = delete;

  PrefixSaving when() const { return when_; }
  // A request has used this prefix. `key`: its name in the prefix cache. `kv`: returns a copy of its KV, computed as in
  // a prompt by itself. `ms_per_token`: what computing it took. `stays`: the prefix cache will hold it.
  using KvOf = FunctionRef<std::unique_ptr<PrefixKv>()>;
  void used(std::vector<Element> key, std::vector<PrefixStore::Piece> pieces, KvOf kv, double ms_per_token, bool stays);
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
  struct PieceState {
    int32_t n_uses = 0;
    bool queued = false;  // to be stored
    // What a record of it is worth; `yields`: if it was used once.
    PrefixStore::Worth worth(double ms_per_token, bool yields) const;
  };
  using Prefixes = std::map<std::vector<Element>, Prefix>;
  using Pieces = std::vector<PrefixStore::Piece>;

  void note(std::vector<Element> key, Pieces pieces, double ms_per_token);
  void forget_oldest();
  // Pieces of noted prefixes that memory holds and tiers do not, as save_all() stores them.
  std::vector<std::pair<Prefixes::const_iterator, Pieces>> unsaved() const;
  int64_t save(std::span<const PrefixStore::Piece> pieces, PrefixKv& kv, double ms_per_token, bool yields);
  int64_t save_from_memory(const std::vector<Element>& key, const Pieces& pieces, double ms_per_token);
  void evicting(std::span<const Element> key, std::span<const PageGroup> groups, int64_t n_left);
  // The noted prefix with the longest common beginning, and its length; the end: none.
  std::pair<Prefixes::const_iterator, int64_t> nearest(std::span<const Element> key) const;

  std::unique_ptr<PrefixPlaces> places_;
  PrefixSaving when_;
  Prefixes prefixes_;
  std::map<Sha256Digest, PieceState> pieces_;                // by the content of a piece
  std::map<int64_t, Prefixes::const_iterator> by_last_use_;  // of prefixes_
  int64_t n_uses_ = 0;
};

}  // namespace vlcache
