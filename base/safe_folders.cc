#include "base/safe_folders.h"

#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace pactrain::base {
namespace {

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

// Goes through the folders above a file, from the root on.
class Walk {
 public:
  Walk(SafeFolders& found, bool one_more)
      : found_(found), one_more_(one_more) {}

  // False: there is trouble, or no such folder.
  bool Through(const std::string& file) {
    others_write_ = false;
    for (size_t end = 0; end != file.npos; end = file.find('/', end + 1)) {
      if (!Enter(end == 0 ? "/" : file.substr(0, end))) return false;
    }
    return true;
  }

 private:
  bool Enter(const std::string& folder) {
    struct stat entry = {}, target = {};
    if (lstat(folder.c_str(), &entry) != 0) return false;
    if (stat(folder.c_str(), &target) != 0) return false;
    if (!Owned(folder, entry.st_uid)) return false;
    const bool group = (target.st_mode & S_IWGRP) != 0 && target.st_gid != 0 &&
                       target.st_gid != getegid();
    others_write_ = group || (target.st_mode & S_IWOTH) != 0;
    if (others_write_ && (target.st_mode & S_ISVTX) == 0) {
      found_.trouble = "others may write in " + folder +
                       " and could replace it; run: chmod go-w " + folder;
      return false;
    }
    return true;
  }

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

  SafeFolders& found_;
  bool one_more_;
  bool others_write_ = false;  // In the folder that was entered last.
};

}  // namespace

bool SafeFolders::Trusts(uid_t user) const {
  return std::find(users.begin(), users.end(), user) != users.end();
}

SafeFolders CheckFolders(const std::string& path, bool one_more) {
  SafeFolders found;
  found.users = {0, geteuid()};
  if (const uid_t unknown = UnknownUser()) found.users.push_back(unknown);
  Walk walk(found, one_more);
  // First where links lead, then, with nobody trusted for that, who made them.
  char real[PATH_MAX];
  const std::string folder = path.substr(0, path.rfind('/') + 1);
  if (realpath(folder.c_str(), real) == nullptr ||
      walk.Through(std::string(real) + "/")) {
    walk.Through(path);
  }
  return found;
}

std::string WhyNotGuarded(const std::string& path, const struct stat& about) {
  std::error_code error;
  const SafeFolders folders =
      CheckFolders(std::filesystem::absolute(path, error), /*one_more=*/true);
  if (!folders.trouble.empty()) return folders.trouble;
  if (!folders.Trusts(about.st_uid)) {
    return "it is of user " + std::to_string(about.st_uid) +
           "; give it to root or to this process's user";
  }
  const bool group = (about.st_mode & S_IWGRP) != 0 && about.st_gid != 0 &&
                     about.st_gid != getegid();
  if (!group && (about.st_mode & S_IWOTH) == 0) return "";
  return "others may write it; run: chmod go-w " + path;
}

}  // namespace pactrain::base
