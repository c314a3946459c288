#include "store/store_worker.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "base/error.h"
#include "store/quiet_thread.h"

namespace vlcache {
namespace {

constexpr int kLeastPriority = 19;         // of nice(2)
constexpr double kRecentBytes = 32 << 20;  // of loads that tell a tier's speed
constexpr std::chrono::minutes kRecentTime{1};

}  // namespace

struct RecordLoad::Shared {
  explicit Shared(LoadRequest asked) : request(std::move(asked)) {}

  void miss_with(Miss why) {
    const std::lock_guard lock(mutex);
    if (!missed) missed = std::move(why);
    changed.notify_all();
  }
  // The load is over: the caller's handle may keep the results, but neither the file nor the memory.
  void let_go() {
    reader.reset();
    request.owner.reset();
  }
  bool over() const {
    const std::lock_guard lock(mutex);
    return missed.has_value() || n_ready == n_targets;
  }

  LoadRequest request;                   // only the worker's, once it has begun
  std::unique_ptr<RecordReader> reader;  // only the worker's
  const size_t n_targets = request.targets.size();

  mutable std::mutex mutex;
  mutable std::condition_variable changed;
  size_t n_ready = 0;
  int64_t created_ms = 0;
  double saves_ms = 0;
  std::optional<Miss> missed;
};

RecordLoad& RecordLoad::operator=(RecordLoad&& other) noexcept {
  give_up();
  shared_ = std::move(other.shared_);
  return *this;
}

RecordLoad::State RecordLoad::state(size_t i) const { return wait(i, Deadline::min()); }

RecordLoad::State RecordLoad::wait(size_t i, Deadline deadline) const {
  CHECK(shared_ != nullptr && i < shared_->n_targets);
  std::unique_lock lock(shared_->mutex);
  const auto settled = [&] { return i < shared_->n_ready || shared_->missed; };
  if (deadline == kNoDeadline) {
    shared_->changed.wait(lock, settled);
  } else if (deadline != Deadline::min()) {
    shared_->changed.wait_until(lock, deadline, settled);
  }
  if (i < shared_->n_ready) return State::kReady;
  return shared_->missed ? State::kMissed : State::kPending;
}

Miss RecordLoad::miss() const {
  CHECK(shared_ != nullptr);
  const std::lock_guard lock(shared_->mutex);
  return shared_->missed.value_or(Miss{});
}

int64_t RecordLoad::created_ms() const {
  CHECK(shared_ != nullptr);
  const std::lock_guard lock(shared_->mutex);
  return shared_->created_ms;
}

double RecordLoad::saves_ms() const {
  CHECK(shared_ != nullptr);
  const std::lock_guard lock(shared_->mutex);
  return shared_->saves_ms;
}

void RecordLoad::give_up() {
  if (shared_ && !shared_->over()) shared_->miss_with({MissReason::kCancelled, "given up"});
}

bool RecordAnswer::wait(Deadline until) {
  if (!coming_.valid()) return true;
  if (until == kNoDeadline) {
    coming_.wait();
  } else if (coming_.wait_until(std::max(until, Deadline())) != std::future_status::ready) {
    return false;
  }
  there_ = coming_.get();
  return true;
}

StoreWorker::StoreWorker(KvTier& tier, int64_t max_queued_bytes, const SavePace* pace)
    : tier_(tier), max_queued_bytes_(max_queued_bytes), pace_(pace) {
  loader_ = start_quiet_thread([this] { run_loads(); });
  saver_ = start_quiet_thread([this] {
    // Computing threads come first: with saves at equal priority, decoding on a machine of two cores lost a fifth of
    // its speed.
    setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kLeastPriority);
    const sched_param none{};
    sched_setscheduler(0, SCHED_IDLE, &none);  // for this thread
    run_saves();
  });
}

StoreWorker::~StoreWorker() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  loader_.join();
  saver_.join();
}

