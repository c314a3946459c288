// Choosers that preview a prompt before they choose: they compare its images' tokens with their values in this prompt,
// or rank them by the attention of the rest of it.
#pragma once

#include "policy/parameters.h"
#include "reuse/choose/reuse_chooser.h"

namespace vlcache {

ReuseChooserPtr make_cacheblend(Parameters& p);
ReuseChooserPtr make_kvshare(Parameters& p);
ReuseChooserPtr make_asked(Parameters& p);

}  // namespace vlcache
