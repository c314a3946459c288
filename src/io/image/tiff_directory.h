// Reads the directories of a TIFF before libtiff does; used inside io/image only. libtiff 4.5 keeps the values of all
// tags, each as large as the file if need be, and bounds neither their sum nor the work for directories.
#pragma once

#include <cstdint>
#include <vector>

#include "io/image/decoders.h"

namespace vlcache {

// As tiff_pages.
std::vector<uint64_t> find_tiff_pages(const DecodeInput& in);

// Compressions that are decoded; libtiff's others (WebP, LERC, JBIG, old JPEG, ...) are kept from strangers' files.
struct TiffCompression {
  uint32_t number;
  int64_t max_ratio;  // bytes of samples that a byte of the file makes at most; 0: any number
};
// Null: another one.
const TiffCompression* find_tiff_compression(uint32_t number);

// Throws Error unless the directory lies within the file, has few entries, whose values together are no larger than the
// file, and names such a compression or none.
void check_tiff_directory(const DecodeInput& in, uint64_t directory);

}  // namespace vlcache
