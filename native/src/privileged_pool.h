// The only threads with privileges. Each holds a permitted set that is empty in effect between calls.
#pragma once

#include <pthread.h>
#include <sys/types.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "deadline.h"
#include "fd.h"
#include "namespaces.h"
#include "result.h"
#include "seccomp.h"

namespace privsep {

class PrivilegedPool {
 public:
  // Tells the caller the outcome. Runs on the privileged thread after its privileges were lowered.
  using Completion = std::function<void()>;

  struct Job {
    uint64_t caps = 0;  // raised for `run`
    Deadline deadline;
    std::function<Completion(Home&, const Deadline&)> run;
    std::function<void(const Error&)> fail;  // instead of `run`, when it cannot be started
  };

  static constexpr unsigned kMaxThreads = 16;
  static constexpr size_t kMaxQueue = 256;
  static constexpr size_t kMaxAlone = 16;

  // What may wait without end has a thread of its own, and what waits for one thing leaves threads to what waits for
  // another.
  enum class Lone {
    kProcess,  // waits long for a process in a pod
    kVolume,   // reaches a claim, whose server may not answer
    kUnplug,   // takes a claim away, which is to be possible when others wait for it
  };

  // Starts `count` threads and one more, the keeper, that replaces threads which lost their way home and fails
  // calls which nobody started in time. The calling thread's capabilities must include `permitted` and what dropping to another user takes.
  static Result<std::unique_ptr<PrivilegedPool>> start(unsigned count, uint64_t permitted);

  // Ends the threads; jobs that were not started fail with ECANCELED.
  ~PrivilegedPool();
  PrivilegedPool(const PrivilegedPool&) = delete;
  PrivilegedPool& operator=(const PrivilegedPool&) = delete;

  // EAGAIN when the queue is full.
  Status submit(Job job);

  // As submit, but on a thread of its own that ends with the job. Only after lock_down(). EAGAIN when there are
  // kMaxAlone such jobs of the kind.
  Status submit_alone(Lone kind, Job job);

  // Becomes readable when the pool is to end, which waits for all jobs.
  int stopping_fd() const { return stopping_fd_.get(); }

  // Changes the user of the whole process; afterwards only these threads have capabilities, `permitted` each.
  Status drop_user(uid_t uid, gid_t gid, const std::vector<gid_t>& groups);

  // no_new_privs and the filters, `own` for these threads, kHelper for all others.
  Status lock_down(FilterProfile own);

 private:
  // Something that every thread does once, for start-up.
  using Errand = std::function<Status()>;

  struct Thread {
    PrivilegedPool* pool = nullptr;
    pthread_t handle{};
    pid_t tid = 0;
    bool keeper = false;
    bool replacement = false;  // made by the keeper: has its credentials already
    std::optional<Job> alone;  // the one job of a thread that is not of the pool
    bool ready = false;
    bool ended = false;
    const Errand* errand = nullptr;
    Error failure;  // of the start or the last errand; code 0: none
  };

  PrivilegedPool(unsigned count, uint64_t permitted) : count_(count), permitted_(permitted) {}
  static void* thread_main(void* argument);
  Status create_thread(bool keeper, bool replacement, std::optional<Job> alone = std::nullopt);  // with the lock held
  Status prepare(const Thread& thread) const;
  void serve(Thread& thread, Home& home);
  void serve_alone(Thread& thread, std::optional<Home>& home, const Status& prepared);
  bool run_job(Job& job, Home& home);
  void keep(std::unique_lock<std::mutex>& lock);
  void start_alone();  // with the lock held
  size_t threads_alone() const;
  void reap_ended(std::unique_lock<std::mutex>& lock);
  std::vector<Job> take_expired();
  Status on_every_thread(const Errand& errand);
  std::vector<pid_t> tids();

  const unsigned count_;
  const uint64_t permitted_;
  std::mutex mutex_;
  std::condition_variable wake_;         // threads wait for work
  std::condition_variable keeper_wake_;  // the keeper waits for something to look after
  std::condition_variable settled_;      // the main thread waits for start-up steps
  std::vector<std::unique_ptr<Thread>> threads_;  // the keeper first
  std::deque<Job> queue_;
  std::deque<Job> alone_;  // jobs that the keeper is yet to make a thread for
  std::array<std::atomic<size_t>, 3> lone_{};  // jobs of each kind whose outcome was not told yet
  Fd stopping_fd_;
  size_t idle_ = 0;  // threads that wait on wake_
  bool stopping_ = false;
};

}  // namespace privsep
