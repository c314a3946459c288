// Warming up: what is slow only the first time is done before anybody waits for it.
#pragma once

#include "engine/engine.h"

namespace vlcache {

// Encodes a picture, computes a prompt and a few tokens; keeps and counts nothing of it. What a model cannot do is left
// out. By the thread that drives the engine.
void warm_up(Engine& engine);

}  // namespace vlcache
