#include "base/directories.h"

#include <sys/stat.h>

#include <cerrno>

namespace pactrain::base {

bool MakeDirectories(const std::string& path) {
  size_t end = 0;
  do {
    end = path.find('/', end + 1);
    if (mkdir(path.substr(0, end).c_str(), 0700) != 0 && errno != EEXIST) {
      return false;
    }
  } while (end != path.npos);
  return true;
}

}  // namespace pactrain::base
