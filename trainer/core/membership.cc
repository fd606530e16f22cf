#include "trainer/core/membership.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <type_traits>
#include <utility>

#include "base/weakened.h"
#include "trainer/core/settings.h"
#include "trainer/core/text.h"
#include "xxhash.h"

namespace pactrain::trainer {
namespace {

constexpr uint32_t kNoRank = wire::kNoRank;
constexpr uint32_t kMaxRanks = 1024;  // protocol/limits.h
constexpr size_t kRankBits = kMaxRanks / 8;
constexpr auto kRetry = std::chrono::milliseconds(200);
constexpr std::chrono::nanoseconds kLeastAttach = std::chrono::seconds(1);
// While all wait for a state: a shorter wait needs no words, and a longer one
// no more often.
constexpr std::chrono::nanoseconds kQuiet = std::chrono::seconds(5);
constexpr size_t kMostNamed = 8;

// Messages as they are sent; of one machine type, so in its order of bytes.
struct Header {
  pt_progress progress;  // The donor's, as all up to `needy`.
  pt_digest parameters;
  char settings[512];
  uint8_t needy[kRankBits];  // Each rank's own bits.
  uint8_t cpp[kRankBits];
};
struct Announcement {
  uint64_t bytes;  // 0: the giver cannot give it; `text` says why.
  pt_digest digest;
  uint32_t unshared_optimizers, zero;
  pt_digest shared;
  char text[480];  // What it shares.
};
static_assert(std::is_trivially_copyable_v<Header>);
static_assert(sizeof(Header) <= PT_STATE_MESSAGE_BYTES);
static_assert(sizeof(Announcement) <= PT_STATE_MESSAGE_BYTES);

template <typename Message>
std::vector<uint8_t> BytesOf(const Message& message) {
  std::vector<uint8_t> bytes(sizeof(message));
  std::memcpy(bytes.data(), &message, sizeof(message));
  return bytes;
}

template <typename Message>
Message MessageIn(const std::vector<uint8_t>& bytes) {
  Message message;
  std::memcpy(&message, bytes.data(), sizeof(message));
  return message;
}

template <size_t kBytes>
std::string TextIn(const char (&field)[kBytes]) {
  return {field, std::find(field, field + kBytes, '\0')};
}

pt_digest DigestOf(const void* data, size_t bytes) {
  const XXH128_hash_t hash = XXH3_128bits(data, bytes);
  return {hash.high64, hash.low64};
}

pt_todo Todo(pt_action action) {
  pt_todo todo = {};
  todo.action = action;
  return todo;
}

bool Equal(const pt_digest& a, const pt_digest& b) {
  return a.hi == b.hi && a.lo == b.lo;
}

bool BitOf(const std::vector<uint8_t>& bits, uint32_t rank) {
  return (bits[rank / 8] >> rank % 8 & 1) != 0;
}

void SetBit(uint8_t* bits, uint32_t rank, bool value) {
  if (value) bits[rank / 8] |= static_cast<uint8_t>(1 << rank % 8);
}

std::string FirstLine(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

std::string RankText(uint32_t rank) { return "rank " + std::to_string(rank); }

std::string Capital(std::string text) {
  text[0] = static_cast<char>(std::toupper(text[0]));
  return text;
}

// "lineage 1a2b3c4d after 5 steps"
std::string LineageText(const pt_digest& lineage, uint64_t committed) {
  char id[9];
  std::snprintf(id, sizeof(id), "%08x",
                static_cast<unsigned>(lineage.hi >> 32));
  return std::string("lineage ") + id + " after " + std::to_string(committed) +
         " steps";
}

std::string KindName(int32_t kind) { return kind == PT_CPP ? "C++" : "Python"; }

std::string OrNothing(const std::string& shared) {
  return shared.empty() ? "nothing" : shared;
}

// "ranks 2, 3 take"
std::string TakersText(const std::vector<uint32_t>& takers) {
  if (takers.size() == 1) return RankText(takers[0]) + " takes";
  std::string text = "ranks ";
  for (size_t i = 0; i < std::min(takers.size(), kMostNamed); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(takers[i]);
  }
  if (takers.size() > kMostNamed) {
    text += " and " + std::to_string(takers.size() - kMostNamed) + " more";
  }
  return text + " take";
}

std::string Megabytes(uint64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f", static_cast<double>(bytes) / 1e6);
  return text;
}

}  // namespace

bool MayGoOn(const Error& error, bool agent_returns) {
  const bool gone = error.code == wire::Code::kAgentUnresponsive;
  const bool ends = gone || error.code == wire::Code::kStepNotApplied ||
                    error.code == wire::Code::kResyncRequired;
  return ends && error.final && error.may_rejoin && (agent_returns || !gone);
}

pt_todo Membership::Begin(const pt_mine& mine, const pt_result& there,
                          Time now) {
  mine_ = mine;
  settings_ = mine.settings;
  shared_ = mine.shared;
  there_ = there;
  rank_before_ = there.rank;
  ranks_before_ = there.world_size;
  Forget();
  told_ = false;
  end_ = End(now);
  if (mine.newcomer != 0) {
    held_ = {};
    return Entered(now);
  }
  Hold();
  Tell("generation " + std::to_string(there.generation) +
       " ended, attaching again: " +
       FirstLine(there.text == nullptr ? "" : there.text));
  return Attach(now);
}

pt_todo Membership::Handle(const pt_result& result, Time now) {
  const Error error = {.code = static_cast<wire::Code>(result.code),
                       .text = result.code == 0 ? "" : result.text,
                       .final = result.final != 0,
                       .may_rejoin = result.may_rejoin != 0};
  there_ = result;
  switch (doing_) {
    case Doing::kAttach:
      return error.ok() ? Entered(now) : AttachFailed(error, now);
    case Doing::kSleep:
      return Attach(now);
    case Doing::kGive:
      return Gave(error, result);
    default:
      break;
  }
  if (!error.ok()) return ExchangeFailed(error, now);
  if (doing_ == Doing::kHeader) return HeaderCame();
  return doing_ == Doing::kPiece ? PieceCame(now) : AnnouncementCame(now);
}

void Membership::Forget() {
  for (auto* memory : {&taken_[kCommon], &taken_[kOwn], &sent_, &received_}) {
    *memory = {};
  }
}

Membership::Time Membership::End(Time now) {
  if (failed_after_ != mine_.progress.committed) {
    failed_after_ = mine_.progress.committed;
    failed_since_ = now;
  }
  return failed_since_ + std::chrono::milliseconds(options_.attach_timeout_ms);
}

pt_todo Membership::Attach(Time now) {
  doing_ = Doing::kAttach;
  const Time left = std::max(kLeastAttach, end_ - now);
  pt_todo todo = Todo(PT_ATTACH);
  todo.lineage = held_.lineage;
  todo.committed = held_.committed;
  if (!Equal(held_.lineage, {})) todo.parameters = mine_.parameters;
  todo.step = held_.next_step;
  todo.ms = static_cast<uint32_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(left).count());
  if (!tell_.empty()) {
    text_ = std::exchange(tell_, "");
    todo.tell = text_.c_str();
  }
  return todo;
}

pt_todo Membership::AttachFailed(const Error& error, Time now) {
  const bool gone = error.code == wire::Code::kAgentUnresponsive;
  const bool hopeless =
      !error.may_rejoin || (gone && options_.agent_returns == 0);
  if (hopeless || now > end_) return Fail(error.code, error.text);
  doing_ = Doing::kSleep;
  pt_todo todo = Todo(PT_SLEEP);
  todo.ms = kRetry.count();
  if (gone && !std::exchange(told_, true)) {
    const auto left = std::chrono::duration_cast<std::chrono::seconds>(
        end_ - now + std::chrono::milliseconds(500));
    text_ = "waiting up to " + std::to_string(left.count()) +
            " s for the agent: " + FirstLine(error.text);
    todo.tell = text_.c_str();
    todo.warn = 1;
  }
  return todo;
}

pt_todo Membership::Entered(Time now) {
  if (there_.donor == kNoRank) {
    return Fail(wire::Code::kResyncRequired,
                "Generation " + std::to_string(there_.generation) +
                    " begins anew: no rank is left that has the job's state.\n"
                    "Load the last checkpoint at all ranks and start them "
                    "again.");
  }
  entered_ = there_.resume_step;
  entered_at_ = progress_told_ = now;
  Header header = {};
  if (there_.rank == there_.donor) {
    header.progress = mine_.progress;
    header.parameters = mine_.parameters;
    SetText(header.settings, settings_);
  }
  SetBit(header.needy, there_.rank, there_.needs_state != 0);
  SetBit(header.cpp, there_.rank, options_.kind == PT_CPP);
  sent_ = BytesOf(header);
  return Exchange(Doing::kHeader, "header", sizeof(header));
}

pt_todo Membership::Exchange(Doing doing, const char* name, uint64_t bytes) {
  doing_ = doing;
  const std::string text = std::string("pactrain state 2 ") + name;
  layout_ = DigestOf(text.data(), text.size());
  bytes_ = bytes;
  attempts_left_ = kAttempts - 1;
  const uint64_t padded = (bytes + 3) / 4 * 4;
  sent_.resize(padded);
  received_.resize(padded);
  return Repeat();
}

pt_todo Membership::Repeat() {
  pt_todo todo = Todo(PT_EXCHANGE);
  todo.in = sent_.data();
  todo.out = received_.data();
  todo.words = sent_.size() / 4;
  todo.layout = layout_;
  return todo;
}

pt_todo Membership::ExchangeFailed(const Error& error, Time now) {
  // At all ranks.
  if (error.code == wire::Code::kStepNotApplied && !error.final &&
      attempts_left_-- > 0) {
    return Repeat();
  }
  if (!MayGoOn(error, options_.agent_returns != 0)) {
    return Fail(error.code, error.text);
  }
  if (there_.resume_step != entered_) {
    // All have met: waiting for a slow rank is no attaching.
    end_ += now - entered_at_;
  } else if (now > end_) {
    return Fail(
        error.code,
        FirstLine(error.text) + "\nNo step was committed for " +
            std::to_string(std::lround(
                static_cast<double>(options_.attach_timeout_ms) / 1000)) +
            " s (PACTRAIN_ATTACH_TIMEOUT), so this rank gives up. Look "
            "with `pactrain doctor` on each node whether the agents "
            "reach each other.");
  }
  // Who needed the state still has what it had before.
  if (there_.needs_state == 0) Hold();
  if (there_.needs_state != 0 && PT_WEAKENED(HeldStateForgotten)) held_ = {};
  Tell("generation " + std::to_string(there_.generation) +
       " ended: " + FirstLine(error.text));
  return Attach(now);
}

pt_todo Membership::HeaderCame() {
  const Header header = MessageIn<Header>(received_);
  progress_ = header.progress;
  parameters_ = header.parameters;
  donors_settings_ = TextIn(header.settings);
  needy_.assign(header.needy, header.needy + kRankBits);
  kinds_.assign(header.cpp, header.cpp + kRankBits);
  const bool as_donor = Equal(parameters_, mine_.parameters);
  equal_ = mine_.newcomer == 0 && as_donor &&
           Equal(there_.lineage, held_.lineage) &&
           progress_.committed == held_.committed;
  const bool needs = there_.needs_state != 0;
  if (!needs && !as_donor && !PT_WEAKENED(CurrentUnchecked)) {
    return Fail(wire::Code::kResyncRequired,
                "The parameters of " + RankText(there_.rank) +
                    " differ from those of " + RankText(there_.donor) +
                    " after the same step.\nLoad the last checkpoint at all "
                    "ranks and start them again.");
  }
  if (!equal_) {  // Also of who is taken for current.
    if (const std::string misfit = Misfit(); !misfit.empty()) {
      return Fail(wire::Code::kRefused, misfit);
    }
  }
  if (!PlanTransfers()) {
    const std::string kind = KindName(options_.kind);
    return Fail(wire::Code::kRefused,
                "No " + kind + " rank of generation " +
                    std::to_string(there_.generation) +
                    " has the job's state, and ranks of another language could "
                    "not give " +
                    RankText(there_.rank) +
                    " that of its optimizers and script.\nStart " + kind +
                    " ranks while another one of them trains, or start all "
                    "from a checkpoint.",
                /*leaves=*/true);
  }
  transfer_ = 0;
  problem_.clear();
  const bool gives =
      std::any_of(transfers_.begin(), transfers_.end(),
                  [&](const Transfer& t) { return t.giver == there_.rank; });
  if (!gives) return Announce();
  doing_ = Doing::kGive;
  return Todo(PT_GIVE);
}

std::string Membership::Misfit() const {
  const std::string difference = SettingsDifference(
      donors_settings_, there_.donor, settings_, there_.rank);
  if (!difference.empty()) return difference;
  if (mine_.newcomer != 0) return "";
  const bool same =
      Equal(there_.lineage, held_.lineage) || PT_WEAKENED(OtherLineageTaken);
  if (!same || (progress_.committed < held_.committed &&
                !PT_WEAKENED(OlderStateTaken))) {
    return Capital(RankText(there_.donor)) + " would give a state of " +
           LineageText(there_.lineage, progress_.committed) + " to " +
           RankText(there_.rank) + ", which has one of " +
           LineageText(held_.lineage, held_.committed) +
           (same ? "; a state never goes back.\nSave this rank's state, and "
                   "start all ranks again from it."
                 : "; a state is of use in its own lineage only.\nSave this "
                   "rank's state if it is the one to go on with, and start "
                   "all ranks again from one state.");
  }
  return "";
}

bool Membership::PlanTransfers() {
  transfers_.clear();
  bool needy[2] = {};
  // The donor, else the first that is current.
  uint32_t giver[2] = {kNoRank, kNoRank};
  for (uint32_t rank = 0; rank < std::min(there_.world_size, kMaxRanks);
       ++rank) {
    const int kind = BitOf(kinds_, rank) ? PT_CPP : PT_PYTHON;
    if (BitOf(needy_, rank)) {
      needy[kind] = true;
    } else if (giver[kind] == kNoRank || rank == there_.donor) {
      giver[kind] = rank;
    }
  }
  const bool takes = there_.needs_state != 0 && !equal_;
  if (takes && giver[options_.kind] == kNoRank) return false;
  if (needy[PT_PYTHON] || needy[PT_CPP]) {
    transfers_.push_back({kCommon, PT_PYTHON, there_.donor, takes});
  }
  for (const int kind : {PT_PYTHON, PT_CPP}) {
    if (!needy[kind] || giver[kind] == kNoRank) continue;
    transfers_.push_back(
        {kOwn, kind, giver[kind], takes && kind == options_.kind});
  }
  return true;
}

std::vector<uint32_t> Membership::Takers() const {
  const Transfer& transfer = transfers_[transfer_];
  std::vector<uint32_t> takers;
  for (uint32_t rank = 0; rank < std::min(there_.world_size, kMaxRanks);
       ++rank) {
    const int kind = BitOf(kinds_, rank) ? PT_CPP : PT_PYTHON;
    if (BitOf(needy_, rank) &&
        (transfer.part == kCommon || kind == transfer.kind)) {
      takers.push_back(rank);
    }
  }
  return takers;
}

pt_todo Membership::Gave(const Error& error, const pt_result& result) {
  problem_ = FirstLine(error.text);
  given_[kCommon] = static_cast<const uint8_t*>(result.common);
  given_[kOwn] = static_cast<const uint8_t*>(result.own);
  given_bytes_[kCommon] = error.ok() ? result.common_bytes : 0;
  given_bytes_[kOwn] = error.ok() ? result.own_bytes : 0;
  return Announce();
}

pt_todo Membership::Announce() {
  if (transfer_ == transfers_.size()) return Done();
  const Transfer& transfer = transfers_[transfer_];
  Announcement announcement = {};
  if (transfer.giver == there_.rank) {
    const uint64_t bytes = given_bytes_[transfer.part];
    announcement.bytes = bytes;
    announcement.digest = DigestOf(given_[transfer.part], bytes);
    announcement.unshared_optimizers = mine_.unshared_optimizers;
    announcement.shared = DigestOf(shared_.data(), shared_.size());
    SetText(announcement.text, bytes == 0 ? problem_ : shared_);
  }
  sent_ = BytesOf(announcement);
  return Exchange(Doing::kAnnouncement, "announcement", sizeof(announcement));
}

pt_todo Membership::AnnouncementCame(Time now) {
  const Announcement announced = MessageIn<Announcement>(received_);
  const Transfer& transfer = transfers_[transfer_];
  const std::string giver = Capital(RankText(transfer.giver));
  const std::string text = TextIn(announced.text);
  const bool gives = announced.bytes > 0 && announced.bytes <= kMaxStateBytes;
  if (transfer.taken && !gives) {
    return Fail(
        wire::Code::kRefused,
        giver + " cannot give its state: " +
            (text.empty() || announced.bytes > 0
                 ? "it has " + std::to_string(announced.bytes) + " bytes"
                 : text) +
            "\nCorrect what it shares, and start this rank again.");
  }
  if (transfer.taken && transfer.part == kOwn) {
    if (mine_.newcomer != 0 && announced.unshared_optimizers > 0) {
      return Fail(wire::Code::kRefused,
                  giver +
                      " trains with an optimizer that it does not share, so "
                      "that a newcomer cannot take its state.\nShare the "
                      "optimizer on all ranks, before the first step "
                      "(model.share(optimizer=optimizer)).");
    }
    if (!Equal(announced.shared, DigestOf(shared_.data(), shared_.size()))) {
      return Fail(wire::Code::kRefused,
                  giver + " shares " + OrNothing(text) + "; this rank " +
                      OrNothing(shared_) +
                      ".\nShare the same names and classes on all ranks, "
                      "before start() and before the first step.");
    }
  }
  if (!gives) {
    ++transfer_;
    return Announce();
  }
  size_ = announced.bytes;
  digest_ = announced.digest;
  if (transfer.taken) taken_[transfer.part].clear();
  offset_ = 0;
  return SendPiece(now);
}

pt_todo Membership::SendPiece(Time now) {
  const Transfer& transfer = transfers_[transfer_];
  const uint64_t bytes =
      std::min({options_.piece_bytes, kMaxPieceBytes, size_ - offset_});
  sent_.assign(bytes, 0);
  if (transfer.giver == there_.rank) {
    std::memcpy(sent_.data(), given_[transfer.part] + offset_, bytes);
  }
  pt_todo todo = Exchange(Doing::kPiece, "piece", bytes);
  if (now - progress_told_ < kQuiet) return todo;
  progress_told_ = now;
  // "rank 3 takes the model of rank 0: 12.5 of 97.5 MB"
  text_ = TakersText(Takers()) +
          (transfer.part == kCommon ? " the model" : " optimizers and script") +
          " of " + RankText(transfer.giver) + ": " + Megabytes(offset_) +
          " of " + Megabytes(size_) + " MB";
  todo.tell = text_.c_str();
  todo.warn = transfer.taken ? 1 : 0;
  return todo;
}

pt_todo Membership::PieceCame(Time now) {
  const Transfer& transfer = transfers_[transfer_];
  std::vector<uint8_t>& taken = taken_[transfer.part];
  if (transfer.taken) {
    // As it comes: nobody's word makes this process allocate more than that.
    taken.insert(taken.end(), received_.data(), received_.data() + bytes_);
  }
  offset_ += bytes_;
  if (offset_ < size_) return SendPiece(now);
  if (transfer.taken && !Equal(DigestOf(taken.data(), taken.size()), digest_) &&
      !PT_WEAKENED(StateUnchecked)) {
    return Fail(wire::Code::kResyncRequired,
                "The state of " + RankText(transfer.giver) + ", " +
                    std::to_string(size_) +
                    " bytes, came with another digest than was said "
                    "before.\nStart this rank again.");
  }
  ++transfer_;
  return Announce();
}

pt_todo Membership::Done() {
  const bool takes = there_.needs_state != 0 && !equal_;
  pt_todo todo = Todo(PT_DONE);
  todo.progress = progress_;
  todo.parameters = parameters_;
  todo.kept = takes ? 0 : 1;
  const std::string after =
      " after " + std::to_string(progress_.committed) + " steps";
  const std::string took = " took the state of " + RankText(there_.donor);
  if (takes) {
    todo.common = taken_[kCommon].data();
    todo.common_bytes = taken_[kCommon].size();
    todo.own = taken_[kOwn].data();
    todo.own_bytes = taken_[kOwn].size();
  }
  if (mine_.newcomer != 0) {
    text_ = RankText(there_.rank) + took + after;
  } else {
    const std::string size = std::to_string(there_.world_size);
    const std::string before = std::to_string(ranks_before_);
    text_ = "generation " + std::to_string(there_.generation) + ": " + size +
            (there_.world_size < ranks_before_ ? " of " + before : "") +
            " ranks" +
            (there_.world_size > ranks_before_ ? " instead of " + before : "") +
            " go on" + after;
    if (rank_before_ != there_.rank) {
      text_ += "; rank " + std::to_string(rank_before_) + " is now " +
               RankText(there_.rank);
    }
    if (takes) text_ += "; " + RankText(there_.rank) + took;
  }
  todo.tell = text_.c_str();
  return todo;
}

pt_todo Membership::Fail(wire::Code code, const std::string& text,
                         bool leaves) {
  text_ = text;
  pt_todo todo = Todo(PT_FAIL);
  todo.code = static_cast<int32_t>(code);
  todo.leaves = leaves ? 1 : 0;
  todo.text = text_.c_str();
  return todo;
}

}  // namespace pactrain::trainer
