// Who can put something of his own at a path: what trainers ask before they
// talk to whom they find at a socket, agents before they listen, and a
// coordinator before it opens its state directory.
//
// Folders of root, of this user, and of one more user whom those gave a place
// are trusted: "/run/pactrain" of user pactrain, as root made it. Stateless;
// reads the file system. Of names that change meanwhile it tells nothing, but
// only those who are trusted can change them.
#ifndef PACTRAIN_BASE_SAFE_FOLDERS_H_
#define PACTRAIN_BASE_SAFE_FOLDERS_H_

#include <sys/stat.h>
#include <sys/types.h>

#include <string>
#include <vector>

namespace pactrain::base {

struct SafeFolders {
  // Empty: nobody but `users` can replace what is at the path. Else which
  // folder lets whom: "/tmp/x is of user 7, who could replace it".
  std::string trouble;
  // Who may serve a socket there.
  std::vector<uid_t> users;

  bool Trusts(uid_t user) const;
};

// Of all folders above the file `path`, an absolute path, and of those that
// links among them lead to. A folder that is missing is no trouble.
// `one_more`: a user other than root and this one may have been given a place.
SafeFolders CheckFolders(const std::string& path, bool one_more);

// Why others than root, this user and that one more could have written the file
// `path`, or put another one in its place; empty: they could not. `about`: of
// the file as it was opened.
std::string WhyNotGuarded(const std::string& path, const struct stat& about);

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_SAFE_FOLDERS_H_
