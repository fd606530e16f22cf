// A trainer for tests: submits small integers from a hash and checks every mean
// that comes back against the sum it works out itself, so that a missing or a
// double contribution shows.
//
//   sum_trainer AGENT JOB RANK WORLD STEPS
//       [ATTACH_TIMEOUT_MS [POISONER FROM_STEP]]
//
// From that step on the rank POISONER sends enormous values, which all expect.
// Prints "attached", "step N MODE ok" per step, and at an error
// "error CODE: TEXT" with the code as the exit code. Zeros outside a mask that
// keeps 3 of 10 elements, for which it votes from the start.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "trainer/pactrain.h"

namespace {

constexpr uint64_t kSizes[] = {1000, 70001, 1, 200000};
constexpr uint32_t kBuckets = 4;
constexpr int kWrongSum = 50;
constexpr int kEnormous = 1 << 20;  // Sums are exact all the same.

uint64_t Mix(uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdull;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ull;
  return x ^ (x >> 33);
}

bool Kept(uint32_t bucket, uint64_t i) {
  return Mix(bucket * 7919 + i) % 10 < 3;
}

struct Poison {
  uint32_t rank = ~0u;
  uint64_t from_step = 0;
};

int Value(const Poison& poison, uint32_t rank, uint64_t step, uint32_t bucket,
          uint64_t i) {
  if (!Kept(bucket, i)) return 0;
  const uint64_t h = Mix(Mix(rank + 1) ^ Mix(step << 8 | bucket) ^ i);
  const int value = static_cast<int>(h % 17) - 8;
  const bool enormous = rank == poison.rank && step >= poison.from_step;
  return enormous ? value * kEnormous : value;
}

int Fail(int code, const char* text) {
  std::string line(text);
  for (char& c : line) {
    if (c == '\n') c = ' ';
  }
  std::printf("error %d: %s\n", code, line.c_str());
  return code;
}

pt_digest DigestOfNumber(uint64_t number) {
  return pt_digest_of(&number, sizeof number);
}

class Trainer {
 public:
  Trainer(uint32_t rank, uint32_t world, const Poison& poison)
      : rank_(rank), world_(world), poison_(poison) {
    for (uint32_t b = 0; b < kBuckets; ++b) {
      layouts_.push_back(DigestOfNumber(100 + b));
      data_.emplace_back(kSizes[b]);
    }
  }
  ~Trainer() { pt_close(session_); }

  int Attach(const char* agent, const char* job, uint32_t timeout_ms) {
    pt_attach_options options = {};
    options.agent = agent;
    options.job = job;
    options.launch = job;
    options.rank = rank_;
    options.world_size = world_;
    options.model_digest = DigestOfNumber(1);
    options.model_summary = "4 buckets of a test";
    for (const uint64_t size : kSizes) options.elements += size;
    options.attach_timeout_ms = timeout_ms;
    options.gse = 1;
    auto print = [](const char* text, void*) {
      std::printf("waiting %s\n", text);
    };
    const int code = pt_attach(&options, &session_, print, nullptr);
    if (code != PT_OK) return Fail(code, pt_last_error());
    std::printf("attached\n");
    return VoteForMasks(options.elements);
  }

  int Step() {
    const uint64_t step = pt_next_step(session_);
    for (uint32_t b = 0; b < kBuckets; ++b) {
      for (uint64_t i = 0; i < kSizes[b]; ++i) {
        data_[b][i] = static_cast<float>(Value(poison_, rank_, step, b, i));
      }
      const pt_part part = {data_[b].data(), kSizes[b]};
      const int code =
          pt_submit(session_, b, &part, 1, data_[b].data(), PT_FLOAT32, PT_SUM,
                    layouts_[b], b + 1 == kBuckets, nullptr);
      if (code != PT_OK) return Fail(code, pt_error_text(session_));
    }
    pt_step done = {};
    const int code = pt_wait(session_, &done);
    if (code != PT_OK) return Fail(code, pt_error_text(session_));
    return Check(done);
  }

 private:
  int VoteForMasks(uint64_t elements) {
    std::vector<std::vector<uint8_t>> bitmaps;
    std::vector<const uint8_t*> pointers;
    uint64_t kept = 0;
    for (uint32_t b = 0; b < kBuckets; ++b) {
      bitmaps.emplace_back((kSizes[b] + 7) / 8);
      for (uint64_t i = 0; i < kSizes[b]; ++i) {
        if (!Kept(b, i)) continue;
        bitmaps[b][i / 8] |= static_cast<uint8_t>(1u << (i % 8));
        ++kept;
      }
      pointers.push_back(bitmaps[b].data());
    }
    const pt_digest mask = DigestOfNumber(2), layout = DigestOfNumber(3);
    int code = pt_set_masks(session_, mask, 0, kBuckets, layouts_.data(),
                            kSizes, pointers.data());
    if (code == PT_OK) {
      code = pt_vote(session_, layout, mask, 1, 1, 1, kept, elements, nullptr);
    }
    return code == PT_OK ? PT_OK : Fail(code, pt_error_text(session_));
  }

  int Check(const pt_step& done) {
    for (uint32_t b = 0; b < kBuckets; ++b) {
      for (uint64_t i = 0; i < kSizes[b]; ++i) {
        int sum = 0;
        for (uint32_t r = 0; r < world_; ++r) {
          sum += Value(poison_, r, done.step, b, i);
        }
        const float mean = static_cast<float>(sum) / static_cast<float>(world_);
        // The library may multiply by 1 / world: one unit in the last place.
        if (std::abs(data_[b][i] - mean) > 1e-5f + 2e-7f * std::abs(mean)) {
          std::printf("step %llu bucket %u element %llu is %g, not %g\n",
                      static_cast<unsigned long long>(done.step), b,
                      static_cast<unsigned long long>(i), data_[b][i], mean);
          return kWrongSum;
        }
      }
    }
    std::printf("step %llu %s%s ok\n",
                static_cast<unsigned long long>(done.step),
                done.mode == PT_COMPACTED ? "COMPACTED" : "FULL",
                done.dense ? " DENSE" : "");
    return PT_OK;
  }

  const uint32_t rank_;
  const uint32_t world_;
  const Poison poison_;
  std::vector<pt_digest> layouts_;
  std::vector<std::vector<float>> data_;
  pt_session* session_ = nullptr;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) return Fail(PT_INVALID_ARGUMENT, "wants five arguments");
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  Poison poison;
  if (argc > 8) {
    poison = {static_cast<uint32_t>(std::atoi(argv[7])),
              static_cast<uint64_t>(std::atoi(argv[8]))};
  }
  Trainer trainer(static_cast<uint32_t>(std::atoi(argv[3])),
                  static_cast<uint32_t>(std::atoi(argv[4])), poison);
  const uint32_t timeout_ms =
      argc > 6 ? static_cast<uint32_t>(std::atoi(argv[6])) : 30000;
  int code = trainer.Attach(argv[1], argv[2], timeout_ms);
  for (int step = 0; code == PT_OK && step < std::atoi(argv[5]); ++step) {
    code = trainer.Step();
  }
  return code;
}
