// vlcache-video FILE info|frames LIMITS... [NUMBERS]: what a clip is, and frames of it, on standard output. Written for
// vlcache, which runs it under limits and trusts nothing that it writes (io/video/helper_output.h says in which form).
//   LIMITS: max_pixels max_side max_frames threads    NUMBERS: 0,24,48
// The last line on standard error says what failed: "unsupported: ...", "damaged: ...", "too large: ...".
extern "C" {
#include <libavutil/log.h>
}
#include <fcntl.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "video_helper/clip.h"
#include "video_helper/frames.h"
#include "video_helper/rgb.h"

namespace vlcache {
namespace {

constexpr int kFailed = 1, kMisused = 2;

int64_t number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) {
    throw std::invalid_argument("expected a number, found '" + std::string(text) + "'");
  }
  return value;
}

std::vector<int64_t> numbers(std::string_view text) {
  std::vector<int64_t> all;
  while (!text.empty()) {
    const std::string_view one = text.substr(0, text.find(','));
    all.push_back(number(one));
    if (all.size() > 1 && all.back() <= all[all.size() - 2]) throw std::invalid_argument("numbers must ascend");
    text.remove_prefix(std::min(text.size(), one.size() + 1));
  }
  return all;
}

std::span<const uint8_t> map_file(const char* path) {
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  struct stat status {};
  if (fd < 0 || fstat(fd, &status) != 0) throw std::invalid_argument(std::string(path) + ": " + std::strerror(errno));
  if (status.st_size == 0) throw ClipError(ClipError::kUnsupported, "the file is empty");
  const auto size = static_cast<size_t>(status.st_size);
  void* at = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (at == MAP_FAILED) throw std::bad_alloc();
  close(fd);
  const rlimit none{0, 0};  // from here on no file and no connection can be opened
  setrlimit(RLIMIT_NOFILE, &none);
  return {static_cast<const uint8_t*>(at), size};
}

void write_all(const void* data, size_t n) {
  if (std::fwrite(data, 1, n, stdout) != n) throw std::runtime_error("standard output is closed");
}
void write_line(const std::string& line) { write_all(line.data(), line.size()); }

void write_frames(Clip& clip, const PacketList& packets, RgbConverter& rgb, const std::vector<int64_t>& wanted) {
  FrameReader frames(clip, packets);
  const auto n_bytes = static_cast<size_t>(3 * rgb.width() * rgb.height());
  for (const int64_t index : wanted) {
    if (index >= packets.n_frames()) throw std::invalid_argument("there is no frame " + std::to_string(index));
    const std::vector<uint8_t>& pixels = rgb.convert(frames.read(index));
    write_line(clip_format("frame %lld\n", static_cast<long long>(index)));
    write_all(pixels.data(), n_bytes);
    std::fflush(stdout);
  }
}

void run(std::span<char* const> arguments) {
  if (arguments.size() < 7) throw std::invalid_argument("expected FILE info|frames and four limits");
  const std::string_view what = arguments[2];
  if (what != "info" && what != "frames") throw std::invalid_argument("expected info or frames");
  const ClipLimits limits{.max_pixels = number(arguments[3]),
                          .max_side = number(arguments[4]),
                          .max_frames = number(arguments[5]),
                          .threads = static_cast<int>(std::clamp<int64_t>(number(arguments[6]), 1, 16))};
  const std::vector<int64_t> wanted = numbers(what == "frames" && arguments.size() > 7 ? arguments[7] : "");
  Clip clip(map_file(arguments[1]), limits);
  const PacketList packets = clip.list_packets();
  const Clip::Timing timing = clip.timing(packets);
  const bool has_audio = clip.has_audio();
  RgbConverter rgb(clip.stream(), limits);
  const bool with_times = what == "info" && !timing.times.empty();
  write_line(clip_format(
      "vlcache-video 2 frames %lld fps %.17g seconds %.17g width %lld height %lld audio %d times %d\n",
      static_cast<long long>(packets.n_frames()), timing.fps, timing.seconds, static_cast<long long>(rgb.width()),
      static_cast<long long>(rgb.height()), has_audio ? 1 : 0, with_times ? 1 : 0));
  if (with_times) write_all(timing.times.data(), timing.times.size() * sizeof(double));
  if (!wanted.empty()) write_frames(clip, packets, rgb, wanted);
  write_line("end\n");
  if (std::fflush(stdout) != 0) throw std::runtime_error("standard output is closed");
}

}  // namespace
}  // namespace vlcache

int main(int argc, char** argv) {
  mallopt(M_ARENA_MAX, 1);  // an arena of each thread would take 128 MiB of the address space that is allowed
  av_log_set_level(AV_LOG_QUIET);
  try {
    vlcache::run({argv, static_cast<size_t>(argc)});
    return 0;
  } catch (const vlcache::ClipError& error) {
    std::fprintf(stderr, "%s: %s\n", error.kind(), error.what());
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "misused: %s\n", error.what());
    return vlcache::kMisused;
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "too large: decoding it needs more memory than is allowed\n");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "failed: %s\n", error.what());
  }
  return vlcache::kFailed;
}
