// One rank's state goes to those that need it: XOR steps in which all take
// part, in the form of the Python client (state_transfer.py, which says why).
//
// First the donor says what it has, and those that need it mark themselves. All
// others compare. If somebody needs the state, its size and digest follow, and
// then its bytes in pieces. Nothing is looked at before the digest of the whole
// was checked.
#ifndef PACTRAIN_TRAINER_CPP_STATE_TRANSFER_H_
#define PACTRAIN_TRAINER_CPP_STATE_TRANSFER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trainer/cpp/agreement.h"
#include "trainer/cpp/errors.h"
#include "trainer/cpp/local_state.h"
#include "trainer/cpp/session.h"
#include "trainer/cpp/state_codec.h"
#include "trainer/cpp/state_value.h"
#include "trainer/cpp/step_clock.h"
#include "trainer/cpp/transfer_form.h"
#include "trainer/cpp/types.h"
#include "trainer/cpp/words.h"

namespace pactrain::internal {

// `state` is none where this rank needs none.
struct Taken {
  Progress progress;  // The donor's.
  Digest parameters;  // The donor's.
  std::optional<StateValue> state;
};

// Of one model. Borrows session and state; used between steps. `piece_bytes` is
// equal on all ranks and fits into the slot.
class StateTransfer {
 public:
  StateTransfer(Session* session, const LocalState* local, uint64_t piece_bytes)
      : session_(session), local_(local), piece_bytes_(piece_bytes) {}

  // All ranks of a generation with a donor call it before anything else.
  // ResyncRequiredError: this rank's parameters should be the donor's, and are
  // not. RefusedError: this rank needs the state and cannot take the donor's.
  // Other errors are of a step; then the generation is over.
  Taken Run(const Progress& mine, bool newcomer) {
    const bool needs = session_->needs_state();
    const uint32_t donor = session_->donor().value();
    const Exchanged all = ExchangeHeaders(mine, donor, needs);
    if (needs) {
      Check(all.header, donor, newcomer);
    } else if (all.header.parameters != local_->ParameterDigest()) {
      throw ResyncRequiredError(
          "The parameters of rank " + std::to_string(session_->rank()) +
          " differ from those of rank " + std::to_string(donor) +
          " after the same step.\nLoad the last checkpoint at all ranks and "
          "start them again.");
    }
    Taken taken = {all.header.progress, all.header.parameters, std::nullopt};
    if (!all.somebody_needs) return taken;
    const std::vector<uint8_t> bytes = ExchangeState(donor, needs);
    if (needs) taken.state = DecodeState(bytes);
    return taken;
  }

 private:
  // Of a piece: what a bad network may cost.
  static constexpr int kAttempts = 10;
  static constexpr uint64_t kMaxStateBytes = uint64_t{1} << 40;

  struct Exchanged {
    TransferHeader header;
    bool somebody_needs = false;
  };

  Exchanged ExchangeHeaders(const Progress& mine, uint32_t donor, bool needs) {
    std::vector<uint8_t> bytes;
    if (session_->rank() == donor) bytes = Header(mine).Pack();
    bytes.resize(TransferHeader::kBytes + kNeedyBytes);
    const size_t rank = session_->rank();
    if (needs) {
      bytes[TransferHeader::kBytes + rank / 8] |=
          static_cast<uint8_t>(1 << rank % 8);
    }
    Exchange("header", bytes);
    const auto needy = std::span(bytes).subspan(TransferHeader::kBytes);
    return {TransferHeader::Unpack(bytes),
            std::any_of(needy.begin(), needy.end(),
                        [](uint8_t byte) { return byte != 0; })};
  }

  TransferHeader Header(const Progress& mine) const {
    const auto [digest, names] = Names();
    return {.settings = local_->settings(),
            .progress = mine,
            .unnamed_optimizers =
                static_cast<uint32_t>(local_->UnnamedOptimizers()),
            .parameters = local_->ParameterDigest(),
            .names_digest = digest,
            .names = names};
  }

