#include "io/checkpoint/hf_snapshot.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "base/error.h"
#include "io/checkpoint/fingerprint.h"

namespace vlcache {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;
using Templates = std::map<std::string, std::string>;

constexpr int64_t kMaxTemplateFileBytes = 16 << 20;

bool is_file(const fs::path& path) {
  std::error_code ec;
  return fs::is_regular_file(path, ec);
}

bool path_exists(const fs::path& path) {
  std::error_code ec;
  return fs::exists(path, ec);
}

// "chat_template": a string, or a list of {name, template}.
Templates templates_in(const fs::path& path) {
  const Json json = parse_json(read_text_file(path, kMaxTemplateFileBytes), path.string());
  const JsonObject object(json, path.string());
  const Json* value = object.find("chat_template");
  if (value == nullptr) return {};
  if (value->is_string()) return {{"default", value->get<std::string>()}};
  if (!value->is_array()) object.fail("chat_template", "a string or an array of {name, template}");
  Templates templates;
  for (const Json& entry : *value) {
    if (!entry.is_object()) object.fail("chat_template", "an array of {name, template}");
    const JsonObject named(entry, path.string() + ": chat_template");
    templates[named.string("name")] = named.string("template");
  }
  return templates;
}

// The keys in the order of the file; no keys if it does not exist.
OrderedJson optional_object(const fs::path& path) {
  if (!path_exists(path)) return OrderedJson::object();
  OrderedJson json = parse_ordered_json(read_text_file(path), path.string());
  if (!json.is_object()) throw Error(ErrorCode::kInput, path.string() + ": expected a JSON object");
  return json;
}

class HfSnapshot : public CheckpointReader {
 public:
  HfSnapshot(fs::path dir, fs::path tokenizer_dir)
      : dir_(std::move(dir)), tokenizer_dir_(tokenizer_dir.empty() ? dir_ : std::move(tokenizer_dir)) {}

  std::string where() const override { return dir_.string(); }
  fs::path companion(std::string_view name) const override { return dir_ / name; }
  std::string fingerprint() const override;
  NamedJson config() const override;
  std::optional<Json> generation_config() const override;
  NamedJson image_settings() const override;
  NamedJson video_settings() const override;
  Safetensors tensors() const override;
  TokenizerText tokenizer() const override;
  TokenizerConfig tokenizer_config() const override;
  Templates chat_templates() const override;

 private:
  void check_is_model() const;
  std::optional<NamedJson> processor_part(std::string_view name) const;

  fs::path dir_, tokenizer_dir_;
};

constexpr const char* kNotRead = "are not supported; expected a Hugging Face snapshot directory with safetensors";

// For ORG/NAME, which the local cache of Hugging Face lacks, too.
std::string fetch_hint(const fs::path& dir) {
  const bool named =
      dir.is_relative() && std::distance(dir.begin(), dir.end()) == 2 && *dir.begin() != "." && *dir.begin() != "..";
  return named ? "; if it is a model's name on the hub, fetch it with: hf download " + dir.string() : "";
}

// A tokenizer or chat templates may stand alone; what describes the model itself, not without config.json.
void HfSnapshot::check_is_model() const {
  std::error_code ec;
  const auto is_gguf = [](const fs::path& file) { return file.extension() == ".gguf"; };
  if (is_gguf(dir_)) throw Error(ErrorCode::kUnsupported, dir_.string() + ": GGUF files " + kNotRead);
  if (!fs::is_directory(dir_, ec)) {
    throw Error(ErrorCode::kNotFound, dir_.string() + ": expected a model directory (config.json, tokenizer.json, " +
                                          "model.safetensors, ...), found no such directory" + fetch_hint(dir_));
  }
  if (!is_file(dir_ / "config.json")) {
    for (const auto& entry : fs::directory_iterator(dir_, ec)) {
      if (is_gguf(entry.path()))
        throw Error(ErrorCode::kUnsupported, entry.path().string() + ": GGUF files " + kNotRead);
    }
    throw Error(ErrorCode::kNotFound, dir_.string() + ": no config.json: not a model directory");
  }
}

// Of config.json and the *.safetensors files in the order of their names.
std::string HfSnapshot::fingerprint() const {
  if (!is_file(dir_ / "config.json")) return "";
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(dir_)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  }
  std::ranges::sort(files);
  files.push_back(dir_ / "config.json");
  return fingerprint_of(files);
}

NamedJson HfSnapshot::config() const {
  check_is_model();
  const fs::path path = dir_ / "config.json";
  return {.json = load_json(path), .where = path.string()};
}

std::optional<Json> HfSnapshot::generation_config() const {
  check_is_model();
  const fs::path path = dir_ / "generation_config.json";
  if (!is_file(path)) return std::nullopt;
  return load_json(path);
}

