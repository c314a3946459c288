// The prompt in which an image's KV is computed for others where none that was asked for can do that.
#pragma once

#include "engine/request.h"

namespace vlcache {

class Engine;

// Computes the prompt's image behind the model's start token (without one: the prompt's first token, if that is text)
// and records its KV; has it repeated where that says which of its tokens are kept (--cache-keep). Tiles with words
// between them stand as they do in the prompt.
Request origin_request(const Engine& engine, const Prompt& prompt, size_t image);

}  // namespace vlcache
