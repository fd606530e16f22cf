// Trains a libtorch model through the agent on this node.
//
//   const pactrain::TorchModel parts = pactrain::ModelOf(*net);
//   const auto masks = pactrain::PruneByMagnitude(parts, 0.7);
//   int64_t batch = 0;
//   pactrain::TorchTrainer trainer(
//       parts, masks,
//       {.config = pactrain::ConfigFromEnvironment(),
//        .shared = {pactrain::SharedOptimizer("optimizer", optimizer),
//                   pactrain::SharedNumbers("place", "Place",
//                                           {{"batch", &batch}})}});
//   for (; batch < kBatches; ++batch) {
//     optimizer.zero_grad();
//     loss_of(net->forward(images), labels).backward();
//     trainer.Step(optimizer);
//   }
//
// The rule it keeps: after each step all ranks have bit-identical parameters.
// All ranks start from rank 0's weights, buffers and masks, apply the same mean
// of gradients or none, and mask weights only when all have agreed. Other ranks
// may be Python's: steps and buckets are those of
// pactrain.DistributedDataParallel.
//
// Unless config.on_shrink is kAbort ranks may come and go: a step whose
// generation ends is made in the next one, and who joins a running job, or was
// left behind, has taken the state of a rank that has it: the model, and what
// is `shared`.
//
// This file is all that a program includes.
#ifndef PACTRAIN_TRAINER_CPP_LIBTORCH_H_
#define PACTRAIN_TRAINER_CPP_LIBTORCH_H_

#include <ATen/ATen.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/cpp/agreement.h"
#include "trainer/cpp/buckets.h"
#include "trainer/cpp/config.h"
#include "trainer/cpp/errors.h"
#include "trainer/cpp/libtorch/broadcast.h"
#include "trainer/cpp/libtorch/buckets.h"
#include "trainer/cpp/libtorch/enforcement.h"
#include "trainer/cpp/libtorch/masks.h"
#include "trainer/cpp/libtorch/model.h"
#include "trainer/cpp/libtorch/model_state.h"
#include "trainer/cpp/libtorch/optimizer_state.h"
#include "trainer/cpp/libtorch/shared_objects.h"
#include "trainer/cpp/libtorch/warnings.h"
#include "trainer/cpp/libtorch/watched_weights.h"
#include "trainer/cpp/mask_keeper.h"
#include "trainer/cpp/mask_tracker.h"
#include "trainer/cpp/masks.h"
#include "trainer/cpp/membership.h"
#include "trainer/cpp/parameters.h"
#include "trainer/cpp/session.h"
#include "trainer/cpp/shared.h"
#include "trainer/cpp/slot.h"
#include "trainer/cpp/types.h"

namespace pactrain {

struct TorchTrainerOptions {
  AttachConfig config;
  MaskKind kind = MaskKind::kZero;
  uint32_t model = 0;        // Several models of one process: 0, 1, ...
  uint64_t resume_step = 0;  // next_step() of an earlier trainer; 0: none.
  uint64_t bucket_bytes = 25 << 20;  // Gradients of one message, at most.
  // What training goes on from beside the model: the optimizer, the place in
  // the data. Equal names and types on all ranks. It outlives the trainer.
  std::vector<Shared> shared = {};
};

// One model attached to the agent on this node. Not thread-safe; not for use in
// a forked child. Optimizers that it is given outlive it.
class TorchTrainer {
 public:
  // All ranks call it; it returns when all are there and have rank 0's weights,
  // buffers and masks, or, in a job that runs already, when this rank has taken
  // its state, with all that is shared. `on_waiting` as for Session; it is also
  // told when generations end and begin.
  // Throws InvalidArgument (an option), RefusedError (the kind of model, or
  // ranks differ), what Session throws, PacTrainError if a weight outside the
  // masks is not zero, and ResyncRequiredError if nobody is left who has the
  // job's state.
  TorchTrainer(TorchModel model, const TorchMasks& masks,
               const TorchTrainerOptions& options,
               const Session::OnWaiting& on_waiting = nullptr)
      : model_(std::move(model)),
        trained_(internal::TrainedOf(model_)),
        config_(options.config),
        table_(internal::TableOf(model_)),
        layout_(table_, options.bucket_bytes),
        buckets_(table_, layout_, trained_),
        enforcement_(&table_, &trained_),
        watched_(&trained_),
        shared_(options.shared, trained_) {
    MaskSet declared = Declared(masks, options);
    session_ =
        std::make_unique<Session>(OptionsFor(options, declared), on_waiting);
    OrLeave([&] { Enter(std::move(declared), on_waiting); });
  }

