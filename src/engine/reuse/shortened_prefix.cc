// Keys are rotated once more, by the difference of their angles at the new position and at the old one.
#include "engine/reuse/shortened_prefix.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "engine/engine.h"
#include "engine/engine_caches.h"
#include "reuse/prefix/prefix_cache.h"

namespace vlcache {
namespace {

constexpr int32_t kBlock = 512;  // tokens moved at a time

// What two prompts are compared by: id, number of the image, row of the image.
struct Comparable {
  int32_t id, image, row;
  bool operator==(const Comparable&) const = default;
};

std::vector<Comparable> comparable(std::span<const int32_t> ids, const PromptImages& images,
                                   std::map<Sha256Digest, int32_t>& numbers) {
  std::vector<Comparable> tokens;
  for (const int32_t id : ids) tokens.push_back({id, -1, -1});
  for (const PromptImage& image : images) {
    const Sha256Digest placed = placed_content(image, image.key);
    const int32_t number = numbers.try_emplace(placed, static_cast<int32_t>(numbers.size())).first->second;
    image.for_each_token([&](int32_t token, int32_t row) {
      if (token >= std::ssize(tokens)) return;
      tokens[static_cast<size_t>(token)].image = number;
      tokens[static_cast<size_t>(token)].row = row;
    });
  }
  return tokens;
}

// Tokens [0, n_same) of both prompts are the same, and [from, from + n_moved) of the longer one are
// [n_same, n_same + n_moved) of the shorter one.
struct Overlap {
  int32_t n_same = 0, from = 0, n_moved = 0;
};

Overlap overlap(std::span<const Comparable> longer, std::span<const Comparable> shorter) {
  const auto common = [](std::span<const Comparable> a, std::span<const Comparable> b) {
    return static_cast<int32_t>(std::ranges::mismatch(a, b).in1 - a.begin());
  };
  Overlap found{.n_same = common(longer, shorter)};
  const auto rest = shorter.subspan(static_cast<size_t>(found.n_same));
  for (int32_t from = found.n_same; from < std::ssize(longer); ++from) {
    const int32_t n = common(longer.subspan(static_cast<size_t>(from)), rest);
    if (n > found.n_moved) found.from = from, found.n_moved = n;
  }
  return found;
}

// Takes keys from positions `from` to positions `to`. Each product of a position and a frequency is rounded as
// RopeTable does.
class Turn {
 public:
  Turn(const RopeTable& rope, std::span<const Position> from, std::span<const Position> to)
      : half_(rope.frequencies().size()) {
    for (size_t i = 0; i < from.size(); ++i) {
      for (size_t j = 0; j < half_; ++j) {
        const auto angle = [&](const Position& p) {
          return static_cast<double>(static_cast<float>(component(p, rope.axes()[j])) * rope.frequencies()[j]);
        };
        const double by = angle(to[i]) - angle(from[i]);
        cos_.push_back(static_cast<float>(std::cos(by)));
        sin_.push_back(static_cast<float>(std::sin(by)));
      }
    }
  }

  // keys [n, head_dim] of one head, halves rotated as Backend::rope does.
  void apply(std::span<float> keys) const {
    for (size_t i = 0; i < cos_.size(); ++i) {
      const size_t first = i / half_ * 2 * half_ + i % half_, second = first + half_;
      const float a = keys[first], b = keys[second];
      keys[first] = a * cos_[i] - b * sin_[i];
      keys[second] = b * cos_[i] + a * sin_[i];
    }
  }

