// The version of the software, the same for all daemons of a release.
#ifndef PACTRAIN_BASE_VERSION_H_
#define PACTRAIN_BASE_VERSION_H_

namespace pactrain::base {

// In one place of a program, so that a new one compiles one file.
extern const char kVersion[];

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_VERSION_H_
