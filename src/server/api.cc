#include "server/api.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <ctime>
#include <iterator>
#include <span>

#include "api/generic_tools.h"
#include "api/json_fields.h"
#include "api/messages/conversation.h"
#include "api/result_json.h"
#include "base/coded_error.h"
#include "base/error.h"
#include "base/file_url.h"
#include "base/json.h"
#include "base/json_text.h"
#include "base/os/threads.h"
#include "base/request_limits.h"
#include "base/sha256.h"
#include "engine/prompt/document_reader.h"
#include "engine/prompt/prompt_media.h"
#include "engine/request.h"
#include "io/tokenizer/tokenizer.h"
#include "server/http/json_reply.h"
#include "server/http/random_id.h"
#include "server/protocol/chat_reply.h"
#include "server/protocol/completion.h"
#include "server/protocol/messages_errors.h"
#include "server/protocol/messages_request.h"
#include "server/protocol/responses_request.h"
#include "server/protocol/styled_answer.h"
#include "server/routes.h"
#include "server/text_routes.h"
#include "server/warm_up.h"

namespace vlcache {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Ids of a prompt that one event of a stream may hold, of 7 bytes each: HttpOptions::max_unread_bytes.
constexpr int32_t kMostStreamedIds = 100'000;

// An error's `param` names a field of the body, or one that it lacks.
HttpResponse field_error(const Error& error, const HttpRequest& request) {
  if (dynamic_cast<const PromptTooLong*>(&error) != nullptr) {
    const std::string_view path = request.path;
    const bool of_text = path.ends_with("/completions") && !path.ends_with("/chat/completions");
    const char* field = path.ends_with("/responses") ? "input" : of_text ? "prompt" : "messages";
    return error_response(CodedError(error.code(), error.what(), "context_length_exceeded", field));
  }
  OrderedJson json = error_json(error);
  OrderedJson& param = json["error"]["param"];
  if (param.is_string()) {
    const auto name = param.get<std::string>();
    const std::string root = name.substr(0, name.find_first_of(".["));
    constexpr std::string_view kRequired[] = {"messages", "prompt", "input", "max_tokens", "tools", "tokens", "id"};
    // Uploads have fields in a form or in the query.
    const bool known = std::ranges::find(kRequired, root) != std::end(kRequired) || is_file_route(request.path);
    if (!known && request.body.find('"' + root + '"') == std::string::npos) param = nullptr;
  }
  return json_response(json, http_status(error));
}

// The name of an image or video in errors, and what it is.
using Place = std::pair<std::string, const char*>;

std::vector<Place> places_of(const std::vector<Message>& messages) {
  std::vector<Place> places;
  for (const Message& message : messages) {
    for (const Part& part : message.parts) {
      if (const auto* image = std::get_if<ImagePart>(&part)) places.emplace_back(image->image.where, "image");
      if (const auto* video = std::get_if<VideoPart>(&part)) places.emplace_back(video->video.where, "video");
    }
  }
  return places;
}

// An error about an image or a video, with OpenAI's code.
CodedError with_code(const Error& error, const Place& place) {
  const bool large = std::string_view(error.what()).find("the limit is") != std::string_view::npos;
  return {error.code(), error.what(), place.second + std::string(large ? "_too_large" : "_parse_error"), place.first};
}

class TooManyDocuments : public Error {
 public:
  TooManyDocuments() : Error(ErrorCode::kMemory, "too many PDFs and videos are being read; try again later") {}
};

HttpResponse try_again(const std::string& message) {
  HttpResponse full = refusal(429, message, "rate_limit_error", "rate_limit_exceeded");
  full.headers.emplace_back("retry-after", "1");
  return full;
}

// A tenant's files and named images are its own.
std::string file_owner(const ExchangePtr& exchange) {
  const auto& salt = exchange->caller().salt;
  return salt ? hex(*salt) : "";
}

// Combines the caller's salt and the one that its request sets.
std::optional<Sha256Digest> joined(const std::optional<Sha256Digest>& a, const std::optional<Sha256Digest>& b) {
  if (!a || !b) return a ? a : b;
  Sha256 hash;
  for (const auto& salt : {a, b}) hash.add(std::as_bytes(std::span(*salt)));
  return hash.finish();
}

}  // namespace

