#include "base/tls/job_keys.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "base/tls/tls_files.h"
#include "base/utc_text.h"

namespace pactrain::base {
namespace {

constexpr size_t kMaxText = 16384;  // Of a file, with white space around.

absl::StatusOr<absl::Time> ReadTime(absl::string_view text) {
  absl::Time time;
  std::string error;
  if (absl::ParseTime("%Y-%m-%dT%H:%M:%SZ", text, &time, &error)) return time;
  return absl::InvalidArgumentError(
      "has a time that is not as 2026-01-31T12:00:00Z");
}

std::vector<absl::string_view> LinesOf(absl::string_view text) {
  std::vector<absl::string_view> lines;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    line = absl::StripAsciiWhitespace(line);
    if (!line.empty()) lines.push_back(line);
  }
  return lines;
}

// With the times of a line.
std::string WithTimes(std::string text, absl::Time from, absl::Time until) {
  if (from != absl::InfinitePast()) {
    absl::StrAppend(&text, " from ", UtcText(from));
  }
  if (until != absl::InfiniteFuture()) {
    absl::StrAppend(&text, " until ", UtcText(until));
  }
  return text + "\n";
}

}  // namespace

absl::StatusOr<JobKeys::Entry> JobKeys::ReadLine(absl::string_view line) {
  const std::vector<absl::string_view> words =
      absl::StrSplit(line, ' ', absl::SkipEmpty());
  ASSIGN_OR_RETURN(JobKey key, JobKey::FromText(words[0]));
  Entry entry = {std::move(key)};
  for (size_t i = 1; i < words.size(); i += 2) {
    if ((words[i] != "from" && words[i] != "until") || i + 1 == words.size()) {
      return absl::InvalidArgumentError(
          "has a line that is not KEY [from TIME] [until TIME]");
    }
    ASSIGN_OR_RETURN((words[i] == "from" ? entry.from : entry.until),
                     ReadTime(words[i + 1]));
  }
  return entry;
}

absl::StatusOr<JobKeys> JobKeys::FromText(absl::string_view text) {
  JobKeys keys;
  const std::vector<absl::string_view> lines = LinesOf(text);
  // An empty one is no key, either.
  if (lines.empty()) return JobKey::FromText(text).status();
  if (lines.size() > kMaxKeys) {
    return absl::InvalidArgumentError(absl::StrCat("holds ", lines.size(),
                                                   " keys; at most ", kMaxKeys,
                                                   " are allowed, one a line"));
  }
  for (const absl::string_view line : lines) {
    ASSIGN_OR_RETURN(Entry entry, ReadLine(line));
    keys.keys_.push_back(std::move(entry));
    if (keys.keys_.back().key.host() != keys.host()) {
      return absl::InvalidArgumentError(
          "holds keys that are not of the same job");
    }
  }
  return keys;
}

absl::StatusOr<std::string> ReadJobKeyFile(const std::string& name,
                                           const std::string& path) {
  RETURN_IF_ERROR(CheckSecretFile(name, path));
  std::string text(kMaxText, '\0');
  std::ifstream file(path, std::ios::binary);
  if (!file.is_open()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": ", path, " cannot be opened"));
  }
  file.read(text.data(), kMaxText);
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

absl::StatusOr<JobKeys> JobKeys::FromFile(const std::string& name,
                                          const std::string& path) {
  ASSIGN_OR_RETURN(std::string text, ReadJobKeyFile(name, path));
  absl::StatusOr<JobKeys> keys = FromText(text);
  OPENSSL_cleanse(text.data(), text.size());
  if (keys.ok()) return keys;
  return absl::Status(keys.status().code(),
                      absl::StrCat(name, ": ", path, " ",
                                   absl::string_view(keys.status().message())));
}

const JobKey& JobKeys::Shown(absl::Time now) const {
  const Entry* shown = &keys_[0];
  for (const Entry& entry : keys_) {
    if (entry.from <= now) shown = &entry;
  }
  return shown->key;
}

std::vector<const JobKeys::Entry*> JobKeys::TakenAt(absl::Time now) const {
  std::vector<const Entry*> taken;
  const JobKey* const shown = &Shown(now);
  for (const Entry& entry : keys_) {
    if (entry.until > now || &entry.key == shown) taken.push_back(&entry);
  }
  return taken;
}

std::vector<std::string> JobKeys::Taken(absl::Time now) const {
  std::vector<std::string> ids;
  for (const Entry* entry : TakenAt(now)) ids.push_back(entry->key.id());
  return ids;
}

absl::StatusOr<std::string> JobKeys::CaPem(absl::Time now) const {
  std::set<std::string> written;  // Bound keys may be of the same one.
  std::string all;
  for (const Entry* entry : TakenAt(now)) {
    ASSIGN_OR_RETURN(const std::string pem, entry->key.CaPem());
    if (written.insert(pem).second) all += pem;
  }
  return all;
}

absl::StatusOr<std::string> JobKeys::NewBoundText(
    const std::string& host) const {
  std::string all;
  for (const Entry& entry : keys_) {
    ASSIGN_OR_RETURN(std::string text, entry.key.NewBoundText(host));
    all += WithTimes(std::move(text), entry.from, entry.until);
  }
  all.pop_back();  // Who writes the file ends it.
  return all;
}

absl::StatusOr<ChangedKey> ChangeKey(absl::string_view text, absl::Time now,
                                     absl::Time from, absl::Time until) {
  ASSIGN_OR_RETURN(const JobKeys keys, JobKeys::FromText(text));
  if (!keys.host().empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "is a key of ", keys.host(),
        " alone; change the key that it was made of, and make this one anew "
        "(new-key --job)"));
  }
  ChangedKey changed;
  changed.old_id = keys.Shown(now).id();
  if (keys.Taken(now).size() > 1 ||
      keys.Shown(absl::InfiniteFuture()).id() != changed.old_id) {
    return absl::InvalidArgumentError(
        "is being changed already: the times in it say until when; wait for "
        "that");
  }
  for (const absl::string_view line : LinesOf(text)) {
    const std::string key(line.substr(0, line.find(' ')));
    ASSIGN_OR_RETURN(const JobKey one, JobKey::FromText(key));
    if (one.id() != changed.old_id) continue;
    changed.text = WithTimes(key, absl::InfinitePast(), until);
  }
  ASSIGN_OR_RETURN(std::string fresh, JobKey::NewText());
  ASSIGN_OR_RETURN(const JobKey made, JobKey::FromText(fresh));
  changed.new_id = made.id();
  changed.text += WithTimes(std::move(fresh), from, absl::InfiniteFuture());
  return changed;
}

absl::Status ReplaceJobKeyFile(const std::string& path,
                               const std::string& text) {
  const std::string fresh = path + ".new";
  unlink(fresh.c_str());  // Of one that was killed.
  struct stat old = {};
  bool good = stat(path.c_str(), &old) == 0;
  const int fd =
      good ? open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600)
           : -1;
  good = fd >= 0 && fchown(fd, old.st_uid, old.st_gid) == 0 &&
         fchmod(fd, old.st_mode & 0660) == 0 &&
         write(fd, text.data(), text.size()) ==
             static_cast<ssize_t>(text.size()) &&
         fsync(fd) == 0 && rename(fresh.c_str(), path.c_str()) == 0;
  const int error = errno;
  if (fd >= 0) close(fd);
  if (fd >= 0 && !good) unlink(fresh.c_str());
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "FILE: ", path, " cannot be replaced (", std::strerror(error),
      "); run this as its owner, in a folder where that one may write"));
}

}  // namespace pactrain::base