RecordLoad StoreWorker::load(LoadRequest request) {
  auto job = std::make_shared<RecordLoad::Shared>(std::move(request));
  {
    const std::lock_guard lock(mutex_);
    ++stats_.n_loads;
    loads_.push_back(job);
  }
  wake_.notify_all();
  return RecordLoad(std::move(job));
}

RecordAnswer StoreWorker::ask(std::vector<RecordKey> keys, Deadline deadline) {
  return ask({.keys = std::move(keys), .deadline = deadline, .claim = {}, .answer = {}});
}

RecordAnswer StoreWorker::claim(const RecordKey& key, Clock::duration time, Deadline deadline) {
  return ask({.keys = {key}, .deadline = deadline, .claim = time, .answer = {}});
}

RecordAnswer StoreWorker::ask(Question question) {
  RecordAnswer answer(question.answer.get_future());
  {
    const std::lock_guard lock(mutex_);
    questions_.push_back(std::move(question));
  }
  wake_.notify_all();
  return answer;
}

bool StoreWorker::save(Record record, Deadline deadline) {
  const int64_t bytes = record.bytes();
  record.pace = pace_;
  {
    const std::lock_guard lock(mutex_);
    ++stats_.n_saves;
    if (bytes > max_queued_bytes_ - stats_.queued_bytes) {
      ++stats_.n_refused;
      return false;
    }
    stats_.queued_bytes += bytes;
    saves_.push_back({.record = std::move(record), .deadline = deadline, .bytes = bytes, .erase = {}});
  }
  wake_.notify_all();
  return true;
}

bool StoreWorker::takes(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (bytes <= max_queued_bytes_ - stats_.queued_bytes) return true;
  ++stats_.n_refused;
  return false;
}

void StoreWorker::erase(std::function<void(KvTier& tier)> job) {
  {
    const std::lock_guard lock(mutex_);
    saves_.push_back({.record = {}, .deadline = kNoDeadline, .bytes = 0, .erase = std::move(job)});
  }
  wake_.notify_all();
}

bool StoreWorker::flush(Deadline deadline) {
  // On a thread of its own: the caller may have signals unblocked that end it on a write beyond a limit.
  std::thread hand = start_quiet_thread([&] {
    std::unique_lock lock(mutex_);
    while (!saves_.empty() && Clock::now() < deadline) {
      if (may_save()) {
        save_next(lock, deadline);
      } else if (deadline == kNoDeadline) {
        saved_.wait(lock);
      } else {
        saved_.wait_until(lock, deadline);
      }
    }
  });
  hand.join();
  std::unique_lock lock(mutex_);
  const auto done = [&] { return saves_.empty() && n_saving_ == 0; };
  if (deadline != kNoDeadline) return saved_.wait_until(lock, deadline, done);
  saved_.wait(lock, done);
  return true;
}

StoreWorkerStats StoreWorker::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void StoreWorker::run_loads() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stopping_ || !questions_.empty() || !loads_.empty(); });
    if (stopping_) break;
    if (!questions_.empty()) {
      Question question = std::move(questions_.front());
      questions_.pop_front();
      lock.unlock();
      answer(question);
      lock.lock();
      continue;
    }
    Job job = std::move(loads_.front());
    loads_.pop_front();
    lock.unlock();
    const bool more = advance_or_miss(*job);
    if (!more) job->let_go();
    lock.lock();
    if (more) {
      loads_.push_back(std::move(job));
    } else if (std::lock_guard inner(job->mutex); job->missed && job->missed->reason == MissReason::kCancelled) {
      ++stats_.n_given_up;
    }
  }
  for (Question& question : questions_) question.answer.set_value(std::vector<bool>(question.keys.size(), false));
  questions_.clear();
  for (const Job& job : loads_) {
    job->miss_with({MissReason::kCancelled, "the store is closed"});
    job->let_go();
  }
  loads_.clear();
}

