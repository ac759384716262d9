#include "proc_file.h"

#include <fcntl.h>
#include <unistd.h>

#include "fd.h"

namespace privsep {

Result<std::string> read_proc_file(const std::string& path, size_t limit) {
  return read_proc_file(AT_FDCWD, path, limit);
}

Result<std::string> read_proc_file(int directory, const std::string& path, size_t limit) {
  Fd fd(::openat(directory, path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd.valid()) return Error::last("open " + path);
  std::string text;
  char buffer[4096];
  for (;;) {
    ssize_t n = ::read(fd.get(), buffer, sizeof buffer);
    if (n < 0) return Error::last("read " + path);
    if (n == 0) return text;
    text.append(buffer, static_cast<size_t>(n));
    if (text.size() > limit) return Error::of(EFBIG, "read " + path);
  }
}

}  // namespace privsep
