// A pods directory on disk, and child processes, for tests.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "fd.h"

namespace privsep::test {

inline constexpr const char* kPod = "0b7a1f6e-3f27-4a0e-9c39-2d6a4d1c0f11";

// A directory that is removed with everything in it.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::string& path() const { return path_; }
  int fd() const { return fd_.get(); }

 private:
  std::string path_;
  Fd fd_;
};

// A pods directory with the four emptyDirs of kPod.
class Pods : public TemporaryDirectory {
 public:
  Pods();
  std::string volume(const std::string& name) const;
};

void write_file(const std::string& path, const std::string& content);
std::string read_file(const std::string& path);

std::vector<std::string> split(const std::string& text, char separator);

// Golden cases that run.sh has a script write, as their fields: `variable` of the environment names the file. None when
// there is no such file.
std::vector<std::vector<std::string>> golden_cases(const char* variable);

// A listening stream socket at the path.
Fd listen_at(const std::string& path, int backlog = 8);

// Runs in a forked child; true when it returned true. For what changes the whole process.
bool in_child(const std::function<bool()>& body);

}  // namespace privsep::test
