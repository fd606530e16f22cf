// Of a SimTrainer: how it comes to one state with the others, as the clients do
// it (trainer/cpp/membership.h): trainer/core/membership decides, and this does
// what that asks for. What it decides is checked against what ranks have.
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "tests/sim/sim_trainer.h"

namespace pactrain::sim {

pt_result SimTrainer::Here(const trainer::Error& error) const {
  pt_result here = {};
  here.code = static_cast<int32_t>(error.code);
  here.final = error.final ? 1 : 0;
  here.may_rejoin = error.may_rejoin ? 1 : 0;
  here.text = error.text.c_str();
  here.generation = generation_;
  here.resume_step = reached_;
  if (const auto& attached = state_->attached()) {
    here.lineage = {attached->lineage.hi, attached->lineage.lo};
    here.rank = attached->rank;
    here.world_size = attached->world_size;
    here.donor = attached->donor;
    here.needs_state = attached->needs_state;
  }
  return here;
}

void SimTrainer::BeginToSettle(const trainer::Error& error, bool newcomer) {
  newcomer_ = newcomer;
  pt_mine mine = {};
  mine.newcomer = newcomer ? 1 : 0;
  mine.progress.committed = newcomer ? 0 : own_.applied;
  mine.parameters = {own_.chain, 1};
  mine.settings = "gse 1\n";
  mine.shared = "optimizer (simulated)";
  Do(membership_.Begin(mine, Here(error), Now()));
}

void SimTrainer::Settle(const trainer::Error& error) {
  pt_result result = Here(error);
  result.common = given_common_.data();
  result.common_bytes = given_common_.size();
  result.own = given_own_.data();
  result.own_bytes = given_own_.size();
  Do(membership_.Handle(result, Now()));
}

void SimTrainer::Do(const pt_todo& todo) {
  todo_ = todo;
  if (todo.tell != nullptr) {
    world_->Say([&] {
      return absl::StrFormat("process %d: %s", options_.process, todo.tell);
    });
  }
  switch (todo.action) {
    case PT_ATTACH:
      MakeState({todo.lineage, todo.committed, todo.step, todo.parameters},
                absl::Milliseconds(todo.ms));
      ended_(End::kRejoin);
      break;
    case PT_SLEEP:
      Later(absl::Milliseconds(todo.ms), &SimTrainer::Awake);
      break;
    case PT_EXCHANGE:
      Later(
          world_->random.Between(absl::ZeroDuration(), absl::Milliseconds(20)),
          &SimTrainer::OpenStep);
      break;
    case PT_GIVE:
      given_common_ = StateBytes(Part::kCommon);
      given_own_ = StateBytes(Part::kOwn);
      options_.gives();
      Settle({});
      break;
    case PT_DONE:
      todo_.reset();
      Take(todo);
      break;
    default:
      GiveUp(todo);
  }
}

void SimTrainer::Awake() { Settle({}); }

// Of some length, so that it takes some pieces. Masks may differ by rank; they
// are the donor's, who need not give the optimizer's state.
std::vector<uint8_t> SimTrainer::StateBytes(Part part) const {
  const uint64_t salt = part == Part::kCommon ? 1 : 2;
  const uint64_t bytes = sizeof(own_) + Hash({own_.chain, salt}) % 3000;
  std::vector<uint8_t> state(bytes, static_cast<uint8_t>(own_.chain + salt));
  RankState head = own_;
  if (part == Part::kOwn) head.mask_epoch = 0;
  std::memcpy(state.data(), &head, sizeof(head));
  return state;
}

void SimTrainer::Take(const pt_todo& done) {
  const bool was_newcomer = std::exchange(newcomer_, false);
  betrayed_ = false;  // All of this generation have this state now.
  if (done.kept == 0 && options_.mutant != Mutant::kKeepOwnState) {
    const RankState before = own_;
    std::memcpy(&own_, done.common, sizeof(own_));
    const auto is_whole = [&](const void* data, uint64_t bytes, Part part) {
      const std::vector<uint8_t> whole = StateBytes(part);
      return whole.size() == bytes &&
             std::memcmp(whole.data(), data, bytes) == 0;
    };
    if (!is_whole(done.common, done.common_bytes, Part::kCommon) ||
        !is_whole(done.own, done.own_bytes, Part::kOwn)) {
      world_->Fail("a state came otherwise than it was given");
    }
    if (!was_newcomer &&
        (before.lineage != own_.lineage || before.applied > own_.applied)) {
      world_->Fail(absl::StrFormat(
          "the state goes back: process %d with %d steps of lineage %d takes "
          "one with %d of lineage %d",
          options_.process, before.applied, before.lineage, own_.applied,
          own_.lineage));
    }
    if (before.mask_epoch != own_.mask_epoch) {
      next_mask_epoch_ = own_.mask_epoch;
      return Continue();
    }
  }
  Vote(true);
  Continue();
}

// What a client checks itself is the last wall: no coordinator leads there.
void SimTrainer::GiveUp(const pt_todo& failed) {
  const auto code = static_cast<wire::Code>(failed.code);
  const bool is_wall =
      (code == wire::Code::kResyncRequired || code == wire::Code::kRefused) &&
      attached() && failed.leaves == 0 &&
      !absl::StrContains(failed.text, "gives up");
  if (is_wall && HoldsState()) {
    world_->Fail(absl::StrFormat("%s comes to a client's last wall: %s", Name(),
                                 failed.text));
  }
  world_->Say([&] {
    return absl::StrFormat("process %d gives up: %s", options_.process,
                           failed.text);
  });
  if (failed.leaves != 0) send_(state_->MakeDetach());
  Finish(End::kFailed, failed.text);
}

}  // namespace pactrain::sim
