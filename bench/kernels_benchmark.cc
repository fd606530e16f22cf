// Speed of the kernels on one thread: every variant that this CPU has, beside
// memcpy and the torch operation that a user would write. bench/kernels.py runs
// it and reads the rows: operation/who. A row's bytes are what the operation
// has to read and to write (of a mask a bit per element); the codec's are those
// of its fp32 elements. One row is of two threads, by the clock: the sum as an
// agent shares it out.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "base/crew.h"
#include "kernels/levels.h"
#include "kernels/mask_plan.h"
#include "kernels/sum.h"
#include "kernels/variants.h"

namespace pactrain::kernels {
namespace {

constexpr size_t kElements = 24 << 20;  // 96 MiB: more than most caches hold.
constexpr size_t kCodecElements = 4 << 20;
constexpr size_t kFrame = 16384;  // What travels at once in n levels.
constexpr size_t kTerms = 4;      // What is summed.
constexpr float kDivisor = 3.0f;

struct Mask {
  explicit Mask(const char* name)
      : name(name),
        tensor(at::rand({static_cast<int64_t>(kElements)}) < std::stod(name)),
        plan(Bitmap().data(), kElements) {}

  std::vector<uint8_t> Bitmap() const {
    const bool* kept = tensor.data_ptr<bool>();
    std::vector<uint8_t> bitmap(kElements / 8);
    for (size_t i = 0; i < kElements; ++i) {
      bitmap[i / 8] |= static_cast<uint8_t>(kept[i] << i % 8);
    }
    return bitmap;
  }
  // One way or the other: all elements, the mask, those that are kept.
  size_t Bytes() const {
    return 4 * kElements + kElements / 8 + 4 * plan.kept();
  }

  std::string name;  // Of how much is kept.
  at::Tensor tensor;
  MaskPlan plan;
};

// Memory of torch on both sides: the same alignment and pages.
struct Buffers {
  at::Tensor in = at::randn({static_cast<int64_t>(kElements)});
  at::Tensor out = at::zeros_like(in);
  at::Tensor half = at::zeros_like(in, at::kBFloat16);
  std::vector<at::Tensor> terms = {in, in.clone(), in.clone(), in.clone()};
  at::Tensor codec_in = at::randn({static_cast<int64_t>(kCodecElements)});

  const float* From() const { return in.data_ptr<float>(); }
  float* To() const { return out.data_ptr<float>(); }
};

benchmark::internal::Benchmark* Add(const std::string& name, size_t bytes,
                                    std::function<void()> call) {
  const auto run = [=](benchmark::State& state) {
    for (auto iteration : state) call();
    state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(bytes));
  };
  return benchmark::RegisterBenchmark(name.c_str(), run)
      ->Unit(benchmark::kMillisecond);
}

// A row for each variant that has an `op` of its own.
template <class Op, class Call>
void AddVariants(const std::string& name, size_t bytes, Op Variant::*op,
                 Call call) {
  std::vector<Op> seen;
  for (const Variant* variant : Variants()) {
    const Op own = variant->*op;
    if (std::count(seen.begin(), seen.end(), own) != 0) continue;
    seen.push_back(own);
    Add(name + "/" + variant->name, bytes, [=] { call(own); });
  }
}

void AddCompact(Buffers& buffers, const Mask& mask) {
  const auto run = [&](auto op) {
    op(mask.plan, AllTiles(mask.plan), buffers.From(), buffers.To());
  };
  AddVariants("compact " + mask.name, mask.Bytes(), &Variant::compact, run);
  Add("compact " + mask.name + "/torch.masked_select", mask.Bytes(), [&] {
    benchmark::DoNotOptimize(at::masked_select(buffers.in, mask.tensor));
  });
  AddVariants("compact_and_count " + mask.name, mask.Bytes(),
              &Variant::compact_and_count, run);
}

void AddExpand(Buffers& buffers, const Mask& mask) {
  AddVariants(
      "expand " + mask.name, mask.Bytes(), &Variant::expand, [&](auto op) {
        op(mask.plan, AllTiles(mask.plan), buffers.From(), buffers.To());
      });
  Add("expand " + mask.name + "/torch.masked_scatter", mask.Bytes(), [&] {
    buffers.out.zero_();
    buffers.out.masked_scatter_(mask.tensor, buffers.in);
  });
  AddVariants("expand_divide " + mask.name, mask.Bytes(),
              &Variant::expand_divide, [&](auto op) {
                op(mask.plan, AllTiles(mask.plan), buffers.From(), kDivisor,
                   buffers.To());
              });
}

void AddPlain(Buffers& buffers) {
  const size_t bytes = 8 * kElements;
  AddVariants("divide", bytes, &Variant::divide, [&](auto op) {
    op(buffers.From(), kElements, kDivisor, buffers.To());
  });
  Add("divide/torch.div", bytes,
      [&] { at::div_out(buffers.out, buffers.in, kDivisor); });
  AddVariants("to_bf16", 6 * kElements, &Variant::to_bf16, [&](auto op) {
    op(buffers.From(), kElements,
       static_cast<uint16_t*>(buffers.half.data_ptr()));
  });
  Add("to_bf16/torch.copy_", 6 * kElements,
      [&] { buffers.half.copy_(buffers.in); });
}

void AddSum(Buffers& buffers) {
  const size_t bytes = 4 * (kTerms + 1) * kElements;
  AddVariants("sum of 4", bytes, &Variant::sum, [&](auto op) {
    const float* in[kTerms];
    for (size_t t = 0; t < kTerms; ++t) {
      in[t] = buffers.terms[t].template data_ptr<float>();
    }
    op(in, kTerms, kElements, buffers.To());
  });
  Add("sum of 4/2 threads", bytes, [&] {
    static base::Crew crew(2);
    crew.Share(kElements, kFrame, [&](size_t first, size_t count) {
      const float* in[kTerms];
      for (size_t t = 0; t < kTerms; ++t) {
        in[t] = buffers.terms[t].template data_ptr<float>() + first;
      }
      Sum(in, kTerms, count, buffers.To() + first);
    });
  })->UseRealTime();
  Add("sum of 4/torch.add", bytes, [&] {
    at::add_out(buffers.out, buffers.terms[0], buffers.terms[1]);
    for (size_t t = 2; t < kTerms; ++t) buffers.out.add_(buffers.terms[t]);
  });
}

// The encoded frames of codec_in, each with room for the longest.
struct Encoded {
  Encoded(Levels levels, const float* in)
      : levels(levels),
        stride(MaxLevelsBytes(levels, kFrame)),
        bytes(stride * (kCodecElements / kFrame)),
        sizes(kCodecElements / kFrame) {
    Encode(EncodeLevels, in);
  }
  template <class Op>
  void Encode(Op op, const float* in) {
    for (size_t i = 0; i < kCodecElements / kFrame; ++i) {
      op(levels, {i, 0}, LevelsForm::kShorter, in + i * kFrame, kFrame,
         bytes.data() + i * stride, &sizes[i], nullptr);
    }
  }
  template <class Op>
  void Decode(Op op, float* out) const {
    for (size_t i = 0; i < kCodecElements / kFrame; ++i) {
      op(levels, {i, 0}, {bytes.data() + i * stride, sizes[i]}, kFrame,
         out + i * kFrame);
    }
  }