// A part of processor_config.json; none: it has no such part.
std::optional<NamedJson> HfSnapshot::processor_part(std::string_view name) const {
  const fs::path combined = dir_ / "processor_config.json";
  if (!is_file(combined)) return std::nullopt;
  const Json json = load_json(combined);
  const JsonObject all(json, combined.string());
  if (!all.has(name)) return std::nullopt;
  const JsonObject settings = all.object(name);
  return NamedJson{.json = settings.raw(), .where = settings.where()};
}

// "image_processor" in processor_config.json, or else preprocessor_config.json.
NamedJson HfSnapshot::image_settings() const {
  if (std::optional<NamedJson> part = processor_part("image_processor")) return *std::move(part);
  const fs::path own = dir_ / "preprocessor_config.json";
  if (!is_file(own)) {
    throw Error(ErrorCode::kNotFound,
                dir_.string() +
                    ": expected preprocessor_config.json, or processor_config.json with image_processor in it; "
                    "found neither");
  }
  return {.json = load_json(own), .where = own.string()};
}

// "video_processor" in processor_config.json, or else video_preprocessor_config.json, or else the settings for images,
// as transformers reads them.
NamedJson HfSnapshot::video_settings() const {
  if (std::optional<NamedJson> part = processor_part("video_processor")) return *std::move(part);
  const fs::path own = dir_ / "video_preprocessor_config.json";
  if (is_file(own)) return {.json = load_json(own), .where = own.string()};
  return image_settings();
}

// model.safetensors, or the shards of model.safetensors.index.json.
Safetensors HfSnapshot::tensors() const {
  check_is_model();
  const fs::path whole = dir_ / "model.safetensors", index = dir_ / "model.safetensors.index.json";
  if (is_file(whole)) return Safetensors::open(whole);
  if (is_file(index)) return Safetensors::open_index(index);
  throw Error(ErrorCode::kNotFound,
              dir_.string() + ": neither model.safetensors nor model.safetensors.index.json is there (other formats " +
                  "of weights are not read)");
}

TokenizerText HfSnapshot::tokenizer() const {
  const fs::path path = tokenizer_dir_ / "tokenizer.json";
  if (!path_exists(path) && is_file(tokenizer_dir_ / "tokenizer.model")) {
    throw Error(ErrorCode::kNotFound,
                path.string() +
                    ": no such file, only tokenizer.model (SentencePiece); transformers converts it: "
                    "LlamaTokenizerFast.from_pretrained(dir).save_pretrained(dir), for Baichuan with "
                    "from_pretrained(dir, add_prefix_space=False)");
  }
  if (!path_exists(path)) {
    throw Error(ErrorCode::kNotFound,
                path.string() +
                    ": no such file; a model with only a tiktoken file or vocab.json is converted with transformers: "
                    "AutoTokenizer.from_pretrained(dir).save_pretrained(dir)");
  }
  return {.json = read_text_file(path), .where = path.string()};
}

TokenizerConfig HfSnapshot::tokenizer_config() const { return read_tokenizer_config(tokenizer_dir_); }

// Of several sources the first counts, as in transformers 5 for a model with a processor: chat_template.json;
// chat_template.jinja (name "default") with additional_chat_templates/*.jinja; "chat_template" in
// tokenizer_config.json.
Templates HfSnapshot::chat_templates() const {
  const fs::path& dir = tokenizer_dir_;
  if (const fs::path legacy = dir / "chat_template.json"; path_exists(legacy)) return templates_in(legacy);
  Templates templates;
  if (const fs::path main = dir / "chat_template.jinja"; path_exists(main)) {
    templates["default"] = read_text_file(main, kMaxTemplateFileBytes);
  }
  std::error_code ec;
  for (const auto& entry : fs::directory_iterator(dir / "additional_chat_templates", ec)) {
    if (entry.path().extension() != ".jinja") continue;
    templates[entry.path().stem().string()] = read_text_file(entry.path(), kMaxTemplateFileBytes);
  }
  if (!templates.empty()) return templates;
  const fs::path config = dir / "tokenizer_config.json";
  return path_exists(config) ? templates_in(config) : Templates{};
}

}  // namespace

std::unique_ptr<const CheckpointReader> read_hf_snapshot(const fs::path& dir, const fs::path& tokenizer_dir) {
  return std::make_unique<HfSnapshot>(dir, tokenizer_dir);
}

TokenizerConfig read_tokenizer_config(const fs::path& dir, const OrderedJson& extra_special_tokens) {
  const fs::path config = dir / "tokenizer_config.json";
  OrderedJson settings = optional_object(config);
  const OrderedJson names = optional_object(dir / "special_tokens_map.json"),
                    added = optional_object(dir / "added_tokens.json");
  if (!extra_special_tokens.is_null()) settings["extra_special_tokens"] = extra_special_tokens;
  return parse_tokenizer_config(settings, names, added, config.string());
}

}  // namespace vlcache
