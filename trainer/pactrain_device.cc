// The C ABI for models on a GPU (trainer/device_abi.h).
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/cuda/mask_image.h"
#include "kernels/cuda/shapes.h"
#include "trainer/abi.h"
#include "trainer/core/text.h"
#include "trainer/cuda/device_kernels.h"
#include "trainer/nccl/library.h"

struct pt_cuda {
  std::unique_ptr<pactrain::trainer::cuda::DeviceKernels> impl;
};

namespace pactrain::trainer {
namespace {

Bucket ToBucket(uint32_t bucket, uint64_t elements, pt_digest layout) {
  Bucket converted;
  converted.index = bucket;
  converted.elements = elements;
  converted.layout = ToWire(layout);
  return converted;
}

// `reduces`: a bucket without a mask is packed, too, since NCCL sums fp32.
pt_plan ToPlan(const Placement& placement, const wire::Decision& decision,
               bool reduces) {
  pt_plan plan = {};
  plan.kept = placement.elements;
  const bool whole = placement.mask == nullptr;
  // Kernels count elements in 32 bits.
  if (placement.dense || (whole && !reduces) ||
      placement.bucket.elements > pactrain::cuda::kMaxElements) {
    plan.kept = placement.bucket.elements;
    return plan;
  }
  plan.packed = 1;
  if (whole) return plan;
  plan.count_outside = placement.count_outside ? 1 : 0;
  plan.image_bytes = pactrain::cuda::MaskImageBytes(
      static_cast<uint32_t>(placement.bucket.elements));
  plan.mask_digest = FromWire(decision.mask_digest);
  return plan;
}

bool IsSame(const pt_plan& a, const pt_plan& b) {
  return a.packed == b.packed && a.kept == b.kept &&
         a.mask_digest.hi == b.mask_digest.hi &&
         a.mask_digest.lo == b.mask_digest.lo;
}

// PT_OK, or what is wrong with a launch, which pt_last_error() says.
int Launched(const std::optional<cuda::CudaError>& error) {
  if (!error.has_value()) return PT_OK;
  SetLastError(error->text);
  return error->reason == cuda::Reason::kInvalidArgument ? PT_INVALID_ARGUMENT
                                                         : PT_INTERNAL;
}

// A bucket as kernels take it; PT_INVALID_ARGUMENT.
int ToKernels(uint64_t image, uint64_t elements, int dtype,
              cuda::DeviceMask* mask, cuda::ElementType* type) {
  if (elements > pactrain::cuda::kMaxElements) {
    SetLastError("elements is " + std::to_string(elements) + ", allowed are " +
                 std::to_string(pactrain::cuda::kMaxElements) +
                 ".\nMake smaller buckets.");
    return PT_INVALID_ARGUMENT;
  }
  if (dtype != PT_FLOAT32 && dtype != PT_BFLOAT16) {
    SetLastError("dtype is " + std::to_string(dtype) +
                 ", allowed 1 (float32) and 2 (bfloat16).\nConvert it first.");
    return PT_INVALID_ARGUMENT;
  }
  *mask = {.image = image, .elements = static_cast<uint32_t>(elements)};
  *type = dtype == PT_FLOAT32 ? cuda::ElementType::kFloat32
                              : cuda::ElementType::kBfloat16;
  return PT_OK;
}

// Cut to what fits, with a NUL.
void CopyText(const std::string& words, char* text, uint64_t bytes) {
  if (text == nullptr || bytes == 0) return;
  const size_t copied = std::min<size_t>(words.size(), bytes - 1);
  std::memcpy(text, words.data(), copied);
  text[copied] = 0;
}

}  // namespace
}  // namespace pactrain::trainer

namespace trainer = pactrain::trainer;
namespace cuda = pactrain::trainer::cuda;

int pt_plan_bucket(pt_session* session, uint32_t bucket, uint64_t elements,
                   pt_digest bucket_layout, pt_plan* out) {
  return trainer::Run(session, [&]() -> trainer::Error {
    if (out == nullptr) return trainer::Invalid("out is null.\nPass a plan.");
    *out = trainer::ToPlan(
        session->impl->Plan(trainer::ToBucket(bucket, elements, bucket_layout)),
        session->impl->decision(), session->impl->node_report().open != 0);
    return {};
  });
}

