// The other rank of a job of two, played by a fake agent: its membership is a
// core of its own, so that only what a client makes of it is tested.
#ifndef PACTRAIN_TRAINER_OTHER_RANK_H_
#define PACTRAIN_TRAINER_OTHER_RANK_H_

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "trainer/fake_agent.h"
#include "trainer/pactrain.h"

namespace pactrain::internal {

struct OtherRank {
  uint32_t rank = 1;
  uint32_t donor = 1;
  bool needs_state = false;
  int32_t kind = PT_CPP;
  uint64_t piece_bytes = PT_STATE_MESSAGE_BYTES;
  std::string settings = {};
  std::string shared = {};
  uint64_t committed = 2;
  pt_digest parameters = {1, 2};
  std::vector<uint8_t> common = {}, own = {};  // Its state; what it took.
  std::string error = {};                      // How it ended.

  // Answers the steps of the rank under test until this one is done, or until
  // `steps` are.
  void Meet(trainer::FakeAgent& agent, int steps = 1000) {
    const pt_membership_options options = {.kind = kind,
                                           .agent_returns = 1,
                                           .piece_bytes = piece_bytes,
                                           .attach_timeout_ms = 20'000};
    const std::unique_ptr<pt_membership, void (*)(pt_membership*)> core(
        pt_membership_new(&options), &pt_membership_free);
    pt_mine mine = {};
    mine.newcomer = needs_state ? 1 : 0;
    mine.progress.committed = committed;
    mine.parameters = parameters;
    mine.settings = settings.c_str();
    mine.shared = shared.c_str();
    pt_result result = {};
    result.generation = 4;
    result.resume_step = 20;
    result.rank = rank;
    result.world_size = 2;
    result.donor = donor;
    result.needs_state = needs_state ? 1 : 0;
    pt_todo todo;
    pt_membership_begin(core.get(), &mine, &result, 0, &todo);
    while (todo.action != PT_DONE && todo.action != PT_FAIL) {
      if (todo.action == PT_EXCHANGE) {
        if (steps-- == 0) return;
        Exchange(agent, todo);
      }
      result.common = common.data();
      result.common_bytes = common.size();
      result.own = own.data();
      result.own_bytes = own.size();
      pt_membership_next(core.get(), &result, 0, &todo);
    }
    if (todo.action == PT_FAIL) error = todo.text;
    if (todo.common == nullptr) return;
    const auto* bytes = static_cast<const uint8_t*>(todo.common);
    common.assign(bytes, bytes + todo.common_bytes);
    bytes = static_cast<const uint8_t*>(todo.own);
    own.assign(bytes, bytes + todo.own_bytes);
  }

 private:
  static void Exchange(trainer::FakeAgent& agent, const pt_todo& todo) {
    const auto submits = agent.ReceiveStep();
    ASSERT_EQ(submits[0].elements, todo.words);
    std::vector<uint32_t> words(todo.words);
    std::memcpy(words.data(), agent.slot(submits[0].offset), 4 * todo.words);
    const auto* mine = static_cast<const uint32_t*>(todo.in);
    for (size_t i = 0; i < words.size(); ++i) words[i] ^= mine[i];
    std::memcpy(agent.result(submits[0].offset), words.data(), 4 * todo.words);
    std::memcpy(todo.out, words.data(), 4 * todo.words);
    wire::Committed committed = {};
    committed.header = {wire::Kind::kCommitted, sizeof(committed)};
    committed.step = submits.back().step;
    committed.attempt = submits.back().attempt;
    committed.world_size = 2;
    committed.next.mode = PT_FULL;
    committed.next.codec = PT_CODEC_FP32;
    agent.Send(committed);
  }
};

}  // namespace pactrain::internal

#endif  // PACTRAIN_TRAINER_OTHER_RANK_H_
