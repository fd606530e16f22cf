#include "trainer/session.h"

#include <unistd.h>

#include <utility>

#include "trainer/core/text.h"
#include "trainer/dead_socket.h"
#include "trainer/replaced_models.h"

namespace pactrain::trainer {
namespace {

Time Now() { return std::chrono::steady_clock::now().time_since_epoch(); }

}  // namespace

Session::Session(TrainerOptions options, std::optional<nccl::Setup> nccl)
    : options_(options),
      nccl_(nccl),
      owner_(getpid()),
      state_(std::move(options), Now()),
      node_(std::move(nccl), [this] { link_.Wake(); }) {}

Session::~Session() {
  // A fork shares the socket, and maybe a mutex that nobody will unlock.
  if (getpid() != owner_) return;
  MutexLock lock(&mu_);
  if (abandoned_) return;
  if (state_.attached().has_value() && !state_.over()) SendDetach();
}

void Session::Abandon() {
  MutexLock lock(&mu_);
  abandoned_ = true;
}

void Session::Detach() {
  MutexLock lock(&mu_);
  if (getpid() == owner_ && state_.attached().has_value()) SendDetach();
}

void Session::SendDetach() { link_.Send(state_.MakeDetach()); }

Error Session::Attach(TrainerOptions options, std::optional<nccl::Setup> nccl,
                      const std::function<void(const std::string&)>& on_waiting,
                      std::unique_ptr<Session>* session) {
  if (Error error = CheckOptions(options); !error.ok()) return error;
  ReplacedModels& replaced = ReplacedModels::OfThisProcess();
  wire::Hello& hello = options.hello;
  if (replaced.Contains(hello.job, hello.model)) hello.replace = 0;
  std::unique_ptr<Session> made(
      new Session(std::move(options), std::move(nccl)));
  if (Error error = made->Connect(on_waiting); !error.ok()) return error;
  const wire::Hello& said = made->options_.hello;
  if (said.replace != 0) replaced.Add(said.job, said.model);
  *session = std::move(made);
  return {};
}

Error Session::Connect(
    const std::function<void(const std::string&)>& on_waiting) {
  Error error = link_.Connect(options_.agent, options_.attach_timeout);
  if (!error.ok()) return error;
  Event event;
  {
    MutexLock lock(&mu_);
    event = Send(state_.MakeHello());
  }
  while (event != Event::kAttached) {
    std::string waiting;
    std::optional<Time> timeout;
    {
      MutexLock lock(&mu_);
      if (event != Event::kOver) event = Pump();
      if (event == Event::kOver) return state_.error();
      if (event == Event::kWaiting) waiting = state_.waiting_text();
      if (state_.deadline().has_value()) timeout = *state_.deadline() - Now();
    }
    if (event == Event::kWaiting && on_waiting) on_waiting(waiting);
    if (event == Event::kNone) link_.Poll(false, timeout);
  }
  MutexLock lock(&mu_);
  attached_ = *state_.attached();
  return {};
}

template <typename Message>
Event Session::Send(const Message& message) {
  return link_.Send(message) ? Event::kNone : LastWords();
}

Event Session::LastWords() {
  AgentLink::Packet packet;
  while (!state_.over() &&
         link_.Receive(&packet) == AgentLink::Received::kPacket) {
    state_.OnMessage(Now(), packet.bytes.data(), packet.bytes.size());
  }
  return Closed();
}

Event Session::Closed() {
  state_.OnClosed(Now());
  RemoveDeadSocket(link_.path());
  return Event::kOver;
}

Event Session::Pump() {
  if (state_.over()) return Event::kOver;
  if (!link_.Flush()) return LastWords();
  for (const NodeReduce::Reply& reply : node_.TakeReplies(Now())) {
    const Event event = std::visit(
        [&](const auto& m) PACTRAIN_REQUIRES(mu_) { return Send(m); }, reply);
    if (event != Event::kNone) return event;
  }
  AgentLink::Packet packet;
  for (;;) {
    const AgentLink::Received received = link_.Receive(&packet);
    if (received == AgentLink::Received::kClosed) return Closed();
    if (received == AgentLink::Received::kNothing) {
      return state_.OnTick(Now());
    }
    const Event event = Handle(std::move(packet));
    if (event != Event::kNone) return event;
  }
}

Event Session::Handle(AgentLink::Packet packet) {
  const Event event =
      state_.OnMessage(Now(), packet.bytes.data(), packet.bytes.size());
  if (event == Event::kAttached) return MapRegions(std::move(packet.fds));
  if (event == Event::kResubmit) return Resubmit();
  if (event == Event::kCollective) {
    node_.On(Now(), state_.TakeCollective());
    return Event::kNone;
  }
  return event;
}

Event Session::MapRegions(std::vector<base::Fd> fds) {
  std::string wrong;
  if (fds.size() != 2) {
    wrong = "Attached came with " + std::to_string(fds.size()) +
            " file descriptors instead of 2";
  } else {
    const wire::Attached& attached = *state_.attached();
    wrong = slot_.Map(std::move(fds[0]), attached.slot_bytes,
                      Region::Access::kReadWrite);
    if (wrong.empty()) {
      wrong = result_.Map(std::move(fds[1]), attached.result_bytes,
                          Region::Access::kRead);
    }
  }
  if (wrong.empty()) return Event::kAttached;
  return state_.OnError(
      wire::Code::kInternal,
      "the shared memory of the agent at " + options_.agent +
          " cannot be used: " + wrong +
          ".\nCheck that agent and trainer library are of one version, and "
          "the memory limits of this process.");
}

Event Session::Resubmit() {
  for (const Placement& placement : state_.TakeResubmits()) {
    const Event event = Fill(placement);
    if (event != Event::kNone) return event;
  }
  return Event::kNone;
}

Event Session::Fill(const Placement& placement) {
  Memory& memory = memory_[placement.bucket.index];
  if (memory.packed.has_value() && placement.dense) {
    const Event event = Unpack(placement);
    if (event != Event::kNone) return event;
  }
  kernels::TileRange piece = {0, 0};
  uint64_t outside = 0;
  pt_path path = PT_PATH_HOST;
  if (memory.packed.has_value()) {
    outside = memory.packed->outside;
    path = memory.packed->path;
  }
  do {
    piece = path == PT_PATH_FOLLOWER ? kernels::TileRange{0, placement.tiles()}
                                     : PieceFrom(placement, piece.end);
    if (!memory.packed.has_value()) {
      outside += WriteTiles(placement, piece, memory.parts, slot_.data());
    } else if (path != PT_PATH_FOLLOWER) {
      WritePacked(placement, piece, memory.out, slot_.data());
    }
    wire::Submit submit = state_.Submit(
        Now(), placement, placement.FilledBefore(piece.end), outside);
    if (path != PT_PATH_HOST) {
      submit.reduced = 1;
      submit.squares = memory.packed->squares;
    }
    const Event event = Send(submit);
    if (event != Event::kNone) return event;
  } while (piece.end < placement.tiles());
  return Event::kNone;
}

Event Session::Unpack(const Placement& placement) {
  Memory& memory = memory_[placement.bucket.index];
  const bool filled = memory.packed->fill();
  memory.packed.reset();
  memory.in_place = true;
  if (filled) return Event::kNone;
  return state_.OnError(
      wire::Code::kInternal,
      "bucket " + std::to_string(placement.bucket.index) +
          " has to be sent whole, and the trainer could not copy it from its "
          "device.\nSee the error of the device; start this rank anew.");
}

void Session::ReadResults() {
  const TrainerState::Results& results = state_.results();
  if (results.attempt != read_attempt_) {
    read_attempt_ = results.attempt;
    for (Memory& memory : memory_) memory.read_tiles = 0;
  }
  for (const Placement& placement : state_.placements()) {
    const uint32_t index = placement.bucket.index;
    Memory& memory = memory_[index];
    if (index > results.buckets) break;
    if (memory.in_place && !results.committed) continue;
    const size_t first = memory.read_tiles;
    memory.read_tiles = index < results.buckets
                            ? placement.tiles()
                            : placement.FilledTiles(first, results.elements);
    const kernels::TileRange tiles = {first, memory.read_tiles};
    if (memory.packed.has_value()) {
      ReadPacked(placement, tiles, result_.data(), memory.out);
    } else {
      ReadTiles(placement, tiles, result_.data(), attached_.world_size,
                memory.out);
    }
  }
}

Error Session::Submit(const Bucket& bucket, Parts parts, void* out) {
  const bool in_place = parts.Overlaps(out, bucket.dtype);
  MutexLock lock(&mu_);
  return Take(bucket,
              {.parts = std::move(parts), .out = out, .in_place = in_place});
}

Placement Session::Plan(const Bucket& bucket) {
  MutexLock lock(&mu_);
  return state_.Plan(bucket);
}

wire::Digest128 Session::MaskOf(const Placement& placement) const {
  return placement.mask == nullptr ? wire::Digest128{}
                                   : state_.decision().mask_digest;
}

Error Session::SubmitPacked(const Bucket& bucket, Packed packed, void* memory) {
  MutexLock lock(&mu_);
  const Placement plan = state_.Plan(bucket);
  const bool follows =
      Same(packed.mask, MaskOf(plan)) && packed.kept == plan.elements;
  // The agent may have made the step dense since.
  if (!plan.dense && !follows) {
    return Invalid("bucket " + std::to_string(bucket.index) + " is packed to " +
                   std::to_string(packed.kept) + " elements, its plan has " +
                   std::to_string(plan.elements) +
                   ", or another mask set.\nAsk for its plan and pack it by "
                   "that before it is submitted.");
  }
  return Take(bucket, {.parts = Parts({{memory, bucket.elements}}),
                       .out = memory,
                       .packed = std::move(packed)});
}

bool Session::Stage(const Bucket& bucket, const wire::Digest128& mask,
                    const nccl::Buffers& buffers) {
  const Placement plan = state_.Plan(bucket);
  if (!node_.open() || state_.step_done() || plan.dense ||
      plan.elements != buffers.elements || !Same(mask, MaskOf(plan))) {
    return false;
  }
  wire::Staged staged = node_.Stage(Now(), state_.next_step(), state_.attempt(),
                                    bucket.index, buffers);
  staged.elements = buffers.elements;
  staged.decision_version = state_.decision().version;
  staged.bucket_layout = bucket.layout;
  staged.mask_digest = mask;
  staged.dtype = static_cast<uint32_t>(bucket.dtype);
  state_.SetStaged(Now(), true);
  Send(staged);
  return true;
}

Error Session::Reduce(const Bucket& bucket, const wire::Digest128& mask,
                      const nccl::Buffers& buffers, pt_path* path) {
  *path = PT_PATH_HOST;
  if (getpid() != owner_) return {};  // Its submit says so.
  bool begun = false;
  for (;;) {
    bool for_room = false;
    {
      MutexLock lock(&mu_);
      // What has come meanwhile may open it, close it, or make the step dense.
      const Event event = Pump();
      if (state_.over()) return state_.error();
      if (event == Event::kWritten) ReadResults();
      if (event != Event::kNone) continue;
      if (!begun && !Stage(bucket, mask, buffers)) return {};
      begun = true;
      if (auto answer = node_.TakeAnswer()) {
        state_.SetStaged(Now(), false);
        *path = answer->path;
        if (answer->lost.empty()) return {};
        state_.OnError(wire::Code::kInternal,
                       "bucket " + std::to_string(bucket.index) +
                           ": the GPU does not come back from NCCL: " +
                           answer->lost + ".\nStart this rank anew.");
        return state_.error();
      }
      for_room = link_.has_queued();
    }
    // A pt_wait() of another thread may take what comes: nobody wakes this one.
    link_.Poll(for_room, NodeReduce::kLook);
  }
}

pt_node Session::node_report() {
  MutexLock lock(&mu_);
  return node_.report();
}

Error Session::Take(const Bucket& bucket, Memory memory) {
  if (getpid() != owner_) {
    return Invalid(
        "the session belongs to another process.\nAttach in the process that "
        "trains; a forked child may not use its parent's session.");
  }
  Placement placement;
  Error error = state_.Place(Now(), bucket, &placement);
  if (!error.ok()) {
    link_.Wake();
    return error;
  }
  if (bucket.index == 0) memory_.clear();
  memory_.push_back(std::move(memory));
  const Event event = Fill(placement);
  // A wait in progress has a deadline from now on, or packets to send.
  link_.Wake();
  return event == Event::kOver ? state_.error() : Error{};
}

Error Session::Wait(pt_step* report) {
  for (;;) {
    std::optional<Time> timeout;
    bool for_room = false;
    {
      MutexLock lock(&mu_);
      if (!state_.step_open()) {
        if (state_.over()) return state_.error();
        return Invalid("no step is open.\nSubmit bucket 0 first.");
      }
      if (!state_.step_done() && Pump() == Event::kWritten) {
        ReadResults();
        continue;
      }
      if (state_.step_done()) {
        if (state_.results().committed) ReadResults();
        const Error error = state_.TakeStep(report);
        if (error.ok()) ForgetWholeStep(*report);
        return error;
      }
      if (state_.deadline().has_value()) timeout = *state_.deadline() - Now();
      for_room = link_.has_queued();
    }
    link_.Poll(for_room, timeout);
  }
}

void Session::ForgetWholeStep(const pt_step& step) {
  const bool whole = step.submitted_elements == step.elements;
  const wire::Decision& next = state_.decision();
  // Whoever masks weights now, before the first compacted step, needs memory.
  const bool switches =
      next.version != decision_version_ && !Same(next.mask_digest, {});
  decision_version_ = next.version;
  if (whole ? switches : whole_step_) {
    slot_.Forget();
    result_.Forget();
  }
  whole_step_ = whole;
}

Error Session::SetMasks(MaskSet masks) {
  MutexLock lock(&mu_);
  return state_.SetMasks(std::move(masks));
}

Error Session::Vote(const std::string& moved, wire::Vote message) {
  MutexLock lock(&mu_);
  if (Error error = state_.Vote(moved, &message); !error.ok()) return error;
  return Send(message) == Event::kOver ? state_.error() : Error{};
}

Error Session::TellKeep(const wire::Digest128& mask_digest,
                        const std::vector<ParameterKeep>& parameters) {
  MutexLock lock(&mu_);
  if (state_.over()) return state_.error();
  wire::Keep message;
  if (Error error = MakeKeep(mask_digest, parameters, &message); !error.ok()) {
    return error;
  }
  return Send(message) == Event::kOver ? state_.error() : Error{};
}

Error Session::TellDevicePath(uint8_t path, const std::string& reason) {
  MutexLock lock(&mu_);
  if (state_.over()) return state_.error();
  wire::DevicePath message = {};
  message.header = {wire::Kind::kDevicePath, sizeof(message)};
  message.path = path;
  SetText(message.reason, reason);
  return Send(message) == Event::kOver ? state_.error() : Error{};
}

void Session::RequireDense(const std::string& reason) {
  MutexLock lock(&mu_);
  state_.RequireDense(reason);
}

uint64_t Session::next_step() {
  MutexLock lock(&mu_);
  return state_.next_step();
}

wire::Decision Session::decision() {
  MutexLock lock(&mu_);
  return state_.decision();
}

bool Session::over() {
  MutexLock lock(&mu_);
  return state_.over();
}

bool Session::may_rejoin() {
  MutexLock lock(&mu_);
  return state_.error().may_rejoin;
}

void Session::SetErrorText(const std::string& text) {
  MutexLock lock(&mu_);
  error_text_ = text;
}

std::string Session::error_text() {
  MutexLock lock(&mu_);
  return error_text_;
}

}  // namespace pactrain::trainer
