// Videos in the parts of messages, as vLLM's, transformers' and llama.cpp's users send them: a URL, or a list of
// frames.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "api/messages/data_uri.h"
#include "engine/prompt/video_input.h"

namespace vlcache {

// The bytes of what a client wrote, which errors call `where`.
using ReadData =
    std::function<std::vector<std::byte>(const EncodedText& data, const std::string& where, FileKind kind)>;

// The bytes of an uploaded clip of that file_id.
using FindClip = std::function<VideoBytes(const nlohmann::ordered_json& id, const std::string& where)>;
struct ClipSources {
  ReadData read;
  FindClip find;
};

// The choice that all videos of a request share: fps, max_frames, num_frames and do_sample_frames of vLLM's
// mm_processor_kwargs, which are removed from `settings`, and of media_io_kwargs.video. Throws Error(kInput).
VideoChoice take_video_choice(const nlohmann::ordered_json& body, nlohmann::ordered_json& settings);

// fps and max_frames (or num_frames) of an object, as far as it has them; -1: no bound. Throws Error(kInput).
void read_video_choice(const nlohmann::ordered_json& object, const std::string& where, VideoChoice& choice);

// The video of a part, of type video_url, video or input_video; its fps and max_frames replace those of `choice`.
// Throws Error(kInput), beginning with `where`.
VideoRequest read_video_part(const nlohmann::ordered_json& part, const std::string& where, const VideoChoice& choice,
                             const ClipSources& sources);

}  // namespace vlcache
