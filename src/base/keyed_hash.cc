#include "base/keyed_hash.h"

#include <array>
#include <bit>
#include <cstring>
#include <random>

namespace vlcache {
namespace {

struct State {
  uint64_t a, b, c, d;

  void round() {
    a += b;
    c += d;
    b = std::rotl(b, 13) ^ a;
    d = std::rotl(d, 16) ^ c;
    a = std::rotl(a, 32) + d;
    c += b;
    d = std::rotl(d, 21) ^ a;
    b = std::rotl(b, 17) ^ c;
    c = std::rotl(c, 32);
  }
  void add(uint64_t word) {
    d ^= word;
    round();
    a ^= word;
  }
};

std::array<uint64_t, 2> random_key() {
  std::random_device random;
  const auto word = [&] { return uint64_t{random()} << 32 | random(); };
  return {word(), word()};
}

}  // namespace

uint64_t keyed_hash(std::string_view text) {
  static const std::array<uint64_t, 2> key = random_key();
  State s{key[0] ^ 0x736f6d6570736575, key[1] ^ 0x646f72616e646f6d, key[0] ^ 0x6c7967656e657261,
          key[1] ^ 0x7465646279746573};
  uint64_t word = 0;
  size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) {
    std::memcpy(&word, text.data() + i, 8);
    s.add(word);
  }
  word = uint64_t{text.size()} << 56;
  for (size_t k = 0; i + k < text.size(); ++k) word |= uint64_t{static_cast<uint8_t>(text[i + k])} << (8 * k);
  s.add(word);
  s.c ^= 0xff;
  for (int i_round = 0; i_round < 3; ++i_round) s.round();
  return s.a ^ s.b ^ s.c ^ s.d;
}

}  // namespace vlcache
