// origin_request() builds a prompt that computes an image's KV for other prompts, where no requested prompt can do so.
#pragma once

#include "engine/prompt/prompt_images.h"
#include "engine/request.h"

namespace vlcache {

class Engine;

// Computes image number `image` of the prompt after the model's start token (without one: the prompt's first token, if
// that is text) and records its KV; repeats the image if that decides which of its tokens are kept (--cache-keep).
// Tiles with words between them are laid out as in the prompt.
Request origin_request(const Engine& engine, const Prompt& prompt, const PromptImages& images, size_t image);

}  // namespace vlcache
