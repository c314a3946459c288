// `vlcache bench page`: memory, seconds until an answer about a page begins, and the speed of the answer.
#pragma once

#include "cli/flags/flags.h"

namespace vlcache {

void add_bench_page_command(const Command& bench_command);

// The sides of "1240x1754". Throws Error(kInput) that names the flag of `command`.
struct PixelSize {
  int32_t width = 0, height = 0;
};
PixelSize parse_pixel_size(const std::string& text, const char* flag);

}  // namespace vlcache
