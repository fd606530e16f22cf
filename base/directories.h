// Folders of a daemon's own files.
#ifndef PACTRAIN_BASE_DIRECTORIES_H_
#define PACTRAIN_BASE_DIRECTORIES_H_

#include <string>

namespace pactrain::base {

// Makes the folder and those above it that are missing, each for its owner
// alone (mode 0700, whatever the umask). Those that are there stay as they are.
// False: it cannot be made, and errno says why.
bool MakeDirectories(const std::string& path);

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_DIRECTORIES_H_
