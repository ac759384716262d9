// Directory walking against what a pod can do to its own tree.
#include "../src/walk.h"

#include <fcntl.h>

#include <atomic>
#include <thread>

#include "../src/directory.h"
#include "check.h"
#include "fixture.h"

using namespace privsep;
using namespace privsep::test;

TEST(links_and_ways_out_are_refused) {
  TemporaryDirectory top;
  ::mkdir((top.path() + "/a").c_str(), 0755);
  write_file(top.path() + "/a/file", "x");
  CHECK(::symlink("a", (top.path() + "/link").c_str()) == 0);
  CHECK(::symlink("/etc/passwd", (top.path() + "/a/absolute").c_str()) == 0);
  CHECK(walk(top.fd(), "a/file", O_PATH, kNoLinks, "file"));
  for (const char* path : {"link/file", "a/absolute", "../etc", "a/../../etc", "/etc/passwd"}) {
    auto walked = walk(top.fd(), path, O_PATH, kNoLinks, path);
    CHECK(!walked && walked.error().refused && (walked.error().code == ELOOP || walked.error().code == EXDEV));
  }
  auto missing = walk(top.fd(), "a/none", O_PATH, kNoLinks, "none");
  CHECK(!missing && !missing.error().refused && missing.error().code == ENOENT);
  CHECK(missing.error().operation == "openat2 none");
  CHECK(!walk(top.fd(), "", O_PATH, kNoLinks, "empty"));
  CHECK(!walk(top.fd(), std::string("a\0b", 3), O_PATH, kNoLinks, "nul"));
  CHECK(!walk(top.fd(), std::string(5000, 'a'), O_PATH, kNoLinks, "long"));
}

TEST(magic_links_are_refused) {
  Fd proc(::open("/proc/self", O_PATH | O_DIRECTORY | O_CLOEXEC));
  CHECK(!walk(proc.get(), "root/etc", O_PATH, kNoLinks, "root"));
  CHECK(!walk(proc.get(), "root/etc", O_PATH, kInRoot, "root"));
}

TEST(in_root_links_stay_inside) {
  TemporaryDirectory top;
  ::mkdir((top.path() + "/data").c_str(), 0755);
  write_file(top.path() + "/data/image", "inside");
  CHECK(::symlink("/data/image", (top.path() + "/absolute").c_str()) == 0);
  CHECK(::symlink("../../../../data/image", (top.path() + "/data/up").c_str()) == 0);
  CHECK(walk(top.fd(), "absolute", O_RDONLY, kInRoot, "absolute"));
  CHECK(walk(top.fd(), "/data/up", O_RDONLY, kInRoot, "up"));
  CHECK(!walk(top.fd(), "/etc/passwd", O_RDONLY, kInRoot, "host file"));
}

TEST(components_are_entry_names) {
  CHECK(*join_components({"a", "b"}) == "a/b");
  CHECK(*join_components({}) == ".");
  for (const char* bad : {"", ".", "..", "a/b"}) CHECK(!join_components({"a", bad}));
  CHECK(!join_components({std::string("a\0", 2)}));
  CHECK(!join_components({std::string(256, 'a')}));
  CHECK(!join_components(std::vector<std::string>(17, "a")));
}

TEST(listings_are_bounded) {
  TemporaryDirectory top;
  for (int i = 0; i < 5; ++i) write_file(top.path() + "/f" + std::to_string(i), "");
  auto all = list_directory(top.fd(), {}, 5);
  CHECK(all && all->size() == 5);
  auto few = list_directory(top.fd(), {}, 4);
  CHECK(!few && few.error().code == E2BIG);
  CHECK(!list_directory(top.fd(), {}, 0));
  CHECK(!list_directory(top.fd(), {"f0"}, 5));
}

TEST(swapping_a_directory_and_a_link_never_leads_out) {
  TemporaryDirectory top;
  TemporaryDirectory outside;
  ::mkdir((top.path() + "/d").c_str(), 0755);
  write_file(top.path() + "/d/file", "inside");
  write_file(outside.path() + "/file", "outside");
  CHECK(::symlink(outside.path().c_str(), (top.path() + "/swap").c_str()) == 0);
  std::atomic<bool> stop{false};
  std::thread swapper([&] {
    while (!stop) ::renameat2(top.fd(), "d", top.fd(), "swap", RENAME_EXCHANGE);
  });
  int inside = 0;
  int refused = 0;
  for (int i = 0; i < 20000; ++i) {
    auto file = walk(top.fd(), "d/file", O_RDONLY, kNoLinks, "file");
    if (!file) {
      ++refused;
      continue;
    }
    char text[8] = {};
    CHECK(::read(file->get(), text, sizeof text) == 6);
    if (std::string(text) == "inside") ++inside;
    if (!CHECK(std::string(text) == "inside")) break;
  }
  stop = true;
  swapper.join();
  CHECK(inside + refused == 20000);
}
