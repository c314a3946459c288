#include "video_helper/clip.h"

extern "C" {
#include <libavutil/opt.h>
}

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <utility>

namespace vlcache {
namespace {

constexpr int kBufferBytes = 64 << 10;
constexpr double kMaxFps = 1000;
constexpr double kDefaultFps = 24;  // what transformers assumes of a clip without one
// Formats of one file. Playlists, and what opens other files or addresses, are not among them.
constexpr const char* kFormats = "mov,matroska,webm,avi,gif,apng,mpegts,mpeg,mpegvideo,flv,asf,ogg,ivf,h264,hevc,m4v";

struct Memory {
  std::span<const uint8_t> bytes;
  int64_t at = 0;
};

int read_memory(void* opaque, uint8_t* to, int n) {
  auto* memory = static_cast<Memory*>(opaque);
  const int64_t left = static_cast<int64_t>(memory->bytes.size()) - memory->at;
  if (left <= 0) return AVERROR_EOF;
  const int64_t got = std::min<int64_t>(n, left);
  std::memcpy(to, memory->bytes.data() + memory->at, static_cast<size_t>(got));
  memory->at += got;
  return static_cast<int>(got);
}

int64_t seek_memory(void* opaque, int64_t offset, int whence) {
  auto* memory = static_cast<Memory*>(opaque);
  const auto size = static_cast<int64_t>(memory->bytes.size());
  if (whence == AVSEEK_SIZE) return size;
  whence &= ~AVSEEK_FORCE;
  const int64_t base = whence == SEEK_CUR ? memory->at : whence == SEEK_END ? size : 0;
  if (offset < -base || offset > size - base) return AVERROR(EINVAL);
  return memory->at = base + offset;
}

int refuse_to_open(AVFormatContext*, AVIOContext**, const char*, int, AVDictionary**) { return AVERROR(EPERM); }

[[noreturn]] void fail_reading(int error) {
  if (error == AVERROR(ENOMEM)) throw std::bad_alloc();
  throw ClipError(ClipError::kDamaged, "it is damaged or cut off (" + av_words(error) + ")");
}

struct DictionaryOwner {
  AVDictionary* dictionary = nullptr;
  ~DictionaryOwner() { av_dict_free(&dictionary); }
};

// Whether the number of a frame says when it is shown, so that it may be chosen and labelled by number as transformers
// does. Containers round times, and a frame may be missing: a label has a tenth of a second.
//   times: seconds from the first frame to each, ascending, two at least. last: seconds for which the last is shown.
bool is_constant_rate(std::span<const double> times, double last) {
  const auto n = static_cast<double>(times.size());
  const double interval = times.back() / (n - 1);
  const double tolerance = std::max(0.1 * interval, std::min(interval, 0.05));
  // A last frame that is cut short is common.
  const double off = (last - interval) * (n - 1) / n;
  if (off > tolerance || -off > std::max(tolerance, std::min(interval, 0.1))) return false;
  for (size_t i = 0; i < times.size(); ++i) {
    if (std::abs(times[i] - static_cast<double>(i) * interval) > tolerance) return false;
  }
  return true;
}

// Clips whose times begin again in the middle have many twice; their frames are counted.
bool can_tell_times(const PacketList& packets) {
  if (packets.shown.empty()) return false;
  int64_t n_twice = 0;
  for (size_t i = 1; i < packets.shown.size(); ++i) n_twice += packets.shown[i] == packets.shown[i - 1] ? 1 : 0;
  return n_twice <= packets.n_frames() / 10;
}

}  // namespace

std::string av_words(int error) {
  char words[AV_ERROR_MAX_STRING_SIZE] = {};
  av_strerror(error, words, sizeof words);
  return words;
}

std::string clip_format(const char* pattern, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, pattern);
  std::vsnprintf(text, sizeof text, pattern, arguments);
  va_end(arguments);
  return text;
}

void FormatDeleter::operator()(AVFormatContext* context) const {
  AVIOContext* io = context->pb;
  avformat_close_input(&context);
  if (io == nullptr) return;
  delete static_cast<Memory*>(io->opaque);
  av_freep(&io->buffer);
  avio_context_free(&io);
}

Clip::Clip(std::span<const uint8_t> bytes, const ClipLimits& limits) : bytes_(bytes), limits_(limits) { open(); }

