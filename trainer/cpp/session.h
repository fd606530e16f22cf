// One attached trainer: RAII over the C functions of trainer/pactrain.h, whose
// rules hold for each call. Every code but PT_OK becomes its typed exception.
//
//   pactrain::Session session(options);
//   session.Submit({.bucket = 0, .parts = {{gradients, elements}},
//                   .out = mean, ..., .last = true});
//   const pactrain::StepResult step = session.Wait();  // `mean` is there.
//
// Owns the session; borrows memory from Submit() until Wait() returns. Submit()
// and Wait() may run in two threads; all other calls one at a time.
#ifndef PACTRAIN_TRAINER_CPP_SESSION_H_
#define PACTRAIN_TRAINER_CPP_SESSION_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/cpp/config.h"
#include "trainer/cpp/errors.h"
#include "trainer/cpp/onset.h"
#include "trainer/cpp/types.h"
#include "trainer/pactrain.h"

namespace pactrain {

struct MaskVote {
  Digest layout_digest = {};
  Digest mask_digest = {};
  uint32_t steps_unchanged = 0;
  uint32_t settle_steps = 1;
  bool inside_decision = true;
  uint64_t kept_elements = 0;
  uint64_t elements = 0;
  // What moved most in its last change: printable ASCII, at most
  // PT_MOVED_BYTES.
  std::string moved = {};
};

struct SessionOptions {
  AttachConfig config = {};
  uint32_t model = 0;  // Several models of one process: 0, 1, ...
  Digest model_digest = {};
  std::string model_summary = {};  // For error messages of other ranks.
  uint64_t elements = 0;           // Of all parameters that need a gradient.
  uint64_t slot_bytes = 0;         // 0: enough for all elements.
  uint64_t resume_step = 0;  // next_step() of an earlier session; 0: none.
  uint64_t committed = 0;    // Gradient steps of its checkpoint.
  // What it would vote before its first step; elements 0: it votes later.
  MaskVote declared = {};
  Onset onset = {};
};

struct Bucket {
  uint32_t bucket = 0;              // 0, 1, 2, ... in order.
  std::vector<pt_part> parts = {};  // Its elements, one after the other.
  void* out = nullptr;              // For as many; see pt_submit().
  DType dtype = DType::kFloat32;
  Op op = Op::kSum;
  Digest layout = {};
  bool last = false;
  const Digest* parameters = nullptr;  // With `last`; must be equal on all.
};

// The bitmaps of one mask set for one layout; see pt_set_masks().
struct BucketMasks {
  Digest mask_digest = {};
  std::vector<Digest> bucket_layouts = {};
  std::vector<uint64_t> elements = {};
  std::vector<std::vector<uint8_t>> bitmaps = {};
};

// Its destructor leaves the job for good, but not where an exception unwinds
// it: then this rank is lost.
class Session {
 public:
  using OnWaiting = std::function<void(const std::string& text)>;

  // Connects and waits until all ranks of the job are there. `on_waiting` gets
  // what is waited for whenever that changes; it must not throw.
  // Throws InvalidArgument, AgentUnresponsiveError,
  // CoordinatorUnavailableError (who is missing), RefusedError.
  explicit Session(SessionOptions options, OnWaiting on_waiting = nullptr)
      : options_(std::move(options)), on_waiting_(std::move(on_waiting)) {
    CheckConfig(options_.config);
    Attach(ToC(options_));
  }

  // Attaches again in the place of what is over, with the state that `todo`, a
  // PT_ATTACH, says that this rank holds. What is over stays open so long: by
  // that the agent knows that this rank lives. Throws as the constructor; then
  // it is as before, and may be attached again. REQUIRES: may_rejoin().
  void Reattach(const pt_todo& todo) {
    pt_attach_options fields = ToC(options_);
    fields.lineage = todo.lineage;
    fields.committed = todo.committed;
    fields.parameters = todo.parameters;
    fields.resume_step = todo.step;
    fields.attach_timeout_ms = todo.ms;
    fields.previous = session_.get();
    fields.declared_elements = 0;  // Masks have changed, or come with a state.
    fields.kept_elements = 0;
    Attach(fields);
  }

