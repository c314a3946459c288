// The text families: Llama, Mistral, Qwen2, Qwen3. They differ in defaults and switches, which parse_text_config knows.
#include "model/families/families.h"

namespace vlcache {
namespace {

void read_text(const JsonObject& root, ModelConfig& out) { out.text = parse_text_config(root, out.model_type); }

Family text_family(std::string_view name) {
  return {.name = name,
          .model_types = {name},
          // The second spelling is a decoder saved without its head.
          .prefixes = {.text = {"model.", ""}, .lm_head = {""}, .vision = {}, .projector = {}},
          .read_config = read_text};
}

}  // namespace

const Family kLlama = text_family("llama");
const Family kMistral = text_family("mistral");
const Family kQwen2 = text_family("qwen2");
const Family kQwen3 = text_family("qwen3");

}  // namespace vlcache