  double BitsPerElement() const {
    const size_t all = std::accumulate(sizes.begin(), sizes.end(), size_t{0});
    return 8.0 * static_cast<double>(all) / kCodecElements;
  }

  Levels levels;
  size_t stride;
  std::vector<uint8_t> bytes;
  std::vector<size_t> sizes;  // By frame, from where it begins.
};

void AddCodec(Buffers& buffers, Encoded& encoded) {
  const std::string name = std::to_string(static_cast<int>(encoded.levels));
  const size_t bytes = 4 * kCodecElements;
  AddVariants("encode " + name, bytes, &Variant::encode_levels, [&](auto op) {
    encoded.Encode(op, buffers.codec_in.template data_ptr<float>());
  });
  AddVariants("decode " + name, bytes, &Variant::decode_levels,
              [&](auto op) { encoded.Decode(op, buffers.To()); });
}

// One scale for all, no packing and no figures of the noise: still the nearest
// that a line of torch does.
void AddTorchCodec(Buffers& buffers) {
  const size_t bytes = 4 * kCodecElements;
  const at::Tensor codes = at::zeros_like(buffers.codec_in, at::kChar);
  Add("encode 7/torch", bytes, [=, &buffers] {
    const at::Tensor dither = at::rand_like(buffers.codec_in);
    codes.copy_(dither.add_(buffers.codec_in).floor_().clamp_(-3, 3));
  });
  Add("decode 7/torch", bytes,
      [=] { benchmark::DoNotOptimize(codes.to(at::kFloat).mul_(0.5)); });
}

void AddAll(Buffers& buffers, const std::vector<Mask>& masks,
            std::vector<Encoded>& encoded) {
  Add("memcpy/memcpy", 8 * kElements,
      [&] { std::memcpy(buffers.To(), buffers.From(), 4 * kElements); });
  for (const Mask& mask : masks) {
    AddCompact(buffers, mask);
    AddExpand(buffers, mask);
  }
  AddPlain(buffers);
  AddSum(buffers);
  for (Encoded& one : encoded) AddCodec(buffers, one);
  AddTorchCodec(buffers);
}

}  // namespace
}  // namespace pactrain::kernels

int main(int argc, char** argv) {
  using namespace pactrain::kernels;
  at::set_num_threads(1);
  at::manual_seed(1);
  Buffers buffers;
  std::vector<Mask> masks;
  for (const char* keep : {"0.5", "0.1", "0.01"}) masks.emplace_back(keep);
  std::vector<Encoded> encoded;
  for (Levels levels :
       {Levels::k3, Levels::k5, Levels::k7, Levels::k15, Levels::k31}) {
    encoded.emplace_back(levels, buffers.codec_in.data_ptr<float>());
  }
  AddAll(buffers, masks, encoded);
  benchmark::AddCustomContext("best_variant", BestVariant().name);
  for (const Encoded& one : encoded) {
    benchmark::AddCustomContext(
        "bits" + std::to_string(static_cast<int>(one.levels)),
        std::to_string(one.BitsPerElement()));
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
}