  // Whether this thread's last failed attach may be tried again: ranks changed
  // meanwhile, or the agent is not there yet.
  static bool last_attach_may_rejoin() { return pt_last_may_rejoin() != 0; }

  // Says that this rank leaves for good, also where may_rejoin().
  void Leave() { pt_detach(session_.get()); }

  uint64_t generation() const { return pt_generation(session_.get()); }
  // Of the generation's state: which, and how many gradient steps its donor has
  // committed in it.
  Digest lineage() const { return Digest::FromC(pt_lineage(session_.get())); }
  uint64_t lineage_committed() const {
    return pt_lineage_committed(session_.get());
  }
  uint64_t next_step() const { return pt_next_step(session_.get()); }
  // After the last step that was committed here; next_step() goes also beyond
  // one that failed.
  uint64_t resume_step() const { return resume_step_; }
  // Assigned by the coordinator. With on_shrink kAbort both are those asked
  // for; else they belong to a generation.
  uint32_t rank() const { return pt_rank(session_.get()); }
  uint32_t world_size() const { return pt_world_size(session_.get()); }
  // The rank whose state those take that need it, before anything else; none:
  // a new job.
  std::optional<uint32_t> donor() const {
    const uint32_t rank = pt_donor(session_.get());
    return rank == PT_NO_RANK ? std::nullopt : std::optional(rank);
  }
  bool needs_state() const { return pt_needs_state(session_.get()) != 0; }
  // It is over, and attaching again is the way to go on.
  bool may_rejoin() const { return pt_may_rejoin(session_.get()) != 0; }
  const AttachConfig& config() const { return options_.config; }
  std::string site() const { return pt_site(session_.get()); }
  std::string agent_name() const { return pt_agent_name(session_.get()); }
  // No later step can succeed.
  bool is_final() const { return pt_is_final(session_.get()) != 0; }
  // In force for the next step.
  Decision decision() const {
    pt_decision out;
    pt_current_decision(session_.get(), &out);
    return Decision::FromC(out);
  }

  void SetMasks(const BucketMasks& masks) {
    std::vector<pt_digest> layouts;
    std::vector<const uint8_t*> bitmaps;
    for (const Digest& digest : masks.bucket_layouts) {
      layouts.push_back(digest.ToC());
    }
    for (const auto& bitmap : masks.bitmaps) bitmaps.push_back(bitmap.data());
    Check(pt_set_masks(session_.get(), masks.mask_digest.ToC(),
                       /*first_bucket=*/0,
                       static_cast<uint32_t>(bitmaps.size()), layouts.data(),
                       masks.elements.data(), bitmaps.data()));
  }

  void Vote(const MaskVote& vote) {
    Check(pt_vote(session_.get(), vote.layout_digest.ToC(),
                  vote.mask_digest.ToC(), vote.steps_unchanged,
                  vote.settle_steps, vote.inside_decision ? 1 : 0,
                  vote.kept_elements, vote.elements, vote.moved.c_str()));
  }

  // What a mask set keeps of each parameter, for people: kept[i] of elements[i]
  // of names[i].
  void TellKeep(const Digest& mask_digest,
                const std::vector<const char*>& names,
                const std::vector<uint64_t>& kept,
                const std::vector<uint64_t>& elements) {
    Check(pt_keep(session_.get(), mask_digest.ToC(),
                  static_cast<uint32_t>(names.size()), names.data(),
                  kept.data(), elements.data()));
  }

  // While `reason` is not null every step is made dense.
  void RequireDense(const char* reason) {
    pt_require_dense(session_.get(), reason);
  }

  void Submit(const Bucket& bucket) {
    pt_digest parameters = {};
    if (bucket.parameters != nullptr) parameters = bucket.parameters->ToC();
    Check(pt_submit(session_.get(), bucket.bucket, bucket.parts.data(),
                    static_cast<uint32_t>(bucket.parts.size()), bucket.out,
                    static_cast<int>(bucket.dtype), static_cast<int>(bucket.op),
                    bucket.layout.ToC(), bucket.last ? 1 : 0,
                    bucket.parameters == nullptr ? nullptr : &parameters));
  }