Api::Api(const Engine& engine, Inference& inference, const ApiOptions& options)
    : engine_(engine),
      inference_(inference),
      options_(options),
      created_(std::time(nullptr)),
      builder_(engine, *options.reuse, options.model, options.generic_tools),
      metrics_(options.model_name, engine.max_positions()),
      named_images_(options.named_image_bytes, engine.options().tiers, engine.model().fingerprint()),
      responses_(options.response_store_bytes),
      uploads_(options.uploads),
      file_routes_(uploads_),
      cache_routes_(inference, named_images_, responses_) {
  builder_.check(options_.defaults);
  AnswerForms::Form form;
  builder_.allow_thought(form, std::nullopt);
  if (options_.split_thoughts) thought_tags_ = form.thoughts;
}

void Api::handle(const HttpRequest& request, const HttpReplyPtr& reply) {
  if (std::string path = with_version(request.path); !path.empty()) {
    HttpRequest versioned = request;
    versioned.path = std::move(path);
    return handle(versioned, reply);
  }
  const InlineLoops beside_inference;
  const bool anthropic = request.path.starts_with("/v1/messages") || asks_anthropic_files(request);
  const auto exchange = std::make_shared<Exchange>(anthropic ? with_messages_errors(reply) : reply, request,
                                                   [this](const ExchangeReport& report) {
                                                     metrics_.add_status(report.status);
                                                     if (options_.on_end) options_.on_end(report);
                                                   });
  const Route* route = find_route(request.method, request.path);
  if (options_.access != nullptr) {
    Access::Verdict verdict = options_.access->check(request, is_open(request.path));
    exchange->set_caller(std::move(verdict.caller), std::move(verdict.headers));
    if (verdict.answer) {
      if (verdict.answer->status >= 400) metrics_.add_refused("access");
      return exchange->send(*std::move(verdict.answer));
    }
  }
  if (route == nullptr) return exchange->send(no_route(request));
  if (!may_use(*route, exchange->caller())) {
    return exchange->send(refusal(403, "expected the key of an admin", "invalid_request_error", "admin_only"));
  }
  try {
    const CheckScope own(CheckScope::Failure::kThrow);
    std::optional<HttpResponse> response = route->answer({*this, request, exchange});
    if (response) exchange->send(*std::move(response));
  } catch (const Error& e) {
    exchange->note_bug(e);
    exchange->send(failure(e, request));
  } catch (const nlohmann::json::exception& e) {  // a field of an unexpected type
    exchange->send(refusal(400, std::string("the request's body: ") + e.what(), "invalid_request_error"));
  } catch (...) {
    const Error e = caught_error();
    exchange->note_bug(e);
    const bool memory = e.code() == ErrorCode::kMemory;
    exchange->send(
        memory ? refusal(503, "out of memory: the machine does not give what this request needs", "server_error")
               : error_response(e));
  }
}

HttpResponse Api::failure(const Error& error, const HttpRequest& request) {
  if (dynamic_cast<const TooManyDocuments*>(&error) != nullptr) {
    metrics_.add_refused("documents");
    return try_again(error.what());
  }
  if (error.code() == ErrorCode::kCancelled && stopped_) {
    return refusal(503, "the server is shutting down", "server_error");
  }
  const auto* too_long = dynamic_cast<const PromptTooLong*>(&error);
  if (too_long == nullptr || !request.path.starts_with("/v1/messages")) return field_error(error, request);
  // The words that Anthropic's clients look for.
  return refusal(400,
                 "prompt is too long: " + std::to_string(too_long->n_tokens()) + " tokens > " +
                     std::to_string(too_long->max_tokens()) + " maximum",
                 "invalid_request_error");
}

void Api::warm_up() {
  inference_.between_steps([this](Engine& engine) {
    vlcache::warm_up(engine);
    warm_ = true;
  });
}

HttpResponse Api::live() const { return json_response({{"status", "ok"}}); }

HttpResponse Api::health() const {
  if (leaving_) return json_response({{"status", "shutting down"}}, 503);
  if (warm_) return live();
  HttpResponse response = json_response({{"status", "warming up"}}, 503);
  response.headers.emplace_back("retry-after", "1");
  return response;
}

// OpenAI's fields, vLLM's limit on the length of prompt and answer together, and Anthropic's fields.
nlohmann::ordered_json Api::model() const {
  return {{"id", options_.model_name},
          {"object", "model"},
          {"created", created_},
          {"owned_by", "vlcache"},
          {"max_model_len", engine_.max_positions()},
          {"type", "model"},
          {"display_name", options_.model_name},
          {"created_at", utc_time(created_)}};
}

