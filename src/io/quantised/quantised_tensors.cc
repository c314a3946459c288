#include "io/quantised/quantised_tensors.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "io/quantised/plain_settings.h"
#include "io/quantised/quant_format.h"
#include "io/safetensors.h"

namespace vlcache {
namespace {

struct KnownFormat {
  std::string_view method;  // quant_method
  std::unique_ptr<const QuantFormat> (*make)(const JsonObject& config);
};
constexpr KnownFormat kFormats[] = {
    {"compressed-tensors", compressed_tensors_format},
    {"awq", awq_format},
    {"gptq", gptq_format},
    {"fp8", fp8_format},
    {"fbgemm-fp8", fp8_format},
};
constexpr const char* kWhatIsRead = "compressed-tensors, awq, gptq, auto-round or fp8";

// Tensors by which a method is known where config.json does not name it, or names another.
struct Mark {
  std::string_view end, method;
};
constexpr Mark kMarks[] = {
    {".qweight", "AWQ and GPTQ"},
    {".weight_packed", "compressed-tensors"},
    {".weight_scale", "compressed-tensors"},
    {".weight_scale_inv", "FP8 in blocks"},
    {"_proj_scale_inv", "FP8 in blocks"},
    {".quant_state.bitsandbytes__nf4", "bitsandbytes"},
    {".SCB", "bitsandbytes"},
    {".W_q", "HQQ"},
};

struct QuantSettings {
  const Json* json = nullptr;  // null: there are none
  std::string where;
  std::string_view method = "compressed-tensors";  // where they name none and have no key that tells it
  bool in_file = false;                            // not in config.json: other programs write files of these names, too
};

// Where transformers and older programs put them.
QuantSettings find_quantization(const JsonObject& config) {
  const auto in = [&](const JsonObject& object) -> QuantSettings {
    for (const char* key : {"quantization_config", "compression_config"}) {
      const Json* found = object.find(key);
      if (found == nullptr) continue;
      if (!found->is_object()) object.fail(key, "an object");
      return {.json = found, .where = object.where() + ": " + key};
    }
    return {};
  };
  if (QuantSettings found = in(config); found.json != nullptr) return found;
  const Json* text = config.find("text_config");
  if (text != nullptr && text->is_object()) {
    if (QuantSettings found = in(config.object("text_config")); found.json != nullptr) return found;
  }
  for (const QuantFile& file : kQuantFiles) {
    if (!config.has(file.name)) continue;
    return {.json = &config.object(file.name).raw(),
            .where = std::filesystem::path(config.where()).replace_filename(file.name).string(),
            .method = file.method,
            .in_file = true};
  }
  return {};
}

std::unique_ptr<const QuantFormat> make_format(const QuantSettings& settings) {
  Json plain = plain_settings(*settings.json);
  std::string method = quant_method_of(JsonObject(plain, settings.where), settings.method);
  if (method == "auto-round") {
    plain = auto_round_settings(JsonObject(plain, settings.where));
    method = plain["quant_method"].get<std::string>();
  }
  for (const KnownFormat& known : kFormats) {
    if (method == known.method) return known.make(JsonObject(plain, settings.where));
  }
  const Json* stated = JsonObject(*settings.json, settings.where).find("quant_method");
  throw Error(ErrorCode::kUnsupported,
              settings.where + ": quant_method " + shown_json(stated == nullptr ? Json(method) : *stated) +
                  " is not read; expected " + kWhatIsRead +
                  ", or the model's own weights, which --weights int8 or int4 quantise while they are loaded");
}

bool has_marks(const Safetensors& files) {
  return std::ranges::any_of(files.names(), [](std::string_view name) {
    return std::ranges::any_of(kMarks, [&](const Mark& mark) { return name.ends_with(mark.end); });
  });
}

// A tensor that only another method writes.
void check_marks(const Safetensors& files, const QuantFormat* format, const std::string& where) {
  std::vector<std::string_view> own;
  if (format != nullptr) own = format->marks();
  for (const std::string_view name : files.names()) {
    for (const auto& [end, method] : kMarks) {
      if (!name.ends_with(end) || std::ranges::find(own, end) != own.end()) continue;
      throw Error(ErrorCode::kInput, where + ": " +
                                         (format == nullptr ? std::string("no quantization_config")
                                                            : "quantization_config says " + format->name()) +
                                         ", but the tensor \"" + std::string(name.substr(0, 200)) + "\" is one of " +
                                         std::string(method));
    }
  }
}

// Module and name of a tensor; no module: "".
std::pair<std::string, std::string> split(const std::string& tensor) {
  const size_t dot = tensor.rfind('.');
  if (dot == std::string::npos) return {"", tensor};
  return {tensor.substr(0, dot), tensor.substr(dot + 1)};
}

}  // namespace

bool has_quantization_config(const JsonObject& config) {
  const Json* text = config.find("text_config");
  for (const char* key : {"quantization_config", "compression_config"}) {
    if (config.has(key) || (text != nullptr && text->is_object() && text->contains(key))) return true;
  }
  return false;
}

std::unique_ptr<StoredMatrix> QuantFormat::stacked(ModuleTensors&, const std::string&, int64_t, int64_t) const {
  CHECK(false);
}

int64_t group_size_in(const JsonObject& config, std::string_view key) {
  const int64_t size = config.integer(key, -1);
  if (size != -1 && (size < 1 || size > int64_t{1} << 30)) config.fail(key, "the inputs of a group, or -1 for all");
  return std::max<int64_t>(size, 0);
}

QuantisedTensors::QuantisedTensors(std::unique_ptr<const QuantFormat> format, std::shared_ptr<const Safetensors> files,
                                   std::string where)
    : format_(std::move(format)), files_(std::move(files)), where_(std::move(where)) {}
QuantisedTensors::~QuantisedTensors() = default;

std::unique_ptr<const QuantisedTensors> QuantisedTensors::open(const JsonObject& config,
                                                               std::shared_ptr<const Safetensors> files) {
  QuantSettings found = find_quantization(config);
  if (found.in_file && !has_marks(*files)) found = {};
  std::unique_ptr<const QuantFormat> format = found.json == nullptr ? nullptr : make_format(found);
  check_marks(*files, format.get(), config.where());
  if (format == nullptr) return nullptr;
  return std::unique_ptr<const QuantisedTensors>(
      new QuantisedTensors(std::move(format), std::move(files), config.where()));
}

bool QuantisedTensors::has(std::string_view module) const {
  const ModuleTensors tensors(*files_, std::string(module), where_);
  if (!format_->has(tensors)) return false;
  const SafetensorsEntry* weight = tensors.entry("weight");
  const bool has_values =
      weight != nullptr && (weight->dtype_name == "F32" || weight->dtype_name == "BF16" || weight->dtype_name == "F16");
  return !has_values || !format_->ignores(module);
}

std::unique_ptr<StoredMatrix> QuantisedTensors::matrix(const std::string& module, int64_t n_out, int64_t n_in) const {
  ModuleTensors tensors(*files_, module, where_);
  return format_->matrix(tensors, n_out, n_in);
}

bool QuantisedTensors::has_stack(const std::string& tensor) const {
  const auto [module, name] = split(tensor);
  return !module.empty() && format_->has_stack(ModuleTensors(*files_, module, where_), name);
}

std::unique_ptr<StoredMatrix> QuantisedTensors::stacked(const std::string& tensor, const StackPlace& place,
                                                        int64_t n_out, int64_t n_in) const {
  const auto [module, name] = split(tensor);
  ModuleTensors tensors(*files_, module, where_, place);
  return format_->stacked(tensors, name, n_out, n_in);
}

std::string QuantisedTensors::name() const { return format_->name(); }
int QuantisedTensors::activation_bits() const { return format_->activation_bits(); }

std::vector<std::string> QuantisedTensors::modules() const {
  std::set<std::string, std::less<>> modules;
  for (const std::string_view name : files_->names()) {
    const size_t dot = name.rfind('.');
    if (dot == std::string_view::npos) continue;
    const std::string_view module = name.substr(0, dot);
    if (!modules.contains(module) && has(module)) modules.emplace(module);
  }
  return {modules.begin(), modules.end()};
}

std::vector<std::string> QuantisedTensors::stacks() const {
  std::vector<std::string> stacks;
  for (const std::string_view name : files_->names()) {
    if (has_stack(std::string(name))) stacks.emplace_back(name);
  }
  return stacks;
}

std::array<int64_t, 3> QuantisedTensors::stack_shape(const std::string& tensor) const {
  const std::vector<int64_t>& shape = files_->find(tensor)->shape;
  return {shape.at(0), shape.at(1), shape.at(2)};
}

std::array<int64_t, 2> QuantisedTensors::shape(const std::string& module) const {
  return format_->shape(ModuleTensors(*files_, module, where_));
}

}  // namespace vlcache
