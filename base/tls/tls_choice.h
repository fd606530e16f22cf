// What a program proves who it is by: its certificate files, or the key of its
// job, of which it makes certificates itself.
#ifndef PACTRAIN_BASE_TLS_TLS_CHOICE_H_
#define PACTRAIN_BASE_TLS_TLS_CHOICE_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "base/tls/tls_files.h"

namespace pactrain::base {

// Holds a job's key itself. Not a setting: those are printed.
inline constexpr char kJobKeyVariable[] = "PACTRAIN_JOB_KEY";

// Who this program is with a key of that host alone; empty: of any.
using UriOf = std::function<std::string(const std::string& host)>;

// The files to use: `files` as they are, or those made for `uri_of` the key in
// `job_key_file` or kJobKeyVariable. Not given(): neither is.
// InvalidArgument: more than one of the three is given, or the key is none.
//                  Begins with the setting.
// Internal:        as JobCertificates::Create().
absl::StatusOr<TlsFiles> ChooseTls(const TlsFiles& files,
                                   const std::string& job_key_file,
                                   const TlsNames& names, const UriOf& uri_of);

// Whether a daemon may start with these files. Without any it speaks plain
// text, which every user of its machine can use: only where
// `plain_text_allowed`. InvalidArgument: begins with the setting that is
// missing; says what to give.
absl::Status CheckProtected(const TlsFiles& files, const TlsNames& names,
                            bool plain_text_allowed);

}  // namespace pactrain::base

#endif  // PACTRAIN_BASE_TLS_TLS_CHOICE_H_
