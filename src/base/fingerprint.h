// Tells checkpoints apart without reading all their weights.
#pragma once

#include <filesystem>
#include <string>

namespace vlcache {

// SHA-256, in hex, of config.json and of the size, the first and the last 64 KiB of every *.safetensors file in
// `folder`, in the order of their names; it does not depend on the folder's path. Empty without a config.json. Throws
// Error(kIo) for a file that cannot be read.
std::string checkpoint_fingerprint(const std::filesystem::path& folder);

}  // namespace vlcache
