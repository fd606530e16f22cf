#include "coordinator/core/grants.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace pactrain::coordinator {
namespace {

constexpr char kOfPattern[] = "abcdefghijklmnopqrstuvwxyz0123456789-._/*";

absl::string_view KeyOf(Action action) {
  switch (action) {
    case Action::kRun:
      return "run";
    case Action::kSee:
      return "see";
    case Action::kChange:
      return "change";
  }
  return "";
}

bool IsHex(absl::string_view text, size_t least, size_t most) {
  return text.size() >= least && text.size() <= most &&
         text.find_first_not_of("0123456789abcdefABCDEF") == text.npos;
}

// "agent/..." or, of the same with a key of one job, "job/JOB/agent/...".
bool BeginsLike(absl::string_view who, const std::string& role) {
  if (absl::ConsumePrefix(&who, "job/")) {
    const size_t slash = who.find('/');
    if (slash == who.npos || slash == 0) return false;
    who.remove_prefix(slash + 1);
  }
  if (!absl::ConsumePrefix(&who, role)) return false;
  if (absl::EndsWith(role, "/")) return !who.empty();
  return who.empty() || who[0] == '*' || (who[0] == '/' && who.size() > 1);
}

bool IsAnyJob(absl::string_view what) {
  return what.find_first_not_of('*') == what.npos;
}

}  // namespace

const char kAllGranted[] =
    "run: [\"agent/*=*\"]\n"
    "see: [\"operator*=*\", \"reader*=*\"]\n"
    "change: [\"operator*=*\"]\n";

bool MatchesPattern(absl::string_view pattern, absl::string_view text) {
  size_t p = 0, t = 0, star = pattern.npos, resume = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p;
      ++t;
    } else if (star != pattern.npos) {
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == pattern.npos;
}

absl::Status CheckDenial(absl::string_view rule) {
  absl::string_view rest = rule;
  bool good = false;
  if (absl::ConsumePrefix(&rest, "serial/")) {
    good = IsHex(rest, 1, 40);
  } else if (absl::ConsumePrefix(&rest, "key/")) {
    good = IsHex(rest, 16, 16) || IsHex(rest, 64, 64);
  } else {
    good = rule.find_first_not_of(kOfPattern) == rule.npos &&
           (BeginsLike(rule, "agent/") || BeginsLike(rule, "operator") ||
            BeginsLike(rule, "reader") ||
            (absl::StartsWith(rule, "job/") && absl::EndsWith(rule, "/*")));
  }
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "'", rule.substr(0, 128),
      "' means nobody; allowed are agent/NAME, operator, reader, "
      "operator/NAME, "
      "reader/NAME, the same after job/JOB/ (a * stands for any text), "
      "serial/HEX of a certificate, and key/HEX: 64 digits, the SHA-256 of a "
      "public key, or 16, the id of a job's key"));
}

std::string DenialText(absl::string_view rule) {
  absl::string_view rest = rule;
  if (absl::ConsumePrefix(&rest, "serial/")) {
    const size_t first = rest.find_first_not_of('0');
    return absl::StrCat(
        "serial/",
        absl::AsciiStrToUpper(first == rest.npos ? "0" : rest.substr(first)));
  }
  if (absl::ConsumePrefix(&rest, "key/")) {
    return absl::StrCat("key/", absl::AsciiStrToLower(rest));
  }
  return std::string(rule);
}

bool MatchesDenial(absl::string_view rule, const Credential& credential) {
  if (absl::StartsWith(rule, "serial/")) {
    return !credential.serial.empty() &&
           DenialText(rule) ==
               DenialText(absl::StrCat("serial/", credential.serial));
  }
  if (absl::ConsumePrefix(&rule, "key/")) {
    const std::string hex = absl::AsciiStrToLower(rule);
    return hex == credential.key || hex == credential.issuer;
  }
  return MatchesPattern(rule, credential.identity.Short());
}

absl::Status Grants::Read(const std::vector<std::string>& texts,
                          absl::string_view key,
                          const std::vector<std::string>& whos, Rules& rules) {
  for (const std::string& text : texts) {
    const size_t equals = text.find('=');
    Rule rule{text.substr(0, equals),
              equals == text.npos ? "" : text.substr(equals + 1)};
    const bool good =
        !rule.what.empty() &&
        rule.who.find_first_not_of(kOfPattern) == text.npos &&
        rule.what.find_first_not_of(kOfPattern) == text.npos &&
        std::any_of(whos.begin(), whos.end(), [&](const std::string& who) {
          return BeginsLike(rule.who, who);
        });
    if (!good) {
      return absl::InvalidArgumentError(absl::StrCat(
          file_, ": ", key, ": '", text.substr(0, 128),
          "' is no rule; allowed is ", absl::StrJoin(whos, "... or "),
          "..., a = and a ", key == "sites" ? "site" : "job", ", such as ",
          key == "run" || key == "sites" ? "agent/node-*" : whos[0], "=",
          key == "sites" ? "eu" : "vision-*"));
    }
    rules.push_back(std::move(rule));
  }
  return absl::OkStatus();
}

