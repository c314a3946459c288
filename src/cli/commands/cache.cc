// `vlcache cache`: lists, verifies and drops the records of a folder or a server.
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/format.h"
#include "cli/flags/cache_flags.h"
#include "cli/flags/command.h"
#include "cli/terminal/progress.h"
#include "engine/prompt/prompt.h"
#include "io/image/image.h"
#include "model/processors/image_processor.h"
#include "reuse/prefix_store.h"

namespace vlcache {
namespace {

struct CacheCommandFlags {
  std::string place;  // a folder, or a URL
  CacheOptions cache;
  bool json = false;
  std::string image, model_dir;
};

std::shared_ptr<KvTier> open(const CacheCommandFlags& flags) {
  if (is_redis_url(flags.place)) {
    CacheOptions cache = flags.cache;
    cache.redis = flags.place;
    return open_redis_tier(cache);
  }
  if (!std::filesystem::is_directory(flags.place)) {
    throw Error(ErrorCode::kNotFound, flags.place + ": there is no such folder");
  }
  CacheOptions cache = flags.cache;
  cache.disk = flags.place;
  return open_disk_tier(cache);
}

// Throws Error(kIo) if a server does not allow the records to be read: that is not the same as having none.
std::vector<ListedRecord> records_of(KvTier& tier) {
  std::vector<ListedRecord> records = tier.list();
  if (const TierStats stats = tier.stats(); stats.n_failed() > 0) {
    throw Error(ErrorCode::kIo, std::string(tier.name()) + ": " + stats.last_problem);
  }
  return records;
}

std::string time_text(int64_t ms) {
  const std::time_t seconds = ms / 1000;
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts)};
}

std::string model_text(const ModelFingerprint& model) {
  std::string text;
  for (const uint8_t byte : model) text += format("%02x", byte);
  return text;
}

nlohmann::ordered_json json_of(const ListedRecord& r) {
  return {{"id", hex(r.id)},
          {"kind", record_kind_name(r.key.kind)},
          {"model", model_text(r.key.model)},
          {"content", hex(r.key.content)},
          {"layout", r.key.layout},
          {"bytes", r.bytes},
          {"created_ms", r.created_ms},
          {"used_ms", r.used_ms},
          {"problem", r.problem ? describe(*r.problem) : ""}};
}

void list(const CacheCommandFlags& flags) {
  int64_t n = 0, bytes = 0;
  const std::vector<ListedRecord> records = records_of(*open(flags));
  if (!flags.json && !records.empty()) {
    std::printf("%-12s %-6s %-12s %-12s %10s  %-19s  %s\n", "record", "kind", "model", "content", "MiB", "used (UTC)",
                "what");
  }
  for (const ListedRecord& r : records) {
    ++n;
    bytes += r.bytes;
    if (flags.json) {
      std::printf("%s\n", json_of(r).dump().c_str());
      continue;
    }
    const double mib = static_cast<double>(r.bytes) / 1048576.0;
    if (r.problem) {
      std::printf("%-12.12s %-6s %-12s %-12s %10.2f  %s  %s\n", hex(r.id).c_str(), "?", "?", "?", mib,
                  time_text(r.used_ms).c_str(), describe(*r.problem).c_str());
    } else {
      std::printf("%-12.12s %-6s %-12.12s %-12.12s %10.2f  %s  %s\n", hex(r.id).c_str(),
                  std::string(record_kind_name(r.key.kind)).c_str(), model_text(r.key.model).c_str(),
                  hex(r.key.content).c_str(), mib, time_text(r.used_ms).c_str(), r.key.layout.c_str());
    }
  }
  std::fprintf(stderr, "%lld records, %.1f MiB\n", static_cast<long long>(n), static_cast<double>(bytes) / 1048576.0);
}

void verify(const CacheCommandFlags& flags) {
  const auto tier = open(flags);
  const std::vector<ListedRecord> records = records_of(*tier);
  int64_t n_right = 0, n_wrong = 0, n_foreign = 0, n_unread = 0;
  ProgressBar bar("verifying");
  for (size_t i = 0; i < records.size(); ++i) {
    const ListedRecord& r = records[i];
    bar.update(static_cast<int64_t>(i), std::ssize(records));
    if (r.problem && r.problem->reason == MissReason::kOtherTenant) {
      ++n_foreign;  // verifying it needs the other tenant's salt
      continue;
    }
    const std::optional<Miss> problem = r.problem ? r.problem : verify_record(*tier, r.key);
    if (!problem) {
      ++n_right;
      continue;
    }
    bar.clear();
    if (problem->reason == MissReason::kIo || problem->reason == MissReason::kLate) {
      ++n_unread;
      std::printf("%s: %s; kept\n", hex(r.id).c_str(), describe(*problem).c_str());
      continue;
    }
    ++n_wrong;
    tier->erase(r.id);
    std::printf("%s: %s; removed\n", hex(r.id).c_str(), describe(*problem).c_str());
  }
  bar.clear();
  if (n_unread > 0) std::printf("%lld records could not be read\n", static_cast<long long>(n_unread));
  std::printf("%lld records right, %lld wrong and removed, %lld of another salt not read\n",
              static_cast<long long>(n_right), static_cast<long long>(n_wrong), static_cast<long long>(n_foreign));
}

void clear(const CacheCommandFlags& flags) {
  const auto tier = open(flags);
  std::optional<Sha256Digest> content;
  if (!flags.image.empty()) {
    if (flags.model_dir.empty()) {
      throw Error(ErrorCode::kInput, "cache clear --image: expected -m DIR, whose processor says what the picture is");
    }
    const Checkpoint checkpoint(flags.model_dir);
    const ModelConfig config = Model::read_config(checkpoint);
    if (!config.vision) throw Error(ErrorCode::kInput, flags.model_dir + ": this model takes no pictures");
    content = image_key(load_image_processor(checkpoint, config.model_type)->process(load_image(flags.image)));
  }
  int64_t n = 0;
  for (const ListedRecord& r : records_of(*tier)) {
    if (content && (r.problem || r.key.content != *content)) continue;
    n += tier->erase(r.id) ? 1 : 0;
  }
  if (content) n += PrefixStore::erase_image(*tier, *content);
  std::printf("%lld records removed\n", static_cast<long long>(n));
}

}  // namespace

void add_cache_command(const Command& app) {
  const Command command = app.add_command("cache", "what a folder of --cache-disk or a server of --cache-redis holds");
  command.require_command();
  const auto add = [&](const char* name, const char* help, void (*action)(const CacheCommandFlags&)) {
    auto flags = std::make_shared<CacheCommandFlags>();
    const Command sub = command.add_command(name, help);
    sub.add("DIR", flags->place, "the folder, or redis://[user:password@]host[:port][/db]").required();
    add_cache_secrets(sub, flags->cache);
    sub.run([flags, action] { action(*flags); });
    return std::pair{sub, flags};
  };
  const auto [ls, ls_flags] = add("ls", "records, one a line", list);
  ls.add("--json", ls_flags->json, "JSON lines");
  add("verify", "reads every byte; removes what is wrong", verify);
  const auto [forget, forget_flags] = add("clear", "removes all records, or those of one picture", clear);
  forget.add("--image", forget_flags->image, "the picture").value_name("FILE");
  forget.add("-m,--model", forget_flags->model_dir, "the model that has seen it").value_name("DIR");
}

}  // namespace vlcache
