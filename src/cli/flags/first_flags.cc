#include "cli/flags/first_flags.h"

#include <array>

namespace vlcache {
namespace {

constexpr std::string_view kBasic = "Basic", kKv = "KV cache", kMachine = "Memory and threads", kMore = "More",
                           kAccess = "Access";

// Flags that several commands have.
constexpr FirstFlag kModel{kBasic, "--model", "Folder of the model, or ORG/NAME in the Hugging Face cache"};
constexpr FirstFlag kImage{kBasic, "--image", "Image, PDF or TIFF (report.pdf#3-7: some pages)"};
constexpr FirstFlag kVideo{kBasic, "--video", "Video clip or folder of frames"};
constexpr FirstFlag kMaxTokens{kBasic, "--max-tokens", "Longest answer in tokens"};
constexpr FirstFlag kTemperature{kBasic, "--temperature", "0: always the likeliest token"};
constexpr FirstFlag kSystem{kBasic, "--system", "System message"};
constexpr FirstFlag kPolicy{kKv, "--kv", "KV policy: full, auto, draft, pointer, ... (`vlcache policies` lists all)"};
constexpr FirstFlag kBudget{kKv, "--kv-budget", "How much a policy keeps: 10%, 200 (slots), 512MiB"};
constexpr FirstFlag kReuse{kKv, "--reuse", "Reuse of images seen before"};
constexpr FirstFlag kExplain{kKv, "--explain", "Print how much came from a cache, and why"};
constexpr FirstFlag kDisk{kKv, "--cache-disk", "Folder in which later runs find KV and embeddings"};
constexpr FirstFlag kCacheRam{kMachine, "--cache-ram", "Memory for the cache (default: a quarter of all)"};
constexpr FirstFlag kKvMemory{kMachine, "--kv-memory", "Memory for the KV of running requests (0: 3/4 of the rest)"};
constexpr FirstFlag kWeights{kMachine, "--weights", "Form of the matrices: int8 and int4 need less memory"};
constexpr FirstFlag kThreads{kMachine, "--threads", "Compute threads (0: one per CPU)"};

constexpr std::array kRun{
    kModel,
    kImage,
    kVideo,
    kMaxTokens,
    kTemperature,
    kSystem,
    kPolicy,
    kBudget,
    kReuse,
    kExplain,
    kDisk,
    kCacheRam,
    kKvMemory,
    kWeights,
    kThreads,
    FirstFlag{kMore, "--requests", "File of requests as JSON lines (-: standard input)"},
    FirstFlag{kMore, "--batch", "Requests computed together"},
    FirstFlag{kMore, "--json", "Print a JSON object instead of the text"},
    FirstFlag{kMore, "--json-schema", "JSON schema that the answer must match"},
    FirstFlag{kMore, "--pdf-text", "Add the text of each PDF page after its image"},
};

constexpr std::array kChat{
    kModel,
    kImage,
    kVideo,
    kMaxTokens,
    kTemperature,
    kSystem,
    FirstFlag{kBasic, "--session", "Name under which it continues (with --cache-disk)"},
    kPolicy,
    kBudget,
    kReuse,
    kExplain,
    kDisk,
    kCacheRam,
    kKvMemory,
    kWeights,
    kThreads,
    FirstFlag{kMore, "--context-full", "truncate or stop where the context is full"},
    FirstFlag{kMore, "--plain", "Neither formatting nor colours"},
    FirstFlag{kMore, "--no-history", "Do not store messages for \u2191 in later conversations"},
};

constexpr std::array kServe{
    kModel,
    FirstFlag{kBasic, "--name", "Name of the model in the API (default: its folder's)"},
    FirstFlag{kAccess, "--host", "Address to listen on; 0.0.0.0: all interfaces"},
    FirstFlag{kAccess, "--port", "Port to listen on"},
    FirstFlag{kAccess, "--api-keys", "File of API keys, a line each: KEY [NAME] [admin]"},
    FirstFlag{kAccess, "--tls-cert", "PEM file: HTTPS with this certificate and --tls-key FILE"},
    FirstFlag{kAccess, "--cors", "Web site whose pages may send requests (one per use)"},
    FirstFlag{kAccess, "--image-url-prefix", "Prefix of image URLs that may be fetched (one per use)"},
    FirstFlag{kBasic, "--parallel", "Requests computed together"},
    kMaxTokens,
    kTemperature,
    kPolicy,
    kBudget,
    kReuse,
    kDisk,
    FirstFlag{kKv, "--cache-redis", "Redis or Valkey server that shares it between machines"},
    kCacheRam,
    kKvMemory,
    kWeights,
    kThreads,
};

}  // namespace

std::span<const FirstFlag> first_flags(std::string_view command) {
  if (command == "run") return kRun;
  if (command == "chat") return kChat;
  if (command == "serve") return kServe;
  return {};
}

}  // namespace vlcache
