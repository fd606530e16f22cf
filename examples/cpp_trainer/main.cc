// A libtorch program that trains with PacTrain: the C++ twin of examples/ddp.py
// (the same network, data and rates).
//
//   python examples/cpp_trainer/export_images.py out/digits.images
//   export PACTRAIN_AGENT=unix:/run/pactrain/agent.sock
//   torchrun --no-python --nproc-per-node=2 out/bin/cpp_trainer
//     --data=out/digits.images
#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/modules.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <optional>
#include <string>

#include "examples/cpp_trainer/images.h"
#include "examples/cpp_trainer/options.h"
#include "trainer/cpp/config.h"
#include "trainer/cpp/libtorch.h"

namespace pactrain::example {
namespace {

namespace nn = torch::nn;

struct Tensors {
  torch::Tensor images;  // float32 [n, channels, height, width]
  torch::Tensor labels;  // int64 [n]
};

Tensors ToTensors(const Images& images, const Part& part) {
  const auto count = static_cast<int64_t>(part.labels.size());
  return {torch::tensor(part.pixels)
              .view({count, images.channels, images.height, images.width}),
          torch::tensor(part.labels).to(torch::kLong)};
}

nn::Sequential MakeModel(int64_t channels, int64_t classes) {
  return nn::Sequential(
      nn::Conv2d(nn::Conv2dOptions(channels, 32, 3).padding(1)),
      nn::BatchNorm2d(32), nn::ReLU(),
      nn::Conv2d(nn::Conv2dOptions(32, 64, 3).padding(1)), nn::BatchNorm2d(64),
      nn::ReLU(), nn::MaxPool2d(2),
      nn::Conv2d(nn::Conv2dOptions(64, 128, 3).padding(1)),
      nn::BatchNorm2d(128), nn::ReLU(), nn::AdaptiveAvgPool2d(1), nn::Flatten(),
      nn::Linear(128, classes));
}

double Accuracy(nn::Sequential& model, const Tensors& data) {
  const torch::NoGradGuard no_grad;
  model->eval();
  const auto right =
      model->forward(data.images).argmax(1).eq(data.labels).sum();
  model->train();
  return right.item<double>() / static_cast<double>(data.labels.size(0));
}

// A program that prunes by itself and tells nobody.
class HandPruning {
 public:
  explicit HandPruning(const TorchModel& model) : model_(model) {}

  // What was pruned comes back with small values, equal at all ranks; then the
  // smallest share `amount` of each layer goes.
  void Prune(double amount) {
    const torch::NoGradGuard no_grad;
    for (const auto& [name, weights] : model_.parameters) {
      const auto found = masks_.find(name);
      if (found == masks_.end()) continue;
      // For each anew: a rank that comes later finds masks of other layers,
      // too.
      auto generator = at::detail::createCPUGenerator(/*seed_val=*/1);
      const torch::Tensor values =
          torch::randn(weights.sizes(), generator).mul_(0.01);
      weights.copy_(torch::where(found->second, weights, values));
    }
    masks_ = PruneByMagnitude(model_, amount);
  }

  // A rank that comes later has the masks of the weights that it took.
  void Find() {
    for (const auto& [name, weights] : model_.parameters) {
      if (weights.dim() > 1) masks_[name] = weights.detach().ne(0);
    }
  }

  // After each step of the optimizer, whose momentum would revive them.
  void Apply() {
    const torch::NoGradGuard no_grad;
    for (const auto& [name, weights] : model_.parameters) {
      const auto found = masks_.find(name);
      if (found != masks_.end()) weights.mul_(found->second);
    }
  }

 private:
  const TorchModel& model_;
  TorchMasks masks_;
};

// Of one epoch; every rank takes its part of the same order. How many ranks
// there are may change from step to step.
class Batches {
 public:
  Batches(const Tensors& data, int64_t epoch, int64_t size)
      : data_(data), size_(size) {
    auto generator =
        at::detail::createCPUGenerator(static_cast<uint64_t>(epoch));
    order_ = torch::randperm(data.labels.size(0), generator);
  }

  int64_t Count(int64_t world_size) const {
    return order_.size(0) / (size_ * world_size);
  }

  Tensors Get(int64_t step, int64_t rank, int64_t world_size) const {
    const int64_t first = (step * world_size + rank) * size_;
    const torch::Tensor chosen = order_.narrow(0, first, size_);
    return {data_.images.index_select(0, chosen),
            data_.labels.index_select(0, chosen)};
  }

