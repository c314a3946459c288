// `vlcache serve`: OpenAI's API over HTTP.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "base/byte_size.h"
#include "base/error.h"
#include "base/format.h"
#include "base/json.h"
#include "cli/flags/command.h"
#include "cli/flags/generate_flags.h"
#include "cli/flags/serve_flags.h"
#include "server/api.h"
#include "server/http/tls.h"
#include "server/operations/access_log.h"
#include "store/tier_chain.h"

namespace vlcache {
namespace {

struct ServeFlags {
  std::string score_after;
  ModelFlags model;
  GenerateFlags generate;
  ServerFlags server;
  std::string name, reasoning = "split", response_store = "0";
  double step_ms = 0;
  std::string generic_tools = "auto";
  int n_running = 32, n_waiting = 256, max_images = 64, max_megapixels = 64, max_prompt_tokens = 0, max_logprobs = 20;
};

std::string default_name(const std::string& model_dir) {
  const std::filesystem::path path = std::filesystem::absolute(model_dir).lexically_normal();
  return path.filename().empty() ? path.parent_path().filename() : path.filename();
}

ApiOptions api_options(const ServeFlags& flags, const RequestFields& defaults, const ReuseChoice& reuse) {
  ApiOptions options;
  options.model_name = flags.name.empty() ? default_name(flags.model.model_dir) : flags.name;
  options.defaults = defaults;
  if (!flags.score_after.empty()) options.defaults.score_after = flags.score_after;
  options.limits.max_images = static_cast<size_t>(flags.max_images);
  options.limits.max_logprobs = flags.max_logprobs;
  options.limits.image.max_pixels = int64_t{flags.max_megapixels} * 1'000'000;
  options.request_timeout = std::chrono::seconds(flags.server.request_timeout_s);
  options.max_prompt_tokens = flags.max_prompt_tokens;
  options.named_image_bytes = int64_t{flags.server.named_images_mib} << 20;
  options.uploads = {.max_bytes = int64_t{flags.server.files_mib} << 20,
                     .max_file_bytes = int64_t{flags.server.max_file_mib} << 20,
                     .seconds = flags.server.files_ttl_s};
  options.n_parallel = flags.n_running;
  const std::optional<int64_t> store = parse_bytes(flags.response_store, /*bare_unit=*/1);
  if (!store) {
    throw Error(ErrorCode::kInput,
                "--response-store: expected bytes such as 64MiB, found '" + flags.response_store + "'");
  }
  options.response_store_bytes = *store;
  options.split_thoughts = flags.reasoning == "split";
  options.reuse = &reuse;
  return options;
}

// Handles SIGHUP: reloads the API keys and reopens the access log.
void reload(Access& access, std::optional<AccessLog>& log) {
  try {
    access.reload();
    if (log) log->reopen();
    std::fprintf(stderr, "reloaded API keys, reopened the access log\n");
  } catch (const Error& e) {
    std::fprintf(stderr, "vlcache: %s; going on as before\n", e.what());
  }
}

// Where KV is kept beyond running requests, and how much.
std::string cache_text(const Engine& engine, const CacheOptions& cache) {
  const auto gib = [](int64_t bytes) { return format("%.1f GB", static_cast<double>(bytes) / 1e9); };
  std::string text =
      "KV of prompts and images is kept in " + gib(engine.options().cache_bytes) + " of memory at most (--cache-ram)";
  for (const auto& tier : engine.options().tiers) {
    if (const auto* disk = dynamic_cast<const DiskTier*>(tier.get())) {
      text += format(", in %s up to %s (%s now)", disk_folder(cache).c_str(), gib(disk->max_bytes()).c_str(),
                     gib(disk->used_bytes()).c_str());
    } else {
      text += ", in " + tier->place();
    }
  }
  return text + (engine.options().tiers.empty() ? "; nothing is kept after the end (--cache-disk DIR)" : "");
}

void tell_news(ReuseCountsByCodec& counts) {
  for (const std::string& line : counts.take_news()) std::fprintf(stderr, "%s\n", line.c_str());
}

bool shows_generic_tools(const std::string& flag, const Checkpoint& checkpoint) {
  if (flag != "auto") return flag == "on";
  const std::filesystem::path file = checkpoint.companion("vlcache.json");
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error)) return true;
  const Json settings = load_json(file);
  return !settings.is_object() || JsonObject(settings, file.string()).boolean("generic_tools", true);
}