HttpResponse Api::models() const {
  return json_response({{"object", "list"},
                        {"data", OrderedJson::array({model()})},
                        {"has_more", false},
                        {"first_id", options_.model_name},
                        {"last_id", options_.model_name}});
}

HttpResponse Api::model_of(const HttpRequest& request, const ExchangePtr&) const {
  constexpr std::string_view kPath = "/v1/models/";
  if (decode_percent(request.path.substr(kPath.size())) == options_.model_name) return json_response(model());
  return refusal(404, "there is no model of this name; the server has \"" + options_.model_name + "\"",
                 "invalid_request_error", "model_not_found");
}

bool Api::is_operation(std::string_view method, std::string_view path) {
  const Route* route = find_route(method, path);
  return route != nullptr && route->operation;
}

void Api::operate(const HttpRequest& request, const HttpReplyPtr& reply) {
  const Route* route = find_route(request.method, request.path);
  if (request.path == "*") return reply->send(no_route(request));
  if (route == nullptr || !route->operation) {
    return reply->send(refusal(404, "this port has /health, /metrics and /version", "invalid_request_error"));
  }
  reply->send(*route->answer({*this, request, nullptr}));
}

HttpResponse Api::version() const { return json_response({{"version", options_.version}}); }

HttpResponse Api::metrics() {
  const size_t n_connections = options_.n_connections ? options_.n_connections() : 0;
  return HttpResponse{.status = 200,
                      .content_type = "text/plain; version=0.0.4; charset=utf-8",
                      .headers = {},
                      .body = metrics_.text(inference_.state(), n_connections, uploads_.state())};
}

HttpResponse Api::loads() const {
  const Inference::State state = inference_.state();
  return json_response({{"running", state.n_running},
                        {"waiting", state.n_waiting},
                        {"kv_pages_used", state.kv_pages},
                        {"kv_pages_total", state.kv_max_pages},
                        {"tokens_in_flight", state.n_tokens}});
}

HttpResponse Api::props() const {
  OrderedJson props =
      props_json(engine_, options_.model_name, generate_options(options_.defaults), options_.n_parallel);
  props["limits"] = {{"image_pixels", options_.limits.image.max_pixels}};  // larger ones are shrunk by the page
  const RequestFields& defaults = options_.defaults;
  const std::string budget = defaults.kv_budget.value_or(BudgetText()).text;
  props["vlcache"] = {{"kv", defaults.kv.value_or(budget.empty() ? "full" : "auto")},
                      {"kv_budget", budget},
                      {"reuse", defaults.reuse.value_or("auto")}};
  return json_response(props);
}

HttpResponse Api::tokenize(const HttpRequest& request, const ExchangePtr& exchange) {
  const ChatLimits limits = limits_of(exchange);
  const auto of_messages = [&](const OrderedJson& body) {
    ChatRequest asked = read_chat_request(body, options_.defaults, limits);
    return prepare(asked, form_of(builder_, asked, thought_tags_), {.cancelled = limits.cancelled}).tokens;
  };
  return json_response(tokenize_json(engine_, request.body, of_messages, {.cancelled = limits.cancelled}));
}

HttpResponse Api::detokenize(const HttpRequest& request, const ExchangePtr&) const {
  return json_response(detokenize_json(engine_, request.body));
}

HttpResponse Api::files(const HttpRequest& request, const ExchangePtr& exchange) {
  return file_routes_.answer(request, file_owner(exchange));
}

HttpResponse Api::cache_stats() const { return cache_routes_.stats(); }
void Api::cache_entries(const HttpRequest&, const ExchangePtr& exchange) { cache_routes_.entries(exchange); }
void Api::cache_pin(const HttpRequest& request, const ExchangePtr& exchange) { cache_routes_.pin(request, exchange); }
void Api::cache_drop(const HttpRequest& request, const ExchangePtr& exchange) { cache_routes_.drop(request, exchange); }
void Api::cache_reset(const HttpRequest&, const ExchangePtr& exchange) { cache_routes_.reset(exchange); }

