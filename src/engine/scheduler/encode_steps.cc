#include "engine/scheduler/encode_steps.h"

#include "base/clock.h"

namespace vlcache {

bool encode_steps(Engine& engine, const ImageTiles& image, Model::Encoding& encoding, Deadline until,
                  const WorkTold& told) {
  const double flops = engine.model().encoding_flops(image);
  for (;;) {
    const auto begin = Clock::now();
    const double before = encoding.share_done();
    const bool more = encoding.step();
    const ComputeWork done{.images = flops * (encoding.share_done() - before)};
    engine.pace().took(done, ms_since(begin));
    told(done);
    if (!more || Clock::now() >= until) return more;
  }
}

}  // namespace vlcache
