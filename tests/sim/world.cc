#include "tests/sim/world.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace pactrain::sim {

bool World::RunNext() {
  if (queue_.empty()) return false;
  Event event = queue_.top();
  queue_.pop();
  now_ = event.time;
  event.run();
  return true;
}

void World::Note(uint64_t a, uint64_t b, uint64_t c) {
  trace_ = Hash({trace_, static_cast<uint64_t>(absl::ToInt64Microseconds(now_)),
                 a, b, c});
}

void World::Say(const std::function<std::string()>& text) const {
  if (!tell_) return;
  tell_(absl::StrFormat("%9.4f %s", absl::ToDoubleSeconds(now_), text()));
}

void World::CountFault(const std::string& kind, const std::string& whom) {
  ++faults[kind];
  Say([&] { return absl::StrCat("FAULT ", kind, ": ", whom); });
}

void World::Fail(const std::string& what) {
  if (!failure_.empty()) return;
  failure_ =
      absl::StrFormat("at %.4f s: %s", absl::ToDoubleSeconds(now_), what);
  Say([&] { return "FAILED " + what; });
}

}  // namespace pactrain::sim
