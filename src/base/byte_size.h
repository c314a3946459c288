// Parses sizes as users write them: "512MiB", "2 GB", "1.5GiB".
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace vlcache {

// Bytes of a number with a unit (B, KB, MB, GB, TB of 1000; KiB, MiB, GiB, TiB of 1024; K, M, G, T too; any case), or,
// with `bare_unit` > 0, of a number alone in that unit. Empty unless the text is a size of at least 0 that fits.
std::optional<int64_t> parse_bytes(std::string_view text, int64_t bare_unit = 0);

}  // namespace vlcache
