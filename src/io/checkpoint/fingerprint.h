// Tells the files of checkpoints apart without reading all of them.
#pragma once

#include <filesystem>
#include <span>
#include <string>

namespace vlcache {

// SHA-256, in hex, of the size, the first and the last 64 KiB of each file, in this order; it does not depend on their
// paths. Throws Error(kIo) for a file that cannot be read.
std::string fingerprint_of(std::span<const std::filesystem::path> files);

}  // namespace vlcache
