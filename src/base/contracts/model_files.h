// ModelFiles: a model as modules see it that keep files about it: its place, the files beside it, and the fingerprint
// by which such a file knows its model.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace vlcache {

class ModelFiles {
 public:
  virtual ~ModelFiles() = default;
  // The path that the user gave, for messages; empty: no model was named.
  virtual std::string where() const = 0;
  // The path of a file that vlcache keeps beside the model ("heads.json"), which need not exist.
  virtual std::filesystem::path companion(std::string_view name) const = 0;
  // Tells models apart without reading all their weights; does not depend on their place. Empty for a model without a
  // configuration. Throws Error(kIo) for a file that cannot be read.
  virtual std::string fingerprint() const = 0;
};

}  // namespace vlcache