void StoreWorker::answer(Question& question) {
  std::vector<bool> there(question.keys.size(), question.claim.has_value());
  try {
    const bool late = Clock::now() >= question.deadline;
    if (!late && question.claim) {
      there[0] = tier_.claim(question.keys[0], *question.claim, question.deadline);
    } else if (!late) {
      there = tier_.exists(question.keys, question.deadline);
    }
  } catch (const std::exception&) {  // out of memory, at most
  }
  question.answer.set_value(std::move(there));
}

void StoreWorker::run_saves() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stopping_ || may_save(); });
    if (stopping_) break;
    save_next(lock, kNoDeadline);
  }
  stats_.n_dropped += std::ssize(saves_);
  saves_.clear();
}

// Two threads save during a flush: an erasure must run alone, or it could overtake a save that was queued before it.
bool StoreWorker::may_save() const { return !saves_.empty() && !erasing_ && (!saves_.front().erase || n_saving_ == 0); }

// Runs the first queued save, with the lock released meanwhile.
void StoreWorker::save_next(std::unique_lock<std::mutex>& lock, Deadline until) {
  std::optional<Save> save = std::move(saves_.front());
  saves_.pop_front();
  ++n_saving_;
  erasing_ = static_cast<bool>(save->erase);
  lock.unlock();
  save_one(*save, std::min(save->deadline, until));
  const int64_t bytes = save->bytes;
  save.reset();  // freeing this much memory takes a while
  lock.lock();
  stats_.queued_bytes -= bytes;
  --n_saving_;
  erasing_ = false;  // only one erasure runs at a time
  saved_.notify_all();
  wake_.notify_all();
}

bool StoreWorker::advance_or_miss(RecordLoad::Shared& job) {
  try {
    return advance(job);
  } catch (const std::exception& error) {  // out of memory, at most: tiers do not throw
    job.miss_with({MissReason::kIo, error.what()});
    return false;
  }
}

bool StoreWorker::advance(RecordLoad::Shared& job) {
  if (job.over()) return false;
  const auto begin = Clock::now();
  const LoadRequest& request = job.request;
  if (!job.reader) {
    OpenedRecord opened = tier_.open(request.key, request.deadline);
    if (!opened.reader) {
      job.miss_with(std::move(opened.miss));
      return false;
    }
    job.reader = std::move(opened.reader);
    {
      const std::lock_guard lock(job.mutex);
      job.created_ms = job.reader->header().created_ms;
      job.saves_ms = job.reader->header().saves_ms;
    }
    std::vector<int32_t> sections;
    for (const SectionTarget& target : request.targets) sections.push_back(target.section);
    job.reader->expect(sections);
  }
  // Only this thread changes n_ready.
  const SectionTarget& target = request.targets[job.n_ready];
  if (auto why = job.reader->read(target.section, target.to, request.deadline)) {
    job.miss_with(std::move(*why));
    return false;
  }
  loaded(std::ssize(target.to), ms_since(begin));
  const std::lock_guard lock(job.mutex);
  if (job.missed) return false;  // given up meanwhile
  ++job.n_ready;
  job.changed.notify_all();
  return job.n_ready < job.n_targets;
}

void StoreWorker::loaded(int64_t bytes, double ms) {
  const std::lock_guard lock(mutex_);
  recent_bytes_ += static_cast<double>(bytes);
  recent_ms_ += ms;
  if (recent_bytes_ > kRecentBytes) {
    recent_ms_ *= kRecentBytes / recent_bytes_;
    recent_bytes_ = kRecentBytes;
  }
  last_load_ = Clock::now();
}

double StoreWorker::load_speed() const {
  const std::lock_guard lock(mutex_);
  if (recent_ms_ == 0 || Clock::now() - last_load_ > kRecentTime) return 0;
  return recent_bytes_ / recent_ms_;
}

void StoreWorker::save_one(const Save& save, Deadline deadline) {
  try {
    if (save.erase) {
      save.erase(tier_);
    } else {
      tier_.put(save.record, deadline);
    }
  } catch (const std::exception&) {  // out of memory, at most: as if the tier had refused it
    const std::lock_guard lock(mutex_);
    ++stats_.n_dropped;
  }
}

}  // namespace vlcache
