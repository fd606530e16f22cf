#include "coordinator/core/testimony.h"

#include <algorithm>

#include "base/weakened.h"
#include "coordinator/core/journal_record.h"

namespace pactrain::coordinator {

void Testimony::Begin(const protocol::Generation& generation) {
  Course course;
  course.generation = generation.number;
  course.lineage = generation.lineage;
  course.base_step = generation.base_step;
  course.has_donor = generation.donor.has_value();
  for (const protocol::Member& member : generation.members) {
    course.attach_ids.insert(member.attach_ids.begin(),
                             member.attach_ids.end());
    course.incarnations[member.agent] = member.incarnation;
  }
  courses_.push_front(std::move(course));
  if (courses_.size() > kMaxHistory) courses_.pop_back();
}

const Testimony::Course* Testimony::Find(uint64_t generation) const {
  const auto it = std::find_if(
      courses_.begin(), courses_.end(),
      [&](const Course& course) { return course.generation == generation; });
  return it == courses_.end() ? nullptr : &*it;
}

// A copy of the journal may have formed another generation of that number.
const Testimony::Course* Testimony::Find(const Candidate& candidate) const {
  const protocol::Trainer& trainer = candidate.trainer;
  const Course* const course = Find(trainer.last_generation);
  return course != nullptr && course->lineage.id == trainer.lineage.id &&
                 course->attach_ids.contains(trainer.last_attach_id)
             ? course
             : nullptr;
}

std::optional<Testimony::Began> Testimony::BeganWith(
    const Candidate& candidate) const {
  const Course* const course = Find(candidate);
  if (course == nullptr) return std::nullopt;
  return Began{{course->lineage.committed, course->base_step},
               course->has_donor};
}

void Testimony::NoteReport(const Agent& agent,
                           const protocol::StepReport& report) {
  auto* const course = const_cast<Course*>(Find(report.generation));
  if (course == nullptr) return;
  const auto member = course->incarnations.find(agent.name);
  if (member == course->incarnations.end() ||
      member->second != agent.incarnation) {
    return;
  }
  const uint64_t next = report.committed_count > 0 ? report.committed_step + 1
                                                   : course->base_step;
  Word& word = course->words[agent.name];
  word.most.second = std::min(word.most.second, next);
  // Some of these steps were of gradients.
  const uint64_t steps = next - std::min(next, course->base_step);
  word.most.first =
      std::min(word.most.first, course->lineage.committed + steps);
}

void Testimony::NoteClaim(const Candidate& candidate) {
  auto* const course = const_cast<Course*>(Find(candidate));
  if (course == nullptr) return;
  const protocol::Trainer& trainer = candidate.trainer;
  const Reached began_with = {course->lineage.committed, course->base_step};
  // Else its state is the one that it came with.
  const bool got_state = ReachedBy(candidate) >= began_with;
  Word& word = course->words[candidate.agent];
  word.most.first =
      std::min(word.most.first,
               got_state ? trainer.lineage.committed + 1 : began_with.first);
  word.committed = std::max(word.committed, trainer.lineage.committed);
}

void Testimony::Forget(const std::string& agent) {
  for (Course& course : courses_) {
    course.words.erase(agent);
    course.incarnations.erase(agent);
  }
}

Testimony::Words Testimony::On(const Candidate& candidate) const {
  const Course* const course = Find(candidate);
  if (course == nullptr) return {};
  return On(candidate.agent, course->generation, ReachedBy(candidate));
}

Testimony::Words Testimony::On(const std::string& agent, uint64_t generation,
                               const Reached& reached) const {
  const Course* const course = Find(generation);
  Words words;
  if (course == nullptr || PT_WEAKENED(ContradictedClaimsCount)) return words;
  for (const auto& [other, word] : course->words) {
    if (other == agent) continue;
    if (reached.first > word.most.first || reached.second > word.most.second) {
      words.against.push_back(other);
    } else if (word.committed + 1 >= reached.first) {
      ++words.with;
    }
  }
  return words;
}

}  // namespace pactrain::coordinator
