// What a program shares, and the optimizers that move its model.
#ifndef PACTRAIN_TRAINER_CPP_LIBTORCH_SHARED_OBJECTS_H_
#define PACTRAIN_TRAINER_CPP_LIBTORCH_SHARED_OBJECTS_H_

#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trainer/cpp/errors.h"
#include "trainer/cpp/libtorch/model.h"
#include "trainer/cpp/libtorch/optimizer_state.h"
#include "trainer/cpp/shared.h"

namespace pactrain::internal {

// Optimizers are seen when they step. Those that are not shared by name can be
// matched between ranks that have run the same program from the start, in the
// order of their first steps, but not with a newcomer's.
//
// Borrows all optimizers. Thread-compatible.
class SharedObjects {
 public:
  // InvalidArgument: two things of one name, or one that cannot be sent.
  SharedObjects(std::vector<Shared> shared, std::vector<NamedTensor> trained)
      : shared_(std::move(shared)), trained_(std::move(trained)) {
    std::sort(shared_.begin(), shared_.end(),
              [](const Shared& a, const Shared& b) { return a.name < b.name; });
    for (size_t i = 0; i < shared_.size(); ++i) {
      const Shared& item = shared_[i];
      const bool twice = i > 0 && shared_[i - 1].name == item.name;
      if (twice || !item.give || !item.take) {
        throw InvalidArgument(
            "What is shared as '" + item.name + "' " +
            (twice ? "is there twice" : "lacks give or take") +
            ".\nGive each thing a name of its own, and both functions.");
      }
      item.give();
    }
  }

  // Names and types: equal on all ranks.
  std::string text() const {
    std::string text;
    for (const Shared& item : shared_) {
      text += (text.empty() ? "" : ", ") + item.name + " (" + item.type + ")";
    }
    return text;
  }

  size_t unnamed() const { return unnamed_.size(); }

  // Those that are shared first.
  std::vector<const torch::optim::Optimizer*> optimizers() const {
    std::vector<const torch::optim::Optimizer*> all;
    for (const Shared& item : shared_) {
      if (item.moves_parameters && item.object != nullptr) {
        all.push_back(static_cast<const torch::optim::Optimizer*>(item.object));
      }
    }
    all.insert(all.end(), unnamed_.begin(), unnamed_.end());
    return all;
  }

  // Before or after a step of this optimizer.
  void See(torch::optim::Optimizer& optimizer) {
    const auto known = optimizers();
    if (std::find(known.begin(), known.end(), &optimizer) == known.end() &&
        Moves(optimizer)) {
      unnamed_.push_back(&optimizer);
    }
  }

  // The states of all, each behind its size.
  std::vector<uint8_t> Give() const {
    std::vector<uint8_t> bytes;
    const auto add = [&](const std::string& state) {
      const uint64_t size = state.size();
      const auto* first = reinterpret_cast<const uint8_t*>(&size);
      bytes.insert(bytes.end(), first, first + sizeof(size));
      bytes.insert(bytes.end(), state.begin(), state.end());
    };
    for (const Shared& item : shared_) add(item.give());
    for (const torch::optim::Optimizer* optimizer : unnamed_) {
      add(GiveOptimizer(*optimizer));
    }
    return bytes;
  }

  // What Take() takes: the states in what Give() returned at another rank with
  // an equal text(). RefusedError: there are other unnamed optimizers here.
  std::vector<std::string> Parse(std::span<const uint8_t> bytes,
                                 bool optimizers_only) const {
    std::vector<std::string> states;
    while (bytes.size() >= sizeof(uint64_t)) {
      uint64_t size = 0;
      std::memcpy(&size, bytes.data(), sizeof(size));
      bytes = bytes.subspan(sizeof(size));
      size = std::min<uint64_t>(size, bytes.size());
      states.emplace_back(bytes.begin(), bytes.begin() + size);
      bytes = bytes.subspan(size);
    }
    const size_t named = shared_.size();
    if (states.size() < named ||
        (states.size() != named + unnamed_.size() && !optimizers_only)) {
      throw RefusedError("This rank has trained with " +
                         std::to_string(unnamed_.size()) +
                         " optimizers that are not shared, the rank that gives "
                         "its state with " +
                         std::to_string(states.size() - named) +
                         ", so that their states cannot be matched.\nShare the "
                         "optimizers on all ranks.");
    }
    return states;
  }

  // What one of them throws; all have their own state again then.
  void Take(const std::vector<std::string>& states,
            bool optimizers_only) const {
    const size_t named = shared_.size();
    std::vector<std::function<void()>> undo;
    try {
      for (size_t i = 0; i < named; ++i) {
        const Shared& item = shared_[i];
        if (!item.moves_parameters && optimizers_only) continue;
        const std::string own = item.give();
        item.take(states[i]);
        undo.push_back([&item, own] { item.take(own); });
      }
      if (states.size() != named + unnamed_.size()) return;
      for (size_t i = 0; i < unnamed_.size(); ++i) {
        torch::optim::Optimizer& optimizer = *unnamed_[i];
        const std::string own = GiveOptimizer(optimizer);
        TakeOptimizer(optimizer, states[named + i]);
        undo.push_back([&optimizer, own] { TakeOptimizer(optimizer, own); });
      }
    } catch (...) {
      for (const auto& restore : undo) restore();
      throw;
    }
  }

 private:
  bool Moves(torch::optim::Optimizer& optimizer) const {
    for (const auto& group : optimizer.param_groups()) {
      for (const at::Tensor& parameter : group.params()) {
        const auto is = [&](const NamedTensor& item) {
          return item.tensor.is_same(parameter);
        };
        if (std::any_of(trained_.begin(), trained_.end(), is)) return true;
      }
    }
    return false;
  }

  std::vector<Shared> shared_;
  const std::vector<NamedTensor> trained_;
  std::vector<torch::optim::Optimizer*> unnamed_;  // The first step first.
};

}  // namespace pactrain::internal

#endif  // PACTRAIN_TRAINER_CPP_LIBTORCH_SHARED_OBJECTS_H_
