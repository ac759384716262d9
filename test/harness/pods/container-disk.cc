// The process of a container-disk container: its socket tells the node agent that the image is there, and which
// process's root it is in. Behaves as KubeVirt's cmd/container-disk-v2alpha.
// usage: container-disk --copy-path PATH
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

namespace {

constexpr int kCheckIntervalMs = 1000;
constexpr int kBacklog = 50;
constexpr size_t kLongestCopyPath = 102;

volatile sig_atomic_t ending = 0;

int fail(const std::string& what) {
  std::fprintf(stderr, "container-disk: %s: %s\n", what.c_str(), std::strerror(errno));
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string copy_path = argc == 3 && std::strcmp(argv[1], "--copy-path") == 0 ? argv[2] : "";
  if (copy_path.empty() || copy_path.size() > kLongestCopyPath) {
    std::fprintf(stderr, "container-disk: copy path missing or longer than %zu bytes\n", kLongestCopyPath);
    return 1;
  }
  struct sigaction action {};
  action.sa_handler = [](int) { ending = 1; };
  if (::sigaction(SIGTERM, &action, nullptr) != 0) return fail("sigaction");

  ::umask(0);
  for (size_t end = copy_path.find('/', 1); end != std::string::npos; end = copy_path.find('/', end + 1)) {
    const std::string directory = copy_path.substr(0, end);
    if (::mkdir(directory.c_str(), 0777) != 0 && errno != EEXIST) return fail("mkdir " + directory);
  }
  const std::string path = copy_path + ".sock";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const int listener = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (listener < 0) return fail("socket");
  if (::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return fail("bind " + path);
  if (::listen(listener, kBacklog) != 0) return fail("listen " + path);

  while (ending == 0) {
    pollfd waiting{listener, POLLIN, 0};
    if (::poll(&waiting, 1, kCheckIntervalMs) > 0) ::close(::accept(listener, nullptr, nullptr));
    // The node agent ends the container by removing the socket.
    if (::access(path.c_str(), F_OK) != 0) return 0;
  }
  ::unlink(path.c_str());
  return 0;
}
