// `vlcache cache`: lists, verifies and drops the records of a folder or a server, and packed files of models.
#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/format.h"
#include "cli/flags/cache_flags.h"
#include "cli/flags/command.h"
#include "cli/flags/packed_flags.h"
#include "cli/terminal/progress.h"
#include "engine/prompt/prompt.h"
#include "io/image/image.h"
#include "model/processors/image_processor.h"
#include "reuse/prefix/prefix_store.h"

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
          {"uses", r.n_uses < 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(r.n_uses + 1)},
          {"saves_ms", r.saves_ms > 0 ? nlohmann::ordered_json(r.saves_ms) : nlohmann::ordered_json()},
          {"problem", r.problem ? describe(*r.problem) : ""}};
}

// "45 s", "12 min", "3 h", "9 d".
std::string age_text(int64_t ms) {
  const int64_t s = std::max<int64_t>(0, ms) / 1000;
  if (s < 120) return std::to_string(s) + " s";
  if (s < 7200) return std::to_string(s / 60) + " min";
  if (s < 172'800) return std::to_string(s / 3600) + " h";
  return std::to_string(s / 86'400) + " d";
}

std::string saved_text(double ms) {
  if (ms <= 0) return "?";
  return ms < 1000 ? format("%.0f ms", ms) : format("%.1f s", ms / 1000);
}

// What a record holds, as users know it.
std::string_view kind_text(const RecordKey& key) {
  if (key.kind == RecordKind::kPrefix) return "prompt";
  if (key.kind == RecordKind::kFile) return "named file";
  return key.layout.starts_with("embeddings") ? "image" : "image KV";
}

void print_row(const ListedRecord& r) {
  const int64_t now = now_ms();
  const double mib = static_cast<double>(r.bytes) / 1048576.0;
  const std::string kind(r.problem ? "?" : kind_text(r.key)), age = r.problem ? "?" : age_text(now - r.created_ms);
  const std::string uses = r.n_uses < 0 ? "?" : std::to_string(r.n_uses + 1);
  std::printf("%-12.12s %-10s %9.2f %7s %7s %5s %8s  %-12.12s  %s\n", hex(r.id).c_str(), kind.c_str(), mib, age.c_str(),
              age_text(now - r.used_ms).c_str(), uses.c_str(), saved_text(r.saves_ms).c_str(),
              r.problem ? "?" : model_text(r.key.model).c_str(),
              r.problem ? describe(*r.problem).c_str() : r.key.layout.c_str());
}

// How much of each kind there is.
void print_totals(const std::vector<ListedRecord>& records) {
  struct Total {
    int64_t n = 0, bytes = 0;
    double saved_ms = 0;
  };
  std::map<std::string_view, Total> totals;
  for (const ListedRecord& r : records) {
    Total& total = totals[r.problem ? "of no use" : kind_text(r.key)];
    ++total.n;
    total.bytes += r.bytes;
    total.saved_ms += r.saves_ms * static_cast<double>(std::max<int64_t>(0, r.n_uses));
  }
  Total all;
  for (const auto& [kind, total] : totals) {
    std::fprintf(stderr, "%s: %lld records, %.1f MiB", std::string(kind).c_str(), static_cast<long long>(total.n),
                 static_cast<double>(total.bytes) / 1048576.0);
    std::fprintf(stderr, total.saved_ms > 0 ? ", %s saved so far\n" : "\n", saved_text(total.saved_ms).c_str());
    all.n += total.n;
    all.bytes += total.bytes;
  }
  std::fprintf(stderr, "%lld records, %.1f MiB\n", static_cast<long long>(all.n),
               static_cast<double>(all.bytes) / 1048576.0);
}

void list(const CacheCommandFlags& flags) {
  std::vector<ListedRecord> records = records_of(*open(flags));
  std::ranges::stable_sort(records, std::greater<>(), &ListedRecord::used_ms);
  if (!flags.json && !records.empty()) {
    std::printf("%-12s %-10s %9s %7s %7s %5s %8s  %-12s  %s\n", "record", "what", "MiB", "age", "used", "uses", "a hit",
                "model", "layout");
  }
  for (const ListedRecord& r : records) {
    if (flags.json) {
      std::printf("%s\n", json_of(r).dump().c_str());
    } else {
      print_row(r);
    }
  }
  print_totals(records);
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
    if (problem->reason == MissReason::kIo || problem->reason == MissReason::kLate ||
        problem->reason == MissReason::kForeign) {
      ++n_unread;
      std::printf("%s: %s; kept\n", hex(r.id).c_str(), describe(*problem).c_str());
      continue;
    }
    ++n_wrong;
    tier->erase(r.id);
    std::printf("%s: %s; removed\n", hex(r.id).c_str(), describe(*problem).c_str());
  }
  bar.clear();
  if (n_unread > 0)
    std::printf("%lld records could not be read, or are not trusted\n", static_cast<long long>(n_unread));
  std::printf("%lld records right, %lld wrong and removed, %lld of another salt not read\n",
              static_cast<long long>(n_right), static_cast<long long>(n_wrong), static_cast<long long>(n_foreign));
}

void clear(const CacheCommandFlags& flags) {
  const auto tier = open(flags);
  std::optional<Sha256Digest> content;
  if (!flags.image.empty()) {
    if (flags.model_dir.empty()) {
      throw Error(ErrorCode::kInput, "cache clear --image: expected -m DIR, whose processor says what the image is");
    }
    const Checkpoint checkpoint(flags.model_dir);
    const ModelConfig config = Model::read_config(checkpoint);
    if (!config.vision) throw Error(ErrorCode::kInput, flags.model_dir + ": this model takes no images");
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

// The models of --packed-cache.
struct PackedFlags {
  std::string place;  // as --packed-cache has it
  bool packed = false, clear = false, json = false;
};

void print_packed(const PackedListing& file) {
  // As JSON would escape it: a damaged file adds no line and no escape sequence.
  const auto text = [&](const char* key) -> std::string {
    if (!file.about.is_object() || !file.about.contains(key) || !file.about[key].is_string()) return "?";
    const std::string quoted = file.about[key].dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    return quoted.substr(1, quoted.size() - 2);
  };
  std::printf("%-12.12s %9.2f %7s %-6s %-6s %-5s %s\n", file.path.filename().c_str(),
              static_cast<double>(file.bytes) / 1048576.0, age_text(now_ms() - file.used_ms).c_str(),
              text("text").c_str(), text("vision").c_str(), text("compute").c_str(),
              file.problem.empty() ? text("model").c_str() : file.problem.c_str());
}

void run_packed(const PackedFlags& flags) {
  const std::filesystem::path folder = packed_cache(flags.place).folder;
  if (folder.empty()) throw Error(ErrorCode::kInput, "cache --packed: expected --packed-cache DIR: no folder is known");
  if (flags.clear) {
    const PackedRemoval removed = clear_packed_files(folder);
    std::printf("%lld packed files removed, %.1f MiB\n", static_cast<long long>(removed.n_files),
                static_cast<double>(removed.bytes) / 1048576.0);
    return;
  }
  std::vector<PackedListing> files = list_packed_files(folder);
  std::ranges::reverse(files);
  if (!flags.json && !files.empty()) {
    std::printf("%-12s %9s %7s %-6s %-6s %-5s %s\n", "file", "MiB", "used", "text", "vision", "dtype", "model");
  }
  int64_t bytes = 0;
  for (const PackedListing& file : files) {
    bytes += file.bytes;
    if (flags.json) {
      const nlohmann::ordered_json line = {{"path", file.path.string()},
                                           {"bytes", file.bytes},
                                           {"used_ms", file.used_ms},
                                           {"about", file.about},
                                           {"problem", file.problem}};
      std::printf("%s\n", line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
    } else {
      print_packed(file);
    }
  }
  std::fprintf(stderr, "%zu packed files in %s, %.1f MiB\n", files.size(), folder.c_str(),
               static_cast<double>(bytes) / 1048576.0);
}

}  // namespace

void add_cache_command(const Command& app) {
  const Command command = app.add_command(
      "cache",
      "List, verify or clear a folder of --cache-disk or a server of --cache-redis; list packed models (--packed)");
  command.allow_command();
  auto packed = std::make_shared<PackedFlags>();
  command.add("--packed", packed->packed, "List the models in --packed-cache, one per line, last used first");
  command.add("--clear", packed->clear, "Remove all of them (with --packed)");
  command.add("--json", packed->json, "Print JSON lines (with --packed)");
  add_packed_cache(command, packed->place);
  command.run([packed, command] {
    if (command.was_given_command()) return;
    if (!packed->packed) {
      throw Error(ErrorCode::kInput, "cache: expected ls, verify or clear with a folder or a URL, or --packed");
    }
    run_packed(*packed);
  });
  const auto add = [&](const char* name, const char* help, void (*action)(const CacheCommandFlags&)) {
    auto flags = std::make_shared<CacheCommandFlags>();
    const Command sub = command.add_command(name, help);
    sub.add("DIR", flags->place,
            "Folder, or URL in the form of --cache-redis: redis://[user:password@]host[:port][/db], "
            "redis+cluster://host:port,host:port")
        .required();
    add_cache_secrets(sub, flags->cache);
    sub.run([flags, action] { action(*flags); });
    return std::pair{sub, flags};
  };
  const auto [ls, ls_flags] = add("ls", "List the records, one per line", list);
  ls.add("--json", ls_flags->json, "Print JSON lines");
  add("verify", "Read every byte and remove damaged records", verify);
  const auto [forget, forget_flags] = add("clear", "Remove all records, or the records of one image", clear);
  forget.add("--image", forget_flags->image, "Image whose records are removed (default: all records)")
      .value_name("FILE");
  forget.add("-m,--model", forget_flags->model_dir, "Model of these records; --image requires it (default: none)")
      .value_name("DIR");
}

}  // namespace vlcache
