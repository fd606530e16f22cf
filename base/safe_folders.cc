#include "base/safe_folders.h"

#include <limits.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace pactrain::base {
namespace {

constexpr int kMaxLinks = 40;

// Where this process has a user namespace of its own, all whom that does not
// know, root of the machine among them, are seen as one user. 0: they are not.
uid_t UnknownUser() {
  std::ifstream map("/proc/self/uid_map");
  uint64_t inside = 0, outside = 0, count = 0;
  constexpr uint64_t kAll = UINT32_MAX;
  if (!(map >> inside >> outside >> count) || count == kAll) return 0;
  uid_t unknown = 0;
  std::ifstream("/proc/sys/kernel/overflowuid") >> unknown;
  return unknown;
}

// `strict`: of groups that may write only root's and those with the number of
// somebody who is trusted are, which are his own.
bool OthersWrite(const struct stat& about, const SafeFolders& found,
                 bool strict) {
  const bool own_group =
      about.st_gid == 0 ||
      (strict ? found.Trusts(about.st_gid) : about.st_gid == getegid());
  return (about.st_mode & S_IWOTH) != 0 ||
         ((about.st_mode & S_IWGRP) != 0 && !own_group);
}

// As what Kubernetes mounts of a ConfigMap is, whose folder has all rights.
bool IsReadOnly(const std::string& folder) {
  struct statvfs system = {};
  return statvfs(folder.c_str(), &system) == 0 &&
         (system.f_flag & ST_RDONLY) != 0;
}

// Goes through the folders above a file, from the root on.
class Walk {
 public:
  // `strict`: as OthersWrite().
  Walk(SafeFolders& found, bool one_more, bool strict)
      : found_(found), one_more_(one_more), strict_(strict) {}

  // False: there is trouble, or no such folder.
  bool Through(const std::string& file) {
    others_write_ = false;
    for (size_t end = 0; end != file.npos; end = file.find('/', end + 1)) {
      if (!Enter(end == 0 ? "/" : file.substr(0, end))) return false;
    }
    return true;
  }

  // Whether what lies in the folder that was entered last may be of `owner`.
  bool Owned(const std::string& folder, uid_t owner) {
    if (found_.Trusts(owner)) return true;
    // What lies in a folder where all may write may be anybody's.
    if (one_more_ && !others_write_) {
      found_.users.push_back(owner);
      one_more_ = false;
      return true;
    }
    found_.trouble = folder + " is of user " + std::to_string(owner) +
                     ", who could replace it; give a folder of your own";
    return false;
  }

 private:
  bool Enter(const std::string& folder) {
    struct stat entry = {}, target = {};
    if (lstat(folder.c_str(), &entry) != 0) return false;
    if (stat(folder.c_str(), &target) != 0) return false;
    if (!Owned(folder, entry.st_uid)) return false;
    others_write_ = OthersWrite(target, found_, strict_) && !IsReadOnly(folder);
    if (others_write_ && (target.st_mode & S_ISVTX) == 0) {
      const bool can = geteuid() == 0 || target.st_uid == geteuid();
      found_.trouble = "others may write in " + folder +
                       " and could replace it; " +
                       (can ? "run: chmod go-w " + folder
                            : "move it to a folder of your own");
      return false;
    }
    return true;
  }

  SafeFolders& found_;
  bool one_more_;
  const bool strict_;
  bool others_write_ = false;  // In the folder that was entered last.
};

// Of `found`, which knows whom to trust.
void CheckAbove(const std::string& path, Walk& walk) {
  // First where links lead, then, with nobody trusted for that, who made them.
  char real[PATH_MAX];
  const std::string folder = path.substr(0, path.rfind('/') + 1);
  if (realpath(folder.c_str(), real) == nullptr ||
      walk.Through(std::string(real) + "/")) {
    walk.Through(path);
  }
}

SafeFolders TrustsTheUsual() {
  SafeFolders found;
  found.users = {0, geteuid()};
  if (const uid_t unknown = UnknownUser()) found.users.push_back(unknown);
  return found;
}

}  // namespace

bool SafeFolders::Trusts(uid_t user) const {
  return std::find(users.begin(), users.end(), user) != users.end();
}

SafeFolders CheckFolders(const std::string& path, bool one_more) {
  SafeFolders found = TrustsTheUsual();
  Walk walk(found, one_more, /*strict=*/false);
  CheckAbove(path, walk);
  return found;
}

std::string WhyNotGuarded(const std::string& path, const struct stat& about) {
  namespace fs = std::filesystem;
  SafeFolders found = TrustsTheUsual();
  Walk walk(found, /*one_more=*/true, /*strict=*/true);
  std::error_code error;
  fs::path file = fs::absolute(path, error);
  // Each link may lead where others may write.
  for (int links = 0;; ++links) {
    CheckAbove(file, walk);
    if (!found.trouble.empty()) return found.trouble;
    struct stat entry = {};
    if (lstat(file.c_str(), &entry) != 0 || !S_ISLNK(entry.st_mode)) break;
    if (!found.Trusts(entry.st_uid)) {
      return "the link " + file.string() + " is of user " +
             std::to_string(entry.st_uid);
    }
    if (links == kMaxLinks) return "it is behind too many links";
    file = file.parent_path() / fs::read_symlink(file, error);
  }
  if (!walk.Owned(path, about.st_uid)) {
    return "it is of user " + std::to_string(about.st_uid) +
           "; run: chown root " + path;
  }
  if (!OthersWrite(about, found, /*strict=*/true)) return "";
  return "others may write it; run: chmod go-w " + path;
}

}  // namespace pactrain::base
