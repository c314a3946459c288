// The command line: registers the sub-commands of commands/ and bench/. Errors of input and environment end here, with
// exit code 2; Ctrl-C with 130; requests of a file that failed with 1.
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/os/signals.h"
#include "cli/flags/command.h"

namespace {

int run(int argc, char** argv) {
  vlcache::ensure_signal_stack();
  const int code = vlcache::run_command_line(argc, argv, [](const vlcache::Command& root) {
    vlcache::add_run_command(root);
    vlcache::add_chat_command(root);
    vlcache::add_serve_command(root);
    vlcache::add_logits_command(root);
    vlcache::add_tokenize_commands(root);
    vlcache::add_info_command(root);
    vlcache::add_bench_command(root);
    vlcache::add_eval_command(root);
    vlcache::add_inspect_command(root);
    vlcache::add_policies_command(root);
    vlcache::add_cache_command(root);
    vlcache::add_simulate_command(root);
    vlcache::add_tune_command(root);
    vlcache::add_verify_command(root);
  });
  if (code == 0 && (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)) {
    throw vlcache::Error(vlcache::ErrorCode::kIo, "writing to standard output failed (is the disk full?)");
  }
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const vlcache::Interrupted&) {
    std::fflush(stdout);
    return 130;
  } catch (const vlcache::LinesFailed&) {
    return 1;
  } catch (const vlcache::Error& e) {
    if (e.code() == vlcache::ErrorCode::kCancelled) return 130;
    std::fprintf(stderr, "vlcache: %s\n", e.what());
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "vlcache: out of memory\n");
  } catch (const std::exception& e) {
    std::fprintf(stderr, "vlcache: %s\n", e.what());
  }
  return 2;
}
