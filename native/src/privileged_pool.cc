#include "privileged_pool.h"

#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>

#include "capabilities.h"
#include "privileges.h"

namespace privsep {

namespace {

// Held until the process has changed its user, which the C library does in every thread.
constexpr uint64_t kChangeUser = uint64_t{1} << CAP_SETUID | uint64_t{1} << CAP_SETGID;
constexpr int kRetryMs = 1000;
constexpr auto kStepTime = std::chrono::seconds(10);

Status lower(uint64_t permitted) { return set_capabilities({permitted, 0, 0}); }

// Whoever hears the outcome of a job finds the descriptors closed that it was to work on.
void let_go(PrivilegedPool::Job& job) { job.run = nullptr; }

void give_up(PrivilegedPool::Job& job, const Error& error) {
  let_go(job);
  job.fail(error);
}

// Why there is no thread for one more.
Error too_many(PrivilegedPool::Lone kind) {
  const std::string count = std::to_string(PrivilegedPool::kMaxAlone);
  const bool process = kind == PrivilegedPool::Lone::kProcess;
  return Error::of(EAGAIN, count + " calls wait for " + (process ? "processes in pods" : "volumes that do not answer"));
}

}  // namespace

Result<std::unique_ptr<PrivilegedPool>> PrivilegedPool::start(unsigned count, uint64_t permitted) {
  if (count == 0 || count > kMaxThreads) return Error::refusal(EINVAL, "number of privileged threads");
  std::unique_ptr<PrivilegedPool> pool(new PrivilegedPool(count, permitted));
  pool->stopping_fd_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!pool->stopping_fd_.valid()) return Error::last("eventfd");
  auto created = ok();
  std::unique_lock<std::mutex> lock(pool->mutex_);
  for (unsigned i = 0; i <= count && created; ++i) created = pool->create_thread(i == 0, false);
  bool started = created && pool->settled_.wait_for(lock, kStepTime, [&] {
    for (const auto& thread : pool->threads_) {
      if (!thread->ready && thread->failure.code == 0) return false;
    }
    return true;
  });
  Error failure = created ? Error{} : created.error();
  if (created && !started) failure = Error::of(ETIMEDOUT, "start privileged threads");
  for (const auto& thread : pool->threads_) {
    if (thread->failure.code != 0) failure = thread->failure;
  }
  lock.unlock();
  if (failure.code != 0) return failure;
  return pool;
}

PrivilegedPool::~PrivilegedPool() {
  std::deque<Job> cancelled;
  std::unique_lock<std::mutex> lock(mutex_);
  stopping_ = true;
  cancelled.swap(queue_);
  for (Job& job : alone_) cancelled.push_back(std::move(job));
  alone_.clear();
  if (threads_.empty()) return;
  ::eventfd_write(stopping_fd_.get(), 1);
  pthread_t keeper = threads_[0]->handle;
  lock.unlock();
  wake_.notify_all();
  keeper_wake_.notify_all();
  for (Job& job : cancelled) give_up(job, Error::of(ECANCELED, "privileged threads are stopping"));
  // Once the keeper has ended the list does not change.
  ::pthread_join(keeper, nullptr);
  for (size_t i = 1; i < threads_.size(); ++i) ::pthread_join(threads_[i]->handle, nullptr);
}

Status PrivilegedPool::submit(Job job) {
  bool taken = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (stopping_) return Error::of(ECANCELED, "privileged threads are stopping");
    if (queue_.size() >= kMaxQueue) return Error::of(EAGAIN, "queue of privileged calls is full");
    queue_.push_back(std::move(job));
    taken = queue_.size() <= idle_;
  }
  // A job that has to wait for a thread is the keeper's to watch.
  (taken ? wake_ : keeper_wake_).notify_one();
  return ok();
}

Status PrivilegedPool::submit_alone(Lone kind, Job job) {
  // Whoever hears the outcome of one may submit the next.
  std::atomic<size_t>& jobs = lone_.at(static_cast<size_t>(kind));
  job.run = [run = std::move(job.run), &jobs](Home& home, const Deadline& deadline) -> Completion {
    return [complete = run(home, deadline), &jobs] {
      --jobs;
      complete();
    };
  };
  job.fail = [fail = std::move(job.fail), &jobs](const Error& error) {
    --jobs;
    fail(error);
  };
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (stopping_) return Error::of(ECANCELED, "privileged threads are stopping");
    if (jobs >= kMaxAlone) return too_many(kind);
    ++jobs;
    alone_.push_back(std::move(job));
  }
  keeper_wake_.notify_one();
  return ok();
}

