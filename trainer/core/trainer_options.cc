#include <algorithm>
#include <string>

#include "trainer/core/text.h"
#include "trainer/core/trainer_state.h"

namespace pactrain::trainer {
namespace {

constexpr uint32_t kMaxRanks = 1024;  // As protocol/limits.h.
constexpr uint32_t kMaxModels = 16;
constexpr uint8_t kMaxOnShrink = 2;            // protocol::OnShrink
constexpr uint64_t kMaxOnset = 1'000'000'000;  // As protocol/limits.h.

// Enough for all elements, however they are cut into buckets.
uint64_t EnoughSlotBytes(uint64_t elements) {
  return 4 * elements + wire::kSlotAlign * kMaxBuckets;
}

Error CheckName(const std::string& field, const std::string& value) {
  if (value.size() < wire::kNameBytes &&
      value.find('\0') == std::string::npos) {
    return {};
  }
  return Invalid(field + " has " + std::to_string(value.size()) +
                 " characters, allowed are " +
                 std::to_string(wire::kNameBytes - 1) + ".\nShorten it.");
}

Error CheckRange(const std::string& field, uint64_t value, uint64_t low,
                 uint64_t high) {
  if (value >= low && value <= high) return {};
  return Invalid(field + " is " + std::to_string(value) + ", allowed " +
                 std::to_string(low) + " to " + std::to_string(high) +
                 ".\nCorrect it and attach again.");
}

}  // namespace

Error CheckOptions(const TrainerOptions& options) {
  if (options.job.empty()) {
    return Invalid("job is empty.\nName the job, equal on all ranks.");
  }
  for (const Error& error :
       {CheckName("job", options.job), CheckName("site", options.site),
        CheckName("launch", options.launch),
        CheckRange("world_size", options.world_size, 1, kMaxRanks),
        CheckRange("rank", options.rank, 0, options.world_size - 1ull),
        CheckRange("model", options.model, 0, kMaxModels - 1),
        CheckRange("elements", options.elements, 1, kMaxElements),
        CheckRange("on_shrink", options.on_shrink, 0, kMaxOnShrink),
        CheckRange("kept_elements", options.kept_elements, 0,
                   options.declared_elements),
        CheckRange("declared_elements", options.declared_elements, 0,
                   kMaxElements),
        CheckRange("activate_every", options.activate_every, 0, kMaxOnset),
        CheckRange("pin_from", options.pin_from, 0, kMaxOnset),
        CheckRange("slot_bytes", options.slot_bytes, 0,
                   EnoughSlotBytes(kMaxElements))}) {
    if (!error.ok()) return error;
  }
  if (options.attach_timeout <= Time::zero()) {
    return Invalid("attach_timeout is not above 0.\nGive it some seconds.");
  }
  return {};
}

uint64_t TrainerState::wanted_slot_bytes() const {
  return options_.slot_bytes != 0 ? options_.slot_bytes
                                  : EnoughSlotBytes(options_.elements);
}

wire::Hello TrainerState::MakeHello() const {
  wire::Hello hello = {};
  hello.header = {wire::Kind::kHello, sizeof(hello)};
  hello.version = wire::kVersion;
  hello.rank = options_.rank;
  hello.world_size = options_.world_size;
  hello.model = options_.model;
  hello.attach_id = options_.attach_id;
  hello.model_digest = options_.model_digest;
  hello.elements = options_.elements;
  hello.slot_bytes = wanted_slot_bytes();
  hello.resume_step = options_.resume_step;
  hello.lineage = options_.lineage;
  hello.committed = options_.committed;
  hello.parameters = options_.parameters;
  hello.replace = options_.replace ? 1 : 0;
  hello.last_attach_id = options_.last_attach_id;
  hello.last_generation = options_.last_generation;
  std::copy(options_.seat.begin(), options_.seat.end(), hello.seat);
  hello.on_shrink = options_.on_shrink;
  hello.mask_digest = options_.mask_digest;
  hello.layout_digest = options_.layout_digest;
  hello.kept_elements = options_.kept_elements;
  hello.declared_elements = options_.declared_elements;
  hello.activate_every = options_.activate_every;
  hello.pin_from = options_.pin_from;
  hello.pin_mode = options_.pin_mode;
  hello.pin_codec = options_.pin_codec;
  hello.nccl_version = options_.nccl_version;
  SetText(hello.device, options_.device);
  SetText(hello.gpu, options_.gpu);
  SetText(hello.job, options_.job);
  SetText(hello.launch, options_.launch);
  SetText(hello.site, options_.site);
  SetText(hello.model_summary, options_.model_summary);
  return hello;
}

}  // namespace pactrain::trainer
