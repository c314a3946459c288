// Fuzzes a video as written on the command line.
#include <cstdlib>

#include "base/error.h"
#include "base/fuzz_target.h"
#include "io/video/video_argument.h"

FUZZ_TARGET(video_argument) {
  using namespace vlcache;
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const VideoArgument read = parse_video_argument(text);
    const bool fps = read.choice.fps >= 0 && read.choice.fps <= VideoChoice::kMaxFps;
    const bool frames = read.choice.max_frames >= 0 && read.choice.max_frames <= VideoChoice::kMaxFrames;
    if (!fps || !frames || !text.starts_with(read.path)) std::abort();
  } catch (const Error&) {
  }
  return 0;
}
