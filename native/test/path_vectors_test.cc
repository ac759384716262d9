// KubeVirt's golden cases of safe paths and of images against our walks: what path_cases.mjs prints.
#include <fcntl.h>
#include <sys/stat.h>

#include "../src/image.h"
#include "../src/walk.h"
#include "check.h"
#include "fixture.h"

using namespace privsep;
using namespace privsep::test;

namespace {

void make_parents(const std::string& top, const std::string& path) {
  for (size_t at = path.find('/'); at != std::string::npos; at = path.find('/', at + 1)) {
    ::mkdir((top + "/" + path.substr(0, at)).c_str(), 0755);
  }
}

void make_entry(const std::string& top, const std::string& path, std::string what) {
  make_parents(top, path);
  const std::string where = top + "/" + path;
  for (size_t at; (at = what.find("$ROOT")) != std::string::npos;) what.replace(at, 5, top);
  if (what == "dir") ::mkdir(where.c_str(), 0755);
  if (what.rfind("file", 0) == 0) write_file(where, "x");
  if (what.rfind("link:", 0) == 0) CHECK(::symlink(what.substr(5).c_str(), where.c_str()) == 0);
}

// As image paths are walked, and as names below a directory are.
Result<Fd> walked(const std::string& operation, int root, const std::string& path) {
  if (operation == "getImage") return find_image(root, path);
  if (operation == "JoinAndResolveWithRelativeRoot") return walk(root, path, O_PATH, kInRoot, "path");
  auto names = join_components(split(path, '/'));
  if (!names) return names.error();
  return walk(root, *names, O_PATH, kNoLinks, "names");
}

bool has_no_name(const std::string& path) {
  for (const std::string& name : split(path, '/')) {
    if (!is_entry_name(name)) return true;
  }
  return false;
}

bool is_at(int fd, const std::string& path) {
  struct stat found {};
  struct stat expected {};
  return ::fstat(fd, &found) == 0 && ::stat(path.c_str(), &expected) == 0 && same_inode(found, expected);
}

}  // namespace

TEST(STO_004_STO_013_paths_lead_where_safe_paths_lead) {
  auto cases = golden_cases("PRIVSEP_PATH_CASES");
  CHECK(!cases.empty());
  for (const auto& fields : cases) {
    REQUIRE(fields.size() >= 5 && fields.size() % 2 == 1);
    const std::string& name = fields[0];
    const std::string& operation = fields[1];
    const std::string& path = fields[3];
    bool expected = fields[4] != "fail";
    // Names that are none, and no path at all, are refused here although they would denote the root or lead back to
    // it. The root itself may be a link: it is opened once, before anything below it is walked.
    const bool followed = operation == "JoinAndResolveWithRelativeRoot";
    if (followed ? path.empty() : operation != "getImage" && has_no_name(path)) expected = false;
    if (followed && name.rfind("resolve rootlnk", 0) == 0 && (path == "." || path == "..")) expected = true;
    if (operation == "isSingleElement") {
      if (!CHECK(is_entry_name(path) == expected)) std::fprintf(stderr, "  %s\n", name.c_str());
      continue;
    }
    TemporaryDirectory top;
    for (size_t i = 5; i + 1 < fields.size(); i += 2) make_entry(top.path(), fields[i], fields[i + 1]);
    const std::string root_path = operation == "NewPathNoFollow" ? top.path() : top.path() + "/" + fields[2];
    Fd root(::open(root_path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    auto found = root.valid() ? walked(operation, root.get(), path) : Result<Fd>(Error::last("open root"));
    const std::string at = top.path() + "/" + (fields[4] == "fail" ? fields[2] : fields[4].substr(3));
    bool right = found ? expected && is_at(found->get(), at) : !expected;
    if (!CHECK(right)) {
      std::fprintf(stderr, "  %s: expected %s, %s\n", name.c_str(), fields[4].c_str(),
                   found ? "found" : found.error().operation.c_str());
    }
  }
}