// An IPv6 address may be given as in URLs, "[::1]".
std::string without_brackets(const std::string& host) {
  const bool in_brackets = host.starts_with('[') && host.ends_with(']') && host.find(':') != host.npos;
  return in_brackets ? host.substr(1, host.size() - 2) : host;
}

std::string url_host(const std::string& host) { return host.find(':') == host.npos ? host : "[" + host + "]"; }

// Of --grace, for storing prefixes after the last answer; a disk takes hundreds of MB in that time.
constexpr int kSavingShare = 8;
constexpr std::chrono::milliseconds kMostSaving{5000};
// What hangs for so long after --grace (a step of a large model, a decoder, a file system) is not waited for.
constexpr std::chrono::milliseconds kLate{500}, kFlushing{200};
// Of a tier that does not work: its next success may be long in coming while no request arrives.
constexpr std::chrono::milliseconds kBetweenProbes{2000};

// Ends the process with 0 if it has not ended by itself at the time that arm() sets.
class EndByForce {
 public:
  // `flush` stores the queue, for kFlushing at most; every line of the log is flushed when it is written.
  void arm(Deadline at, std::function<void()> flush) {
    flush_ = std::move(flush);
    thread_ = std::thread([this, at] {
      std::unique_lock lock(mutex_);  // held to the end: the stores must not be destroyed meanwhile
      if (ended_.wait_until(lock, at, [this] { return over_; })) return;
      std::fprintf(stderr, "vlcache: what did not end within --grace is given up\n");
      const auto flushed = std::make_shared<std::promise<void>>();
      std::thread([flushed, work = flush_] {  // it may hang, too
        if (work) work();
        flushed->set_value();
      })
          .detach();
      flushed->get_future().wait_for(kFlushing);
      std::_Exit(0);
    });
  }
  // To be called before the stores are destroyed.
  void forget_stores() {
    const std::lock_guard lock(mutex_);
    flush_ = nullptr;
  }
  ~EndByForce() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    ended_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  bool over_ = false;
  std::function<void()> flush_;
  std::thread thread_;
};

// The address that the page and the API have, and the inputs that the model accepts.
std::string start_text(const ServeFlags& flags, const Engine& engine, bool has_template, int port) {
  const std::string& any = flags.server.host;
  const std::string host = any == "0.0.0.0" || any == "::" ? "localhost" : url_host(any);
  const std::string url = format("%s://%s:%d", flags.server.tls_cert.empty() ? "http" : "https", host.c_str(), port);
  std::string text = url + "/v1 serves " + flags.model.model_dir + "\n" + url + "/ is the page; the model takes " +
                     (engine.model().sees_images() ? "text and images" : "text alone") +
                     format(", %ld tokens of context\n", static_cast<long>(engine.max_positions()));
  if (!has_template) {
    text += "the model has no chat template: it answers /v1/completions alone\n";
  }
  return text;
}

