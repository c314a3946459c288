#include "io/video/helper_output.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace vlcache {
namespace {

constexpr size_t kMaxLine = 256;

[[noreturn]] void fail_output(const std::string& what) {
  throw Error(ErrorCode::kIo, "vlcache-video wrote " + what + "; it and vlcache may be of different versions");
}

// Removes "word 12" from the beginning of `text`.
template <typename Number>
Number take_field(std::string_view& text, std::string_view word) {
  Number value = 0;
  if (text.starts_with(word) && text.substr(word.size()).starts_with(' ')) {
    text.remove_prefix(word.size() + 1);
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const auto n = static_cast<size_t>(end - text.data());
    if (error == std::errc() && (n == text.size() || text[n] == ' ')) {
      text.remove_prefix(std::min(text.size(), n + 1));
      return value;
    }
  }
  fail_output("no number of '" + std::string(word) + "'");
}

}  // namespace

VideoInfo parse_helper_info(std::string_view line, const VideoLimits& limits) {
  if (take_field<int>(line, "vlcache-video") != 2) fail_output("another version of its first line");
  VideoInfo info;
  info.n_frames = take_field<int64_t>(line, "frames");
  info.fps = take_field<double>(line, "fps");
  info.seconds = take_field<double>(line, "seconds");
  info.width = take_field<int64_t>(line, "width");
  info.height = take_field<int64_t>(line, "height");
  info.has_audio = take_field<int>(line, "audio") != 0;
  const bool timed = take_field<int>(line, "times") != 0;
  const auto usable = [](double value) { return std::isfinite(value) && value > 0; };
  const auto side = [&](int64_t pixels) { return pixels >= 1 && pixels <= limits.image.max_side; };
  if (!line.empty() || info.n_frames < 1 || info.n_frames > limits.max_frames || !usable(info.fps) ||
      !usable(info.seconds) || !side(info.width) || !side(info.height) ||
      info.width * info.height > limits.image.max_pixels) {
    fail_output("an impossible first line");
  }
  if (timed) info.times.resize(static_cast<size_t>(info.n_frames));
  return info;
}

void HelperOutput::add(std::span<const std::byte> piece) {
  while (!piece.empty()) {
    if (ended_) fail_output("more after its end");
    if (in_times_ || in_frame_) {
      const std::span<std::byte> to =
          in_times_ ? std::as_writable_bytes(std::span(info_->times)) : std::as_writable_bytes(std::span(frame_.rgb));
      const size_t n = std::min(piece.size(), to.size() - n_filled_);
      std::memcpy(to.data() + n_filled_, piece.data(), n);
      piece = piece.subspan(n);
      n_filled_ += n;
      if (n_filled_ < to.size()) return;
      if (std::exchange(in_times_, false)) {
        end_times();
        continue;
      }
      in_frame_ = false;
      take_(indices_[n_taken_++], std::move(frame_));
      continue;
    }
    const std::string_view text(reinterpret_cast<const char*>(piece.data()), std::min(piece.size(), kMaxLine));
    const size_t end = text.find('\n');
    line_ += text.substr(0, end);
    if (line_.size() > kMaxLine) fail_output("a line that is too long");
    piece = piece.subspan(std::min(text.size(), end == std::string_view::npos ? text.size() : end + 1));
    if (end != std::string_view::npos) read_line();
  }
}

void HelperOutput::end_times() const {
  const std::vector<double>& times = info_->times;
  const auto descends = [](double a, double b) { return !(a <= b); };  // true for NaN, too
  if (times.front() != 0 || std::ranges::adjacent_find(times, descends) != times.end() ||
      !(times.back() <= info_->seconds)) {
    fail_output("impossible times of frames");
  }
}

void HelperOutput::read_line() {
  const std::string line = std::exchange(line_, "");
  std::string_view rest = line;
  if (!info_) {
    info_ = parse_helper_info(line, limits_);
    in_times_ = !info_->times.empty();
    n_filled_ = 0;
  } else if (line == "end") {
    if (n_taken_ != indices_.size()) fail_output("fewer frames than were asked for");
    ended_ = true;
  } else if (line.starts_with("frame ")) {
    const auto index = take_field<int64_t>(rest, "frame");
    if (!rest.empty()) fail_output("more than a frame's number");
    if (n_taken_ == indices_.size() || index != indices_[n_taken_]) fail_output("a frame that was not asked for");
    frame_ = Image(info_->width, info_->height);
    n_filled_ = 0;
    in_frame_ = true;
  } else {
    fail_output("an unknown line");
  }
}

}  // namespace vlcache
