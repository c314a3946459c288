// SmolVLM and SmolVLM2: Idefics3 with a small language model and a larger pixel shuffle. arXiv:2504.05299.
#include "model/families/families.h"

namespace vlcache {

const Family kSmolVlm = tiled_family("smolvlm");

}  // namespace vlcache
