// One rank of a chaos run in C++: rank LOG UNTIL SEAT. As rank.py, by the rules
// of oracle.py, with the same logs, checkpoints and variables.
#include <ATen/ATen.h>
#include <torch/nn/module.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "trainer/cpp/config.h"
#include "trainer/cpp/libtorch.h"

namespace pactrain {
namespace {

constexpr int64_t kSeats = 8;
constexpr int64_t kElements = 3000;
constexpr int64_t kDense = 1000;
constexpr int64_t kUnit = 60;
constexpr int64_t kCheckpointSteps = 10;
constexpr auto kPace = std::chrono::milliseconds(50);

bool Kept(int64_t i) { return i < kDense || i % 2 == 0; }

float SeatValue(int64_t batch) {
  return static_cast<float>(kUnit * (1 + batch % 5) * (batch % 2 ? 1 : -1));
}

// Of every rank's gradient and of their mean, but for the seats' elements.
std::vector<float> Common(int64_t batch) {
  std::vector<float> values(kElements);
  for (int64_t i = kSeats; i < kElements; ++i) {
    const int64_t value = kUnit * ((batch * 31 + i * 17) % 9 - 4);
    if (Kept(i)) values[static_cast<size_t>(i)] = static_cast<float>(value);
  }
  return values;
}

// "[0, 1]", whose gradients a mean is of; "null": it is no mean of this batch's
// gradients.
std::string SeatsIn(int64_t batch, const float* mean) {
  std::vector<float> expected = Common(batch);
  std::vector<size_t> seats;
  for (size_t seat = 0; seat < kSeats; ++seat) {
    if (mean[seat] != 0) seats.push_back(seat);
  }
  std::string text;
  for (const size_t seat : seats) {
    expected[seat] = SeatValue(batch) / static_cast<float>(seats.size());
    text += (text.empty() ? "" : ", ") + std::to_string(seat);
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    if (mean[i] != expected[i]) return "null";
  }
  return seats.empty() ? "null" : "[" + text + "]";
}

std::string DigestOfBits(const at::Tensor& weights,
                         const at::Tensor& velocity) {
  const at::Tensor all = at::cat({weights.detach(), velocity.detach()});
  uint64_t sum = 0;
  for (int64_t i = 0; i < all.numel(); ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, all.const_data_ptr<float>() + i, sizeof bits);
    sum += bits * ((2 * static_cast<uint64_t>(i) + 1) * 0x9E3779B97F4A7C15u);
  }
  char text[17];
  std::snprintf(text, sizeof text, "%016llx",
                static_cast<unsigned long long>(sum));
  return text;
}

// CLOCK_MONOTONIC, as Python's time.monotonic().
double Now() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

struct Model : torch::nn::Module {
  Model()
      : torch::nn::Module("Model"),
        weights(register_parameter("weights", at::zeros({kElements}))),
        batches(register_buffer("batches", at::zeros({1}, at::kLong))) {}

  at::Tensor weights;
  at::Tensor batches;
};

class Checkpoint {
 public:
  explicit Checkpoint(std::string path) : path_(std::move(path)) {}

  void Save(const Model& model) const {
    const std::string next = path_ + ".new";
    std::ofstream file(next, std::ios::binary);
    file.write(static_cast<const char*>(model.batches.const_data_ptr()), 8);
    file.write(static_cast<const char*>(model.weights.const_data_ptr()),
               4 * kElements);
    file.close();
    if (!file) throw std::runtime_error("cannot write " + next);
    std::filesystem::rename(next, path_);
  }

  void Load(Model& model) const {
    std::ifstream file(path_, std::ios::binary);
    file.read(static_cast<char*>(model.batches.mutable_data_ptr()), 8);
    file.read(static_cast<char*>(model.weights.mutable_data_ptr()),
              4 * kElements);
    if (!file) throw std::runtime_error("cannot read " + path_);
  }

 private:
  std::string path_;
};

// Whether the file names a batch, and it was reached.
bool Ends(const std::string& until, int64_t batches) {
  std::ifstream file(until);
  int64_t last = 0;
  return (file >> last) && batches >= last;
}

at::Tensor Velocity(torch::optim::SGD& optimizer, const at::Tensor& weights) {
  return static_cast<torch::optim::SGDParamState&>(
             *optimizer.state().at(weights.unsafeGetTensorImpl()))
      .momentum_buffer();
}

class Log {
 public:
  explicit Log(const std::string& path) : file_(path, std::ios::app) {}

  void Write(const std::string& fields) {
    char time[32];
    std::snprintf(time, sizeof time, "%.6f", Now());
    file_ << "{\"time\": " << time << ", " << fields << "}" << std::endl;
  }

 private:
  std::ofstream file_;
};

void Train(Log& log, const std::string& until, size_t seat) {
  at::set_num_threads(1);
  Model model;
  const Checkpoint checkpoint(Variable("CHAOS_CHECKPOINT"));
  AttachConfig config = ConfigFromEnvironment();
  config.gse = true;
  if (config.replace) checkpoint.Load(model);
  torch::optim::SGD optimizer(model.parameters(),
                              torch::optim::SGDOptions(1).momentum(0.5));
  const at::Tensor index = at::arange(kElements);
  const at::Tensor kept = index.lt(kDense).logical_or(index.remainder(2).eq(0));
  log.Write("\"attaches\": true");
  TorchTrainer trainer(
      ModelOf(model), {{"weights", kept}},
      {.config = config, .shared = {SharedOptimizer("optimizer", optimizer)}},
      [](const std::string& text) {
        std::fprintf(stderr, "%s\n", text.c_str());
      });
  const torch::NoGradGuard no_grad;
  while (!Ends(until, model.batches.item<int64_t>())) {
    const int64_t batch = model.batches.item<int64_t>() + 1;
    std::vector<float> gradient = Common(batch);
    gradient[seat] = SeatValue(batch);
    model.weights.mutable_grad() = torch::tensor(gradient);
    // If missed, the others made the step; this rank has the state after it.
    if (trainer.Step(optimizer).missed) continue;
    model.batches.add_(1);
    log.Write(
        "\"batch\": " + std::to_string(batch) + ", \"digest\": \"" +
        DigestOfBits(model.weights, Velocity(optimizer, model.weights)) +
        "\", \"seats\": " +
        SeatsIn(batch, model.weights.grad().const_data_ptr<float>()) +
        ", \"ranks\": " + std::to_string(trainer.world_size()) +
        ", \"generation\": " + std::to_string(trainer.session().generation()) +
        ", \"lineage\": \"" + trainer.session().lineage().ToString() + "\"");
    if (trainer.rank() == 0 && batch % kCheckpointSteps == 0) {
      checkpoint.Save(model);
    }
    std::this_thread::sleep_for(kPace);
  }
}

}  // namespace
}  // namespace pactrain

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "rank LOG UNTIL SEAT, given were %d words\n",
                 argc - 1);
    return 2;
  }
  try {
    pactrain::Log log(argv[1]);
    pactrain::Train(log, argv[2], std::strtoul(argv[3], nullptr, 10));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