 private:
  size_t half_;                   // of a head
  std::vector<float> cos_, sin_;  // [n, half_]
};

// Appends slots [first, first + n) of `from`, whose keys are turned, to a layer of `to` as the given tokens. What
// `from` does not hold remains undefined.
void move_layer(Backend& backend, const KvCache& from, int32_t layer, int32_t first, std::span<const int32_t> tokens,
                const Turn& turn, KvCache& to) {
  const KvView view = to.append(layer, tokens);
  const int64_t n = std::ssize(tokens), n_heads = from.shape().n_own_heads(layer);
  if (n_heads == 0) return;
  const int64_t d = from.shape().layers[static_cast<size_t>(layer)].head_dim;
  std::vector<int32_t> slots(tokens.size());
  std::iota(slots.begin(), slots.end(), first);
  const auto held = std::ranges::find_if(slots, [&](int32_t slot) { return from.holds(layer, 0, slot); });
  const int64_t n_missing = held - slots.begin();  // before a window
  slots.erase(slots.begin(), held);
  std::vector<float> k(static_cast<size_t>(n * n_heads * d)), v(k.size()), head_k(static_cast<size_t>(n * d)),
      head_v(head_k.size());
  const auto tensor = [](std::vector<float>& values, int64_t rows, int64_t columns) {
    return Tensor(values.data(), DType::kF32, {rows, columns});
  };
  for (int64_t head = 0; head < n_heads; ++head) {
    backend.kv_read(from.view(layer), static_cast<int>(head), slots, tensor(head_k, n, d).slice_rows(n_missing, n),
                    tensor(head_v, n, d).slice_rows(n_missing, n));
    turn.apply(head_k);
    for (int64_t i = 0; i < n; ++i) {
      std::copy_n(head_k.begin() + i * d, d, k.begin() + (i * n_heads + head) * d);
      std::copy_n(head_v.begin() + i * d, d, v.begin() + (i * n_heads + head) * d);
    }
  }
  backend.kv_write(Tensor(k.data(), DType::kF32, {n, n_heads, d}), Tensor(v.data(), DType::kF32, {n, n_heads, d}),
                   view);
  to.encode(layer);
}

// Whether the longer prompt's cache has what the next row of the shorter one sees of windowed layers.
bool has_window(const KvCache& longer, const Overlap& overlap) {
  const int32_t window = longer.shape().largest_window(), n = overlap.n_same + overlap.n_moved;
  if (window == 0) return true;
  const auto held = [&](int32_t token) {  // a token index of the shorter one
    const int32_t source = token < overlap.n_same ? token : token - overlap.n_same + overlap.from;
    for (int32_t layer = 0; layer < longer.shape().n_layers(); ++layer) {
      if (longer.shape().n_own_heads(layer) > 0 && !longer.holds(layer, 0, source)) return false;
    }
    return true;
  };
  for (int32_t token = std::max(0, n - window + 1); token < n; ++token) {
    if (!held(token)) return false;
  }
  return true;
}

// The first tokens of the shorter prompt, from the cache of the longer one.
KvCache moved(Engine& engine, const KvCache& longer, const Overlap& overlap, std::span<const Position> from,
              std::span<const TokenInfo> to) {
  KvCache cache = longer.fork();
  const int32_t n_shared = cache.place_before(overlap.n_same);  // pages after it may have become codes
  cache.truncate(n_shared);
  const RopeTables& ropes = engine.model().ropes();
  const auto move = [&](int32_t source, int32_t first, int32_t n) {
    std::vector<int32_t> indices(static_cast<size_t>(n));
    std::iota(indices.begin(), indices.end(), first);
    std::vector<Position> there;
    for (const int32_t t : indices) there.push_back(to[static_cast<size_t>(t)].meta.position);
    std::vector<Turn> turns;  // by index of the rope
    for (int32_t rope = 0; rope < ropes.n(); ++rope) {
      turns.emplace_back(ropes.table(rope), from.subspan(static_cast<size_t>(source), indices.size()), there);
    }
    for (int32_t layer = 0; layer < longer.shape().n_layers(); ++layer) {
      move_layer(engine.backend(), longer, layer, source, indices, turns[static_cast<size_t>(ropes.index(layer))],
                 cache);
    }
    cache.end_step();
  };
  for (int32_t at = n_shared; at < overlap.n_same; at += kBlock) move(at, at, std::min(kBlock, overlap.n_same - at));
  for (int32_t at = 0; at < overlap.n_moved; at += kBlock) {
    move(overlap.from + at, overlap.n_same + at, std::min(kBlock, overlap.n_moved - at));
  }
  return cache;
}

// Of a prompt that is known by nothing else: its tokens and images, and what was there before.
Sha256Digest salt_of(std::span<const Comparable> longer, const PrefixTokens& before, int32_t gap) {
  Sha256 hash;
  hash.add(std::as_bytes(longer));
  for (const Sha256Digest& content : before.contents) hash.add(std::as_bytes(std::span(content)));
  if (before.salt) hash.add(std::as_bytes(std::span(*before.salt)));
  hash.add(int64_t{gap});
  return hash.finish();
}

}  // namespace

int32_t shorten_prefix(Engine& engine, const PrefixTokens& before, const CachedPrefix& known, Prompt& prompt) {
  if (known.n == 0) return 0;
  // Images are compared by what they were known as in `before`.
  prompt.salt = before.salt;
  prompt.keys.clear();
  std::map<Sha256Digest, int32_t> numbers;
  const std::vector<Comparable> longer = comparable(std::span(before.ids).first(static_cast<size_t>(known.n)),
                                                    list_images(before.spans, before.keys, before.positions), numbers);
  const std::vector<Comparable> shorter = comparable(prompt.tokens, list_images(prompt), numbers);
  Overlap found = overlap(longer, shorter);
  if (engine.model().config().text.learned_positions) found.n_moved = 0;  // keys that cannot leave their positions
  const int32_t n = found.n_same + found.n_moved;
  if (n == 0 || !has_window(known.kv, found)) return 0;
  const KvCache kv = moved(engine, known.kv, found, before.positions, prompt.token_infos());
  prompt.salt = salt_of(longer, before, found.from - found.n_same);
  prompt.keys = image_keys(prompt);
  PrefixReuse::keep(engine, prompt, n, kv, engine.caches().ms_per_token());
  return n;
}

}  // namespace vlcache
