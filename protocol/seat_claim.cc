#include "protocol/seat_claim.h"

#include "absl/strings/str_cat.h"

namespace pactrain::protocol {

std::vector<std::string> FieldsOfSeat(const GroupId& group, uint64_t generation,
                                      const Digest& attach_id) {
  return {"pactrain secret of a seat", group.job, absl::StrCat(group.model),
          absl::StrCat(generation), attach_id.ToString()};
}

std::vector<std::string> FieldsOfClaim(const GroupId& group,
                                       const Trainer& trainer) {
  std::vector<std::string> fields = {"pactrain claim of a seat",
                                     group.job,
                                     absl::StrCat(group.model),
                                     trainer.attach_id.ToString(),
                                     trainer.last_attach_id.ToString(),
                                     absl::StrCat(trainer.last_generation),
                                     trainer.lineage.id.ToString(),
                                     absl::StrCat(trainer.lineage.committed),
                                     absl::StrCat(trainer.resume_step),
                                     trainer.model_digest.ToString()};
  // An agent of the release before knows no such field.
  if (!trainer.parameters.empty()) {
    fields.push_back(trainer.parameters.ToString());
  }
  return fields;
}

}  // namespace pactrain::protocol
