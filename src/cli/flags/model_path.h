// Where the model is that -m names.
#pragma once

#include <string>

namespace vlcache {

// The snapshot directory of a model: of an existing directory itself or, if it is no model, the only one that it holds;
// of ORG/NAME, which no directory has as its name, the snapshot in Hugging Face's local cache (HF_HUB_CACHE, HF_HOME;
// nothing is downloaded): that of refs/main, else the newest complete one. Any other text stays as it is; the reader of
// checkpoints reports its fault.
std::string model_path(const std::string& text);

}  // namespace vlcache