void serve(const ServeFlags& flags) {
  EndByForce by_force;  // outlives all that may hang
  const Checkpoint checkpoint = checkpoint_of(flags.model);
  const PolicyPtr policy = chosen_policy(flags.model, checkpoint);
  warn_of_small_budget(flags.model, 0);
  const RequestFields given = given_fields(flags.generate, flags.model);
  ReuseChoice reuse = reuse_choice(flags.generate, given, flags.model, checkpoint);
  if (!flags.server.tls_cert.empty()) server_tls(flags.server.tls_cert, flags.server.tls_key);  // fails early
  Access access(access_options(flags.server));
  const ImageSource images(image_options(flags.server));
  std::optional<AccessLog> log;
  if (!flags.server.access_log.empty()) log.emplace(flags.server.access_log);
  watch_interrupts();
  watch_hangups();
  raise_file_limit();
  TierWarnings warnings;
  const std::unique_ptr<Engine> engine = load_engine(flags.model, checkpoint, {&policy, 1}, &warnings);
  reuse.open_counts(*engine, disk_folder(flags.model.cache), /*compares=*/true);
  Inference inference(*engine, {.n_running = flags.n_running, .n_waiting = flags.n_waiting, .step_ms = flags.step_ms},
                      reuse.counts());
  std::atomic<const HttpServer*> listening = nullptr;
  ApiOptions options = api_options(flags, defaults_for(*engine, given, Front::kServe), reuse);
  options.model = &checkpoint;
  options.access = &access;
  options.limits.read_url = [&images](const std::string& url, const std::string& where, FileKind kind,
                                      const std::function<bool()>& cancelled) {
    return images.read(url, where, kind, cancelled);
  };
  options.n_connections = [&listening] { return listening == nullptr ? 0 : listening.load()->n_connections(); };
  const bool tell = !flags.server.quiet && isatty(STDERR_FILENO) == 1;
  options.version = VLCACHE_VERSION;
  options.generic_tools = shows_generic_tools(flags.generic_tools, checkpoint);
  options.on_end = [&log, tell](const ExchangeReport& report) {
    if (!report.bug.empty()) std::fprintf(stderr, "vlcache: request %s: %s\n", report.id.c_str(), report.bug.c_str());
    if (tell) std::fprintf(stderr, "%s\n", terminal_line(report).c_str());
    if (log) log->write(report);
  };
  Api api(*engine, inference, options);
  api.warm_up();
  HttpOptions http = http_options(flags.server);
  http.is_urgent = Api::is_operation;
  std::optional<HttpServer> server;
  server.emplace(http, [&](const HttpRequest& request, const HttpReplyPtr& reply) { api.handle(request, reply); });
  listening = &*server;
  std::optional<HttpServer> operations;
  if (flags.server.ops_port >= 0) {
    HttpOptions ops = http;
    ops.port = static_cast<uint16_t>(flags.server.ops_port);
    ops.tls_cert = ops.tls_key = "";
    operations.emplace(ops,
                       [&](const HttpRequest& request, const HttpReplyPtr& reply) { api.operate(request, reply); });
  }
  std::fprintf(stderr, "%s", start_text(flags, *engine, !checkpoint.chat_templates().empty(), server->port()).c_str());
  std::fputs(special_tokens_text(*engine, given).c_str(), stderr);
  if (operations) {
    std::fprintf(stderr, "http://%s:%d has /health, /metrics and /version\n", url_host(flags.server.host).c_str(),
                 operations->port());
  }
  std::fprintf(stderr, "%s\n", cache_text(*engine, flags.model.cache).c_str());
  Clock::time_point next_probe = Clock::now() + kBetweenProbes;
  while (!interrupted()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    warnings.tell();
    if (TierChain* const tiers = engine->kv().tiers(); tiers != nullptr && Clock::now() >= next_probe) {
      next_probe = Clock::now() + kBetweenProbes;
      tiers->probe_failed();
    }
    if (reuse.counts() != nullptr) tell_news(*reuse.counts());
    if (hung_up()) reload(access, log);
  }
  api.set_leaving();
  const Clock::time_point leave = Clock::now() + std::chrono::seconds(flags.server.drain_delay_s);
  if (flags.server.drain_delay_s > 0) {
    std::fprintf(stderr, "/health/ready says 503; shutting down in %d s\n", flags.server.drain_delay_s);
    while (Clock::now() < leave) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  std::fprintf(stderr, "shutting down, draining %zu connections\n", server->n_connections());
  const std::chrono::milliseconds grace = std::chrono::seconds(flags.server.grace_s);
  const Deadline end = Clock::now() + grace;
  TierChain* const stores = engine->kv().tiers();
  by_force.arm(end + kLate, [stores] {
    if (stores != nullptr) stores->flush(Clock::now() + kFlushing);
  });
  server->drain(stores == nullptr ? end : end - std::min(grace / kSavingShare, kMostSaving));
  api.stop_work();
  inference.end();  // releases all replies
  engine->kv().save_prefixes(end);
  operations.reset();
  listening = nullptr;
  server.reset();
  by_force.forget_stores();
}

}  // namespace