// The limits for this caller, with its images that have names.
ChatLimits Api::limits_of(const ExchangePtr& exchange) {
  ChatLimits limits = options_.limits;
  limits.named_images = &named_images_;
  uploads_.expire();
  if (uploads_.enabled()) limits.uploads = &uploads_;
  limits.cancelled = cancelled_with(exchange);
  // A request's PDFs and videos count as one, until the frames of the last have been decoded.
  const auto cancelled = [this, asked = limits.cancelled, all = std::make_shared<std::function<bool()>>()] {
    if (!*all) *all = reading(asked);
    return *all;
  };
  limits.read_document = [this, cancelled](DocumentRequest request) {
    request.cancelled = cancelled();
    return engine_.media().read_document(request);
  };
  limits.read_video = [this, cancelled](VideoRequest request) {
    engine_.media().check_takes_videos();
    request.cancelled = cancelled();
    return input_video(std::move(request)).input;
  };
  limits.caller = file_owner(exchange);
  return limits;
}

// Whether work for this reply is in vain: its client has left, or stop_work() was called.
std::function<bool()> Api::cancelled_with(const ExchangePtr& exchange) {
  const auto gone = std::make_shared<std::atomic<bool>>(false);
  exchange->on_gone([gone] { *gone = true; });
  return [this, gone] { return stopped_ || *gone; };
}

// Counts as a document that is being read as long as the function lives, which is `cancelled`. Throws TooManyDocuments
// where other requests would find no thread.
std::function<bool()> Api::reading(const std::function<bool()>& cancelled) {
  struct Reading {
    std::atomic<int>& n;
    const int before = n++;
    explicit Reading(std::atomic<int>& count) : n(count) {}
    ~Reading() { --n; }
  };
  auto reading = std::make_shared<const Reading>(n_documents_);
  if (reading->before >= kMaxDocuments) throw TooManyDocuments();
  return [cancelled, reading = std::move(reading)] { return cancelled(); };
}

// Of a prompt that is to be answered: beyond them, it could not be.
PromptLimits Api::prompt_limits(const RequestFields& fields, std::function<bool()> cancelled) {
  PromptLimits limits{.cancelled = std::move(cancelled)};
  if (options_.max_prompt_tokens > 0) limits.max_tokens = options_.max_prompt_tokens;
  const PolicyPtr policy = builder_.policy(fields);
  if (policy->pattern().window == 0) limits.max_positions = engine_.max_positions();  // else it may be of any length
  return limits;
}

// Tells of a prompt that passes PromptLimits what check_prompt_fits tells of one that was tokenised as a whole.
template <typename Prepare>
Prompt Api::within_limits(const RequestFields& fields, const Prepare& prepare) const {
  try {
    return prepare();
  } catch (const TextTooLong& e) {
    const std::string has = "the prompt has more than " + std::to_string(e.max_tokens()) + " tokens; ";
    if (e.max_tokens() == options_.max_prompt_tokens) {
      throw PromptTooLong(
          has + "this server takes at most " + std::to_string(e.max_tokens()) + " (--max-prompt-tokens)",
          e.max_tokens() + 1, e.max_tokens());
    }
    const bool answers = fields.max_tokens.value_or(1) > 0;
    throw PromptTooLong(has + "the model's context is " + std::to_string(engine_.max_positions()) +
                            (answers ? " and must hold the answer too" : ""),
                        e.max_tokens() + 1, engine_.max_positions() - (answers ? 1 : 0));
  }
}

// Moves the messages out of `asked`.
Prompt Api::prepare(ChatRequest& asked, const AnswerForms::Form& form, const PromptLimits& limits) {
  const std::vector<Place> places = places_of(asked.messages);
  Prompt prompt;
  try {
    prompt = prompt_of(engine_, asked, form, limits);
  } catch (const Error& e) {
    const auto is_named = [&](const Place& p) { return std::string_view(e.what()).starts_with(p.first + ":"); };
    const auto place = std::ranges::find_if(places, is_named);
    if (place == places.end() || http_status(e) != 400) throw;
    throw with_code(e, *place);
  }
  for (NamedImage& image : asked.named) named_images_.add(image.name, std::move(image.bytes), image.where);
  return prompt;
}

