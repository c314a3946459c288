#include "server/http/random_id.h"

#include <openssl/rand.h>

namespace vlcache {

std::string random_id(const char* prefix) {
  unsigned char bytes[12] = {};
  RAND_bytes(bytes, sizeof bytes);
  std::string id = prefix;
  for (const unsigned char b : bytes) {
    id += "0123456789abcdef"[b >> 4];
    id += "0123456789abcdef"[b & 15];
  }
  return id;
}

}  // namespace vlcache