void Clip::open() {
  format_.reset();
  AVFormatContext* context = avformat_alloc_context();
  auto* buffer = static_cast<uint8_t*>(av_malloc(kBufferBytes));
  if (context == nullptr || buffer == nullptr) throw std::bad_alloc();
  AVIOContext* io = avio_alloc_context(buffer, kBufferBytes, 0, new Memory{bytes_}, read_memory, nullptr, seek_memory);
  if (io == nullptr) throw std::bad_alloc();
  context->pb = io;
  context->flags |= AVFMT_FLAG_CUSTOM_IO;
  context->io_open = refuse_to_open;
  DictionaryOwner options;
  av_dict_set(&options.dictionary, "format_whitelist", kFormats, 0);
  av_dict_set(&options.dictionary, "protocol_whitelist", "none", 0);
  const int opened = avformat_open_input(&context, nullptr, nullptr, &options.dictionary);
  if (opened < 0) {  // it has freed the context, not the input
    delete static_cast<Memory*>(io->opaque);
    av_freep(&io->buffer);
    avio_context_free(&io);
    if (opened == AVERROR_INVALIDDATA || opened == AVERROR(EINVAL)) {
      throw ClipError(ClipError::kUnsupported,
                      "expected a video clip (MP4, MOV, WebM, Matroska, AVI, MPEG, FLV, Ogg, "
                      "GIF), found another kind of file, or a clip that is cut off");
    }
    fail_reading(opened);
  }
  format_.reset(context);
  if (const int found = avformat_find_stream_info(context, nullptr); found < 0) fail_reading(found);
  stream_ = av_find_best_stream(context, AVMEDIA_TYPE_VIDEO, -1, -1, nullptr, 0);
  if (stream_ < 0 || (stream().disposition & AV_DISPOSITION_ATTACHED_PIC) != 0) {
    throw ClipError(ClipError::kUnsupported, has_audio() ? "it has sound, but no video" : "it has no video");
  }
  const AVCodecParameters& codec = *stream().codecpar;
  const auto width = int64_t{codec.width}, height = int64_t{codec.height};
  if (width <= 0 || height <= 0) throw ClipError(ClipError::kDamaged, "its frames have no size");
  if (width > limits_.max_side || height > limits_.max_side || width * height > limits_.max_pixels) {
    throw ClipError(ClipError::kTooLarge,
                    clip_format("its frames have %lld x %lld pixels; the limit is %lld", static_cast<long long>(width),
                                static_cast<long long>(height), static_cast<long long>(limits_.max_pixels)));
  }
}

bool Clip::has_audio() const {
  const std::span streams(format_->streams, format_->nb_streams);
  return std::ranges::any_of(streams, [](const AVStream* s) { return s->codecpar->codec_type == AVMEDIA_TYPE_AUDIO; });
}

void Clip::rewind() { open(); }

// Any stream's.
bool Clip::read_any(AVPacket* packet) {
  av_packet_unref(packet);
  const int error = av_read_frame(format_.get(), packet);
  if (error == AVERROR_EOF) return false;
  if (error < 0) fail_reading(error);
  return true;
}

bool Clip::read(AVPacket* packet) {
  while (read_any(packet)) {
    if (packet->stream_index == stream_) return true;
  }
  return false;
}

