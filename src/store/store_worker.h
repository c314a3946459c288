// The threads that wait for a tier, so that nobody who computes does: one loads, and one, which yields the CPU to
// everybody else, saves. They touch bytes only (read, verify, checksum, write); what they mean is the caller's. Loads
// at work take turns, section by section, so that the images of one prompt have their first layers early.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <future>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "store/kv_tier.h"
#include "store/save_pace.h"

namespace vlcache {

// Where a section of a record is to go; as many bytes as the section has.
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

// What became of a load. Targets become ready one by one, in order; from the first that cannot be had on, all are
// missed. Asked by one thread; destroying it gives the load up without waiting.
class RecordLoad {
 public:
  enum class State : uint8_t { kPending, kReady, kMissed };

  RecordLoad() = default;  // of nothing
  RecordLoad(RecordLoad&& other) noexcept = default;
  RecordLoad& operator=(RecordLoad&& other) noexcept;
  ~RecordLoad() { give_up(); }

  // Of targets[i]. kReady: its bytes are in place and verified, and stay so.
  State state(size_t i) const;
  // The same, once it is not pending any more, or at the deadline.
  State wait(size_t i, Deadline deadline) const;
  // Why targets are missed; of no meaning before.
  Miss miss() const;
  // When the record was made, ms since 1970; of no meaning before the first target is ready.
  int64_t created_ms() const;
  // What is not ready yet will not be. The memory may be written to for a moment longer: its owner is held for that.
  void give_up();

 private:
  friend class StoreWorker;
  struct Shared;
  explicit RecordLoad(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
  std::shared_ptr<Shared> shared_;  // with the worker: whoever is done last lets go
};

// Which of some records a tier has; asked by one thread, destroyed without waiting.
class RecordAnswer {
 public:
  RecordAnswer() = default;  // of nothing
  explicit RecordAnswer(std::vector<bool> there) : there_(std::move(there)) {}
  explicit RecordAnswer(std::future<std::vector<bool>> coming) : coming_(std::move(coming)) {}

  // Whether it has come by then.
  bool wait(Deadline until);
  bool has(size_t i) const { return there_[i]; }  // of one that has come

 private:
  std::vector<bool> there_;
  std::future<std::vector<bool>> coming_;
};

struct StoreWorkerStats {
  int64_t n_loads = 0, n_saves = 0;  // asked for
  int64_t n_given_up = 0;            // loads
  int64_t n_refused = 0;             // saves for which the queue had no room
  int64_t n_dropped = 0;             // saves that the worker's end left undone
  int64_t queued_bytes = 0;          // held now for saves
};

class StoreWorker {
 public:
  // The tier outlives the worker, so does the pace (null: none); the queue holds at most so many bytes of sections.
  StoreWorker(KvTier& tier, int64_t max_queued_bytes, const SavePace* pace = nullptr);
  // Ends loads (missed: cancelled) and drops saves, except for what is just being done.
  ~StoreWorker();
  StoreWorker(const StoreWorker&) = delete;
  StoreWorker& operator=(const StoreWorker&) = delete;

  RecordLoad load(LoadRequest request);
  // Before loads that have not begun. What cannot be known by the deadline is not there.
  RecordAnswer ask(std::vector<RecordKey> keys, Deadline deadline);
  // False: refused, for lack of room. The record's `owner` keeps its bytes, which must not change any more.
  bool save(Record record, Deadline deadline = kNoDeadline);
  // Behind what is to be saved so far.
  void erase(RecordKey key);
  // Until every save so far is done. Lends a hand: the saver may get no time. False: not by the deadline.
  bool flush(Deadline deadline = kNoDeadline);
  StoreWorkerStats stats() const;

 private:
  struct Save {
    Record record;
    Deadline deadline;
    int64_t bytes;
    bool erases = false;  // the record, of which there is a key alone
  };
  struct Question {
    std::vector<RecordKey> keys;
    Deadline deadline;
    std::promise<std::vector<bool>> answer;
  };
  using Job = std::shared_ptr<RecordLoad::Shared>;

  void run_loads();
  void answer(Question& question);
  void run_saves();
  bool advance(RecordLoad::Shared& job);  // one section further; false: it is over
  bool advance_or_miss(RecordLoad::Shared& job);
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
  std::thread loader_, saver_;  // last: they use all of the above
};

}  // namespace vlcache
