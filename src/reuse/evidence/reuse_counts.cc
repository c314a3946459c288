// A file is replaced as a whole, under a lock that lies beside it.
#include "reuse/evidence/reuse_counts.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <ctime>
#include <iterator>
#include <span>

#include "base/error.h"
#include "base/format.h"
#include "base/json.h"
#include "base/numeric/statistics.h"
#include "store/disk/files.h"

namespace vlcache {
namespace {

constexpr int64_t kMaxFileBytes = 1 << 20;

// Held from its creation on, as far as the folder can be written to.
File lock_beside(const std::filesystem::path& file) {
  const std::string path = file.string() + ".lock";
  File lock(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (lock) flock(lock.fd(), LOCK_EX);
  return lock;
}

// The file's text; empty without one. Its name is predictable and what it says opens reuse: it must be no other user's,
// as a record.
std::string text_of(const std::filesystem::path& path) {
  const OpenedFile opened = open_record_file(path);
  if (!opened.file || !opened.foreign.empty() || opened.bytes > kMaxFileBytes) return "";
  std::string text(static_cast<size_t>(opened.bytes), ' ');
  return read_at(opened.file, 0, std::as_writable_bytes(std::span(text)), kNoDeadline) ? "" : text;
}

size_t index_of(size_t n_images) { return n_images > 1 ? 1 : 0; }

std::string percent_text(double share) { return format("%.3g", 100 * share); }

std::string clock_text(std::chrono::system_clock::time_point time) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(time);
  std::tm local{};
  localtime_r(&seconds, &local);
  return format("%02d:%02d", local.tm_hour, local.tm_min);
}

}  // namespace

ReuseCounts::ReuseCounts(ReusePlan plan, GateRule rule, std::filesystem::path file)
    : plan_(std::move(plan)), rule_(rule), file_(std::move(file)), chooser_(planned_chooser(plan_)) {
  rule_.repeated = true;
  std::error_code none;
  if (!file_.empty()) read_at_ = std::filesystem::last_write_time(file_, none);
  take(read(), /*tells=*/false);
}

// What the file has; nothing if it is damaged, of another plan or another user's: then the next count replaces it.
ReuseCounts::Counts ReuseCounts::read() const {
  if (file_.empty()) return {};
  try {
    const ReusePlan found = parse_reuse_plan(text_of(file_), file_.string());
    if (found.model != plan_.model || found.form != plan_.form || found.kv_codec != plan_.kv_codec ||
        found.shares != plan_.shares) {
      return {};
    }
    return {found.one, found.several};
  } catch (const Error&) {
    return {};
  }
}

ReuseCounts::Counts ReuseCounts::read_all() const {
  Counts counts = read();
  for (size_t i = 0; i < counts.size(); ++i) vlcache::add(counts[i], unwritten_[i]);
  return counts;
}

bool ReuseCounts::write(const Counts& counts) const {
  ReusePlan plan = plan_;
  plan.one = counts[0];
  plan.several = counts[1];
  const std::string text = reuse_plan_json(plan);
  TemporaryFile file(file_.parent_path());
  file.write(std::as_bytes(std::span(text)), kNoDeadline);
  file.commit(file_);
  return file.result().outcome == PutOutcome::kStored;
}

void ReuseCounts::add(bool several, const ReuseEvidence& more) {
  const std::lock_guard guard(mutex_);
  vlcache::add(unwritten_[several ? 1 : 0], more);
  const File lock = file_.empty() ? File() : lock_beside(file_);
  const Counts counts = read_all();
  if (lock && write(counts)) {
    unwritten_ = {};
    std::error_code none;
    read_at_ = std::filesystem::last_write_time(file_, none);
  }
  take(counts, /*tells=*/true);
}

// Other processes may have counted meanwhile.
void ReuseCounts::read_again() {
  if (file_.empty()) return;
  std::error_code error;
  const auto written = std::filesystem::last_write_time(file_, error);
  if (error || written == read_at_) return;
  read_at_ = written;
  const Counts counts = read_all();
  take(counts, /*tells=*/true);
}

void ReuseCounts::take(const Counts& counts, bool tells) {
  for (size_t i = 0; i < counts.size(); ++i) {
    Kind& kind = kinds_[i];
    kind.evidence = counts[i];
    kind.verdict = judge(kind.evidence, rule_);
    const bool opens = kind.verdict.yes() && !kind.open_since, closes = !kind.verdict.yes() && kind.open_since;
    if (opens) kind.open_since = std::chrono::system_clock::now();
    if (closes) kind.open_since.reset();
    if (!tells || (!opens && !closes)) continue;
    news_.push_back(std::string("images are ") + (opens ? "" : "no longer ") + "reused in prompts with " +
                    (i == 0 ? "one" : "several") +
                    (plan_.kv_codec ? ", under KV codec " + std::string(kv_codec_name(*plan_.kv_codec)) : "") + ": " +
                    words(kind));
  }
}

bool ReuseCounts::permits(size_t n_images) {
  const std::lock_guard guard(mutex_);
  read_again();
  return kinds_[index_of(n_images)].open_since.has_value();
}

bool ReuseCounts::undecided(size_t n_images) {
  const std::lock_guard guard(mutex_);
  return kinds_[index_of(n_images)].verdict.answer == GateVerdict::Answer::kNotEnough;
}

ReuseCounts::State ReuseCounts::state() {
  const std::lock_guard guard(mutex_);
  read_again();
  return {.one = kinds_[0], .several = kinds_[1], .n_given_up = n_given_up_};
}

std::vector<std::string> ReuseCounts::take_news() {
  const std::lock_guard guard(mutex_);
  return std::exchange(news_, {});
}

ReuseCounts& ReuseCountsByCodec::of(KvCodec codec) {
  const std::lock_guard guard(mutex_);
  std::unique_ptr<ReuseCounts>& counts = counts_[codec];
  if (counts == nullptr) counts = make_(codec);
  return *counts;
}

std::map<KvCodec, ReuseCounts::State> ReuseCountsByCodec::states() {
  const std::lock_guard guard(mutex_);
  std::map<KvCodec, ReuseCounts::State> states;
  for (const auto& [codec, counts] : counts_) states.emplace(codec, counts->state());
  return states;
}

std::vector<std::string> ReuseCountsByCodec::take_news() {
  const std::lock_guard guard(mutex_);
  std::vector<std::string> news;
  for (const auto& [codec, counts] : counts_) std::ranges::move(counts->take_news(), std::back_inserter(news));
  return news;
}

std::string words(const ReuseCounts::Kind& kind) {
  constexpr double kOneSide = 0.975;  // of an interval of 95 %
  const AnswerCounts& a = kind.evidence.answers;
  if (a.n == 0) return "nothing measured yet";
  const auto n = static_cast<double>(a.n), same = static_cast<double>(a.n - a.n_changed);
  std::string text = format("measured on %lld requests: ", static_cast<long long>(a.n)) + percent_text(1 - a.share()) +
                     " % same (" + percent_text(share_at_least(same, n, kOneSide)) + " to " +
                     percent_text(share_at_most(same, n, kOneSide)) + ")";
  if (const AnswerCounts floor = noise_floor(kind.evidence); floor.n > 0) {
    text += ", floor " + percent_text(floor.share()) + " %";
  }
  if (kind.open_since) return text + "; on since " + clock_text(*kind.open_since);
  if (kind.verdict.answer == GateVerdict::Answer::kNo) return text + "; off";
  if (kind.verdict.n_more == 0) return text + "; off until many more are";
  return text + format("; off until about %lld more are", static_cast<long long>(kind.verdict.n_more));
}

}  // namespace vlcache
