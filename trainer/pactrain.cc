// The C ABI: checks pointers, converts structs, calls Session.
#include "trainer/pactrain.h"

#include <sys/random.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/version.h"
#include "kernels/levels.h"
#include "trainer/abi.h"
#include "trainer/core/mask_tracker.h"
#include "trainer/core/membership.h"
#include "trainer/core/settings.h"
#include "trainer/core/text.h"
#include "trainer/nccl/setup.h"
#include "xxhash.h"

struct pt_membership {
  pactrain::trainer::Membership impl;
};

struct pt_tracker {
  pactrain::trainer::MaskTracker impl;
  std::string moved;
};

namespace pactrain::trainer {
namespace {

thread_local std::string last_error;
thread_local bool last_may_rejoin = false;

std::string OrEmpty(const char* text) { return text == nullptr ? "" : text; }

// Whether the program has done what it was to do only its status says: at
// Python's own exit handlers sys.exit(1) looks like an end in peace.
void CloseAtExit(int status, void* session) {
  if (status != 0) return;  // The socket goes with the process.
  pt_detach(static_cast<pt_session*>(session));
  pt_close(static_cast<pt_session*>(session));
}

Error ToParts(uint32_t bucket, const pt_part* parts, uint32_t count,
              const void* out, Parts* to) {
  const std::string name = "bucket " + std::to_string(bucket);
  if (parts == nullptr && count > 0) {
    return Invalid(name + ": parts is null, part_count is " +
                   std::to_string(count) + ".\nPass the bucket's memory.");
  }
  for (uint32_t i = 0; i < count; ++i) {
    const auto& [data, elements] = parts[i];
    const auto part = [&] {
      return name + ": parts[" + std::to_string(i) + "]";
    };
    if (data == nullptr && elements > 0) {
      return Invalid(part() + ".data is null.\nPass the bucket's memory.");
    }
    if (elements > kMaxElements) {
      return Invalid(part() + ".elements is " + std::to_string(elements) +
                     ", allowed are " + std::to_string(kMaxElements) +
                     ".\nSplit the model.");
    }
  }
  *to = Parts(std::vector<pt_part>(parts, parts + count));
  if (out == nullptr && to->elements() > 0) {
    return Invalid(name + ": out is null.\nPass memory for " +
                   std::to_string(to->elements()) + " elements.");
  }
  return {};
}

Error ToOptions(const pt_attach_options& from, TrainerOptions* to) {
  if (OrEmpty(from.agent).empty()) {
    return Invalid(
        "agent is empty.\nGive the socket of the agent on this node, like "
        "unix:/run/pactrain/agent.sock.");
  }
  if (from.on_shrink < PT_ABORT || from.on_shrink > PT_CONTINUE) {
    return Invalid("on_shrink is " + std::to_string(from.on_shrink) +
                   ", allowed 0 (abort), 1 (pause) and 2 (continue).\n"
                   "Correct it and attach again.");
  }
  to->agent = from.agent;
  to->attach_timeout = std::chrono::milliseconds(from.attach_timeout_ms);
  to->gse = from.gse != 0;
  wire::Hello& hello = to->hello;
  for (const Error& error :
       {SetName("job", OrEmpty(from.job), hello.job),
        SetName("site", OrEmpty(from.site), hello.site),
        SetName("launch", OrEmpty(from.launch), hello.launch)}) {
    if (!error.ok()) return error;
  }
  SetText(hello.model_summary, OrEmpty(from.model_summary));
  hello.rank = from.rank;
  hello.world_size = from.world_size;
  hello.model = from.model;
  hello.model_digest = ToWire(from.model_digest);
  hello.elements = from.elements;
  hello.slot_bytes = from.slot_bytes;
  hello.resume_step = from.resume_step;
  hello.lineage = ToWire(from.lineage);
  hello.committed = from.committed;
  hello.parameters = ToWire(from.parameters);
  hello.replace = from.replace != 0 ? 1 : 0;
  hello.on_shrink = static_cast<uint8_t>(from.on_shrink);
  hello.mask_digest = ToWire(from.mask_digest);
  hello.layout_digest = ToWire(from.layout_digest);
  hello.kept_elements = from.kept_elements;
  hello.declared_elements = from.declared_elements;
  hello.activate_every = from.activate_every;
  hello.pin_from = from.pin_from;
  hello.pin_mode = static_cast<uint8_t>(from.pin_mode);
  hello.pin_codec = static_cast<uint8_t>(from.pin_codec);
  if (getrandom(&hello.attach_id, sizeof(hello.attach_id), 0) !=
      sizeof(hello.attach_id)) {
    return {.code = wire::Code::kInternal,
            .text = "getrandom() failed: no attach id.\nCheck the system."};
  }
  if (from.previous != nullptr) {
    hello.last_attach_id = from.previous->impl->attach_id();
    const wire::Attached& seat = from.previous->impl->attached();
    hello.last_generation = seat.generation;
    std::copy_n(seat.seat, wire::kSeatBytes, hello.seat);
    // By it the coordinator knows that it is the same trainer.
    hello.attach_id.hi = hello.last_attach_id.hi;
  }
  return {};
}

Error MakeMaskSet(uint32_t buckets, const pt_digest* bucket_layouts,
                  const uint64_t* elements, const uint8_t* const* bitmaps,
                  MaskSet* set) {
  if (buckets > kMaxBuckets) {
    return Invalid("a mask set of " + std::to_string(buckets) +
                   " buckets, allowed are " + std::to_string(kMaxBuckets) +
                   ".\nUse larger buckets.");
  }
  if (buckets > 0 && (bucket_layouts == nullptr || elements == nullptr ||
                      bitmaps == nullptr)) {
    return Invalid("a mask set's array is null.\nPass all three.");
  }
  for (uint32_t b = 0; b < buckets; ++b) {
    if (elements[b] > kMaxElements ||
        (bitmaps[b] == nullptr && elements[b] > 0)) {
      return Invalid("mask of bucket " + std::to_string(b) + ": " +
                     std::to_string(elements[b]) + " elements" +
                     (bitmaps[b] == nullptr ? " without a bitmap" : "") +
                     ", allowed are " + std::to_string(kMaxElements) +
                     ".\nCorrect it.");
    }
    set->buckets.push_back(
        {ToWire(bucket_layouts[b]),
         std::make_shared<const kernels::MaskPlan>(bitmaps[b], elements[b])});
  }
  return {};
}

// What `next` says is to be done.
template <typename Next>
void Ask(Next next, pt_todo* out) {
  try {
    *out = next();
  } catch (const std::bad_alloc&) {
    *out = {};
    out->action = PT_FAIL;
    out->code = PT_INTERNAL;
    out->text = "out of memory.\nGive this process more memory.";
  }
}

std::chrono::milliseconds Milliseconds(uint64_t now_ms) {
  return std::chrono::milliseconds(now_ms);
}

}  // namespace

void SetLastError(const std::string& text) { last_error = text; }

}  // namespace pactrain::trainer

