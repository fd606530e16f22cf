// Who may do what with which job: what a policy file says, and what a key of
// one job alone allows.
//
// Rules of the file, each WHO=WHAT; in both a * stands for any text:
//
//   - run, agent/NAME=JOB or site/SITE=JOB: agents that may have trainers of
//   it.
//   - see, operator=JOB, reader=JOB, or operator/NAME=JOB, reader/NAME=JOB.
//   - change, operator=JOB or operator/NAME=JOB: pins, forgets; sees it, too.
//   - sites, agent/NAME=SITE: agents that may be of that site.
//   - deny, WHO alone: it may do nothing. Also serial/HEX and key/HEX.
//
// What no rule grants is denied. An agent says itself which site it is of, so a
// rule of a site needs rules in `sites`.
//
// Pure. Immutable; thread-safe.
#ifndef PACTRAIN_COORDINATOR_CORE_GRANTS_H_
#define PACTRAIN_COORDINATOR_CORE_GRANTS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "protocol/identity.h"

namespace pactrain::coordinator {

// A certificate, as far as it matters who shows it.
struct Credential {
  protocol::Identity identity;
  std::string serial;   // In hex, as are the next two.
  std::string key;      // SHA-256 of its public key.
  std::string issuer;   // The id of the job key that made it; empty: none did.
  std::string ca = {};  // Whose serial that is: a hash of its CA's name.
};

enum class Action { kRun, kSee, kChange };

class Grants {
 public:
  static constexpr size_t kMaxRules = 10'000;

  struct Lists {
    std::vector<std::string> run = {}, see = {}, change = {}, sites = {},
                             deny = {};
  };
  // Without a file: all may do what their role may, and what their key of one
  // job is for.
  Grants() = default;
  // Of the file `name`. InvalidArgument: begins with it and the key; a rule is
  // none, or can never count.
  static absl::StatusOr<Grants> Of(const Lists& lists, const std::string& name);

  // PermissionDenied: `who` (an agent: of `site`, as it says) may not do that
  // with `job`; says why, and how to allow it. Roles are checked elsewhere.
  absl::Status Check(const protocol::Identity& who, absl::string_view site,
                     Action action, absl::string_view job) const;
  // The same for what is of all jobs.
  absl::Status CheckAll(const protocol::Identity& who, Action action) const;
  // The same for an agent that says which site it is of.
  absl::Status CheckSite(const protocol::Identity& who,
                         absl::string_view site) const;
  // The same for anything: whether it is on the deny list.
  absl::Status CheckDenied(const Credential& credential) const;

 private:
  struct Rule {
    std::string who, what;
  };
  using Rules = std::vector<Rule>;

  absl::Status Read(const std::vector<std::string>& texts,
                    absl::string_view key, const std::vector<std::string>& whos,
                    Rules& rules);
  bool Granted(const protocol::Identity& who, absl::string_view site,
               Action action, absl::string_view job) const;

  std::string file_;  // Empty: there is none.
  Rules run_, see_, change_, sites_;
  std::vector<std::string> deny_;
};

// What a file says that allows what is allowed without one.
extern const char kAllGranted[];

// Whether `text` is what `pattern` says, in which a * stands for any text.
bool MatchesPattern(absl::string_view pattern, absl::string_view text);
// Whether a rule of the deny list ("agent/a", "serial/5F02", "key/8c1e...")
// means this one.
bool MatchesDenial(absl::string_view rule, const Credential& credential);
// How a rule is written that may be written in several ways ("serial/05f02").
std::string DenialText(absl::string_view rule);
// InvalidArgument: it can mean nobody.
absl::Status CheckDenial(absl::string_view rule);

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_CORE_GRANTS_H_