// One request for each answer.
std::vector<Request> Api::requests_of(const ChatRequest& asked, const AnswerForms::Form& form, Prompt prompt) {
  if (options_.max_prompt_tokens > 0 && prompt.n_tokens() > options_.max_prompt_tokens) {
    throw PromptTooLong("the prompt has " + std::to_string(prompt.n_tokens()) + " tokens; this server takes at most " +
                            std::to_string(options_.max_prompt_tokens) + " (--max-prompt-tokens)",
                        prompt.n_tokens(), options_.max_prompt_tokens);
  }
  if (asked.stream() && asked.returns_token_ids() && prompt.n_tokens() > kMostStreamedIds) {
    bad_field("return_token_ids: expected a prompt of at most " + std::to_string(kMostStreamedIds) +
              " tokens in a stream, found " + std::to_string(prompt.n_tokens()));
  }
  return builder_.requests(std::move(prompt), asked.fields, form);
}

void Api::chat(const HttpRequest& request, const ExchangePtr& exchange) {
  const auto style = [&](const AnswerHead& head, const ChatRequest& asked) {
    return make_chat_style(head, asked, engine_.tokenizer());
  };
  const ChatLimits limits = limits_of(exchange);
  converse(read_chat_request(parse_body(request.body), options_.defaults, limits), limits, "chatcmpl-", style,
           exchange);
}

void Api::messages(const HttpRequest& request, const ExchangePtr& exchange) {
  const ChatLimits limits = limits_of(exchange);
  converse(read_messages_request(parse_body(request.body), options_.defaults, limits), limits, "msg_",
           make_messages_style, exchange);
}

// Puts what a request refers to, an earlier response or single items, into its input.
void Api::recall(OrderedJson& body, const std::string& owner) const {
  const OrderedJson* previous = find_field(body, "previous_response_id");
  if (previous != nullptr && !responses_.enabled()) {
    bad_field(
        "previous_response_id: this server keeps no responses (--response-store BYTES); send what was said before "
        "as input");
  }
  if (!responses_.enabled()) return;
  OrderedJson items = OrderedJson::array();
  if (previous != nullptr) {
    const std::string id = string_field(body, "previous_response_id", "the request");
    std::optional<OrderedJson> found = responses_.find(owner, id);
    if (!found) {
      throw CodedError(
          ErrorCode::kNotFound,
          "previous_response_id: there is no response " + id + ", or no longer; send what was said before as input",
          "previous_response_not_found", "previous_response_id");
    }
    items = *std::move(found);
  }
  const OrderedJson* input = find_field(body, "input");
  int64_t n_bytes = 0;
  if (input != nullptr && input->is_string()) items.push_back({{"role", "user"}, {"content", *input}});
  for (const OrderedJson& item : input != nullptr && input->is_array() ? *input : OrderedJson::array()) {
    const bool refers = text_in(item, "type") == "item_reference";
    const std::string referred = refers ? responses_.find_item(owner, string_field(item, "id", "input")) : "";
    n_bytes += std::ssize(referred);
    if (n_bytes > kMaxRecalledBytes) {
      throw Error(ErrorCode::kMemory, "input: its references name more than " + std::to_string(kMaxRecalledBytes) +
                                          " bytes of items; refer to fewer");
    }
    items.push_back(referred.empty() ? item : parse_ordered_json(referred, "input"));
  }
  if (input != nullptr) body["input"] = std::move(items);
}

void Api::responses(const HttpRequest& request, const ExchangePtr& exchange) {
  OrderedJson body = parse_body(request.body);
  const ChatLimits limits = limits_of(exchange);
  const std::string owner = limits.caller + '\n' + text_in(body, "cache_salt");
  recall(body, owner);
  ResponsesPlan tools;
  ChatRequest asked = read_responses_request(body, options_.defaults, limits, tools);
  OrderedJson input = responses_.enabled() && bool_field(body, "store", true) ? body["input"] : OrderedJson();
  body.erase("input");  // images are large
  const auto style = [&](const AnswerHead& head, const ChatRequest& asked) {
    if (!input.is_null()) {
      tools.keep = [this, owner, id = head.id, input = std::move(input)](const OrderedJson& items) {
        OrderedJson all = input;
        for (const OrderedJson& item : items) all.push_back(item);
        responses_.add(owner, id, all);
      };
    }
    return make_responses_style(head, asked, body, tools, engine_.tokenizer());
  };
  try {
    converse(std::move(asked), limits, "resp_", style, exchange);
  } catch (const PromptTooLong& e) {
    // Codex (which sends `originator`) compacts when a stream fails so; a reply of 400 would only end its turn.
    if (!bool_field(body, "stream", false) || request.header("originator").empty()) throw;
    const AnswerHead head{.id = random_id("resp_"), .model = options_.model_name, .created = created_, .n_prompt = 0};
    stream_failure(*make_responses_style(head, {}, body, tools, engine_.tokenizer()), e, *exchange);
  }
}