Status PrivilegedPool::drop_user(uid_t uid, gid_t gid, const std::vector<gid_t>& groups) {
  auto valid = check_user(uid, gid, groups);
  if (!valid) return valid;
  Errand raise = [this] { return set_capabilities({permitted_ | kChangeUser, kChangeUser, 0}); };
  auto raised = on_every_thread(raise);
  if (!raised) return raised;
  auto changed = change_user(uid, gid, groups, tids());
  Errand settle = [this]() -> Status {
    auto lowered = lower(permitted_);
    if (!lowered) return lowered;
    auto now = current_capabilities();
    if (!now) return now.error();
    if (now->permitted != permitted_ || now->effective != 0 || now->inheritable != 0) {
      return Error::refusal(EPERM, "capabilities of a privileged thread");
    }
    return ok();
  };
  auto settled = on_every_thread(settle);
  return changed ? settled : changed;
}

Status PrivilegedPool::lock_down(FilterProfile own) {
  const std::vector<sock_filter> filter = build_filter(own);
  Errand confine = [&filter]() -> Status {
    int error = install_filter(filter);
    return error == 0 ? ok() : Status(Error::of(error, "seccomp"));
  };
  auto confined = on_every_thread(confine);
  if (!confined) return confined;
  return confine_threads(FilterProfile::kHelper, tids());
}

Status PrivilegedPool::create_thread(bool keeper, bool replacement, std::optional<Job> alone) {
  auto thread = std::make_unique<Thread>();
  thread->pool = this;
  thread->keeper = keeper;
  thread->replacement = replacement;
  thread->alone = std::move(alone);
  // Signals are for the main thread.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  int error = ::pthread_create(&thread->handle, nullptr, thread_main, thread.get());
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0) {
    Error failure = Error::of(error, "pthread_create");
    if (thread->alone) give_up(*thread->alone, failure);
    return failure;
  }
  threads_.push_back(std::move(thread));
  return ok();
}

void* PrivilegedPool::thread_main(void* argument) {
  Thread& thread = *static_cast<Thread*>(argument);
  PrivilegedPool& pool = *thread.pool;
  ::pthread_setname_np(::pthread_self(), thread.keeper ? "privsep-keeper" : "privsep-root");
  Status prepared = pool.prepare(thread);
  std::optional<Home> home;
  if (prepared) {
    auto here = Home::here();
    if (here) {
      home.emplace(std::move(*here));
    } else {
      prepared = here.error();
    }
  }
  {
    std::lock_guard<std::mutex> lock(pool.mutex_);
    thread.tid = static_cast<pid_t>(::syscall(SYS_gettid));
    if (prepared) {
      thread.ready = true;
    } else {
      thread.failure = prepared.error();
      thread.ended = true;
    }
  }
  pool.settled_.notify_all();
  pool.keeper_wake_.notify_all();
  if (thread.alone) {
    pool.serve_alone(thread, home, prepared);
  } else if (home) {
    pool.serve(thread, *home);
  }
  return nullptr;
}

Status PrivilegedPool::prepare(const Thread& thread) const {
  // setns of a mount namespace needs a root and working directory of one's own.
  if (::unshare(CLONE_FS) != 0) return Error::last("unshare CLONE_FS");
  ::umask(0);
  if (thread.replacement) return ok();
  if (::prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) != 0) return Error::last("prctl PR_SET_KEEPCAPS");
  auto cut = cut_bounding_set(permitted_);
  if (!cut) return cut;
  return lower(permitted_ | kChangeUser);
}

void PrivilegedPool::serve(Thread& thread, Home& home) {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopping_) {
    if (thread.errand != nullptr) {
      Status done = (*thread.errand)();
      thread.failure = done ? Error{} : done.error();
      thread.errand = nullptr;
      settled_.notify_all();
    } else if (thread.keeper) {
      keep(lock);
    } else if (!queue_.empty()) {
      Job job = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      bool usable = run_job(job, home);
      lock.lock();
      if (!usable) {
        thread.ended = true;
        keeper_wake_.notify_all();
        return;
      }
    } else {
      ++idle_;
      wake_.wait(lock);
      --idle_;
    }
  }
}

