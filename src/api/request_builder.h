// RequestBuilder turns a prompt and the fields of a request into the request that the engine runs.
#pragma once

#include <map>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "api/answer_forms.h"
#include "api/request_fields.h"
#include "api/reuse_choice.h"
#include "base/contracts/model_files.h"
#include "engine/engine.h"
#include "engine/request.h"
#include "io/chat/template_input.h"

namespace vlcache {

// Renders messages ([{role, content}], as chat templates take them; an image is a part {"type": "image"}, a video
// {"type": "video"}) with the chat template. `media`: images and videos, each in the order of their parts. Throws
// Error(kInput) without a template, and what PromptLimits say.
Prompt prepare_chat(const Engine& engine, const nlohmann::ordered_json& messages, InputMedia media,
                    const TemplateInput& more = {}, const PromptLimits& limits = {});

// How the fields want images to be shown to the model. Throws Error(kInput) for values out of range.
ImageOptions image_options(const RequestFields& fields);

// Any thread.
class RequestBuilder {
 public:
  // All must outlive this object. `model`: whose files policies may read; null: none.
  // generic_tools: as AnswerForms has it.
  RequestBuilder(const Engine& engine, const ReuseChoice& reuse, const ModelFiles* model, bool generic_tools = true);

  // Takes milliseconds for a new grammar. Throws Error(kInput or kUnsupported) naming the field.
  AnswerForms::Form form(const AnswerFormat& format, const ToolUse& tools = {}) { return forms_.form(format, tools); }
  void allow_thought(AnswerForms::Form& form, std::optional<int> max_tokens) const {
    forms_.allow_thought(form, max_tokens);
  }
  // One request for each of fields.n answers; each seed is one more than the one before it. Throws Error(kInput) for
  // values out of range, and for a prompt that cannot be answered (check_prompt_fits).
  std::vector<Request> requests(Prompt prompt, const RequestFields& fields, const AnswerForms::Form& form);
  // The request for one answer.
  Request request(Prompt prompt, const RequestFields& fields);
  // Throws Error(kInput or kUnsupported) for fields with which no prompt could be answered. For defaults, so that a
  // flag's mistake is told at the start and not with every request.
  void check(const RequestFields& fields);
  const ReuseChoice& reuse() const { return reuse_; }
  // What of check() needs no work: for a request's fields, before its prompt is prepared.
  void check_options(const RequestFields& fields) const {
    options(fields);
    named_codec(fields);
  }
  // The codec of a request's KV. Throws Error(kInput) for one that is not known, that the model cannot have, or that
  // does not suit the policy.
  KvCodec kv_codec(const RequestFields& fields, const Policy& policy) const;
  // Requests with the same policy and budget share one object.
  PolicyPtr policy(const RequestFields& fields);

 private:
  // Sets what a policy sees of the prompt and when it evicts: query_aware, evict_while_prefill.
  void set_eviction(const RequestFields& fields, Prompt& prompt) const;
  // None: auto, or the engine's own. Throws Error(kInput) for a codec that is not known, or that the model cannot have.
  std::optional<KvCodec> named_codec(const RequestFields& fields) const;
  // The options of one answer, within the bounds.
  GenerateOptions options(const RequestFields& fields) const;
  void check_counts(const GenerateOptions& options) const;

  const Engine& engine_;
  const ReuseChoice& reuse_;
  const ModelFiles* model_;
  AnswerForms forms_;
  std::mutex mutex_;
  std::map<std::pair<std::string, std::string>, PolicyPtr> policies_;  // by policy and budget
};

}  // namespace vlcache
