// From a clip, or frames, to the InputVideo of a prompt.
#pragma once

#include <functional>

#include "engine/prompt/input_media.h"
#include "io/video/video.h"
#include "io/video/video_argument.h"

namespace vlcache {

struct ModelConfig;

// Throws Error(kInput) for a model that takes no video: before its weights are read.
void check_takes_videos(const ModelConfig& config);

struct VideoRequest {
  EncodedVideo video;
  VideoChoice choice;
  ImageOptions options;  // of its frames
  VideoLimits limits;
  std::function<bool()> cancelled = nullptr;  // asked while the video is read
};

struct ProbedVideo {
  VideoInfo info;
  InputVideo input;
};

// Probes the video (VideoInfo); its frames are decoded when the prompt is prepared. Frames that the sender chose are
// all shown, unless max_frames says fewer: then they are sampled evenly. Throws Error as probe_video does. Takes as
// long as reading the file takes: not for the inference thread.
ProbedVideo input_video(VideoRequest request);

}  // namespace vlcache
