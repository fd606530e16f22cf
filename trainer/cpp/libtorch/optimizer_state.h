// The state of an optimizer as libtorch itself writes it: for C++ ranks.
#ifndef PACTRAIN_TRAINER_CPP_LIBTORCH_OPTIMIZER_STATE_H_
#define PACTRAIN_TRAINER_CPP_LIBTORCH_OPTIMIZER_STATE_H_

#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <caffe2/serialize/inline_container.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <sstream>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>

#include "trainer/cpp/errors.h"
#include "trainer/cpp/shared.h"

namespace pactrain {
namespace internal {

// InvalidArgument: it does not save its state.
inline std::string GiveOptimizer(const torch::optim::Optimizer& optimizer) {
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  std::ostringstream stream;
  archive.save_to(stream);
  torch::serialize::InputArchive saved;
  std::istringstream again(stream.str());
  saved.load_from(again);
  if (saved.keys().empty()) {
    throw InvalidArgument(
        "The optimizer does not save its state (Optimizer::save()).\nShare its "
        "state as a Shared of your own.");
  }
  return stream.str();
}

// An archive is a TorchScript module. One with functions could run them here.
// InvalidArgument: it has some.
inline void CheckHasNoCode(const std::string& state) {
  std::istringstream stream(state);
  caffe2::serialize::PyTorchStreamReader reader(&stream);
  for (const std::string& name : reader.getAllRecords()) {
    if (!name.ends_with(".py")) continue;
    const auto [data, size] = reader.getRecord(name);
    const std::string_view text(static_cast<const char*>(data.get()), size);
    if (text.find("def ") == std::string_view::npos) continue;
    throw InvalidArgument("The state of an optimizer came with code in " +
                          name +
                          ".\nUse one release of pactrain on all ranks.");
  }
}

// RefusedError: it does not fit; nothing was changed.
inline void TakeOptimizer(torch::optim::Optimizer& optimizer,
                          const std::string& state) {
  const auto load = [&](const std::string& from) {
    CheckHasNoCode(from);
    torch::serialize::InputArchive archive;
    std::istringstream stream(from);
    archive.load_from(stream);
    optimizer.state().clear();  // What is not in the archive is not there.
    optimizer.load(archive);
  };
  const std::string before = GiveOptimizer(optimizer);
  try {
    load(state);
  } catch (const c10::Error& error) {
    load(before);
    throw RefusedError(
        std::string("The optimizer cannot take the state that came: ") +
        error.what_without_backtrace() +
        "\nMake it alike on all ranks, with the same groups of parameters.");
  }
}

}  // namespace internal

// An optimizer, to be shared; it has to outlive the trainer.
// InvalidArgument: it does not save its state.
inline Shared SharedOptimizer(std::string name,
                              torch::optim::Optimizer& optimizer) {
  internal::GiveOptimizer(optimizer);
  return {.name = std::move(name),
          .type = c10::demangle(typeid(optimizer).name()),
          .give = [&] { return internal::GiveOptimizer(optimizer); },
          .take =
              [&](const std::string& state) {
                internal::TakeOptimizer(optimizer, state);
              },
          .moves_parameters = true,
          .object = &optimizer};
}

}  // namespace pactrain

#endif  // PACTRAIN_TRAINER_CPP_LIBTORCH_OPTIMIZER_STATE_H_
