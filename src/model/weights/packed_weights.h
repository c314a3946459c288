// PackedWeights: the packed file of a model while the model is loaded. Either it has what the loader asks for, or it
// stores the values that the loader computed, for the next start, or it does neither.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "io/packed/packed_cache.h"
#include "model/weights/weight_forms.h"
#include "ops/backend.h"

namespace vlcache {

struct LoadOptions;
using WeightHash = std::array<uint8_t, 16>;  // of every byte of a source that was loaded

// Where the packed weights of a model came from.
enum class PackedUse : uint8_t {
  kOff,    // computed, and not stored
  kBuilt,  // computed, and stored
  kHit,    // read
};
std::string_view packed_use_name(PackedUse use);  // "off", "built", "hit"

// The sources of a packed file. `where`: as of PackedWeights.
PackedIdentity packed_identity(const LoadOptions& options, const Backend& backend, const std::string& where);

// Whether the options ask for matrices in memory that is shared with other processes, for which a packed file is
// needed.
bool shares_weights(const WeightForms& forms, const PackedCacheOptions& packed);

class PackedWeights {
 public:
  // Reads the file that there is. Off without quantised forms, without a folder, and for a source without an identity.
  // `where`: the model, as lists of packed files show it.
  PackedWeights(const LoadOptions& options, const Backend& backend, const std::string& where);

  bool hit() const { return hit_; }
  bool shared() const { return hit_ && shared_; }  // matrices are in memory that is shared with other processes
  WeightHash hash() const { return hash_; }        // of a hit: of the source from which the file was made

  // ---- what a hit has; each may be taken once. Nothing if the file lacks it: the loader then computes it
  // -------------
  std::optional<Weight> matrix(const std::string& name, int64_t n_out, int64_t n_in);
  bool values(const std::string& name, const Tensor& to);  // whether `to` was filled
  std::optional<bool> answer(const std::string& name);

  // ---- parts of a file that is written; else these do nothing
  // --------------------------------------------
  void add(const std::string& name, const Weight& w);
  void add(const std::string& name, const Tensor& values);
  void add(const std::string& name, bool answer);
  // After the last one.
  PackedUse finish(const WeightHash& hash);

 private:
  struct Part {
    nlohmann::json about;
    Buffer array;
  };
  std::optional<Part> take(const std::string& name);
  void read(PackedContents contents);

  const Backend& backend_;
  std::optional<PackedCache> cache_;  // empty: off
  nlohmann::json about_;
  std::map<std::string, Part> parts_;
  WeightHash hash_{};
  bool hit_ = false, shared_ = false;
};

}  // namespace vlcache
