#include "base/connection_places.h"

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace pactrain::base {

absl::StatusOr<ConnectionPlaces::Admission> ConnectionPlaces::Admit(
    const std::string& source, Refusal* limit) {
  Admission admission;
  const absl::Status free = Count(source, limit);
  if (!free.ok()) {
    const std::optional<Place> oldest =
        *limit == Refusal::kSource ? OldestOf(source) : OldestOfMost();
    if (!oldest) return free;
    admission.gave_way = GaveWay{
        *oldest, sources_.at(*oldest), *limit,
        absl::StrCat(free.message(),
                     "; the oldest whose sender is not known gives way")};
    Release(*oldest);
    // What was full has room now, and so has what the newcomer shares with it.
    PT_CHECK(Count(source, limit).ok());
  }
  admission.place = ++last_;
  sources_[last_] = source;
  strangers_of_[source].insert(last_);
  ++strangers_;
  return admission;
}

absl::Status ConnectionPlaces::Count(const std::string& source,
                                     Refusal* limit) {
  RETURN_IF_ERROR(caps_.Admit(source, limit));
  if (strangers_ < max_strangers_) return absl::OkStatus();
  caps_.Release(source);
  *limit = Refusal::kUnproven;
  return absl::ResourceExhaustedError(absl::StrCat(
      max_strangers_,
      " connections are open whose sender is not known yet, as many as are "
      "allowed"));
}

void ConnectionPlaces::Prove(Place place) {
  const auto open = sources_.find(place);
  if (open == sources_.end()) return;
  const auto it = strangers_of_.find(open->second);
  if (it == strangers_of_.end() || it->second.erase(place) == 0) return;
  --strangers_;
  if (it->second.empty()) strangers_of_.erase(it);
}

bool ConnectionPlaces::Release(Place place) {
  const auto it = sources_.find(place);
  if (it == sources_.end()) return false;
  Prove(place);  // No stranger any more.
  caps_.Release(it->second);
  sources_.erase(it);
  return true;
}

std::optional<ConnectionPlaces::Place> ConnectionPlaces::OldestOfMost() const {
  size_t most = 0;
  std::optional<Place> oldest;
  for (const auto& [source, places] : strangers_of_) {
    const Place first = *places.begin();
    if (places.size() < most || (places.size() == most && first > *oldest)) {
      continue;
    }
    most = places.size();
    oldest = first;
  }
  return oldest;
}

std::optional<ConnectionPlaces::Place> ConnectionPlaces::OldestOf(
    const std::string& source) const {
  const auto it = strangers_of_.find(source);
  if (it == strangers_of_.end()) return std::nullopt;
  return *it->second.begin();
}

}  // namespace pactrain::base
