// Preloaded into the helper where the machine withholds CAP_SYS_RESOURCE: notes what is asked of the kernel about locked
// memory and says that it was done. PRLIMIT_LOG names the file that it is noted in.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

// Opened before the helper gives up its rights.
static int log_file = -1;
__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("PRLIMIT_LOG");
  if (path != NULL) log_file = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
}

int prlimit64(pid_t pid, __rlimit_resource_t resource, const struct rlimit64 *new_limit, struct rlimit64 *old_limit) {
  if (log_file < 0 || pid == 0 || resource != RLIMIT_MEMLOCK) {
    return (int)syscall(SYS_prlimit64, pid, resource, new_limit, old_limit);
  }
  if (old_limit != NULL) *old_limit = (struct rlimit64){8388608, 8388608};
  if (new_limit != NULL) {
    dprintf(log_file, "%d %llx %llx\n", pid, (unsigned long long)new_limit->rlim_cur,
            (unsigned long long)new_limit->rlim_max);
  }
  return 0;
}

int prlimit(pid_t pid, __rlimit_resource_t resource, const struct rlimit *new_limit, struct rlimit *old_limit) {
  return prlimit64(pid, resource, (const struct rlimit64 *)new_limit, (struct rlimit64 *)old_limit);
}
