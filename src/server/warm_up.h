// Runs what is slow only the first time, before the first request waits for it.
#pragma once

#include "engine/engine.h"

namespace vlcache {

// Encodes an image, computes a prompt and a few tokens; caches and counts nothing of it. What a model cannot do is
// skipped. Called by the thread that drives the engine.
void warm_up(Engine& engine);

}  // namespace vlcache
