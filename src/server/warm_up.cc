#include "server/warm_up.h"

#include <nlohmann/json.hpp>

#include "api/request_builder.h"
#include "engine/scheduler/scheduler.h"
#include "policy/registry.h"

namespace vlcache {
namespace {

constexpr int32_t kWords = 64, kAnswer = 8, kImageSide = 64;

void encode_blank_image(Engine& engine) {
  std::vector<Image> images;
  images.emplace_back(kImageSide, kImageSide);
  const nlohmann::ordered_json parts = {{{"type", "image"}}, {{"type", "text"}, {"text", "?"}}};
  const Prompt prompt = prepare_chat(engine, {{{"role", "user"}, {"content", parts}}}, std::move(images));
  engine.model().encode_image(prompt.images.at(0));  // bypasses the caches
}

}  // namespace

void warm_up(Engine& engine) {
  try {
    if (engine.model().sees_images()) encode_blank_image(engine);
    std::string words;
    for (int i = 0; i < std::min(kWords, engine.max_positions() / 8); ++i) words += " the";
    Request request;
    request.prompt = engine.prepare_raw(words, {});
    request.policy = parse_policy("full");
    request.options.max_tokens = kAnswer;
    request.options.ignore_eos = true;
    generate(engine, std::move(request));
  } catch (const Error&) {  // a request that needs it reports the error
  }
  engine.kv().forget_counts();
}

}  // namespace vlcache
