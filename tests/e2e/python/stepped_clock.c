/* A wall clock that a test steps: loaded before libc, it adds to the time the seconds
 * that the file STEPPED_CLOCK holds, as 8 bytes. Other clocks are left alone. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t* ahead;

__attribute__((constructor)) static void Open(void) {
  const char* path = getenv("STEPPED_CLOCK");
  const int fd = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) abort();
  void* memory = mmap(NULL, sizeof *ahead, PROT_READ, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) abort();
  ahead = memory;
  close(fd);
}

int clock_gettime(clockid_t clock, struct timespec* time) {
  const int failed = (int)syscall(SYS_clock_gettime, clock, time);
  const int is_wall = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
  if (!failed && is_wall && ahead != NULL) time->tv_sec += *ahead;
  return failed;
}

time_t time(time_t* seconds) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (seconds != NULL) *seconds = now.tv_sec;
  return now.tv_sec;
}

int gettimeofday(struct timeval* restrict time, void* restrict zone) {
  (void)zone;
  struct timespec now;
  const int failed = clock_gettime(CLOCK_REALTIME, &now);
  time->tv_sec = now.tv_sec;
  time->tv_usec = now.tv_nsec / 1000;
  return failed;
}
