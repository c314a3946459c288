// Of an image's KV, the tokens that matter whatever will be asked: what is kept of it where not all is.
#pragma once

#include <memory>

#include "reuse/image_kv.h"

namespace vlcache {

// `all`, which keeps every token, in `form`: of each layer the tokens with the largest scores, mean over its kv heads;
// coded rows as they are. Keys are scored before rotation, so that an image's form does not depend on where it was
// recorded.
std::shared_ptr<const ImageKv> keep_best(Backend& backend, const KvShape& shape, const ImageKvForm& form,
                                         const ImageKv& all);

}  // namespace vlcache
