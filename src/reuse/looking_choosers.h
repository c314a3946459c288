// Choosers that look at a prompt before they choose: what its images' tokens become behind what stands before them, or
// which of them the rest of it looks at.
#pragma once

#include "policy/parameters.h"
#include "reuse/reuse_chooser.h"

namespace vlcache {

ReuseChooserPtr make_cacheblend(Parameters& p);
ReuseChooserPtr make_kvshare(Parameters& p);
ReuseChooserPtr make_asked(Parameters& p);

}  // namespace vlcache
