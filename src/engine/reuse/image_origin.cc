#include "engine/reuse/image_origin.h"

#include <algorithm>

#include "engine/engine.h"
#include "io/tokenizer/tokenizer.h"
#include "policy/registry.h"
#include "reuse/image/image_keep.h"

namespace vlcache {
namespace {

void append(Prompt& to, const Prompt& from, int32_t begin, int32_t end) {
  to.tokens.insert(to.tokens.end(), from.tokens.begin() + begin, from.tokens.begin() + end);
  if (from.classes.empty()) return;
  to.classes.insert(to.classes.end(), from.classes.begin() + begin, from.classes.begin() + end);
}

// Tokens [begin, end) lie to each other as they do in `from`; the first one begins after what `to` has.
void place(Prompt& to, const Prompt& from, int32_t begin, int32_t end) {
  const int32_t n = to.n_tokens();
  for (int32_t i = 0; i < n; ++i) to.positions.push_back(Position::all(i));
  const Position& first = from.positions[static_cast<size_t>(begin)];
  for (int32_t i = begin; i < end; ++i) {
    const Position& p = from.positions[static_cast<size_t>(i)];
    to.positions.push_back({n + p.t - first.t, n + p.h - first.h, n + p.w - first.w});
  }
}

}  // namespace

Request origin_request(const Engine& engine, const Prompt& prompt, const PromptImages& images, size_t image) {
  const PromptImage& found = images[image];
  Request request;
  Prompt& alone = request.prompt;
  CHECK(!found.spans.empty());
  if (prompt.spans[0].begin > 0) append(alone, prompt, 0, 1);
  if (engine.has_tokenizer() && engine.tokenizer().bos_id() >= 0) {
    alone.tokens = {engine.tokenizer().bos_id()};
    if (!prompt.classes.empty()) alone.classes = {engine.tokenizer().token_class(alone.tokens[0])};
  }
  const int32_t shift = alone.n_tokens() - found.begin();
  for (const ImageSpan& span : found.spans) {
    ImageSpan& moved = alone.spans.emplace_back(span);
    moved.begin += shift;
    moved.end += shift;
    moved.image = 0;
  }
  if (!prompt.positions.empty()) place(alone, prompt, found.begin(), found.end());
  append(alone, prompt, found.begin(), found.end());
  prompt.copy_image(image, alone);
  alone.salt = prompt.salt;
  alone.keys = {found.key};
  request.policy = parse_policy("full");
  const ImageKvForm& form = engine.options().cache_form;
  if (form.wants_repetition()) {
    request.reuse.kept_tokens = std::make_shared<KeptTokens>();
    const auto note = [kept = request.reuse.kept_tokens](KeptTokens tokens) { *kept = std::move(tokens); };
    request.policy = std::make_shared<RepeatedImage>(form, alone.spans[0].begin, note);
  }
  request.reuse.chooser = parse_reuse_chooser("static:r=1");
  request.options.max_tokens = 0;
  return request;
}

}  // namespace vlcache