void add_serve_command(const Command& app) {
  auto flags = std::make_shared<ServeFlags>();
  const Command command = app.add_command(
      "serve", "Serve the model over HTTP: the APIs of OpenAI and Anthropic, and a page in the browser");
  add_model_flags(command, flags->model);
  add_generate_flags(command, flags->generate, Front::kServe);
  add_server_flags(command, flags->server);
  command.add("--name", flags->name, "Name of the model in the API (default: the name of its folder)");
  command
      .add("--reasoning", flags->reasoning,
           "Placement of the thoughts of thinking models (<think>, [THINK]): split moves them to reasoning_content, "
           "inline leaves them in the answer's text")
      .one_of({"split", "inline"})
      .show_default();
  command
      .add("--response-store", flags->response_store,
           "Memory limit for responses that later requests may name as previous_response_id; the oldest are dropped "
           "first (0: none are kept)")
      .value_name("BYTES")
      .show_default();
  command
      .add("--cache-first-use", flags->model.cache.first_use,
           "With --cache-prefixes auto: how much KV of prompts with images an idle server stores within an hour after "
           "their first use, in the folder or server, where no record that was used again is evicted for it (0: none "
           "before the second use)")
      .group("Cache")
      .value_name("BYTES")
      .share_environment()
      .show_default();
  command.add("--parallel", flags->n_running, "Maximum number of requests computed together")
      .range(1, 4096)
      .show_default();
  command.add("--max-waiting", flags->n_waiting, "Maximum number of queued requests; further ones get 429")
      .range(1, 1 << 20)
      .show_default();
  command
      .add("--step-ms", flags->step_ms,
           "Target time in ms of a step that computes prompt chunks beside decoding: lower values make streams "
           "smoother, higher values finish prompts sooner (0: adaptive; prompt chunks get 1.25 times the time of "
           "decoding alone for one prompt, up to 10 times for three or more)")
      .range(0.0, 1e6)
      .show_default();
  command
      .add("--max-prompt-tokens", flags->max_prompt_tokens,
           "Maximum number of prompt tokens, images included; 0: what the model's context and the KV memory allow")
      .range(0, INT32_MAX)
      .show_default();
  command
      .add("--max-logprobs", flags->max_logprobs, "Maximum number of alternatives per token that a request may ask for")
      .range(0, 1 << 20)
      .show_default();
  command.add("--score-after", flags->score_after,
              "In prompts whose log probabilities are requested, let the policy act after the last occurrence of this "
              "text and score the rest like an answer (for lm-eval; vlcache.score_after in requests; default: none)");
  command.add("--max-images", flags->max_images, "Maximum number of images per request")
      .range(0, 1 << 20)
      .show_default();
  command.add("--max-megapixels", flags->max_megapixels, "Largest image in million pixels")
      .range(1, 1000)
      .show_default();
  command
      .add("--generic-tools", flags->generic_tools,
           "Describe tools in the system text of models whose chat template does not support them; auto: on, unless "
           "vlcache.json in the model's folder has {\"generic_tools\": false}")
      .one_of({"auto", "on", "off"})
      .show_default();
  command.footer("Example: vlcache serve -m models/tinydoc --port 8080");
  command.run([flags] {
    flags->server.host = without_brackets(flags->server.host);
    serve(*flags);
  });
}

}  // namespace vlcache
