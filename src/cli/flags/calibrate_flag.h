// --calibrate: requests whose prompts show which errors of quantised weights matter.
#pragma once

#include <string>

#include "cli/flags/flags.h"
#include "engine/calibration.h"

namespace vlcache {

Flag add_calibrate(const Command& command, std::string& value);

// What the flag means beside a value of --weights; empty: no calibration. Reads the file, and its images and videos.
// Throws Error: for weights that it does not concern; naming the line that holds no request or names files that cannot
// be read.
Calibration calibration(const std::string& file, const std::string& weights);

}  // namespace vlcache
