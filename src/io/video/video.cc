#include "io/video/video.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <semaphore>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/format.h"
#include "base/os/limited_process.h"
#include "io/video/helper_output.h"

namespace vlcache {
namespace {

constexpr int kPlaces = 2;       // programs at once: other cores are the inference's
constexpr int32_t kThreads = 4;  // of a program
constexpr int64_t kLineBytes = 512, kTimeBytes = sizeof(double);
constexpr size_t kMaxWords = 300;

// Beside this program, or where an installation has it; tests lie up to two folders below it.
std::optional<std::filesystem::path> find_helper() {
  std::error_code error;
  const std::filesystem::path own = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  if (own.empty()) return std::nullopt;
  const std::filesystem::path up = own.parent_path();
  for (const auto& folder : {own, up / "libexec" / "vlcache", up, up.parent_path()}) {
    std::filesystem::path path = folder / "vlcache-video";
    if (std::filesystem::is_regular_file(path, error)) return path;
  }
  return std::nullopt;
}

constexpr std::chrono::seconds kPixelTime{10};  // it takes 0.1 s on an idle machine

// A GIF of one white pixel.
constexpr std::array<uint8_t, 35> kProbeClip{'G', 'I',  'F',  '8',  '9', 'a', 1, 0,    1, 0, 0x80, 0,
                                             0,   0xff, 0xff, 0xff, 0,   0,   0, ',',  0, 0, 0,    0,
                                             1,   0,    1,    0,    0,   2,   2, 0x44, 1, 0, ';'};

// Of vlcache-video: chosen once, by decoding that clip.
const Sandbox& helper_sandbox(const std::filesystem::path& helper) {
  static const Sandbox sandbox =
      choose_sandbox_aloud("the programs that decode videos", [&helper](const Sandbox& tried) {
        const MemoryFile clip(std::as_bytes(std::span(kProbeClip)));
        return run_limited(helper, {kHelperInput, "frames", "1", "1", "1", "1", "0"}, clip,
                           {.time = kPixelTime, .sandbox = tried});
      });
  return sandbox;
}

// One run of vlcache-video on a clip.
class HelperRun {
 public:
  HelperRun(const EncodedVideo& video, const VideoLimits& limits, const VideoCancelled& cancelled)
      : video_(video), limits_(limits), cancelled_(cancelled) {}

  // indices: ascending, each once; none: only the clip's info is asked for.
  VideoInfo run(std::span<const int64_t> indices, int64_t frame_bytes, const TakeFrame& take) {
    const std::optional<std::filesystem::path> helper = find_helper();
    if (!helper) {
      refuse(ErrorCode::kUnsupported,
             "videos need the program vlcache-video, which is neither beside vlcache nor in ../libexec/vlcache; make "
             "build makes both, and make install installs both");
    }
    std::string numbers;
    for (const int64_t index : indices) numbers += (numbers.empty() ? "" : ",") + std::to_string(index);
    const int32_t n_threads = std::clamp(static_cast<int32_t>(std::thread::hardware_concurrency()), 1, kThreads);
    const std::vector<std::string> arguments{kHelperInput,
                                             indices.empty() ? "info" : "frames",
                                             std::to_string(limits_.image.max_pixels),
                                             std::to_string(limits_.image.max_side),
                                             std::to_string(limits_.max_frames),
                                             std::to_string(n_threads),
                                             numbers};
    const ProcessLimits process{.time = limits_.time,
                                .memory_bytes = limits_.memory_bytes + std::ssize(*video_.clip),
                                .output_bytes = kLineBytes + (indices.empty() ? limits_.max_frames * kTimeBytes : 0) +
                                                std::ssize(indices) * (frame_bytes + kLineBytes),
                                .threads = n_threads,
                                .sandbox = helper_sandbox(*helper)};
    HelperOutput output(indices, limits_, take);
    const MemoryFile file(*video_.clip);
    const ProcessOutcome outcome = [&] {
      const Place place(*this);
      return run_limited(*helper, arguments, file, process,
                         {.cancelled = cancelled_, .take = [&](auto piece) { output.add(piece); }});
    }();
    if (!outcome.good() || !output.complete()) fail(outcome);
    return *output.info();
  }

 private:
  // One of the places for programs.
  struct Place {
    explicit Place(const HelperRun& run) {
      while (!places().try_acquire_for(std::chrono::milliseconds(50))) run.check_goes_on();
    }
    ~Place() { places().release(); }
    Place(const Place&) = delete;
    static std::counting_semaphore<kPlaces>& places() {
      static std::counting_semaphore<kPlaces> all(kPlaces);
      return all;
    }
  };

  [[noreturn]] void refuse(ErrorCode code, const std::string& what) const {
    throw Error(code, video_.where + ": " + what);
  }

  void check_goes_on() const {
    if (cancelled_ && cancelled_()) refuse(ErrorCode::kCancelled, "cancelled while the video was read");
  }