  // The committed step, or its typed error; the wait is bounded.
  StepResult Wait() {
    pt_step out;
    Check(pt_wait(session_.get(), &out));
    resume_step_ = out.step + 1;
    return StepResult::FromC(out);
  }

 private:
  struct Close {
    Close() : exceptions(std::uncaught_exceptions()) {}
    // A program that an exception ends has not left: the others may wait for
    // it to be started again.
    void operator()(pt_session* session) const {
      if (std::uncaught_exceptions() > exceptions) {
        pt_abandon(session);
      } else {
        pt_close(session);
      }
    }
    int exceptions;
  };

  void Attach(const pt_attach_options& fields) {
    pt_session* session = nullptr;
    const int code = pt_attach(&fields, &session,
                               on_waiting_ ? &Forward : nullptr, &on_waiting_);
    if (code != PT_OK) ThrowError(code, pt_last_error(), true);
    session_.reset(session);
    resume_step_ = next_step();
  }

  static void Forward(const char* text, void* arg) {
    (*static_cast<const OnWaiting*>(arg))(text);
  }

  static pt_attach_options ToC(const SessionOptions& options) {
    const AttachConfig& config = options.config;
    return {
        .agent = config.agent.c_str(),
        .job = config.job.c_str(),
        .site = config.site.c_str(),
        .launch = config.launch.c_str(),
        .rank = config.rank,
        .world_size = config.world_size,
        .model = options.model,
        .model_digest = options.model_digest.ToC(),
        .model_summary = options.model_summary.c_str(),
        .elements = options.elements,
        .slot_bytes = options.slot_bytes,
        .resume_step = options.resume_step,
        .attach_timeout_ms =
            static_cast<uint32_t>(config.attach_timeout_seconds * 1000),
        .gse = config.drops_gradients() ? 1 : 0,
        .on_shrink = static_cast<int32_t>(config.on_shrink),
        .lineage = {},
        .committed = options.committed,
        .parameters = {},
        .replace = config.replace ? 1 : 0,
        .previous = nullptr,
        .mask_digest = options.declared.mask_digest.ToC(),
        .layout_digest = options.declared.layout_digest.ToC(),
        .kept_elements = options.declared.kept_elements,
        .declared_elements = options.declared.elements,
        .activate_every = options.onset.activate_every,
        .pin_mode = static_cast<int32_t>(options.onset.pin_mode),
        .pin_codec = static_cast<int32_t>(options.onset.pin_codec),
        .pin_from = options.onset.pin_from,
        .nccl = 0,  // Models on GPUs are not taken.
    };
  }

  void Check(int code) const {
    if (code == PT_OK) return;
    ThrowError(code, pt_error_text(session_.get()), is_final());
  }

  const SessionOptions options_;
  OnWaiting on_waiting_;
  uint64_t resume_step_ = 0;
  std::unique_ptr<pt_session, Close> session_;
};

namespace internal {

// Attaches with an error in the place of a model, which is refused at all ranks
// with both texts: the others need not wait for a rank that cannot come.
inline void TellFailure(AttachConfig config, uint32_t model,
                        const std::string& failure) {
  constexpr double kMostSeconds = 30;
  constexpr size_t kMostText = 200;
  if (config.world_size < 2) return;
  config.attach_timeout_seconds =
      std::min(config.attach_timeout_seconds, kMostSeconds);
  const std::string text =
      "no model, but: " + failure.substr(0, failure.find('\n'));
  try {
    const Session session({.config = config,
                           .model = model,
                           .model_digest = DigestOf(text),
                           .model_summary = text.substr(0, kMostText),
                           .elements = 1});
  } catch (const PacTrainError&) {
    // As it should be.
  }
}

}  // namespace internal
}  // namespace pactrain

#endif  // PACTRAIN_TRAINER_CPP_SESSION_H_