  TorchTrainer(const TorchTrainer&) = delete;
  TorchTrainer& operator=(const TorchTrainer&) = delete;

  // After backward(): exchanges gradients, steps the optimizer, masks weights.
  StepResult Step(torch::optim::Optimizer& optimizer) {
    shared_.See(optimizer);
    const StepResult result = ExchangeGradients();
    optimizer.step();
    ApplyMasks(optimizer);
    return result;
  }

  // Makes each gradient the mean over all ranks, a view of a bucket that the
  // next call overwrites; parameters without one count as zeros. If ranks have
  // come or gone it attaches again and goes on with the same gradients; that
  // takes as long as the others need, at most config.attach_timeout_seconds.
  // Throws the typed error of the step; all gradients are cleared then, and the
  // batch may be done again unless error.final(). RefusedError: weights outside
  // the masks in force were written since the last step (a few are looked at);
  // this rank leaves the job then, with weights as they are.
  StepResult ExchangeGradients() {
    const at::NoGradGuard no_grad;
    try {
      if (ended_) std::rethrow_exception(ended_);
      OrLeave([&] {
        CheckWatched();
        membership_->Catch();
      });
      std::string why;
      while (true) {
        const std::optional<StepResult> result = TryStep(why);
        if (result.has_value()) return *result;
        if (!GoOn(why)) return Missed();
      }
    } catch (...) {
      buckets_.ClearGradients();
      throw;
    }
  }

  // Puts weights outside the agreed masks back to zero or, if frozen, to their
  // values, and once per activation zeroes the optimizer's state there, too (of
  // torch's SGD, Adam, AdamW, RMSprop and Adagrad): otherwise momentum and
  // weight decay revive pruned weights. After a missed step it undoes what the
  // optimizer did. After each optimizer.step().
  void ApplyMasks(torch::optim::Optimizer& optimizer) {
    const at::NoGradGuard no_grad;
    shared_.See(optimizer);
    if (tracker_ == nullptr) enforcement_.Apply(optimizer);
    membership_->Undo();
    Watch();
  }

  // Replaces the masks. They act when all ranks have given the same ones.
  // InvalidArgument: an unknown name or a wrong shape.
  void SetMasks(const TorchMasks& masks, MaskKind kind = MaskKind::kZero) {
    RefuseMasks(tracker_ == nullptr);
    MaskSet wanted = internal::MaskSetOf(table_, masks, kind);
    // A broadcast may have committed another decision since the last step.
    if (keeper_->Obey(session_->decision())) Activate();
    keeper_->Replace(std::move(wanted));
  }

  // Gives all ranks the masks of rank 0, now; they act when agreed, as always.
  // All call it between the same two steps. `failed`: this rank could not
  // prune, so that all throw. PacTrainError: a rank failed, or the exchange
  // did; masks are as before.
  void SyncMasks(bool failed = false) {
    RefuseMasks(tracker_ == nullptr);
    if (keeper_->Sync(failed)) Activate();
  }

  // Gives all ranks rank 0's buffers, now; all call it between the same two
  // steps: before evaluating on all of them, say.
  void SyncBuffers() {
    clock_.BuffersSynced(session_->next_step());
    internal::BroadcastTensors(*session_, "pactrain buffers", model_.buffers,
                               SlotBytes());
    clock_.BuffersSynced(session_->next_step());
  }

  // Over the values of all trained parameters, bit for bit.
  Digest ParameterDigest() const { return internal::DigestOfValues(trained_); }

  // Weights that are neither zero nor frozen outside masks(); none once they
  // are in force.
  uint64_t WeightsOutside() const {
    uint64_t count = 0;
    for (size_t i = 0; i < table_.size(); ++i) {
      count += enforcement_.CountOutside(masks(), i);
    }
    return count;
  }