namespace trainer = pactrain::trainer;
using trainer::Error;

uint32_t pt_abi_version(void) { return PT_ABI_VERSION; }

const char* pt_version(void) { return pactrain::base::kVersion; }

pt_digest pt_digest_of(const void* data, uint64_t bytes) {
  const XXH128_hash_t hash = XXH3_128bits(data, bytes);
  return {hash.high64, hash.low64};
}

int pt_code_levels(uint32_t levels, uint64_t key, uint32_t first_element,
                   const float* in, uint32_t elements, float* decoded,
                   uint32_t* bytes) {
  namespace kernels = pactrain::kernels;
  const auto refuse = [](const char* text) {
    trainer::last_error = text;
    return PT_INVALID_ARGUMENT;
  };
  if (in == nullptr || decoded == nullptr || bytes == nullptr) {
    return refuse("in, decoded and bytes are needed.\nGive all three.");
  }
  if (levels != 3 && levels != 5 && levels != 7 && levels != 15 &&
      levels != 31) {
    return refuse("levels is none of 3, 5, 7, 15 and 31.\nGive one of them.");
  }
  if (elements > kernels::kMaxLevelsElements) {
    return refuse("elements is above 65536.\nGive as many at a time at most.");
  }
  if (first_element % kernels::kDitherAlignment != 0) {
    return refuse("first_element is no multiple of 16.\nGive one.");
  }
  try {
    const auto kind = static_cast<kernels::Levels>(levels);
    std::vector<uint8_t> out(kernels::MaxLevelsBytes(kind, elements));
    size_t written = 0;
    kernels::EncodeLevels(kind, {key, first_element},
                          kernels::LevelsForm::kShorter, in, elements,
                          out.data(), &written, decoded);
    *bytes = static_cast<uint32_t>(written);
  } catch (const std::bad_alloc&) {
    trainer::last_error = "out of memory.\nGive this process more memory.";
    return PT_INTERNAL;
  }
  return PT_OK;
}

