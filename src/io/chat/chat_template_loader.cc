// Finds the chat templates of a checkpoint.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "io/chat/chat_template.h"

namespace vlcache {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxTemplateFileBytes = 16 << 20;

bool file_exists(const fs::path& path) {
  std::error_code ec;
  return fs::exists(path, ec);
}

using Templates = std::map<std::string, std::string>;

// "chat_template": a string, or a list of {name, template}.
Templates from_json(const fs::path& path) {
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

}  // namespace

Templates load_chat_templates(const fs::path& model_dir) {
  if (const fs::path legacy = model_dir / "chat_template.json"; file_exists(legacy)) return from_json(legacy);
  Templates templates;
  if (const fs::path main = model_dir / "chat_template.jinja"; file_exists(main)) {
    templates["default"] = read_text_file(main, kMaxTemplateFileBytes);
  }
  std::error_code ec;
  for (const auto& entry : fs::directory_iterator(model_dir / "additional_chat_templates", ec)) {
    if (entry.path().extension() != ".jinja") continue;
    templates[entry.path().stem().string()] = read_text_file(entry.path(), kMaxTemplateFileBytes);
  }
  if (!templates.empty()) return templates;
  const fs::path config = model_dir / "tokenizer_config.json";
  return file_exists(config) ? from_json(config) : Templates{};
}

std::string choose_chat_template(const Templates& templates, bool with_tools) {
  if (with_tools && templates.count("tool_use") != 0) return "tool_use";
  if (templates.count("default") != 0) return "default";
  return templates.size() == 1 ? templates.begin()->first : "";
}

}  // namespace vlcache