  const Session& session() const { return *session_; }
  // In the generation of now; they change with it.
  uint32_t rank() const { return session_->rank(); }
  uint32_t world_size() const { return session_->world_size(); }
  Decision decision() const { return session_->decision(); }
  const MaskSet& masks() const { return keeper_->current(); }
  bool masks_active() const { return keeper_->active() != nullptr; }
  // Nothing: config.track is not set.
  std::optional<TrackedMasks> tracked_masks() const {
    if (tracker_ == nullptr) return std::nullopt;
    return tracker_->state();
  }
  // What failed last after a step was committed (a vote, or buffers that stayed
  // as they were); empty: nothing did.
  const std::string& last_warning() const { return last_warning_; }

 private:
  SessionOptions OptionsFor(const TorchTrainerOptions& options,
                            const MaskSet& declared) const {
    return {.config = options.config,
            .model = options.model,
            .model_digest = table_.ModelDigest(),
            .model_summary = table_.Summary(),
            .elements = table_.elements(),
            .slot_bytes = SlotBytes(),
            .resume_step = options.resume_step,
            .declared = config_.declares()
                            ? MaskKeeper::VoteFor(table_, declared)
                            : MaskVote{},
            .onset = config_.onset()};
  }

  // What this rank does without the others, who hear of it if it fails.
  MaskSet Declared(const TorchMasks& masks,
                   const TorchTrainerOptions& options) {
    try {
      if (config_.track) {
        RefuseMasks(masks.empty());
        tracker_ = std::make_unique<internal::MaskTracker>(
            &table_, internal::Candidates(trained_), config_.settle_steps());
      }
      return internal::MaskSetOf(table_, masks, options.kind);
    } catch (const PacTrainError& error) {
      internal::TellFailure(config_, options.model, error.what());
      throw;
    }
  }

  // InvalidArgument: masks are given, and tracked.
  static void RefuseMasks(bool fine) {
    if (fine) return;
    throw InvalidArgument(
        "masks are given while config.track is true; allowed is one of the "
        "two.\nSet weights to zero instead: they are the masks then. Or leave "
        "track out.");
  }

  uint64_t SlotBytes() const {
    return internal::SlotBytes(config_, table_,
                               internal::BytesOfAll(model_.buffers));
  }

  // What is left of construction when the session is there.
  void Enter(MaskSet declared, const Session::OnWaiting& on_waiting) {
    const bool joins = session_->donor().has_value();
    // A newcomer that tracks does so as the others do.
    Agreed agreed = {std::move(declared), config_.settle_steps()};
    if (!joins) {
      agreed =
          internal::Agree(*session_, config_, table_, std::move(agreed.masks),
                          internal::BytesOfAll(model_.buffers));
    }
    keeper_ = std::make_unique<MaskKeeper>(session_.get(), &table_, &layout_,
                                           std::move(agreed), config_.track);
    state_ = std::make_unique<internal::ModelState>(
        internal::ModelParts{.config = &config_,
                             .model = &model_,
                             .trained = &trained_,
                             .table = &table_,
                             .keeper = keeper_.get(),
                             .enforcement = &enforcement_,
                             .shared = &shared_,
                             .tracker = tracker_.get()});
    membership_ = std::make_unique<internal::Membership>(
        session_.get(), state_.get(), &clock_,
        internal::StatePieceBytes(table_), on_waiting);
    if (joins) return membership_->Join();
    SendFirstState();
    enforcement_.Agree(keeper_->current());
    enforcement_.Check(keeper_->current());
    keeper_->Start();
    Watch();
    if (keeper_->Obey(session_->decision())) Activate();
    if (tracker_ != nullptr) {
      LookAtWeights();
      tracker_->EndStepFor(*keeper_);
    }
    clock_.Start(session_->next_step());
  }

  // The other ranks do not wait for one that could not take their state.
  template <typename Work>
  void OrLeave(const Work& work) {
    try {
      work();
    } catch (...) {
      ended_ = std::current_exception();
      session_->Leave();
      throw;
    }
  }

  // Nothing: the generation is over, and there may be a next one.
  std::optional<StepResult> TryStep(std::string& why) {
    try {
      const StepResult result = Exchange();
      Deliver(result);
      return result;
    } catch (const PacTrainError& error) {
      if (!membership_->MayGoOn(error)) ExplainAndThrow(error);
      why = error.what();
      return std::nullopt;
    }
  }

