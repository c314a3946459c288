#include "io/checkpoint/hf_snapshot.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <vector>

#include "base/config_json.h"
#include "base/error.h"
#include "io/checkpoint/download.h"
#include "io/checkpoint/fingerprint.h"
#include "io/quantised/quantised_tensors.h"

namespace vlcache {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;
using Templates = std::map<std::string, std::string>;

constexpr int64_t kMaxTemplateFileBytes = 16 << 20;

bool is_file(const fs::path& path) {
  check_link(path);
  std::error_code ec;
  return fs::is_regular_file(path, ec);
}

bool path_exists(const fs::path& path) {
  check_link(path);
  std::error_code ec;
  return fs::exists(path, ec);
}

// "chat_template": a string, or a list of {name, template}.
Templates templates_in(const fs::path& path) {
  const Json json = parse_config_json(read_text_file(path, kMaxTemplateFileBytes), path.string());
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
  OrderedJson json = parse_ordered_config_json(read_text_file(path), path.string());
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
  fs::path quantisation_file(const Json& config) const;
  std::optional<NamedJson> processor_part(std::string_view name) const;

  fs::path dir_, tokenizer_dir_;
};

constexpr const char* kNotRead = "are not supported; expected a Hugging Face snapshot directory with safetensors";

bool has_other_weights(const fs::path& dir) {
  std::error_code ec;
  for (const auto& entry : fs::directory_iterator(dir, ec)) {
    const fs::path kind = entry.path().extension();
    if (kind == ".bin" || kind == ".pt" || kind == ".pth" || kind == ".safetensors") return true;
  }
  return false;
}

// Throws Error(kInput) where a pointer of Git LFS stands in place of a binary file.
void check_no_pointer(const fs::path& path) {
  std::string beginning(1024, ' ');
  std::ifstream(path, std::ios::binary).read(beginning.data(), std::ssize(beginning));
  const size_t end = beginning.find_last_not_of(' ') + 1;
  const std::string reason = lfs_pointer_reason(beginning.substr(0, end));
  if (!reason.empty()) throw Error(ErrorCode::kInput, path.string() + ": " + reason);
}

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
                                          "model.safetensors, ...), found no such directory" + fetch_hint(dir_) +
                                          incomplete_hint(dir_, true));
  }
  if (!is_file(dir_ / "config.json")) {
    for (const auto& entry : fs::directory_iterator(dir_, ec)) {
      if (is_gguf(entry.path()))
        throw Error(ErrorCode::kUnsupported, entry.path().string() + ": GGUF files " + kNotRead);
    }
    throw Error(ErrorCode::kNotFound,
                dir_.string() + ": no config.json: not a model directory" + incomplete_hint(dir_, true));
  }
}

// Of the *.safetensors files in the order of their names, config.json, and the settings of quantised tensors that it
// lacks.
std::string HfSnapshot::fingerprint() const {
  if (!is_file(dir_ / "config.json")) return "";
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(dir_)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  }
  std::ranges::sort(files);
  files.push_back(dir_ / "config.json");
  try {
    if (fs::path file = quantisation_file(load_json(dir_ / "config.json")); !file.empty()) files.push_back(file);
  } catch (const Error&) {  // as config() says
  }
  return fingerprint_of(files);
}

// The file that has the settings of quantised tensors where config.json has none; empty: there is none.
fs::path HfSnapshot::quantisation_file(const Json& config) const {
  if (!config.is_object() || has_quantization_config(JsonObject(config, dir_.string()))) return {};
  for (const QuantFile& file : kQuantFiles) {
    if (is_file(dir_ / file.name)) return dir_ / file.name;
  }
  return {};
}

NamedJson HfSnapshot::config() const {
  check_is_model();
  const fs::path path = dir_ / "config.json";
  NamedJson config{.json = load_json(path), .where = path.string()};
  if (const fs::path file = quantisation_file(config.json); !file.empty()) {
    Json settings = load_json(file);
    if (!settings.is_object()) throw Error(ErrorCode::kInput, file.string() + ": expected a JSON object");
    config.json[file.filename().string()] = std::move(settings);
  }
  return config;
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
                    "found neither" +
                    incomplete_hint(dir_, false));
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
  if (is_file(index)) {
    try {
      return Safetensors::open_index(index);
    } catch (const Error& e) {
      const std::string hint = e.code() == ErrorCode::kNotFound ? incomplete_hint(dir_, true) : "";
      if (hint.empty()) throw;
      throw Error(e.code(), e.what() + hint);
    }
  }
  throw Error(ErrorCode::kNotFound,
              dir_.string() + ": neither model.safetensors nor model.safetensors.index.json is there (other formats " +
                  "of weights are not read)" + incomplete_hint(dir_, !has_other_weights(dir_)));
}

TokenizerText HfSnapshot::tokenizer() const {
  const fs::path path = tokenizer_dir_ / "tokenizer.json";
  if (const std::string hint = path_exists(path) ? "" : incomplete_hint(tokenizer_dir_, false); !hint.empty()) {
    throw Error(ErrorCode::kNotFound, path.string() + ": no such file" + hint);
  }
  if (const fs::path pieces = tokenizer_dir_ / "tokenizer.model"; !path_exists(path) && is_file(pieces)) {
    check_no_pointer(pieces);
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