const char* pt_last_error(void) { return trainer::last_error.c_str(); }

int pt_last_may_rejoin(void) { return trainer::last_may_rejoin ? 1 : 0; }

int pt_attach(const pt_attach_options* options, pt_session** out,
              pt_on_waiting on_waiting, void* arg) {
  const Error error = trainer::Guarded([&]() -> Error {
    if (options == nullptr || out == nullptr) {
      return trainer::Invalid("options or out is null.\nPass both.");
    }
    *out = nullptr;
    trainer::TrainerOptions converted;
    Error invalid = trainer::ToOptions(*options, &converted);
    if (!invalid.ok()) return invalid;
    std::optional<trainer::nccl::Setup> nccl;
    if (options->nccl != 0 && options->previous != nullptr) {
      // Whichever thread this is.
      nccl = options->previous->impl->nccl();
    } else if (options->nccl != 0) {
      auto found = trainer::nccl::FindSetup();
      if (const auto* why = std::get_if<std::string>(&found)) {
        return {
            .code = pactrain::wire::Code::kRefused,
            .text = "NCCL cannot be had: " + *why + ".\nAttach without it."};
      }
      nccl = std::get<trainer::nccl::Setup>(std::move(found));
    }
    if (nccl.has_value()) {
      converted.hello.nccl_version =
          static_cast<uint32_t>(nccl->library->version());
      trainer::SetText(converted.hello.device, nccl->device);
      trainer::SetText(converted.hello.gpu, nccl->gpu);
    }
    auto session = std::make_unique<pt_session>();
    Error failed = trainer::Session::Attach(
        std::move(converted), std::move(nccl),
        [&](const std::string& text) {
          if (on_waiting != nullptr) on_waiting(text.c_str(), arg);
        },
        &session->impl);
    if (failed.ok()) *out = session.release();
    return failed;
  });
  trainer::last_error = error.text;
  trainer::last_may_rejoin = error.may_rejoin;
  return static_cast<int>(error.code);
}

void pt_close(pt_session* session) { delete session; }

void pt_abandon(pt_session* session) {
  if (session != nullptr) session->impl->Abandon();
  pt_close(session);
}

void pt_close_at_exit(pt_session* session) {
  if (session != nullptr) on_exit(&pactrain::trainer::CloseAtExit, session);
}

void pt_detach(pt_session* session) {
  if (session != nullptr) session->impl->Detach();
}

uint64_t pt_generation(const pt_session* session) {
  return session->impl->attached().generation;
}

pt_digest pt_lineage(const pt_session* session) {
  return trainer::FromWire(session->impl->attached().lineage);
}

uint64_t pt_lineage_committed(const pt_session* session) {
  return session->impl->attached().committed;
}

uint32_t pt_rank(const pt_session* session) {
  return session->impl->attached().rank;
}

uint32_t pt_donor(const pt_session* session) {
  return session->impl->attached().donor;
}

int pt_needs_state(const pt_session* session) {
  return session->impl->attached().needs_state;
}

uint64_t pt_next_step(const pt_session* session) {
  return session->impl->next_step();
}

uint32_t pt_world_size(const pt_session* session) {
  return session->impl->attached().world_size;
}