 private:
  const Tensors& data_;
  const int64_t size_;
  torch::Tensor order_;
};

// The next batch. A rank that comes later goes on where the others are.
struct NextBatch {
  int64_t epoch = 0;
  int64_t step = 0;
};

// What the steps of one epoch add up to.
class Progress {
 public:
  void Add(double loss, const StepResult& step) {
    if (step.missed) return;
    loss_ += loss;
    sent_ += step.sent_bytes;
    ++steps_;
    ++modes_[step.dense ? "DENSE" : ModeText(step.mode, step.codec)];
  }

  double MeanLoss() const { return loss_ / std::max(1, steps_); }

  // "20 x COMPACTED fp32, 3 x FULL fp32, 1200 kB sent to other sites"
  std::string Text() const {
    std::string text;
    for (const auto& [mode, steps] : modes_) {
      text += std::to_string(steps) + " x " + mode + ", ";
    }
    const uint64_t kilobytes = (sent_ + 500) / 1000;
    return text + std::to_string(kilobytes) + " kB sent to other sites";
  }

 private:
  double loss_ = 0;
  uint64_t sent_ = 0;
  int steps_ = 0;
  std::map<std::string, int> modes_;
};

void CheckBatch(int64_t batch, const Images& images, int64_t world_size) {
  const int64_t most =
      static_cast<int64_t>(images.train.labels.size()) / world_size;
  if (batch <= most) return;
  throw InvalidArgument("--batch is " + std::to_string(batch) +
                        "; allowed is at most " + std::to_string(most) +
                        ", the images of each of " +
                        std::to_string(world_size) +
                        " ranks.\nGive a smaller one, or train fewer ranks.");
}

void Train(const Options& options) {
  AttachConfig config = ConfigFromEnvironment();
  config.activate_at = options.activate_at;
  config.pin = options.pin;
  config.pin_from = options.pin_from;
  config.track = options.track;
  // The loop masks weights only, so gradients outside are there to be dropped.
  config.gse = true;
  const Images images = ReadImages(options.data);
  CheckBatch(options.batch, images, config.world_size);
  const Tensors train = ToTensors(images, images.train);
  const Tensors test = ToTensors(images, images.test);

  torch::manual_seed(config.rank);  // Rank 0's weights go to all.
  nn::Sequential model = MakeModel(images.channels, images.classes);
  torch::optim::SGD optimizer(
      model->parameters(),
      torch::optim::SGDOptions(options.rate).momentum(0.9));
  const TorchModel parts = ModelOf(*model);
  const TorchMasks masks =
      options.track ? TorchMasks() : PruneByMagnitude(parts, options.amount);
  NextBatch place;
  TorchTrainer trainer(parts, masks,
                       {.config = config,
                        .shared = {SharedOptimizer("optimizer", optimizer),
                                   SharedNumbers("place", "NextBatch",
                                                 {{"epoch", &place.epoch},
                                                  {"step", &place.step}})}},
                       [](const std::string& text) {
                         std::fprintf(stderr, "%s\n", text.c_str());
                       });

  HandPruning pruning(parts);
  if (options.track && place.epoch + place.step > 0) pruning.Find();
  for (; place.epoch < options.epochs; ++place.epoch, place.step = 0) {
    const bool begins = options.track && place.step == 0;
    if (begins && place.epoch == 0) pruning.Prune(options.amount);
    if (begins && place.epoch == options.epochs / 2) {
      pruning.Prune(options.amount / 2);
    }
    const Batches batches(train, place.epoch, options.batch);
    Progress progress;
    for (; place.step < batches.Count(trainer.world_size()); ++place.step) {
      const Tensors batch =
          batches.Get(place.step, trainer.rank(), trainer.world_size());
      optimizer.zero_grad();
      const torch::Tensor loss =
          torch::cross_entropy_loss(model->forward(batch.images), batch.labels);
      loss.backward();
      progress.Add(loss.item<double>(), trainer.Step(optimizer));
      pruning.Apply();
    }
    if (trainer.rank() != 0) continue;
    std::printf("epoch %d: loss %.3f, test accuracy %.3f, %s\n",
                static_cast<int>(place.epoch + 1), progress.MeanLoss(),
                Accuracy(model, test), progress.Text().c_str());
  }
  trainer.SyncBuffers();
  const MaskSet& kept = trainer.masks();
  std::printf(
      "rank %u: accuracy %.4f, parameters %s, keep %.3f, %d weights outside\n",
      trainer.rank(), Accuracy(model, test),
      trainer.ParameterDigest().ToString().c_str(),
      static_cast<double>(kept.kept()) / static_cast<double>(kept.elements()),
      static_cast<int>(trainer.WeightsOutside()));
}

}  // namespace
}  // namespace pactrain::example

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  int exit_code = 0;
  const std::optional<pactrain::example::Options> options =
      pactrain::example::ParseOptions(argc, argv, &exit_code);
  if (!options.has_value()) return exit_code;
  try {
    pactrain::example::Train(*options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
