// Keeps one model's masks in step with the job: votes, and acts only when
// agreed.
//
// `current` is what this rank wants; `active` what the job agreed on, by a
// decision that a committed step put in force on all ranks at once. Weights and
// gradients are masked with `active` only, so ranks cannot drift apart by
// masking on their own.
//
// Thread-compatible: used between steps. Borrows session, table and layout.
#ifndef PACTRAIN_TRAINER_CPP_MASK_KEEPER_H_
#define PACTRAIN_TRAINER_CPP_MASK_KEEPER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/cpp/agreement.h"
#include "trainer/cpp/buckets.h"
#include "trainer/cpp/masks.h"
#include "trainer/cpp/parameters.h"
#include "trainer/cpp/session.h"
#include "trainer/cpp/types.h"

namespace pactrain {

class MaskKeeper {
 public:
  // `agreed` is what all ranks have at the start. `tracks`: masks are those
  // that the weights have, and end when a decision has none: more weights may
  // count by then.
  MaskKeeper(Session* session, const ParameterTable* table,
             const Layout* layout, Agreed agreed, bool tracks = false)
      : session_(session),
        table_(table),
        layout_(layout),
        tracks_(tracks),
        settle_steps_(agreed.settle_steps) {
    known_.push_back(std::make_shared<const MaskSet>(std::move(agreed.masks)));
  }

  // What a rank says that wants these masks.
  static MaskVote VoteFor(const ParameterTable& table, const MaskSet& masks,
                          uint32_t steps_unchanged = 1,
                          uint32_t settle_steps = 1, bool inside = true) {
    return {.layout_digest = table.ModelDigest(),
            .mask_digest = masks.digest(),
            .steps_unchanged = steps_unchanged,
            .settle_steps = settle_steps,
            .inside_decision = inside,
            .kept_elements = masks.kept(),
            .elements = masks.elements()};
  }

  const MaskSet& current() const { return *known_.back(); }
  // Null until a decision has put masks in force.
  const MaskSet* active() const { return active_.get(); }
  uint32_t settle_steps() const { return settle_steps_; }
  // What this rank wants leaves nothing in that is outside `active`.
  bool inside() const { return inside_; }
  // Nothing is wanted but what is in force.
  bool settled() const {
    return current().empty() ||
           (active_ != nullptr && active_->digest() == current().digest());
  }

  // Gives the library the masks; before the first step of a generation, which
  // knows no masks and no votes. Those in force stay so.
  // Throws the typed error of pt_set_masks().
  void Start() {
    steps_unchanged_ = 0;
    version_ = ~uint64_t{0};
    told_ = {};
    Register();
  }

  // Becomes as another rank is: what it wants, and what is in force there.
  // To be followed by Start().
  void Take(MaskSet current, std::optional<MaskSet> active,
            uint32_t settle_steps) {
    settle_steps_ = settle_steps;
    known_.clear();
    active_ = nullptr;
    if (active.has_value()) {
      active_ = std::make_shared<const MaskSet>(*std::move(active));
    }
    if (active_ == nullptr || active_->digest() != current.digest()) {
      if (active_ != nullptr) known_.push_back(active_);
      known_.push_back(std::make_shared<const MaskSet>(std::move(current)));
    } else {
      known_.push_back(active_);
    }
    inside_ = active_ == nullptr || this->current().IsInside(*active_);
  }

  // Makes `masks` what this rank wants. They act when all ranks want them.
  void Replace(MaskSet masks) {
    if (masks.digest() == current().digest()) return;
    auto added = std::make_shared<const MaskSet>(std::move(masks));
    std::erase_if(known_, [&](const auto& set) {
      return set != active_ && set->digest() == added->digest();
    });
    known_.push_back(std::move(added));
    Forget();
    steps_unchanged_ = 0;
    inside_ = active_ == nullptr || current().IsInside(*active_);
    Register();
    Vote();  // Too young to count: withdraws the last vote.
  }

