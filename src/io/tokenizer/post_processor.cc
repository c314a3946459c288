// TemplateProcessing, BertProcessing, RobertaProcessing, ByteLevel, Sequence.
#include "io/tokenizer/post_processor.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/tokenizer/vocabulary.h"

namespace vlcache {
namespace {

int32_t checked_id(const Json& json, const std::string& where) {
  if (!json.is_number_integer() || json < 0 || json > kMaxTokenId) {
    throw Error(ErrorCode::kInput, where + ": expected a token id, found " + json.dump(-1, ' ', true).substr(0, 60));
  }
  return json.get<int32_t>();
}

std::vector<int32_t> parse_template(const JsonObject& object) {
  const Json* single = object.find("single");
  if (single == nullptr || !single->is_array())
    object.fail("single", "a list of {\"Sequence\"} and {\"SpecialToken\"}");
  std::vector<int32_t> items;
  for (size_t k = 0; k < single->size(); ++k) {
    const JsonObject piece((*single)[k], object.where() + ": single[" + std::to_string(k) + "]");
    if (piece.has("Sequence")) {
      const JsonObject sequence = piece.object("Sequence");
      if (sequence.string("id") != "A") sequence.fail("id", "\"A\", the only sequence of a single text");
      items.push_back(kTextItself);
      continue;
    }
    const std::string name = piece.object("SpecialToken").string("id");
    const JsonObject token = object.object("special_tokens").object(name);
    const Json* ids = token.find("ids");
    if (ids == nullptr || !ids->is_array()) token.fail("ids", "a list of token ids");
    for (const Json& id : *ids) items.push_back(checked_id(id, token.where() + ": ids"));
  }
  return items;
}

// ["</s>", 2]
int32_t parse_named_id(const JsonObject& object, std::string_view key) {
  const Json* pair = object.find(key);
  if (pair == nullptr || !pair->is_array() || pair->size() != 2) object.fail(key, "[token, id]");
  return checked_id((*pair)[1], object.where() + ": " + std::string(key));
}

}  // namespace

std::vector<int32_t> parse_post_processor(const Json* json, const std::string& where) {
  if (json == nullptr || json->is_null()) return {kTextItself};
  const JsonObject object(*json, where);
  const std::string type = object.string("type");
  if (type == "ByteLevel") return {kTextItself};  // trims offsets, which are not computed here
  if (type == "TemplateProcessing") return parse_template(object);
  if (type == "BertProcessing" || type == "RobertaProcessing") {
    return {parse_named_id(object, "cls"), kTextItself, parse_named_id(object, "sep")};
  }
  if (type == "Sequence") {
    const Json* list = object.find("processors");
    if (list == nullptr || !list->is_array()) object.fail("processors", "a list");
    std::vector<int32_t> items{kTextItself};
    bool adds = false;
    for (size_t k = 0; k < list->size(); ++k) {
      const JsonObject part((*list)[k], where + "[" + std::to_string(k) + "]");
      std::vector<int32_t> of_part = parse_post_processor(&(*list)[k], part.where());
      if (part.string("type") == "ByteLevel") continue;
      if (adds)
        throw Error(ErrorCode::kUnsupported,
                    part.where() + ": a second post-processor that adds tokens is not supported");
      adds = true;
      items = std::move(of_part);
    }
    return items;
  }
  throw Error(ErrorCode::kUnsupported, where + ": post-processor type " + shown_json(Json(type)) +
                                           " is not supported (supported: TemplateProcessing, BertProcessing, "
                                           "RobertaProcessing, ByteLevel, Sequence)");
}

}  // namespace vlcache
