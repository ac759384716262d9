#include "fixture.h"

#include <fcntl.h>
#include <ftw.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

namespace privsep::test {

TemporaryDirectory::TemporaryDirectory() {
  char pattern[] = "/tmp/privsep-XXXXXX";
  if (::mkdtemp(pattern) == nullptr) ::abort();
  path_ = pattern;
  fd_.reset(::open(pattern, O_PATH | O_DIRECTORY | O_CLOEXEC));
}

TemporaryDirectory::~TemporaryDirectory() {
  ::nftw(path_.c_str(), [](const char* path, const struct stat*, int, FTW*) { return ::remove(path); }, 16,
         FTW_DEPTH | FTW_PHYS);
}

Pods::Pods() {
  std::string directory = path() + "/" + kPod;
  for (const char* part : {"", "/volumes", "/volumes/kubernetes.io~empty-dir"}) {
    ::mkdir((directory + part).c_str(), 0755);
  }
  for (const char* name : {"sockets", "public", "private", "container-disks"}) ::mkdir(volume(name).c_str(), 0755);
}

std::string Pods::volume(const std::string& name) const {
  return path() + "/" + kPod + "/volumes/kubernetes.io~empty-dir/" + name;
}

void write_file(const std::string& path, const std::string& content) {
  Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (::write(fd.get(), content.data(), content.size()) != static_cast<ssize_t>(content.size())) ::abort();
}

std::string read_file(const std::string& path) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  char buffer[4096];
  ssize_t n = ::read(fd.get(), buffer, sizeof buffer);
  return n < 0 ? std::string() : std::string(buffer, static_cast<size_t>(n));
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text + separator);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

std::vector<std::vector<std::string>> golden_cases(const char* variable) {
  std::vector<std::vector<std::string>> cases;
  const char* file = std::getenv(variable);
  std::ifstream lines(file == nullptr ? "" : file);
  for (std::string line; std::getline(lines, line);) cases.push_back(split(line, '\t'));
  return cases;
}

Fd listen_at(const std::string& path, int backlog) {
  // An address is at most 107 bytes long: through a descriptor of the directory.
  size_t slash = path.rfind('/');
  Fd directory(::open(path.substr(0, slash).c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  std::string shorter = "/proc/self/fd/" + std::to_string(directory.get()) + path.substr(slash);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, shorter.c_str(), shorter.size() + 1);
  Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) ::abort();
  if (::listen(fd.get(), backlog) != 0) ::abort();
  return fd;
}

bool in_child(const std::function<bool()>& body) {
  pid_t child = ::fork();
  if (child == 0) ::_exit(body() ? 0 : 1);
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace privsep::test