int pt_mask_image(pt_session* session, uint32_t bucket, uint64_t elements,
                  pt_digest bucket_layout, const pt_plan* plan, void* image) {
  return trainer::Run(session, [&]() -> trainer::Error {
    if (plan == nullptr || image == nullptr) {
      return trainer::Invalid("plan or image is null.\nPass both.");
    }
    const trainer::Placement placement =
        session->impl->Plan(trainer::ToBucket(bucket, elements, bucket_layout));
    const pt_plan now =
        trainer::ToPlan(placement, session->impl->decision(), false);
    if (now.packed == 0 || !trainer::IsSame(now, *plan)) {
      return trainer::Invalid(
          "bucket " + std::to_string(bucket) +
          " has another plan now.\nAsk for its plan again.");
    }
    const std::vector<uint32_t> words =
        pactrain::cuda::MaskImage(*placement.mask);
    std::memcpy(image, words.data(), now.image_bytes);
    return {};
  });
}

int pt_reduce(pt_session* session, uint32_t bucket, uint64_t elements,
              const pt_plan* plan, int dtype, pt_digest bucket_layout,
              uint64_t in, uint64_t out, void* stream, int32_t* path) {
  return trainer::Run(session, [&]() -> trainer::Error {
    if (plan == nullptr || path == nullptr) {
      return trainer::Invalid("plan or path is null.\nPass both.");
    }
    trainer::Bucket converted =
        trainer::ToBucket(bucket, elements, bucket_layout);
    converted.dtype = static_cast<trainer::Dtype>(trainer::ToByte(dtype));
    pt_path found = PT_PATH_HOST;
    trainer::Error error =
        session->impl->Reduce(converted, trainer::ToWire(plan->mask_digest),
                              {.in = reinterpret_cast<const void*>(in),
                               .out = reinterpret_cast<void*>(out),
                               .elements = plan->kept,
                               .stream = stream},
                              &found);
    *path = found;
    return error;
  });
}

int pt_node_report(pt_session* session, pt_node* out) {
  return trainer::Run(session, [&]() -> trainer::Error {
    if (out == nullptr) return trainer::Invalid("out is null.\nPass it.");
    *out = session->impl->node_report();
    return {};
  });
}

int pt_device_path(pt_session* session, int32_t path, const char* reason) {
  return trainer::Run(session, [&]() -> trainer::Error {
    const std::string words = reason == nullptr ? "" : reason;
    if (path < PT_DEVICE_CPU || path > PT_DEVICE_NCCL ||
        words.size() >= pactrain::wire::kMovedBytes ||
        !trainer::IsPrintable(words)) {
      return trainer::Invalid(
          "path is " + std::to_string(path) + ", allowed 0 to 3; reason has " +
          std::to_string(words.size()) + " bytes, allowed are " +
          std::to_string(pactrain::wire::kMovedBytes - 1) +
          " of printable ASCII.\nCorrect them.");
    }
    return session->impl->TellDevicePath(static_cast<uint8_t>(path), words);
  });
}

int pt_nccl_status(char* text, uint64_t bytes) {
  const auto found = trainer::nccl::Library::Find();
  const auto* why = std::get_if<std::string>(&found);
  std::string words;
  if (why != nullptr) {
    words = *why;
  } else {
    const auto& library =
        std::get<std::shared_ptr<const trainer::nccl::Library>>(found);
    words = "NCCL " + trainer::nccl::VersionText(library->version()) + ", " +
            library->file();
  }
  trainer::CopyText(words, text, bytes);
  return why == nullptr ? 0 : PT_REFUSED;
}

