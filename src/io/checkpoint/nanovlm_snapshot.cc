// What nanoVLM's code (data/processors.py, generate.py) makes of config.json, in the form of other snapshots.
#include "io/checkpoint/nanovlm_snapshot.h"

#include <algorithm>

#include "base/config_json.h"
#include "base/error.h"
#include "io/checkpoint/hf_snapshot.h"

namespace vlcache {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

constexpr std::string_view kImageToken = "<|image|>";
constexpr int64_t kMaxConfigBytes = 16 << 20;

// Contents that are lists become texts, a message's images first, as nanoVLM's datasets have them.
constexpr const char* kImagesFirst =
    "{%- set all = namespace(messages=[]) -%}{%- for m in messages -%}"
    "{%- set one = namespace(images='', text='') -%}{%- if m['content'] is string -%}{%- set one.text = m['content'] "
    "-%}{%- else -%}{%- for part in m['content'] -%}{%- if part['type'] == 'image' -%}"
    "{%- set one.images = one.images + '<|image|>' -%}{%- else -%}{%- set one.text = one.text + part['text'] -%}"
    "{%- endif -%}{%- endfor -%}{%- endif -%}"
    "{%- set all.messages = all.messages + [{'role': m['role'], 'images': one.images, 'text': one.text, "
    "'content': one.images + one.text}] -%}{%- endfor -%}{%- set messages = all.messages -%}";

// The prompt of models without a chat template of their own.
constexpr const char* kQuestionAndAnswer =
    "{%- for m in messages -%}{%- if m['role'] == 'user' -%}{{ m['images'] + 'Question: ' + m['text'] }}"
    "{%- elif m['role'] == 'assistant' -%}{{ ' Answer: ' + m['text'] + ' ' }}{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ ' Answer:' }}{%- endif -%}";

class NanoVlmSnapshot : public CheckpointReader {
 public:
  NanoVlmSnapshot(fs::path dir, fs::path tokenizer_dir)
      : dir_(std::move(dir)),
        tokenizer_dir_(tokenizer_dir.empty() ? dir_ : std::move(tokenizer_dir)),
        files_(read_hf_snapshot(dir_, tokenizer_dir_)) {}

  std::string where() const override { return files_->where(); }
  fs::path companion(std::string_view name) const override { return files_->companion(name); }
  std::string fingerprint() const override { return files_->fingerprint(); }
  std::optional<Json> generation_config() const override { return files_->generation_config(); }
  Safetensors tensors() const override { return files_->tensors(); }
  NamedJson config() const override;
  NamedJson image_settings() const override;
  NamedJson video_settings() const override { return image_settings(); }
  TokenizerText tokenizer() const override;
  TokenizerConfig tokenizer_config() const override;
  std::map<std::string, std::string> chat_templates() const override;

 private:
  std::string config_path() const { return (dir_ / "config.json").string(); }
  OrderedJson extra_tokens() const;

  fs::path dir_, tokenizer_dir_;
  std::unique_ptr<const CheckpointReader> files_;
};

// With a model_type, and vlm_extra_tokens in the order of the file, which decides their ids.
NamedJson NanoVlmSnapshot::config() const {
  NamedJson out = files_->config();
  const bool has_tokens = JsonObject(out.json, out.where).has("vlm_extra_tokens");  // throws unless it is an object
  out.json["model_type"] = "nanovlm";
  if (!has_tokens) return out;
  Json tokens = Json::array();
  const OrderedJson extra = extra_tokens();
  for (const auto& [name, content] : extra.items()) tokens.push_back({{"name", name}, {"content", content}});
  out.json["vlm_extra_tokens"] = std::move(tokens);
  return out;
}

// {"image_token": "<|image|>", ...}. The first models have none: there images have a token that no vocabulary has.
OrderedJson NanoVlmSnapshot::extra_tokens() const {
  const OrderedJson config =
      parse_ordered_config_json(read_text_file(dir_ / "config.json", kMaxConfigBytes), config_path());
  const auto found = config.find("vlm_extra_tokens");
  if (found == config.end() || found->is_null()) return {{"image_token", kImageToken}};
  const bool valid = found->is_object() && std::all_of(found->begin(), found->end(),
                                                       [](const OrderedJson& token) { return token.is_string(); });
  if (!valid) throw Error(ErrorCode::kInput, config_path() + ": vlm_extra_tokens: expected an object of tokens");
  return *found;
}

// As an image processor of the name in preprocessor_config.json.
NamedJson NanoVlmSnapshot::image_settings() const {
  const NamedJson named = files_->config();
  const JsonObject config(named.json, named.where);
  Json settings = {{"image_processor_type", "NanoVLMImageProcessor"},
                   {"max_image_size", {{"longest_edge", config.integer("vit_img_size")}}},
                   {"do_image_splitting", config.has("max_img_size")},
                   {"resize_to_max_side_len", config.boolean("resize_to_max_side_len", false)},
                   {"global_tile", extra_tokens().contains("global_image_token")}};
  if (config.has("max_img_size")) settings["size"] = {{"longest_edge", config.integer("max_img_size")}};
  return {.json = std::move(settings), .where = named.where};
}

TokenizerText NanoVlmSnapshot::tokenizer() const {
  std::error_code ec;
  if (tokenizer_dir_ == dir_ && !fs::exists(dir_ / "tokenizer.json", ec)) {
    const NamedJson named = files_->config();
    const std::string name = JsonObject(named.json, named.where).string("lm_tokenizer", "");
    throw Error(ErrorCode::kNotFound,
                dir_.string() + ": nanoVLM's checkpoints bring no tokenizer; fetch the one that config.json names (" +
                    (name.empty() ? "lm_tokenizer: it names none" : "hf download " + name.substr(0, 200)) +
                    ") and give its folder with --tokenizer DIR");
  }
  return files_->tokenizer();
}

TokenizerConfig NanoVlmSnapshot::tokenizer_config() const {
  return read_tokenizer_config(tokenizer_dir_, extra_tokens());
}

std::map<std::string, std::string> NanoVlmSnapshot::chat_templates() const {
  const NamedJson named = files_->config();
  return {
      {"default", kImagesFirst + JsonObject(named.json, named.where).string("lm_chat_template", kQuestionAndAnswer)}};
}

}  // namespace

bool is_nanovlm_snapshot(const fs::path& dir) {
  std::error_code ec;
  const fs::path path = dir / "config.json";
  if (!fs::is_regular_file(path, ec)) return false;
  try {
    const Json config = parse_config_json(read_text_file(path, kMaxConfigBytes), path.string());
    return config.is_object() && !config.contains("model_type") && config.contains("vit_hidden_dim") &&
           config.contains("lm_hidden_dim");
  } catch (const Error&) {
    return false;
  }
}

std::unique_ptr<const CheckpointReader> read_nanovlm_snapshot(const fs::path& dir, const fs::path& tokenizer_dir) {
  return std::make_unique<NanoVlmSnapshot>(dir, tokenizer_dir);
}

}  // namespace vlcache
