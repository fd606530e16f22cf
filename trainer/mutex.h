// A std::mutex that clang's thread-safety analysis understands; gcc ignores the
// annotations. Like base/mutex.h, but without Abseil, which this library does
// not link.
#ifndef PACTRAIN_TRAINER_MUTEX_H_
#define PACTRAIN_TRAINER_MUTEX_H_

#include <mutex>

#if defined(__clang__)
#define PACTRAIN_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define PACTRAIN_THREAD_ANNOTATION(x)
#endif

#define PACTRAIN_GUARDED_BY(mu) PACTRAIN_THREAD_ANNOTATION(guarded_by(mu))
#define PACTRAIN_REQUIRES(mu) \
  PACTRAIN_THREAD_ANNOTATION(exclusive_locks_required(mu))
#define PACTRAIN_EXCLUDES(mu) PACTRAIN_THREAD_ANNOTATION(locks_excluded(mu))

namespace pactrain::trainer {

class PACTRAIN_THREAD_ANNOTATION(lockable) Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() PACTRAIN_THREAD_ANNOTATION(exclusive_lock_function()) {
    mu_.lock();
  }
  void Unlock() PACTRAIN_THREAD_ANNOTATION(unlock_function()) { mu_.unlock(); }

 private:
  std::mutex mu_;
};

class PACTRAIN_THREAD_ANNOTATION(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex* mu)
      PACTRAIN_THREAD_ANNOTATION(exclusive_lock_function(mu))
      : mu_(mu) {
    mu_->Lock();
  }
  ~MutexLock() PACTRAIN_THREAD_ANNOTATION(unlock_function()) { mu_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* const mu_;
};

}  // namespace pactrain::trainer

#endif  // PACTRAIN_TRAINER_MUTEX_H_