PacketList Clip::list_packets() {
  PacketList list;
  const PacketPtr packet(av_packet_alloc());
  double end_s = 0;  // of all streams
  bool cut = false;  // the last packet is not whole
  const auto breaks_off = [&](const std::string& reason) {
    throw ClipError(ClipError::kDamaged, clip_format("it breaks off at second %.1f%s; cut it there first, for example "
                                                     "with ffmpeg -i IN -t %.1f -c copy OUT",
                                                     end_s, reason.c_str(), end_s));
  };
  bool all_have_times = true;
  int64_t last_shown = AV_NOPTS_VALUE;
  const double begin_s =
      format_->start_time == AV_NOPTS_VALUE ? 0 : static_cast<double>(format_->start_time) / AV_TIME_BASE;
  try {
    while (read_any(packet.get())) {
      cut = (packet->flags & AV_PKT_FLAG_CORRUPT) != 0;
      const AVRational base = format_->streams[packet->stream_index]->time_base;
      const int64_t pts = packet->pts != AV_NOPTS_VALUE ? packet->pts : packet->dts;
      if (pts != AV_NOPTS_VALUE) {
        const double end = static_cast<double>(pts) + static_cast<double>(packet->duration);
        end_s = std::max(end_s, end * av_q2d(base) - begin_s);
      }
      if (packet->stream_index != stream_ || (packet->flags & AV_PKT_FLAG_DISCARD) != 0) continue;
      all_have_times = all_have_times && packet->pts != AV_NOPTS_VALUE;
      list.entries.push_back({packet->pts, (packet->flags & AV_PKT_FLAG_KEY) != 0});
      if (packet->pts == AV_NOPTS_VALUE || packet->pts >= last_shown) {
        last_shown = packet->pts;
        list.last_duration = packet->duration;
      }
      if (list.n_frames() > limits_.max_frames) {
        throw ClipError(ClipError::kTooLarge, clip_format("it has more than %lld frames; cut out the part to ask about",
                                                          static_cast<long long>(limits_.max_frames)));
      }
    }
  } catch (const ClipError& error) {
    if (error.kind() != ClipError::kDamaged || list.entries.empty()) throw;
    breaks_off(" (" + std::string(error.what()) + ")");
  }
  if (list.entries.empty()) throw ClipError(ClipError::kDamaged, "it has no frames");
  if (cut) breaks_off("");
  // Matroska states where it ends, and ends without an error where it is cut off.
  const double stated_s = static_cast<double>(format_->duration) / AV_TIME_BASE;
  if (std::strstr(format_->iformat->name, "matroska") != nullptr && format_->duration > 0 &&
      begin_s + end_s < 0.95 * stated_s - 0.5) {
    breaks_off(clip_format(" of %.1f", stated_s));
  }
  if (!all_have_times) return list;
  for (const PacketList::Entry& entry : list.entries) list.shown.push_back(entry.pts);
  std::ranges::sort(list.shown);
  list.timed = std::ranges::adjacent_find(list.shown) == list.shown.end();
  return list;
}

// Seconds from the first frame to each.
std::vector<double> Clip::times_of(const PacketList& packets) const {
  std::vector<double> times;
  times.reserve(packets.shown.size());
  const auto first = static_cast<uint64_t>(packets.shown.front());
  for (const int64_t pts :
       packets.shown) {  // in unsigned integers: a hostile clip has times at both ends of their range
    times.push_back(static_cast<double>(static_cast<uint64_t>(pts) - first) * av_q2d(stream().time_base));
  }
  return times;
}

// For how long the frame that is shown last is shown; the first is shown `span` seconds before it.
double Clip::last_seconds(const PacketList& packets, double span) const {
  if (packets.last_duration == 0 && stream().duration > 0 && std::strstr(format_->iformat->name, "mov") != nullptr) {
    // Where frames are reordered, MP4 tells durations in the order of decoding alone; but the stream's end is stated.
    if (const double last = seconds(stream().duration) - seconds(packets.shown.back()); last > 0) return last;
  }
  return packets.last_duration > 0 ? seconds(packets.last_duration)
                                   : span / static_cast<double>(packets.n_frames() - 1);
}

Clip::Timing Clip::timing(const PacketList& packets) const {
  const auto n = static_cast<double>(packets.n_frames());
  const AVRational average = stream().avg_frame_rate;
  double fps = average.num > 0 && average.den > 0 ? av_q2d(average) : 0;
  if (n > 1 && can_tell_times(packets)) {
    std::vector<double> times = times_of(packets);
    const double span = times.back(), last = last_seconds(packets, span), end = span + last;
    if (std::isfinite(n / end) && n / end <= kMaxFps && !is_constant_rate(times, last)) {
      return {.fps = n / end, .seconds = end, .times = std::move(times)};
    }
  }
  if (packets.timed && n > 1) {  // the file's header may be wrong, or say nothing
    const double span = times_of(packets).back();
    const double last = seconds(packets.last_duration);
    const double measured = n / (span + (last > 0 ? last : span / (n - 1)));
    if (std::isfinite(measured) && measured > 0 && !(std::abs(fps / measured - 1) < 0.01)) fps = measured;
  }
  if (!std::isfinite(fps) || fps <= 0) fps = kDefaultFps;
  if (fps > kMaxFps) {
    throw ClipError(ClipError::kUnsupported,
                    clip_format("it has %.0f frames a second; expected at most %.0f: its times are wrong, or it must "
                                "be resampled first, for example with ffmpeg -r 30 -i IN OUT",
                                fps, kMaxFps));
  }
  return {.fps = fps, .seconds = n / fps, .times = {}};
}

}  // namespace vlcache
