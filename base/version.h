// The version of the software, the same for all daemons of a release.
#ifndef PACTRAIN_BASE_VERSION_H_
#define PACTRAIN_BASE_VERSION_H_

namespace pactrain::base {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_VERSION_H_
