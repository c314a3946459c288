#include "engine/prompt/video_input.h"

#include <memory>
#include <utility>

#include "base/error.h"
#include "model/family.h"

namespace vlcache {

void check_takes_videos(const ModelConfig& config) {
  if (config.vision && !config.family->video_placeholder.empty()) return;
  throw Error(ErrorCode::kInput, "the model (" + config.model_type + ") takes no video" +
                                     (config.vision ? "; pass frames as images" : ": it reads text only"));
}

ProbedVideo input_video(VideoRequest given) {
  const auto request = std::make_shared<VideoRequest>(std::move(given));
  if (request->choice.fps > 0) request->video.fps = request->choice.fps;  // of frames; a clip has its own
  VideoInfo info = probe_video(request->video, request->limits, request->cancelled);
  VideoTiming timing{.n_frames = info.n_frames, .fps = info.fps};
  if (!info.times.empty()) {
    timing.times = std::exchange(info.times, {});
    timing.end = info.seconds;
  }
  VideoSampling sampling{.fps = request->choice.fps, .max_frames = request->choice.max_frames};
  if (request->choice.all) {
    sampling = {.all = true};
  } else if (info.chosen) {
    const int64_t most = request->choice.max_frames;
    sampling = most == 0 || info.n_frames <= most ? VideoSampling{.all = true}
                                                  : VideoSampling{.fps = info.fps, .max_frames = most};
  }
  const auto read = [request, info](std::span<const int64_t> indices, const InputVideo::Take& take) {
    read_frames(
        request->video, info, indices, [&](int64_t, Image&& frame) { take(std::move(frame)); }, request->limits,
        request->cancelled);
  };
  return {.info = info,
          .input = {.where = request->video.where,
                    .timing = std::move(timing),
                    .width = info.width,
                    .height = info.height,
                    .read = read,
                    .sampling = sampling,
                    .options = request->options}};
}

}  // namespace vlcache
