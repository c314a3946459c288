// TokenInfo: what the engine knows of a token, for policies.
#pragma once

#include <cstdint>

#include "base/contracts/kv.h"

namespace vlcache {

struct TokenInfo {
  int32_t id = 0;
  TokenClass token_class = TokenClass::kOther;
  SlotMeta meta;  // position, modality, segment
};

}  // namespace vlcache
