#include "io/video/video_argument.h"

#include <charconv>
#include <cmath>
#include <filesystem>

#include "base/error.h"

namespace vlcache {
namespace {

// False: the text is no such number.
template <typename Number>
bool parse_all(std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

void read_choice(std::string_view item, const std::string& where, VideoChoice& choice) {
  const size_t equals = item.find('=');
  const std::string_view key = item.substr(0, equals), value = item.substr(equals + 1);
  if (key == "fps") {
    double fps = 0;
    choice.fps = checked_fps(parse_all(value, fps) ? fps : 0, where + ": fps");
  } else if (key == "max_frames") {
    int64_t n = 0;
    choice.max_frames = checked_max_frames(parse_all(value, n) ? n : 0, where + ": max_frames");
  } else {
    throw Error(ErrorCode::kInput, where + ": expected fps=F or max_frames=N after the path, found '" +
                                       std::string(item.substr(0, 40)) + "'");
  }
}

}  // namespace

double checked_fps(double fps, const std::string& where) {
  if (std::isfinite(fps) && fps > 0 && fps <= VideoChoice::kMaxFps) return fps;
  throw Error(ErrorCode::kInput, where + ": expected a number of frames a second, above 0 and at most 1000");
}

int64_t checked_max_frames(int64_t n, const std::string& where) {
  if (n >= 1 && n <= VideoChoice::kMaxFrames) return n;
  throw Error(ErrorCode::kInput, where + ": expected an integer from 1 to " + std::to_string(VideoChoice::kMaxFrames));
}

VideoArgument parse_video_argument(const std::string& text) {
  std::error_code error;
  VideoArgument argument{.path = text, .choice = {}};
  while (!std::filesystem::exists(argument.path, error)) {
    const size_t comma = argument.path.rfind(',');
    if (comma == std::string::npos) break;
    const std::string_view item = std::string_view(argument.path).substr(comma + 1);
    if (item.find('=') == std::string_view::npos) break;  // of the path's name
    read_choice(item, text, argument.choice);
    argument.path.resize(comma);
  }
  return argument;
}

}  // namespace vlcache
