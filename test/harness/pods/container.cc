// Makes the root of a container in the calling mount and PID namespace (both fresh) and becomes its process. A program
// and no script, because a pod takes some sixty such steps and each program that a script starts takes its time.
//
//   container ROOT UID IMAGE [volume SOURCE TARGET | hostToContainer SOURCE TARGET | readOnly SOURCE TARGET |
//             copy SOURCE TARGET | device TYPE MAJOR MINOR MODE NAME]... -- COMMAND...
//
// IMAGE is a directory that becomes the root, or empty for one of its own.
// The caller's mounts are slaves of the host's, so a hostToContainer volume receives later host mounts.
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "container: %s: %s\n", what.c_str(), std::strerror(errno));
  std::exit(1);
}

void must(bool done, const std::string& what) {
  if (!done) fail(what);
}

void mount_new(const char* type, const char* target, unsigned long flags, const char* data = nullptr) {
  must(::mount(type, target, type, flags, data) == 0, std::string("mount ") + type);
}

void bind(const std::string& source, const std::string& target, bool read_only) {
  must(::mount(source.c_str(), target.c_str(), nullptr, MS_BIND, nullptr) == 0, "bind " + source + " to " + target);
  constexpr unsigned long kReadOnly = MS_REMOUNT | MS_BIND | MS_RDONLY;
  if (read_only) must(::mount(nullptr, target.c_str(), nullptr, kReadOnly, nullptr) == 0, "remount " + target);
}

void make_directories(const std::string& path) {
  for (size_t end = path.find('/'); ; end = path.find('/', end + 1)) {
    std::string part = path.substr(0, end);
    must(part.empty() || ::mkdir(part.c_str(), 0755) == 0 || errno == EEXIST, "mkdir " + part);
    if (end == std::string::npos) return;
  }
}

void link_to(const char* target, const char* path) {
  ::unlink(path);
  must(::symlink(target, path) == 0, std::string("symlink ") + path);
}

// Holes stay holes.
void copy(const std::string& source, const std::string& target, uid_t user) {
  int from = ::open(source.c_str(), O_RDONLY | O_CLOEXEC);
  must(from >= 0, "open " + source);
  int to = ::open(target.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0440);
  must(to >= 0, "create " + target);
  struct stat st {};
  must(::fstat(from, &st) == 0 && ::ftruncate(to, st.st_size) == 0, "truncate " + target);
  off_t at = 0;
  while ((at = ::lseek(from, at, SEEK_DATA)) >= 0) {
    off_t end = ::lseek(from, at, SEEK_HOLE);
    must(end >= 0 && ::lseek(to, at, SEEK_SET) == at, "seek in " + source);
    while (at < end) must(::sendfile(to, from, &at, static_cast<size_t>(end - at)) > 0, "copy " + source);
  }
  must(errno == ENXIO, "seek in " + source);
  must(::fchown(to, user, user) == 0 && ::fchmod(to, 0440) == 0, "chown " + target);
  ::close(from);
  ::close(to);
}

void make_root(const std::string& root, uid_t user, const std::string& image) {
  if (image.empty()) {
    must(::mount("container", root.c_str(), "tmpfs", 0, "mode=755,size=64m") == 0, "mount root");
  } else {
    bind(image, root, false);
  }
  must(::chdir(root.c_str()) == 0, "chdir " + root);
  for (const char* name : {"usr", "etc", "proc", "sys", "dev", "run", "tmp", "var", "old"}) make_directories(name);
  must(::chmod("tmp", 01777) == 0, "chmod tmp");
  for (const char* name : {"bin", "sbin", "lib", "lib64"}) link_to((std::string("usr/") + name).c_str(), name);
  link_to("../run", "var/run");
  bind("/usr", "usr", true);
  bind("/etc", "etc", true);
  mount_new("proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC);
  mount_new("sysfs", "sys", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC);
  mount_new("tmpfs", "dev", MS_NOSUID | MS_NOEXEC, "mode=755,size=1m");
  link_to("/proc/self/fd", "dev/fd");
  link_to("/proc/self/fd/0", "dev/stdin");
  link_to("/proc/self/fd/1", "dev/stdout");
  link_to("/proc/self/fd/2", "dev/stderr");
  make_directories("dev/shm");
  must(::chmod("dev/shm", 01777) == 0, "chmod dev/shm");
  make_directories("dev/net");
  must(::chown("run", user, user) == 0, "chown run");
}

// The rest of an absolute path below the new root.
std::string inside(const char* path) { return path + std::strspn(path, "/"); }

// Obeys the words up to "--". Returns the command after it.
char** set_up(char** words, uid_t user) {
  while (*words != nullptr && std::strcmp(*words, "--") != 0) {
    const std::string what = *words;
    const int count = what == "device" ? 5 : 2;
    for (int i = 1; i <= count; ++i) {
      if (words[i] != nullptr) continue;
      errno = EINVAL;
      fail(what);
    }
    if (what == "volume" || what == "hostToContainer" || what == "readOnly") {
      std::string target = inside(words[2]);
      make_directories(target);
      bind(words[1], target, what == "readOnly");
      if (what != "hostToContainer")
        must(::mount(nullptr, target.c_str(), nullptr, MS_PRIVATE, nullptr) == 0, "make private " + target);
    } else if (what == "copy") {  // into the container's own root, as an image layer has it
      std::string target = inside(words[2]);
      if (size_t end = target.rfind('/'); end != std::string::npos) make_directories(target.substr(0, end));
      copy(words[1], target, user);
    } else if (what == "device") {
      std::string path = std::string("dev/") + words[5];
      auto number = [words](int word, int base) {
        return static_cast<unsigned>(std::strtoul(words[word], nullptr, base));
      };
      mode_t mode = number(4, 8);
      mode_t type = *words[1] == 'b' ? S_IFBLK : S_IFCHR;
      must(::mknod(path.c_str(), type | mode, ::makedev(number(2, 10), number(3, 10))) == 0, "mknod " + path);
      must(::chmod(path.c_str(), mode) == 0, "chmod " + path);
    } else {
      errno = EINVAL;
      fail(what);
    }
    words += count + 1;
  }
  if (*words == nullptr || words[1] == nullptr) {
    errno = EINVAL;
    fail("no command");
  }
  return words + 1;
}

void drop_privileges(uid_t user) {
  for (unsigned long capability = 0; ::prctl(PR_CAPBSET_READ, capability, 0, 0, 0) >= 0; ++capability)
    must(::prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0, "drop a capability");
  must(::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) == 0, "clear ambient capabilities");
  must(::setgroups(0, nullptr) == 0 && ::setresgid(user, user, user) == 0 && ::setresuid(user, user, user) == 0,
       "change user");
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[2]{};
  must(::syscall(SYS_capset, &header, none) == 0, "capset");
  must(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no new privileges");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) {
    std::fprintf(stderr, "usage: container ROOT UID IMAGE [WORD...] -- COMMAND...\n");
    return 64;
  }
  const auto user = static_cast<uid_t>(std::strtoul(argv[2], nullptr, 10));
  ::umask(022);
  make_root(argv[1], user, argv[3]);
  char** command = set_up(argv + 4, user);
  must(::syscall(SYS_pivot_root, ".", "old") == 0, "pivot_root");
  must(::umount2("/old", MNT_DETACH) == 0 && ::rmdir("/old") == 0 && ::chdir("/") == 0, "leave the old root");
  drop_privileges(user);
  ::execvp(*command, command);
  fail(*command);
}