const char* pt_site(const pt_session* session) {
  return session->impl->attached().site;
}

const char* pt_agent_name(const pt_session* session) {
  return session->impl->attached().agent;
}

uint64_t pt_step_deadline_ms(const pt_session* session) {
  return session->impl->attached().step_deadline_ms;
}

void pt_current_decision(const pt_session* session, pt_decision* out) {
  *out = trainer::ToC(session->impl->decision());
}

const char* pt_error_text(const pt_session* session) {
  // A copy: another thread of this session may fail meanwhile.
  thread_local std::string text;
  text = session == nullptr ? "session is null" : session->impl->error_text();
  return text.c_str();
}

int pt_set_masks(pt_session* session, pt_digest mask_digest,
                 uint32_t first_bucket, uint32_t buckets,
                 const pt_digest* bucket_layouts, const uint64_t* elements,
                 const uint8_t* const* bitmaps) {
  return trainer::Run(session, [&] {
    trainer::MaskSet set;
    set.mask_digest = trainer::ToWire(mask_digest);
    set.first_bucket = first_bucket;
    Error error =
        trainer::MakeMaskSet(buckets, bucket_layouts, elements, bitmaps, &set);
    return error.ok() ? session->impl->SetMasks(std::move(set)) : error;
  });
}

int pt_keep(pt_session* session, pt_digest mask_digest, uint32_t count,
            const char* const* names, const uint64_t* kept,
            const uint64_t* elements) {
  return trainer::Run(session, [&] {
    if (count > 0 &&
        (names == nullptr || kept == nullptr || elements == nullptr)) {
      return trainer::Invalid(
          "names, kept or elements is null.\nPass one of each for every "
          "parameter.");
    }
    std::vector<trainer::ParameterKeep> parameters;
    for (uint32_t i = 0; i < count; ++i) {
      parameters.push_back({trainer::OrEmpty(names[i]), kept[i], elements[i]});
    }
    return session->impl->TellKeep(trainer::ToWire(mask_digest), parameters);
  });
}

int pt_vote(pt_session* session, pt_digest layout_digest, pt_digest mask_digest,
            uint32_t steps_unchanged, uint32_t settle_steps,
            int inside_decision, uint64_t kept_elements, uint64_t elements,
            const char* moved) {
  return trainer::Run(session, [&] {
    pactrain::wire::Vote vote = {};
    vote.layout_digest = trainer::ToWire(layout_digest);
    vote.mask_digest = trainer::ToWire(mask_digest);
    vote.kept_elements = kept_elements;
    vote.elements = elements;
    vote.steps_unchanged = steps_unchanged;
    vote.settle_steps = settle_steps;
    vote.inside_decision = inside_decision != 0 ? 1 : 0;
    return session->impl->Vote(trainer::OrEmpty(moved), vote);
  });
}

void pt_require_dense(pt_session* session, const char* reason) {
  if (session == nullptr) return;
  // A reason without words is a reason, too.
  session->impl->RequireDense(reason != nullptr && *reason == '\0'
                                  ? "the trainer asked for it"
                                  : trainer::OrEmpty(reason));
}

int pt_submit(pt_session* session, uint32_t bucket, const pt_part* parts,
              uint32_t part_count, void* out, int dtype, int op,
              pt_digest bucket_layout, int last, const pt_digest* parameters) {
  return trainer::Run(session, [&] {
    trainer::Parts memory;
    if (Error error = trainer::ToParts(bucket, parts, part_count, out, &memory);
        !error.ok()) {
      return error;
    }
    trainer::Bucket converted;
    converted.index = bucket;
    converted.elements = memory.elements();
    converted.op = static_cast<trainer::Op>(trainer::ToByte(op));
    converted.dtype = static_cast<trainer::Dtype>(trainer::ToByte(dtype));
    converted.layout = trainer::ToWire(bucket_layout);
    converted.last = last != 0;
    if (parameters != nullptr) {
      converted.parameters = trainer::ToWire(*parameters);
    }
    return session->impl->Submit(converted, std::move(memory), out);
  });
}