HttpResponse Api::count_tokens(const HttpRequest& request, const ExchangePtr& exchange) {
  const ChatLimits limits = limits_of(exchange);
  ChatRequest asked = read_messages_request(parse_body(request.body), options_.defaults, limits, /*counting=*/true);
  builder_.check(asked.fields);
  return json_response(
      {{"input_tokens",
        prepare(asked, form_of(builder_, asked, thought_tags_), {.cancelled = limits.cancelled}).n_tokens()}});
}

// Answers a conversation in the style of an endpoint.
void Api::converse(ChatRequest asked, const ChatLimits& limits, const char* id_prefix, const StyleMaker& make_style,
                   const ExchangePtr& exchange) {
  builder_.check_options(asked.fields);
  const AnswerForms::Form form = form_of(builder_, asked, thought_tags_);
  exchange->set_notes(form.notes);
  const PromptLimits most = prompt_limits(asked.fields, limits.cancelled);
  std::vector<Request> requests =
      requests_of(asked, form, within_limits(asked.fields, [&] { return prepare(asked, form, most); }));
  const AnswerHead head{
      .id = random_id(id_prefix),
      .model = options_.model_name,
      .created = std::time(nullptr),
      .n_prompt = requests[0].prompt.n_tokens(),
      .prompt_tokens = asked.returns_token_ids() ? requests[0].prompt.tokens : std::vector<int32_t>()};
  answer_all(std::move(requests), make_style(head, asked), asked, exchange);
}

void Api::complete(const HttpRequest& request, const ExchangePtr& exchange) {
  const CompletionRequest asked = read_completion_request(request.body, options_.defaults, options_.limits);
  builder_.check_options(asked.fields.fields);
  const AnswerForms::Form form = builder_.form(asked.fields.format);
  const PromptLimits limits = prompt_limits(asked.fields.fields, cancelled_with(exchange));
  std::vector<Request> requests;
  std::vector<CompletionPrompt> prompts;
  for (const CompletionRequest::Text& prompt : asked.prompts) {
    Prompt prepared = within_limits(asked.fields.fields, [&] {
      if (!prompt.tokens.empty()) return engine_.prepare_tokens(prompt.tokens);
      return engine_.prepare_raw(prompt.text, {}, limits, asked.add_special_tokens);
    });
    CompletionPrompt seen{
        .tokens = prepared.tokens,
        .text = engine_.tokenizer().decode(prepared.tokens, asked.fields.fields.skip_special_tokens.value_or(true)),
        .scores = nullptr};
    const bool scored = asked.n_prompt_logprobs || (asked.echo && asked.fields.has_logprobs());
    if (scored) {
      const int32_t n_top = std::max(asked.n_prompt_logprobs.value_or(0), asked.fields.fields.logprobs.value_or(0));
      seen.scores = std::make_shared<PromptScores>(seen.tokens, n_top);
    }
    // The rest is scored as an answer: under what the policy keeps.
    const std::optional<size_t> first =
        scored ? first_scored(seen, asked.fields.fields, engine_.tokenizer()) : std::nullopt;
    if (first && *first < seen.tokens.size()) {
      prepared =
          engine_.prepare_tokens({seen.tokens.begin(), seen.tokens.begin() + static_cast<std::ptrdiff_t>(*first)});
    }
    std::vector<Request> more = requests_of(asked.fields, form, std::move(prepared));
    if (first) {
      for (Request& one : more)
        one.given.assign(seen.tokens.begin() + static_cast<std::ptrdiff_t>(*first), seen.tokens.end());
      check_prompt_fits(engine_, *more[0].policy,
                        extent_seen(more[0].prompt, *more[0].policy).with(static_cast<int32_t>(more[0].given.size())),
                        more[0].options.max_tokens);
      more[0].callbacks.on_given = [scores = seen.scores, from = static_cast<int32_t>(*first) - 1](
                                       size_t i, const Tensor& logits) {
        scores->add(from + static_cast<int32_t>(i), logits);
      };
    } else if (scored) {
      more[0].callbacks.on_logits = [scores = seen.scores](int32_t first, const Tensor& logits) {
        scores->add(first, logits);
      };
    }
    prompts.push_back(std::move(seen));
    std::ranges::move(more, std::back_inserter(requests));
  }
  const AnswerHead head{random_id("cmpl-"), options_.model_name, std::time(nullptr)};
  answer_all(std::move(requests), make_completion_style(head, asked, std::move(prompts), engine_.tokenizer()),
             asked.fields, exchange);
}