  // Of what is shared: their digest, and in words.
  std::pair<Digest, std::string> Names() const {
    std::string lines;
    std::string text;
    for (const std::string& name : local_->SharedNames()) {
      lines += (lines.empty() ? "" : "\n") + name;
      text += (text.empty() ? "" : ", ") + name;
    }
    if (text.empty()) return {Digest(), "nothing"};
    return {DigestOf(lines), text};
  }

  void Check(const TransferHeader& donors, uint32_t donor,
             bool newcomer) const {
    CheckEqual(donor, donors.settings, session_->rank(), local_->settings());
    if (newcomer && donors.unnamed_optimizers > 0) {
      throw RefusedError("Rank " + std::to_string(donor) +
                         " trains with an optimizer that it does not share, so "
                         "that a newcomer cannot take its state.\nShare the "
                         "optimizer on all ranks, from the start.");
    }
    const auto [digest, names] = Names();
    if (donors.names_digest == digest) return;
    throw RefusedError("Rank " + std::to_string(donor) + " shares " +
                       donors.names + ", this rank " + names +
                       ".\nShare the same names on all ranks, from the start.");
  }

  // The donor's state; empty at those that do not need it.
  std::vector<uint8_t> ExchangeState(uint32_t donor, bool needs) {
    std::vector<uint8_t> state;
    std::vector<uint8_t> bytes(Announcement::kBytes);
    if (session_->rank() == donor) bytes = Announce(state).Pack();
    Exchange("announcement", bytes);
    const Announcement announced = Announcement::Unpack(bytes);
    if (announced.size == 0 || announced.size > kMaxStateBytes) {
      if (!needs) return {};
      throw RefusedError(
          "Rank " + std::to_string(donor) + " cannot give its state: " +
          (announced.problem.empty()
               ? "it has " + std::to_string(announced.size) + " bytes"
               : announced.problem) +
          "\nCorrect what it shares, and start this rank again.");
    }
    return ExchangePieces(donor, announced, needs, std::move(state));
  }

  std::vector<uint8_t> ExchangePieces(uint32_t donor,
                                      const Announcement& announced, bool needs,
                                      std::vector<uint8_t> state) {
    const bool gives = session_->rank() == donor;
    if (needs) state.resize(announced.size);
    for (uint64_t first = 0; first < announced.size; first += piece_bytes_) {
      const uint64_t size = std::min(piece_bytes_, announced.size - first);
      std::vector<uint8_t> piece(size);
      if (gives) std::memcpy(piece.data(), state.data() + first, size);
      Exchange("piece", piece);
      if (needs) std::memcpy(state.data() + first, piece.data(), size);
    }
    if (!needs || DigestOf(state) == announced.digest) return state;
    throw ResyncRequiredError(
        "The state of rank " + std::to_string(donor) + ", " +
        std::to_string(announced.size) +
        " bytes, came with another digest than was said before.\n"
        "Start this rank again.");
  }

  Announcement Announce(std::vector<uint8_t>& state) const {
    try {
      state = EncodeState(local_->Give());
    } catch (const InvalidArgument& error) {
      const std::string text = error.what();
      return {.problem = text.substr(0, text.find('\n'))};
    }
    return {.size = state.size(), .digest = DigestOf(state)};
  }

  // Those of the donor at all.
  void Exchange(const std::string& what, std::vector<uint8_t>& bytes) {
    const Digest layout = DigestOf("pactrain state 1 " + what);
    std::vector<uint32_t> words(WordsFor(bytes.size()));
    std::memcpy(words.data(), bytes.data(), bytes.size());
    for (int attempts_left = kAttempts - 1;; --attempts_left) {
      try {
        words = ExchangeWords(*session_, words, layout);
        break;
      } catch (const StepNotAppliedError&) {  // At all ranks.
        if (session_->is_final() || attempts_left == 0) throw;
      }
    }
    std::memcpy(bytes.data(), words.data(), bytes.size());
  }

  Session* session_;
  const LocalState* local_;
  const uint64_t piece_bytes_;
};

}  // namespace pactrain::internal

#endif  // PACTRAIN_TRAINER_CPP_STATE_TRANSFER_H_
