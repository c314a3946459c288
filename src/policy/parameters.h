// Parameters: the parameters of a policy's part as a user writes them, "name@preset:key=value,key=value".
#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/contracts/model_files.h"

namespace vlcache {

class Parameters {
 public:
  // Throws Error(kInput) if the text is not of that form or a key is repeated.
  static Parameters parse(std::string_view text);

  const std::string& name() const { return name_; }
  bool has(std::string_view key) const { return values_.contains(key); }
  bool has_preset() const { return !preset_.empty() && !inherited_; }
  // The same parameters for another part, if a name stands for two, with its preset, if it has one.
  Parameters for_part(std::string_view name, std::string_view preset = "") const;
  // The parameters in effect, as a user would write them: "snapkv@kvpress:w=16".
  std::string resolved() const;

  // The value of `key`, or `fallback`. Marks the key as known. Throws Error(kInput) unless it is an integer from
  // at_least to at_most; an odd one >= 1; a finite number from `low` to `high`; one of `words`.
  int64_t integer(std::string_view key, int64_t fallback, int64_t at_least, int64_t at_most = INT32_MAX);
  int64_t odd(std::string_view key, int64_t fallback);
  double number(std::string_view key, double fallback, double low, double high);
  std::string_view word(std::string_view key, std::string_view fallback, std::initializer_list<std::string_view> words);
  // A file: the given one, or `fallback` beside the model, which need not exist; empty if there is no model.
  std::filesystem::path file(std::string_view key, std::string_view fallback);
  // `model` must outlive this object; null, or without a place: there is none.
  void set_model(const ModelFiles* model) { model_ = model == nullptr || model->where().empty() ? nullptr : model; }
  const ModelFiles* model() const { return model_; }
  // The preset if it is one of `known`, else "": another part may know it.
  std::string_view preset(std::initializer_list<std::string_view> known);
  // Takes over the preset of another part, if this one knows it.
  void inherit_preset(const Parameters& other);

  // Marks the keys and presets known to `other` as known here, too.
  void know(const Parameters& other);
  // Throws Error(kInput) naming the first key, or the preset, that was not queried, the nearest that was, and all of
  // those.
  void reject_unknown() const;

 private:
  const std::string* find(std::string_view key);
  [[noreturn]] void fail(std::string_view key, const std::string& expected) const;

  std::string text_, name_, preset_;
  bool inherited_ = false;
  const ModelFiles* model_ = nullptr;
  std::map<std::string, std::string, std::less<>> values_;
  std::vector<std::string> keys_, presets_;  // queried
};

}  // namespace vlcache
