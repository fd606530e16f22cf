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

Error CheckRange(const std::string& field, uint64_t value, uint64_t low,
                 uint64_t high) {
  if (value >= low && value <= high) return {};
  return Invalid(field + " is " + std::to_string(value) + ", allowed " +
                 std::to_string(low) + " to " + std::to_string(high) +
                 ".\nCorrect it and attach again.");
}

}  // namespace

Error SetName(const std::string& field, const std::string& value,
              char (&name)[wire::kNameBytes]) {
  if (value.size() >= wire::kNameBytes ||
      value.find('\0') != std::string::npos) {
    return Invalid(field + " has " + std::to_string(value.size()) +
                   " characters, allowed are " +
                   std::to_string(wire::kNameBytes - 1) + ".\nShorten it.");
  }
  SetText(name, value);
  return {};
}

Error CheckOptions(const TrainerOptions& options) {
  const wire::Hello& hello = options.hello;
  if (hello.job[0] == '\0') {
    return Invalid("job is empty.\nName the job, equal on all ranks.");
  }
  for (const Error& error :
       {CheckRange("world_size", hello.world_size, 1, kMaxRanks),
        CheckRange("rank", hello.rank, 0, hello.world_size - 1ull),
        CheckRange("model", hello.model, 0, kMaxModels - 1),
        CheckRange("elements", hello.elements, 1, kMaxElements),
        CheckRange("on_shrink", hello.on_shrink, 0, kMaxOnShrink),
        CheckRange("kept_elements", hello.kept_elements, 0,
                   hello.declared_elements),
        CheckRange("declared_elements", hello.declared_elements, 0,
                   kMaxElements),
        CheckRange("activate_every", hello.activate_every, 0, kMaxOnset),
        CheckRange("pin_from", hello.pin_from, 0, kMaxOnset),
        CheckRange("slot_bytes", hello.slot_bytes, 0,
                   EnoughSlotBytes(kMaxElements))}) {
    if (!error.ok()) return error;
  }
  if (options.attach_timeout <= Time::zero()) {
    return Invalid("attach_timeout is not above 0.\nGive it some seconds.");
  }
  return {};
}

uint64_t TrainerState::wanted_slot_bytes() const {
  return options_.hello.slot_bytes != 0
             ? options_.hello.slot_bytes
             : EnoughSlotBytes(options_.hello.elements);
}

wire::Hello TrainerState::MakeHello() const {
  wire::Hello hello = options_.hello;
  hello.header = {wire::Kind::kHello, sizeof(hello)};
  hello.version = wire::kVersion;
  hello.slot_bytes = wanted_slot_bytes();
  return hello;
}

}  // namespace pactrain::trainer