absl::StatusOr<Grants> Grants::Of(const Lists& lists, const std::string& name) {
  Grants grants;
  grants.file_ = name;
  if (lists.run.size() + lists.see.size() + lists.change.size() +
          lists.sites.size() + lists.deny.size() >
      kMaxRules) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": it has more than ", kMaxRules,
                     " rules; write patterns, such as agent/node-*=vision-*"));
  }
  RETURN_IF_ERROR(
      grants.Read(lists.run, "run", {"agent/", "site/"}, grants.run_));
  RETURN_IF_ERROR(
      grants.Read(lists.see, "see", {"operator", "reader"}, grants.see_));
  RETURN_IF_ERROR(
      grants.Read(lists.change, "change", {"operator"}, grants.change_));
  RETURN_IF_ERROR(grants.Read(lists.sites, "sites", {"agent/"}, grants.sites_));
  for (const Rule& rule : grants.run_) {
    if (absl::StartsWith(rule.who, "site/") && grants.sites_.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          name, ": run: '", rule.who, "=", rule.what,
          "' counts for nobody: agents say themselves which site they are of, "
          "so say in sites who may, such as agent/node-*=",
          rule.who.substr(5)));
    }
  }
  for (const std::string& rule : lists.deny) {
    if (const absl::Status checked = CheckDenial(rule); !checked.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": deny: ", absl::string_view(checked.message())));
    }
  }
  grants.deny_ = lists.deny;
  return grants;
}

bool Grants::Granted(const protocol::Identity& who, absl::string_view site,
                     Action action, absl::string_view job) const {
  const std::string name = who.Short();
  const auto any = [&](const Rules& rules) {
    return std::any_of(rules.begin(), rules.end(), [&](const Rule& rule) {
      return (MatchesPattern(rule.who, name) ||
              (!site.empty() && !sites_.empty() &&
               MatchesPattern(rule.who, absl::StrCat("site/", site)))) &&
             (job.empty() ? IsAnyJob(rule.what)
                          : MatchesPattern(rule.what, job));
    });
  };
  switch (action) {
    case Action::kRun:
      return any(run_);
    case Action::kSee:
      return any(see_) || any(change_);
    case Action::kChange:
      return any(change_);
  }
  return false;
}

absl::Status Grants::Check(const protocol::Identity& who,
                           absl::string_view site, Action action,
                           absl::string_view job) const {
  const absl::string_view key = KeyOf(action);
  if (!who.job.empty() && who.job != job) {
    return absl::PermissionDeniedError(absl::StrCat(
        who.ToString(), " may not ", key, " job '", job,
        "': its key is of job '", who.job,
        "' alone; allow it by a key of that job (pactrain-admin new-key --job ",
        job, " --from FILE NEW)"));
  }
  if (file_.empty() || Granted(who, site, action, job)) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(
      who.ToString(), " may not ", key, " job '", job, "': no rule of ", key,
      " in ", file_, " grants it; to allow it add \"", who.Short(), "=", job,
      "\" to ", key, " there"));
}

absl::Status Grants::CheckAll(const protocol::Identity& who,
                              Action action) const {
  const absl::string_view key = KeyOf(action);
  if (!who.job.empty()) {
    return absl::PermissionDeniedError(absl::StrCat(
        "this is of all jobs, and the key of ", who.ToString(), " is of job '",
        who.job, "' alone; use the key that it was made from"));
  }
  if (file_.empty() || Granted(who, "", action, "")) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat(who.ToString(), " may not ", key,
                   " this, which is of all jobs: no rule of ", key, " in ",
                   file_, " grants it; to allow it add \"", who.Short(),
                   "=*\" to ", key, " there"));
}

absl::Status Grants::CheckSite(const protocol::Identity& who,
                               absl::string_view site) const {
  if (sites_.empty()) return absl::OkStatus();
  const std::string name = who.Short();
  if (std::any_of(sites_.begin(), sites_.end(), [&](const Rule& rule) {
        return MatchesPattern(rule.who, name) &&
               MatchesPattern(rule.what, site);
      })) {
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError(absl::StrCat(
      who.ToString(), " may not be of site '", site, "': no rule of sites in ",
      file_, " grants it; to allow it add \"", name, "=", site,
      "\" to sites there"));
}

absl::Status Grants::CheckDenied(const Credential& credential) const {
  for (const std::string& rule : deny_) {
    if (!MatchesDenial(rule, credential)) continue;
    return absl::PermissionDeniedError(absl::StrCat(
        credential.identity.ToString(), " may do nothing: rule '", rule,
        "' of deny in ", file_, "; to let it in again take that rule out"));
  }
  return absl::OkStatus();
}

}  // namespace pactrain::coordinator