  bool GoOn(const std::string& why) {
    try {
      return membership_->GoOn(why);
    } catch (PacTrainError& error) {
      error.set_final();
      ended_ = std::current_exception();
      throw;
    } catch (...) {  // Of torch, or of what is shared.
      ended_ = std::current_exception();
      throw;
    }
  }

  StepResult Missed() {
    buckets_.HandOutZeros();
    return {.missed = true,
            .world_size = session_->world_size(),
            .next = session_->decision()};
  }

  // Parameters, also those that need no gradient, and buffers.
  void SendFirstState() {
    std::vector<NamedTensor> tensors = model_.parameters;
    tensors.insert(tensors.end(), model_.buffers.begin(), model_.buffers.end());
    internal::BroadcastTensors(*session_, "pactrain first state", tensors,
                               SlotBytes());
  }

  StepResult Exchange() {
    buckets_.CheckGradients();
    if (tracker_ != nullptr) LookAtWeights();
    const Digest compared = Compared();
    try {
      for (uint32_t b = 0; b < buckets_.count(); ++b) {
        Submit(b, compared == Digest{} ? nullptr : &compared);
      }
    } catch (const StepNotAppliedError&) {
      EndFailedStep();
      throw;
    }
    return session_->Wait();
  }

  // What has to be equal at all ranks in this step; empty: nothing is compared.
  Digest Compared() {
    const bool due = clock_.TakeParameterCheck(
        session_->next_step(), config_.parameter_check_interval);
    Digest masks;
    if (tracker_ != nullptr) masks = tracker_->News(/*always=*/due);
    if (!due) return masks;
    const Digest values = ParameterDigest();
    return tracker_ == nullptr ? values
                               : DigestOf(values.ToBytes() + masks.ToBytes());
  }

  // The error with the names of what has moved here, if ranks differ.
  [[noreturn]] void ExplainAndThrow(const PacTrainError& error) const {
    const std::string text = error.what();
    const bool differs = text.find("parameters differ") != std::string::npos;
    if (tracker_ == nullptr || !differs) throw;
    throw ResyncRequiredError(internal::DifferentText(text, rank(), *tracker_),
                              error.final());
  }

  // The step failed at all ranks while this one was still submitting.
  void EndFailedStep() {
    try {
      session_->Wait();
    } catch (const StepNotAppliedError&) {
      // The error that is being handled.
    }
  }

  void Submit(uint32_t b, const Digest* parameters) {
    const BucketLayout& bucket = layout_.buckets()[b];
    const bool last = b + 1 == buckets_.count();
    session_->Submit({.bucket = b,
                      .parts = buckets_.Parts(b),
                      .out = buckets_.data(b),
                      .dtype = bucket.dtype,
                      .op = Op::kSum,
                      .layout = bucket.digest,
                      .last = last,
                      .parameters = last ? parameters : nullptr});
  }

  // The step is committed: hands the means out and looks at what comes next.
  void Deliver(const StepResult& result) {
    clock_.Committed();
    buckets_.HandOut();
    // FULL, and TERNARY without a mask set.
    const bool whole = result.submitted_elements == result.elements;
    if ((whole || result.mode == Mode::kFull) && !result.dense &&
        (tracker_ == nullptr || keeper_->inside())) {
      enforcement_.MaskGradients();
    }
    try {
      if (CountStep(result.next)) Activate();
      SayIfMissed(result.next);
      SayIfDense(result);
      SayIfMoving();
      SayIfNotAgreed(result.next);
      if (clock_.BufferSyncDue(result.step + 1, config_.buffer_sync_interval)) {
        SyncBuffers();
      }
    } catch (const PacTrainError& error) {
      // Other ranks apply this step, so this one must, too. If the session is
      // over, the next step fails with the same error.
      last_warning_ = error.what();
    }
  }

  // Before masks are in force steps move all weights, but only until here.
  void Watch() {
    const MaskSet* active = keeper_->active();
    watched_in_ = session_->generation();
    if (tracker_ != nullptr || !config_.drops_gradients()) return;
    watched_.Take(active != nullptr ? *active : keeper_->current());
  }