int pt_wait(pt_session* session, pt_step* out) {
  return trainer::Run(session, [&] {
    pt_step step;
    Error error = session->impl->Wait(&step);
    if (error.ok() && out != nullptr) *out = step;
    return error;
  });
}

int pt_is_final(const pt_session* session) {
  return session->impl->over() ? 1 : 0;
}

int pt_may_rejoin(const pt_session* session) {
  return session->impl->may_rejoin() ? 1 : 0;
}

pt_membership* pt_membership_new(const pt_membership_options* options) {
  return new pt_membership{trainer::Membership(*options)};
}

void pt_membership_free(pt_membership* membership) { delete membership; }

void pt_membership_begin(pt_membership* membership, const pt_mine* mine,
                         const pt_result* there, uint64_t now_ms,
                         pt_todo* out) {
  trainer::Ask(
      [&] {
        return membership->impl.Begin(*mine, *there,
                                      trainer::Milliseconds(now_ms));
      },
      out);
}

void pt_membership_next(pt_membership* membership, const pt_result* result,
                        uint64_t now_ms, pt_todo* out) {
  trainer::Ask(
      [&] {
        return membership->impl.Handle(*result, trainer::Milliseconds(now_ms));
      },
      out);
}

void pt_membership_forget(pt_membership* membership) {
  membership->impl.Forget();
}

int pt_may_go_on(int code, int final, int may_rejoin, int agent_returns) {
  return trainer::MayGoOn({.code = static_cast<pactrain::wire::Code>(code),
                           .text = "",
                           .final = final != 0,
                           .may_rejoin = may_rejoin != 0},
                          agent_returns != 0);
}

const char* pt_settings_difference(const char* settings, uint32_t rank,
                                   const char* other, uint32_t other_rank) {
  thread_local std::string difference;
  difference = trainer::SettingsDifference(settings, rank, other, other_rank);
  return difference.c_str();
}

pt_tracker* pt_tracker_new(uint32_t parameters, const char* const* names,
                           const uint64_t* elements, uint32_t settle_steps) {
  if (settle_steps == 0) return nullptr;
  try {
    uint64_t all = 0;
    std::vector<trainer::MaskTracker::Parameter> list;
    for (uint32_t i = 0; i < parameters; ++i) {
      if (elements[i] > trainer::kMaxElements) return nullptr;
      all += elements[i];
      list.push_back({.name = names[i], .elements = elements[i]});
    }
    if (all > trainer::kMaxElements) return nullptr;
    return new pt_tracker{{std::move(list), settle_steps}, ""};
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void pt_tracker_free(pt_tracker* tracker) { delete tracker; }

uint32_t pt_tracker_due(const pt_tracker* tracker) {
  return static_cast<uint32_t>(tracker->impl.due().size());
}

pt_range pt_tracker_range(const pt_tracker* tracker, uint32_t index) {
  return tracker->impl.due()[index];
}

uint64_t pt_tracker_look(pt_tracker* tracker, uint32_t index,
                         const float* values) {
  return tracker->impl.Look(index, values);
}

void pt_tracker_end_step(pt_tracker* tracker) { tracker->impl.EndStep(); }

void pt_tracker_restart(pt_tracker* tracker) { tracker->impl.Restart(); }

pt_tracked pt_tracker_state(const pt_tracker* tracker) {
  const trainer::MaskTracker& impl = tracker->impl;
  return {impl.steps(), impl.steps_unchanged(), impl.settle_steps(),
          impl.last_change()};
}

void pt_tracker_bits(const pt_tracker* tracker, uint32_t parameter,
                     uint8_t* bits) {
  const auto words = tracker->impl.bits(parameter);
  if (!words.empty()) std::memcpy(bits, words.data(), words.size_bytes());
}

uint64_t pt_tracker_moves(const pt_tracker* tracker, uint32_t parameter) {
  return tracker->impl.moves(parameter).all();
}

const char* pt_tracker_moved(pt_tracker* tracker) {
  tracker->moved = tracker->impl.Moved();
  return tracker->moved.c_str();
}