// Submits the requests, asked.n() of them for each prompt, and sends their answers as they are generated.
void Api::answer_all(std::vector<Request> requests, std::unique_ptr<AnswerStyle> style, const ChatRequest& asked,
                     const ExchangePtr& exchange) {
  const auto answer = std::make_shared<StyledAnswer>(std::move(style), asked, requests.size(), exchange);
  std::vector<Asked> all;
  for (size_t i = 0; i < requests.size(); ++i) {
    const int index = static_cast<int>(i);
    GenerateCallbacks& tell = requests[i].callbacks;
    tell.on_text = [answer, index](std::string_view text) { answer->text(index, text); };
    if (asked.stream() && (asked.has_logprobs() || asked.returns_token_ids() || asked.continuous_usage)) {
      tell.on_token = [answer, index](const GeneratedToken& token) { answer->token(index, token); };
    }
    if (asked.stream() && asked.fields.return_progress.value_or(false) && i == 0) {
      tell.on_progress = [answer](const PromptProgress& progress) { answer->progress(progress); };
    }
    all.push_back({std::move(requests[i]),
                   [answer, index](GenerateResult result) { answer->done(index, std::move(result)); },
                   /*repeats=*/index % asked.n() > 0});
  }
  const std::chrono::milliseconds timeout(std::llround(1000 * asked.fields.timeout.value_or(0)));
  submit(
      std::move(all), timeout, [answer] { answer->begin(); }, exchange);
}

// Queues the requests whose answers form this reply; measures and counts them.
void Api::submit(std::vector<Asked> asked, std::chrono::milliseconds timeout, const std::function<void()>& accepted,
                 const ExchangePtr& exchange) {
  const std::chrono::milliseconds most = options_.request_timeout;
  const bool own_limit = timeout.count() > 0 && (most.count() == 0 || timeout < most);
  const std::chrono::milliseconds limit = own_limit ? timeout : most;
  const auto wanted =
      limit.count() > 0 ? std::make_shared<Wanted>(exchange->begin_time() + limit) : std::make_shared<Wanted>();
  exchange->on_gone([wanted] { wanted->cancel(); });
  std::vector<Request> requests;
  std::vector<Inference::Done> done;
  const std::chrono::duration<double, std::milli> read = Clock::now() - exchange->begin_time();
  for (size_t i = 0; i < asked.size(); ++i) {
    Request& request = requests.emplace_back(std::move(asked[i].request));
    request.prompt.salt = joined(exchange->caller().salt, request.prompt.salt);
    request.asked_at = exchange->begin_time();
    auto times = std::make_shared<AnswerTimes>(metrics_, exchange->begin_time());
    request.callbacks.on_text = [times, tell = std::move(request.callbacks.on_text)](std::string_view text) {
      times->text();
      tell(text);
    };
    done.push_back([times, repeats = asked[i].repeats, exchange, wanted, limit, own_limit, read,
                    tell = std::move(asked[i].done)](GenerateResult result) {
      result.timings.read_ms = read.count();
      times->done(result);
      exchange->count_tokens(repeats ? 0 : result.n_prompt, repeats ? 0 : std::llround(result.cache.n_loaded()),
                             std::ssize(result.tokens));
      if (result.finish_reason == FinishReason::kCancelled && wanted->late()) {
        result.error =
            Error(ErrorCode::kCancelled, "the answer was not complete after " + std::to_string(limit.count()) +
                                             " ms (" + (own_limit ? "vlcache.timeout)" : "--request-timeout)"));
      }
      if (result.error) exchange->note_bug(*result.error);
      tell(std::move(result));
    });
  }
  if (!inference_.submit(std::move(requests), wanted, std::move(done), accepted)) {
    metrics_.add_refused("queue");
    exchange->send(try_again("too many requests wait already; try again later"));
  }
}

}  // namespace vlcache
