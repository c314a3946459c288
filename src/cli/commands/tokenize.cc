// `vlcache tokenize` and `detokenize`: text to ids and back, for comparison with other tokenizers.
#include <cstdio>
#include <fstream>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/config_json.h"
#include "base/error.h"
#include "base/json.h"
#include "cli/flags/command.h"
#include "io/tokenizer/tokenizer.h"

namespace vlcache {
namespace {

struct TokenizeFlags {
  std::string model_dir, tokenizer_dir, file;
  std::optional<std::string> text;  // may be empty
};

void print_value(const Json& json) {
  const std::string line = json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  std::fwrite(line.data(), 1, line.size(), stdout);  // main() reports failures
}

// Calls `each` with every line of a file (- is standard input), parsed as JSON, and its number in errors.
void for_each_line(const std::string& path,
                   const std::function<void(const Json& json, const std::string& where)>& each) {
  std::ifstream file;
  if (path != "-") {
    file.open(path);
    if (!file || std::filesystem::is_directory(path)) throw Error(ErrorCode::kNotFound, path + ": cannot be opened");
  }
  std::istream& in = path == "-" ? std::cin : file;
  std::string line;
  for (int64_t number = 1; std::getline(in, line); ++number) {
    const std::string where = path + ": line " + std::to_string(number);
    each(parse_json(number == 1 ? without_bom(line) : line, where), where);
  }
}

void tokenize(const TokenizeFlags& flags) {
  if (!flags.text == flags.file.empty())
    throw Error(ErrorCode::kInput, "tokenize: expected either TEXT or --jsonl FILE");
  const Tokenizer tokenizer = Tokenizer::load(Checkpoint(flags.model_dir, flags.tokenizer_dir));
  if (flags.text) {
    print_value(tokenizer.encode(*flags.text));
    return;
  }
  for_each_line(flags.file, [&](const Json& json, const std::string& where) {
    if (!json.is_string())
      throw Error(ErrorCode::kInput, where + ": expected a JSON string, found " + json.type_name());
    print_value(tokenizer.encode(json.get_ref<const std::string&>()));
  });
}

void detokenize(const TokenizeFlags& flags) {
  const Tokenizer tokenizer = Tokenizer::load(Checkpoint(flags.model_dir, flags.tokenizer_dir));
  const auto print_ids = [&](const Json& json, const std::string& where) {
    std::vector<int32_t> ids;
    const bool is_list = json.is_array();
    for (const Json& id : is_list ? json : Json::array()) {
      if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > INT32_MAX) {
        throw Error(ErrorCode::kInput, where + ": expected token ids, found " + id.dump());
      }
      ids.push_back(id.get<int32_t>());
    }
    if (!is_list) throw Error(ErrorCode::kInput, where + ": expected a list of token ids, found " + json.type_name());
    print_value(tokenizer.decode(ids, /*skip_special_tokens=*/false));
  };
  if (flags.text) {
    print_ids(parse_json(*flags.text, "IDS"), "IDS");
  } else {
    for_each_line(flags.file.empty() ? "-" : flags.file, print_ids);
  }
}

}  // namespace

void add_tokenize_commands(const Command& app) {
  auto flags = std::make_shared<TokenizeFlags>();
  const Command to_ids = app.add_command("tokenize", "Convert text to token ids: one JSON array per line");
  add_model_dir(to_ids, flags->model_dir, flags->tokenizer_dir);
  to_ids.add("TEXT", flags->text, "Text to convert (default: --jsonl)");
  to_ids.add("--jsonl", flags->file, "File with one JSON string per line; -: standard input (default: TEXT)")
      .value_name("FILE");
  to_ids.run([flags] { tokenize(*flags); });

  const Command to_text =
      app.add_command("detokenize", "Convert token ids to text: one JSON string per line, special tokens included");
  add_model_dir(to_text, flags->model_dir, flags->tokenizer_dir);
  to_text.add("IDS", flags->text, "JSON array of token ids (default: standard input, one array per line)");
  to_text.add("--jsonl", flags->file, "File with one JSON array per line; -: standard input (the default)")
      .value_name("FILE");
  to_text.run([flags] { detokenize(*flags); });
}

}  // namespace vlcache
