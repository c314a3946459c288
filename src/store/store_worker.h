// StoreWorker: the threads that wait for a tier, so that no computing thread does. One loads, and one, of idle
// priority, saves. They handle bytes only (read, verify, checksum, write); their meaning is the caller's. Loads take
// turns, section by section, so that all images of one prompt have their first layers early.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "store/kv_tier.h"
#include "store/save_pace.h"

namespace vlcache {

// The target of a section of a record; as many bytes as the section has.
struct SectionTarget {
  int32_t section = 0;
  std::span<std::byte> to;
};

struct LoadRequest {
  RecordKey key;
  std::vector<SectionTarget> targets;  // in the order in which they are needed
  std::shared_ptr<void> owner;         // of the targets' memory: held until nothing writes to it any more
  Deadline deadline = kNoDeadline;
};

// The state of a load. Targets become ready one by one, in order; from the first that fails on, all are missed. Used by
// one thread; destroying it gives the load up without waiting.
class RecordLoad {
 public:
  enum class State : uint8_t { kPending, kReady, kMissed };

  RecordLoad() = default;  // of nothing
  RecordLoad(RecordLoad&& other) noexcept = default;
  RecordLoad& operator=(RecordLoad&& other) noexcept;
  ~RecordLoad() { give_up(); }

  // State of targets[i]. kReady: its bytes are in place and verified, and will not change.
  State state(size_t i) const;
  // The same, once it is no longer pending, or at the deadline.
  State wait(size_t i, Deadline deadline) const;
  // Why targets are missed; meaningless before that.
  Miss miss() const;
  // Creation time of the record, ms since 1970; meaningless before the first target is ready.
  int64_t created_ms() const;
  double saves_ms() const;  // of the record; likewise
  // Targets that are not ready become missed. The memory may be written to for a moment longer: its owner is held until
  // then.
  void give_up();

 private:
  friend class StoreWorker;
  struct Shared;
  explicit RecordLoad(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
  std::shared_ptr<Shared> shared_;  // shared with the worker: the last of the two frees it
};

// Which of the requested records a tier has; used by one thread, destroyed without waiting.
class RecordAnswer {
 public:
  RecordAnswer() = default;  // of nothing
  explicit RecordAnswer(std::vector<bool> there) : there_(std::move(there)) {}
  explicit RecordAnswer(std::future<std::vector<bool>> coming) : coming_(std::move(coming)) {}

  // Whether the answer has arrived by then.
  bool wait(Deadline until);
  bool has(size_t i) const { return there_[i]; }  // valid after wait() has returned true

 private:
  std::vector<bool> there_;
  std::future<std::vector<bool>> coming_;
};

struct StoreWorkerStats {
  int64_t n_loads = 0, n_saves = 0;  // requested
  int64_t n_given_up = 0;            // loads
  int64_t n_refused = 0;             // saves for which the queue had no room
  int64_t n_dropped = 0;             // saves that were still queued when the worker ended
  int64_t queued_bytes = 0;          // held now for queued saves
};

class StoreWorker {
 public:
  // The tier and the pace (null: none) must outlive the worker; the queue holds at most this many bytes of sections.
  StoreWorker(KvTier& tier, int64_t max_queued_bytes, const SavePace* pace = nullptr);
  // Ends loads (missed: cancelled) and drops queued saves; waits for the operation in progress.
  ~StoreWorker();
  StoreWorker(const StoreWorker&) = delete;
  StoreWorker& operator=(const StoreWorker&) = delete;

  RecordLoad load(LoadRequest request);
  // Answered before loads that have not begun. A record not known by the deadline counts as absent.
  RecordAnswer ask(std::vector<RecordKey> keys, Deadline deadline);
  // KvTier::claim(), likewise: whether it was granted. Not answered by the deadline: granted.
  RecordAnswer claim(const RecordKey& key, Clock::duration time, Deadline deadline);
  // False: refused, because the queue is full. The record's `owner` keeps its bytes, which must not change any more.
  bool save(Record record, Deadline deadline = kNoDeadline);
  // Whether save() would accept this many bytes now; counts as refused if not.
  bool takes(int64_t bytes);
  // Removes records after the saves queued so far, alone: `job` may list, open and erase.
  void erase(std::function<void(KvTier& tier)> job);
  void erase(const RecordKey& key) {
    erase([key](KvTier& tier) { tier.erase(tier.id_of(key)); });
  }
  // Waits for all queued saves. The caller helps, because the saver runs at idle priority. False: timeout.
  bool flush(Deadline deadline = kNoDeadline);
  StoreWorkerStats stats() const;
  // Bytes that recent loads brought in a ms, opening included; 0: nothing was loaded in the last minute, so that a tier
  // that was slow is tried again.
  double load_speed() const;

 private:
  struct Save {
    Record record;
    Deadline deadline;
    int64_t bytes;
    std::function<void(KvTier& tier)> erase;  // if set, instead of saving
  };
  struct Question {
    std::vector<RecordKey> keys;
    Deadline deadline;
    std::optional<Clock::duration> claim;  // the keys are to be claimed
    std::promise<std::vector<bool>> answer;
  };
  using Job = std::shared_ptr<RecordLoad::Shared>;

  void run_loads();
  RecordAnswer ask(Question question);
  void answer(Question& question);
  void run_saves();
  bool advance(RecordLoad::Shared& job);  // one section further; false: the load is over
  bool advance_or_miss(RecordLoad::Shared& job);
  void loaded(int64_t bytes, double ms);
  bool may_save() const;
  void save_next(std::unique_lock<std::mutex>& lock, Deadline until);
  void save_one(const Save& save, Deadline deadline);

  KvTier& tier_;
  const int64_t max_queued_bytes_;
  const SavePace* const pace_;
  mutable std::mutex mutex_;
  std::condition_variable wake_, saved_;
  std::deque<Question> questions_;
  std::deque<Job> loads_;
  std::deque<Save> saves_;
  int n_saving_ = 0;
  bool erasing_ = false;
  bool stopping_ = false;
  StoreWorkerStats stats_;
  double recent_bytes_ = 0, recent_ms_ = 0;  // of loads
  Deadline last_load_ = Deadline::min();
  std::thread loader_, saver_;  // last: they use all of the above
};

}  // namespace vlcache