  [[noreturn]] void fail(const ProcessOutcome& outcome) const {
    using End = ProcessOutcome::End;
    if (outcome.end == End::kCancelled) refuse(ErrorCode::kCancelled, "cancelled while the video was read");
    if (outcome.end == End::kLate) {
      refuse(ErrorCode::kMemory,
             format("its frames took longer than %lld s to decode; ask for fewer (fps, max_frames), "
                    "or make the clip shorter or smaller first",
                    static_cast<long long>(limits_.time.count())));
    }
    if (outcome.end == End::kSignal) {
      refuse(ErrorCode::kInput,
             format("the clip ended its decoder (signal %d): it is damaged, or made to do that", outcome.code));
    }
    if (outcome.code == kNotStarted) {
      refuse(ErrorCode::kIo, "vlcache-video cannot be started: " + last_line(outcome.errors));
    }
    const std::string words = last_line(outcome.errors);
    const std::string_view view = words;
    for (const auto& [kind, code] :
         {std::pair{"unsupported: ", ErrorCode::kUnsupported}, std::pair{"damaged: ", ErrorCode::kInput},
          std::pair{"too large: ", ErrorCode::kMemory}}) {
      if (view.starts_with(kind)) refuse(code, std::string(view.substr(std::string_view(kind).size())));
    }
    refuse(ErrorCode::kIo, "vlcache-video failed" + (words.empty() ? "" : " (" + words + ")"));
  }

  // Printable ASCII: it may quote the clip.
  static std::string last_line(std::string_view errors) {
    while (errors.ends_with('\n')) errors.remove_suffix(1);
    if (const size_t line = errors.rfind('\n'); line != std::string_view::npos) errors.remove_prefix(line + 1);
    std::string words(errors.substr(0, kMaxWords));
    std::ranges::replace_if(
        words, [](char c) { return c < ' ' || c > '~'; }, '?');
    return words;
  }

  const EncodedVideo& video_;
  const VideoLimits& limits_;
  const VideoCancelled& cancelled_;
};

std::string where_of_frame(const EncodedVideo& video, size_t i) {
  return video.where + ": frame " + std::to_string(i + 1);
}

Image decode_frame(const EncodedVideo& video, size_t i, const VideoLimits& limits) {
  return decode_image(*video.frames[i], where_of_frame(video, i), limits.image);
}

VideoInfo info_of_frames(const EncodedVideo& video, const VideoLimits& limits) {
  const int64_t n = std::ssize(video.frames);
  if (n == 0) throw Error(ErrorCode::kInput, video.where + ": the video has no frames");
  if (n > limits.max_listed) {
    throw Error(ErrorCode::kMemory, video.where + ": the video has " + std::to_string(n) +
                                        " frames as images; expected at most " + std::to_string(limits.max_listed));
  }
  const double fps = video.fps > 0 ? video.fps : EncodedVideo::kFramesPerSecond;
  const Image first = decode_frame(video, 0, limits);
  return {.n_frames = n,
          .fps = fps,
          .seconds = static_cast<double>(n) / fps,
          .width = first.width,
          .height = first.height,
          .chosen = true};
}

void decode_frames(const EncodedVideo& video, const VideoInfo& info, std::span<const int64_t> indices,
                   const TakeFrame& take, const VideoLimits& limits, const VideoCancelled& cancelled) {
  for (const int64_t index : indices) {
    if (cancelled && cancelled()) {
      throw Error(ErrorCode::kCancelled, video.where + ": cancelled while the video was read");
    }
    Image frame = decode_frame(video, static_cast<size_t>(index), limits);
    if (frame.width != info.width || frame.height != info.height) {
      throw Error(ErrorCode::kInput,
                  where_of_frame(video, static_cast<size_t>(index)) +
                      format(": expected %lld x %lld pixels as the first frame has, found %lld x %lld",
                             static_cast<long long>(info.width), static_cast<long long>(info.height),
                             static_cast<long long>(frame.width), static_cast<long long>(frame.height)));
    }
    take(index, std::move(frame));
  }
}

}  // namespace

bool can_decode_clips() {
  const std::optional<std::filesystem::path> helper = find_helper();
  if (helper) helper_sandbox(*helper);
  return helper.has_value();
}

VideoInfo probe_video(const EncodedVideo& video, const VideoLimits& limits, const VideoCancelled& cancelled) {
  if (video.clip == nullptr) return info_of_frames(video, limits);
  return HelperRun(video, limits, cancelled).run({}, 0, nullptr);
}

void read_frames(const EncodedVideo& video, const VideoInfo& info, std::span<const int64_t> indices,
                 const TakeFrame& take, const VideoLimits& limits, const VideoCancelled& cancelled) {
  CHECK(std::ranges::is_sorted(indices));
  CHECK(indices.empty() || (indices.front() >= 0 && indices.back() < info.n_frames));
  if (indices.empty()) return;
  if (std::ssize(indices) > limits.max_listed) {
    throw Error(ErrorCode::kMemory, video.where + ": " + std::to_string(indices.size()) +
                                        " frames are asked for; expected at most " + std::to_string(limits.max_listed) +
                                        " (fps, max_frames)");
  }
  if (video.clip == nullptr) return decode_frames(video, info, indices, take, limits, cancelled);
  std::vector<int64_t> each(indices.begin(), indices.end());
  each.erase(std::unique(each.begin(), each.end()), each.end());
  const auto take_all = [&](int64_t index, Image&& frame) {
    CHECK(frame.width == info.width && frame.height == info.height);
    for (auto again = std::ranges::count(indices, index); again > 1; --again) take(index, Image(frame));
    take(index, std::move(frame));
  };
  HelperRun(video, limits, cancelled).run(each, 3 * info.width * info.height, take_all);
}

}  // namespace vlcache
