// VideoArgument: a video as users write it on the command line, clip.mp4,fps=1,max_frames=64, and its two numbers as
// requests have them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace vlcache {

// Zeros: as the model's settings say.
struct VideoChoice {
  double fps = 0;          // frames shown of each second; of a list of frames: how many were taken in a second
  int64_t max_frames = 0;  // shown of the whole video
  bool all = false;        // all of its frames are shown, whatever the others say

  static constexpr double kMaxFps = 1000;
  static constexpr int64_t kMaxFrames = 4096;
};

struct VideoArgument {
  std::string path;  // a clip, or a folder of frames
  VideoChoice choice;
};

// A text whose last parts are fps=F and max_frames=N; a file of the whole name is that file. Throws Error(kInput) that
// begins with the text.
VideoArgument parse_video_argument(const std::string& text);

// Throw Error(kInput) that begins with `where` and states the expected value, unless the value may be such a number.
double checked_fps(double fps, const std::string& where);
int64_t checked_max_frames(int64_t n, const std::string& where);

}  // namespace vlcache