int pt_submit_packed(pt_session* session, uint32_t bucket, uint64_t elements,
                     const pt_plan* plan, const pt_packed* packed, void* memory,
                     int dtype, pt_digest bucket_layout, int last,
                     const pt_digest* parameters, pt_fill fill, void* arg) {
  return trainer::Run(session, [&]() -> trainer::Error {
    if (plan == nullptr || packed == nullptr || fill == nullptr ||
        (memory == nullptr && elements > 0)) {
      return trainer::Invalid("bucket " + std::to_string(bucket) +
                              ": plan, packed, memory or fill is null.\nPass "
                              "all four.");
    }
    if (packed->path < PT_PATH_HOST || packed->path > PT_PATH_FOLLOWER) {
      return trainer::Invalid("bucket " + std::to_string(bucket) +
                              ": path is " + std::to_string(packed->path) +
                              ", allowed 0 to 2.\nPass what pt_reduce() "
                              "said, or 0.");
    }
    trainer::Bucket converted =
        trainer::ToBucket(bucket, elements, bucket_layout);
    converted.dtype = static_cast<trainer::Dtype>(trainer::ToByte(dtype));
    converted.last = last != 0;
    if (parameters != nullptr) {
      converted.parameters = trainer::ToWire(*parameters);
    }
    return session->impl->SubmitPacked(
        converted,
        {.mask = trainer::ToWire(plan->mask_digest),
         .kept = plan->kept,
         .outside = packed->outside,
         .squares = packed->squares,
         .path = static_cast<pt_path>(packed->path),
         .fill = [=] { return fill(bucket, arg) == 0; }},
        memory);
  });
}

int pt_cuda_status(char* text, uint64_t bytes) {
  const auto status = cuda::Describe();
  const auto* error = std::get_if<cuda::CudaError>(&status);
  const std::string& words =
      error == nullptr ? std::get<std::string>(status) : error->text;
  trainer::CopyText(words, text, bytes);
  return error == nullptr ? 0 : static_cast<int>(error->reason);
}

int pt_cuda_open(pt_cuda** out) {
  if (out == nullptr) return PT_INVALID_ARGUMENT;
  *out = nullptr;
  const trainer::Error opened = trainer::Guarded([&]() -> trainer::Error {
    const auto refuse = [](const cuda::CudaError& error) {
      return trainer::Error{.code = pactrain::wire::Code::kRefused,
                            .text = error.text};
    };
    auto driver = cuda::Driver::Load();
    if (auto* error = std::get_if<cuda::CudaError>(&driver)) {
      return refuse(*error);
    }
    auto kernels = cuda::DeviceKernels::Load(
        std::get<std::shared_ptr<const cuda::Driver>>(std::move(driver)));
    if (auto* error = std::get_if<cuda::CudaError>(&kernels)) {
      return refuse(*error);
    }
    *out = new pt_cuda{
        std::get<std::unique_ptr<cuda::DeviceKernels>>(std::move(kernels))};
    return {};
  });
  if (!opened.ok()) trainer::SetLastError(opened.text);
  return static_cast<int>(opened.code);
}

void pt_cuda_close(pt_cuda* cuda) { delete cuda; }

uint64_t pt_cuda_totals_bytes(uint64_t elements) {
  const uint64_t blocks = (elements + pactrain::cuda::kBlockElements - 1) /
                          pactrain::cuda::kBlockElements;
  return blocks * sizeof(pactrain::cuda::BlockTotals);
}

int pt_cuda_compact(const pt_cuda* kernels, uint64_t image, uint64_t elements,
                    int dtype, uint64_t in, int count_outside, uint64_t packed,
                    uint64_t totals, void* stream) {
  cuda::DeviceMask mask;
  cuda::ElementType type;
  if (const int code = trainer::ToKernels(image, elements, dtype, &mask, &type);
      code != PT_OK) {
    return code;
  }
  return trainer::Launched(kernels->impl->Compact(
      mask, type, in, count_outside != 0, packed, totals, stream));
}

int pt_cuda_expand_divide(const pt_cuda* kernels, uint64_t image,
                          uint64_t elements, int dtype, uint64_t packed,
                          uint32_t world_size, uint64_t out, void* stream) {
  cuda::DeviceMask mask;
  cuda::ElementType type;
  if (const int code = trainer::ToKernels(image, elements, dtype, &mask, &type);
      code != PT_OK) {
    return code;
  }
  return trainer::Launched(
      kernels->impl->ExpandDivide(mask, type, packed, world_size, out, stream));
}