void PrivilegedPool::serve_alone(Thread& thread, std::optional<Home>& home, const Status& prepared) {
  if (home) {
    run_job(*thread.alone, *home);
  } else {
    give_up(*thread.alone, prepared.error());
  }
  std::lock_guard<std::mutex> lock(mutex_);
  thread.ended = true;
  keeper_wake_.notify_all();
}

// False when the thread must not be used again.
bool PrivilegedPool::run_job(Job& job, Home& home) {
  if (job.deadline.passed()) {
    give_up(job, Error::of(ETIMEDOUT, "waiting for a privileged thread"));
    return true;
  }
  if ((job.caps & ~permitted_) != 0) {
    give_up(job, Error::refusal(EPERM, "capabilities outside the permitted set"));
    return true;
  }
  auto raised = set_capabilities({permitted_, job.caps, 0});
  if (!raised) {
    give_up(job, raised.error());
    return true;
  }
  Completion complete = job.run(home, job.deadline);
  bool back = static_cast<bool>(home.come_back());
  bool lowered = static_cast<bool>(lower(permitted_));
  let_go(job);
  complete();
  return back && lowered;
}

// One round of the keeper.
void PrivilegedPool::keep(std::unique_lock<std::mutex>& lock) {
  reap_ended(lock);
  // A new thread starts where its maker is, so only one that never leaves home may make it.
  start_alone();
  bool complete = threads_.size() - threads_alone() > count_;
  if (!complete && !stopping_) complete = static_cast<bool>(create_thread(false, true));
  std::vector<Job> expired = take_expired();
  if (!expired.empty()) {
    lock.unlock();
    for (Job& job : expired) give_up(job, Error::of(ETIMEDOUT, "waiting for a privileged thread"));
    lock.lock();
  }
  int wait_ms = complete ? INT32_MAX : kRetryMs;
  for (const Job& job : queue_) wait_ms = std::min(wait_ms, job.deadline.remaining_ms() + 1);
  // What was submitted while the lock was let go has told nobody.
  if (!stopping_ && alone_.empty()) keeper_wake_.wait_for(lock, std::chrono::milliseconds(wait_ms));
}

// What cannot be started is told at once: nobody waits for a thread to become free.
void PrivilegedPool::start_alone() {
  while (!alone_.empty() && !stopping_) {
    Job job = std::move(alone_.front());
    alone_.pop_front();
    (void)create_thread(false, true, std::move(job));
  }
}

size_t PrivilegedPool::threads_alone() const {
  size_t count = 0;
  for (const auto& thread : threads_) count += thread->alone ? 1 : 0;
  return count;
}

void PrivilegedPool::reap_ended(std::unique_lock<std::mutex>& lock) {
  for (size_t i = 1; i < threads_.size();) {
    if (!threads_[i]->ended) {
      ++i;
      continue;
    }
    std::unique_ptr<Thread> ended = std::move(threads_[i]);
    threads_.erase(threads_.begin() + static_cast<std::ptrdiff_t>(i));
    bool unfit = ended->replacement && !ended->ready;
    lock.unlock();
    ::pthread_join(ended->handle, nullptr);
    lock.lock();
    // What just failed is not repeated at once.
    if (unfit && !stopping_) keeper_wake_.wait_for(lock, std::chrono::milliseconds(kRetryMs));
  }
}

std::vector<PrivilegedPool::Job> PrivilegedPool::take_expired() {
  std::vector<Job> expired;
  for (auto job = queue_.begin(); job != queue_.end();) {
    if (job->deadline.passed()) {
      expired.push_back(std::move(*job));
      job = queue_.erase(job);
    } else {
      ++job;
    }
  }
  return expired;
}

Status PrivilegedPool::on_every_thread(const Errand& errand) {
  std::unique_lock<std::mutex> lock(mutex_);
  for (const auto& thread : threads_) thread->errand = &errand;
  wake_.notify_all();
  keeper_wake_.notify_all();
  bool done = settled_.wait_for(lock, kStepTime, [this] {
    for (const auto& thread : threads_) {
      if (thread->errand != nullptr) return false;
    }
    return true;
  });
  if (!done) {
    for (const auto& thread : threads_) thread->errand = nullptr;
    return Error::of(ETIMEDOUT, "privileged threads");
  }
  for (const auto& thread : threads_) {
    if (thread->failure.code != 0) return thread->failure;
  }
  return ok();
}

std::vector<pid_t> PrivilegedPool::tids() {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<pid_t> tids;
  for (const auto& thread : threads_) tids.push_back(thread->tid);
  return tids;
}

}  // namespace privsep
