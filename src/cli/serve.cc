// `vlcache serve`: OpenAI's API over HTTP.
#include <chrono>
#include <cstdio>
#include <thread>

#include "base/error.h"
#include "cli/command.h"
#include "cli/generate_flags.h"
#include "server/api.h"

namespace vlcache {
namespace {

struct ServeFlags {
  ModelFlags model;
  GenerateFlags generate;
  std::string host = "127.0.0.1", name;
  int port = 8080, n_running = 32, n_waiting = 256, max_images = 64, max_body_mib = 64, grace_s = 30;
  double step_ms = 0;
};

std::string default_name(const std::string& model_dir) {
  const std::filesystem::path path = std::filesystem::absolute(model_dir).lexically_normal();
  return path.filename().empty() ? path.parent_path().filename() : path.filename();
}

ApiOptions api_options(const ServeFlags& flags, const Engine& engine, const ReuseChoice& reuse) {
  ApiOptions options;
  options.model_dir = flags.model.model_dir;
  options.model_name = flags.name.empty() ? default_name(flags.model.model_dir) : flags.name;
  options.defaults.options = generate_options(flags.generate, engine.model().config().generation);
  options.defaults.kv = flags.model.kv;
  options.defaults.kv_budget = flags.model.kv_budget;
  options.defaults.reuse = flags.generate.reuse.how;
  options.limits.max_images = static_cast<size_t>(flags.max_images);
  options.reuse = [&reuse](std::string_view how, size_t n_images) {
    check_reuse(how);
    return reuse.options(how, n_images);
  };
  return options;
}

void serve(const ServeFlags& flags) {
  const PolicyPtr policy = chosen_policy(flags.model);
  const ReuseChoice reuse(flags.generate.reuse, flags.model.model_dir, image_form(flags.model.cache));
  watch_interrupts();
  TierWarnings warnings;
  const std::unique_ptr<Engine> engine = load_engine(flags.model, {&policy, 1}, &warnings);
  if (engine->model().sees_images()) warn(reuse);
  Inference inference(*engine, {.n_running = flags.n_running, .n_waiting = flags.n_waiting, .step_ms = flags.step_ms});
  Api api(*engine, inference, api_options(flags, *engine, reuse));
  HttpOptions http;
  http.host = flags.host;
  http.port = static_cast<uint16_t>(flags.port);
  http.max_body_bytes = static_cast<uint64_t>(flags.max_body_mib) << 20;
  HttpServer server(http, [&](const HttpRequest& request, const HttpReplyPtr& reply) { api.handle(request, reply); });
  std::fprintf(stderr, "http://%s:%d/v1 serves %s\n", flags.host.c_str(), server.port(), flags.model.model_dir.c_str());
  while (!interrupted()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    warnings.tell();
  }
  std::fprintf(stderr, "ending: %zu connections\n", server.n_connections());
  server.drain(std::chrono::steady_clock::now() + std::chrono::seconds(flags.grace_s));
  inference.end();  // lets go of all replies
}

}  // namespace

void add_serve_command(CLI::App& app) {
  auto flags = std::make_shared<ServeFlags>();
  CLI::App* command = app.add_subcommand("serve", "OpenAI's API over HTTP");
  add_model_flags(*command, flags->model);
  flags->generate.max_tokens = INT32_MAX;  // until the context ends, as clients expect
  add_generate_flags(*command, flags->generate);
  command->add_option("--host", flags->host, "address to listen on; 0.0.0.0: all")->capture_default_str();
  command->add_option("--port", flags->port, "port; 0: any that is free")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  command->add_option("--name", flags->name, "the model's name (default: its folder's)");
  command->add_option("--parallel", flags->n_running, "requests computed together")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command->add_option("--max-waiting", flags->n_waiting, "requests that wait for that; others get 429")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command
      ->add_option("--step-ms", flags->step_ms,
                   "time of a step in which answers go on while a prompt is computed: less is smoother for them, more "
                   "is faster for the prompt (0: 2.5 times what answers alone take)")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  command->add_option("--max-images", flags->max_images, "pictures of a request")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  command->add_option("--max-body", flags->max_body_mib, "MiB of a request")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command->add_option("--grace", flags->grace_s, "seconds that running requests have behind Ctrl-C or SIGTERM")
      ->check(CLI::Range(0, 86400))
      ->capture_default_str();
  command->footer("Example: vlcache serve -m models/tinydoc --port 8080");
  command->callback([flags] { serve(*flags); });
}

}  // namespace vlcache