  // Nothing was written since the last step but by this trainer.
  void CheckWatched() {
    // A state that was taken is right.
    if (watched_in_ != session_->generation()) return watched_.Forget();
    watched_.Check();
    const std::string zeros = watched_.TakeNewZeros();
    if (!zeros.empty()) last_warning_ = zeros;
  }

  // The keeper's active masks are new.
  void Activate() {
    if (!config_.drops_gradients()) return;
    Watch();
    if (const MaskSet* masks = keeper_->active()) {
      enforcement_.Activate(*masks);
    } else {
      enforcement_.Deactivate();
    }
  }

  void LookAtWeights() {
    at::Tensor piece;
    const auto values_of = [&](size_t parameter, uint64_t first,
                               uint64_t elements) {
      piece = internal::Flat(trained_[parameter].tensor)
                  .narrow(0, static_cast<int64_t>(first),
                          static_cast<int64_t>(elements))
                  .to(at::kFloat);
      return piece.const_data_ptr<float>();
    };
    if (!tracker_->LookFor(*keeper_, values_of)) return;
    // A broadcast may have committed another decision since the last step.
    if (keeper_->Obey(session_->decision())) Activate();
    keeper_->Replace(tracker_->masks());
  }

  // True: the keeper's active masks are new.
  bool CountStep(const Decision& next) {
    if (tracker_ == nullptr) return keeper_->Committed(next);
    const bool activated = keeper_->Obey(next);
    tracker_->EndStepFor(*keeper_);
    return activated;
  }

  void SayIfMissed(const Decision& next) {
    const std::string text = internal::MissedText(
        config_, clock_.committed() + 1, next, keeper_->settled());
    if (!text.empty()) last_warning_ = text;
  }

  // Tracked masks keep no gradient away.
  void SayIfDense(const StepResult& result) {
    constexpr int kSteps = 8;
    const bool kept_dense = result.dense && tracker_ != nullptr &&
                            !config_.drops_gradients() && keeper_->inside();
    dense_steps_ = kept_dense ? dense_steps_ + 1 : 0;
    if (dense_steps_ != kSteps) return;
    const MaskSet* active = keeper_->active();
    last_warning_ = internal::DenseText(
        kSteps, active == nullptr ? ""
                                  : internal::WithGradientsOutside(
                                        *active, table_, trained_));
  }

  // As long as masks move none come in force.
  void SayIfMoving() {
    constexpr uint64_t kSteps = 100;  // And those that settle asks for.
    if (tracker_ == nullptr) return;
    const uint64_t steps = tracker_->steps_moving();
    if (steps != kSteps + config_.settle_steps()) return;
    last_warning_ = internal::MovingText(steps, *tracker_);
  }

  // Agreement takes a few steps where all ranks want the same masks.
  void SayIfNotAgreed(const Decision& next) {
    constexpr uint64_t kSteps = 50;  // And those that settle asks for.
    const bool moving = tracker_ != nullptr && tracker_->steps_moving() > 0;
    unagreed_steps_ = moving || keeper_->settled() ? 0 : unagreed_steps_ + 1;
    if (unagreed_steps_ != kSteps + config_.settle_steps()) return;
    const bool masked = keeper_->active() != nullptr && keeper_->inside();
    last_warning_ = internal::UnagreedText(unagreed_steps_, next, masked);
  }

  TorchModel model_;
  const std::vector<NamedTensor> trained_;
  const AttachConfig config_;
  const ParameterTable table_;
  const Layout layout_;
  internal::GradientBuckets buckets_;
  internal::Enforcement enforcement_;
  internal::WatchedWeights watched_;
  uint64_t watched_in_ = 0;  // The generation.
  internal::SharedObjects shared_;
  internal::StepClock clock_;
  int dense_steps_ = 0;  // In a row, only for gradients outside the masks.
  uint64_t unagreed_steps_ = 0;  // In a row, with masks that do not move.
  std::unique_ptr<internal::MaskTracker> tracker_;  // Null: masks are declared.
  std::unique_ptr<Session> session_;
  std::unique_ptr<MaskKeeper> keeper_;
  std::unique_ptr<internal::ModelState> state_;
  std::unique_ptr<internal::Membership> membership_;
  std::string last_warning_;
  std::exception_ptr ended_;  // The error that every later step has.
};

}  // namespace pactrain

#endif  // PACTRAIN_TRAINER_CPP_LIBTORCH_H_