  // Rank 0's masks become all ranks' own; all call it between the same two
  // steps. True if `active` is another one than before.
  // Throws as internal::BroadcastMasks(), on all ranks; masks are as before.
  bool Sync(bool failed) {
    MaskSet received =
        internal::BroadcastMasks(*session_, *table_, current(), failed);
    // The broadcast may have committed another decision.
    const bool activated = Obey(session_->decision());
    Replace(std::move(received));
    return activated;
  }

  // After a committed step: votes if there is news, obeys the next decision.
  // Returns true if `active` is another one than before.
  bool Committed(const Decision& next) {
    const bool activated = Obey(next);
    if (steps_unchanged_ < settle_steps_) {
      ++steps_unchanged_;
      Vote();
    }
    return activated;
  }

  // Votes for the current masks as the tracker says; where masks are tracked,
  // this takes the place of Committed() beside Obey().
  void VoteTracked(uint32_t steps_unchanged, std::string moved) {
    steps_unchanged_ = steps_unchanged;
    moved_ = std::move(moved);
    Vote();
  }

  // Activates the decision's masks if they are new; true if `active` is another
  // one than before.
  bool Obey(const Decision& decision) {
    if (decision.version == version_) return false;
    version_ = decision.version;
    // What was agreed on stays in force until something else is.
    if (decision.mask_digest == Digest{}) return tracks_ && EndMasks();
    for (const auto& set : known_) {
      if (set->digest() != decision.mask_digest) continue;
      if (active_ != nullptr && active_->digest() == set->digest()) break;
      active_ = set;
      const bool was_inside =
          std::exchange(inside_, current().IsInside(*active_));
      if (tracks_ && was_inside && !inside_) Vote();
      return true;
    }
    return false;
  }

 private:
  static constexpr size_t kKnownSets = 4;  // As many as the library holds.

  bool EndMasks() {
    inside_ = true;
    return std::exchange(active_, nullptr) != nullptr;
  }

  void Forget() {
    while (known_.size() > kKnownSets) {
      known_.erase(known_.begin() + (known_.front() == active_ ? 1 : 0));
    }
  }

  // Those in force first: the library forgets the oldest.
  void Register() {
    for (const MaskSet* set : {active_.get(), &current()}) {
      if (set == nullptr || set->empty()) continue;
      session_->SetMasks(set->ForLayout(*table_, *layout_));
    }
  }

  void Vote() {
    MaskVote vote =
        VoteFor(*table_, current(), steps_unchanged_, settle_steps_, inside_);
    vote.moved = moved_;
    session_->Vote(vote);
    TellKeep();
  }

  // For people at the coordinator: of a mask set that settled, once in a
  // generation, by rank 0.
  void TellKeep() {
    const MaskSet& masks = current();
    if (session_->rank() != 0 || masks.empty() ||
        steps_unchanged_ < settle_steps_ || masks.digest() == told_) {
      return;
    }
    told_ = masks.digest();
    std::vector<const char*> names;
    std::vector<uint64_t> kept, elements;
    for (size_t i = 0; i < table_->size(); ++i) {
      const Parameter& parameter = (*table_)[i];
      const auto dropped = static_cast<uint64_t>(
          std::count(masks[i].begin(), masks[i].end(), uint8_t{0}));
      names.push_back(parameter.name.c_str());
      kept.push_back(parameter.elements() - dropped);
      elements.push_back(parameter.elements());
    }
    session_->TellKeep(told_, names, kept, elements);
  }

  Session* session_;
  const ParameterTable* table_;
  const Layout* layout_;
  const bool tracks_;
  std::string moved_;  // What moved most in the last change; empty: unknown.
  uint32_t settle_steps_;  // Unchanged steps that make a vote count.
  std::deque<std::shared_ptr<const MaskSet>> known_;  // The last: current.
  std::shared_ptr<const MaskSet> active_;
  uint32_t steps_unchanged_ = 0;
  uint64_t version_ = ~uint64_t{0};  // Of the decision looked at last.
  bool inside_ = true;
  Digest told_ = {};  // Whose keep was told in this generation.
};

}  // namespace pactrain

#endif  // PACTRAIN_TRAINER_CPP_MASK_KEEPER_H_
