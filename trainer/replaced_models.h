// Models whose job this process has replaced, which it does once: who makes a
// model anew would end the state of those that came since.
#ifndef PACTRAIN_TRAINER_REPLACED_MODELS_H_
#define PACTRAIN_TRAINER_REPLACED_MODELS_H_

#include <cstdint>
#include <set>
#include <string>
#include <utility>

#include "trainer/mutex.h"

namespace pactrain::trainer {

class ReplacedModels {
 public:
  static ReplacedModels& OfThisProcess() {
    static auto* const models = new ReplacedModels;
    return *models;
  }
  bool Contains(const std::string& job, uint32_t model) {
    const MutexLock lock(&mu_);
    return models_.contains({job, model});
  }
  void Add(const std::string& job, uint32_t model) {
    const MutexLock lock(&mu_);
    models_.emplace(job, model);
  }

 private:
  Mutex mu_;
  std::set<std::pair<std::string, uint32_t>> models_ PACTRAIN_GUARDED_BY(mu_);
};

}  // namespace pactrain::trainer

#endif  // PACTRAIN_TRAINER_REPLACED_MODELS_H_
