// A device for torch without a GPU, for tests: it works as late as it may.
//
// What is enqueued on a stream runs when the host waits for it, or when a
// stream that the host waits for comes to a wait for its event; never earlier.
// So whatever forgets a wait reads what was there before, each time. Streams
// have no threads: a run has one outcome.
//
// Operators are torch's for the CPU. Each first runs what its stream has, and
// its results are written by that stream, late. New and freed memory is filled
// with NaNs.

#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <signal.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

using at::Tensor;

constexpr auto kType = c10::DeviceType::PrivateUse1;
constexpr c10::DeviceIndex kDevices = 2;
constexpr int kPoison = 0xFF;  // A NaN in every type of float.
constexpr std::size_t kGraves = std::size_t{64} << 20;

// A stream's work, in order.
struct Queue {
  std::deque<std::function<void()>> tasks;
  std::uint64_t enqueued = 0;
  std::uint64_t done = 0;
  std::uint64_t host_waits =
      0;  // That found something to do, not by operators.
};

using Clock = std::chrono::steady_clock;

// A place in a queue: what was enqueued before it.
struct Mark {
  Queue* queue = nullptr;
  std::uint64_t until = 0;
  std::shared_ptr<Clock::time_point> come_to;  // When; null: nobody asks.
};

struct Block {
  std::size_t size = 0;
  Queue* queue = nullptr;  // That of the stream that it was allocated on.
  std::vector<Queue*> users;
};

// Recursive: tasks free memory. Whoever has it never needs Python's lock.
std::recursive_mutex mutex;
std::map<std::pair<int, c10::StreamId>, Queue> queues;
std::unordered_map<void*, Block> blocks;
std::map<const char*, std::size_t> pinned;
// Freed, and still to be used by these.
struct Leaving {
  void* data = nullptr;
  std::size_t size = 0;
  std::vector<Mark> users;
};
std::vector<Leaving> leaving;
std::deque<std::pair<void*, std::size_t>> graves;
std::size_t buried = 0;
std::atomic<c10::StreamId> last_stream{0};
std::atomic<std::int64_t> pinned_limit{
    -1};  // Bytes; what is larger does not fit.
std::atomic<bool> capturing{false};
std::atomic<bool> broken{
    false};  // As after an illegal access: every call fails.
thread_local c10::DeviceIndex current_device = 0;
thread_local std::array<c10::StreamId, kDevices> current_streams{};
thread_local bool in_operator = false;

using Lock = std::lock_guard<std::recursive_mutex>;

void Check() {
  TORCH_CHECK(!broken, "queued device: an illegal access was encountered");
}

Queue& QueueOf(c10::DeviceIndex device, c10::StreamId stream) {
  return queues[{device, stream}];
}

Queue& CurrentQueue(c10::Device device) {
  return QueueOf(device.index(), current_streams[device.index()]);
}

void RunUntil(Queue& queue, std::uint64_t until) {
  while (queue.done < until) {
    auto task = std::move(queue.tasks.front());
    queue.tasks.pop_front();
    task();
    ++queue.done;
  }
}

void HostWaits(const Mark& mark) {
  if (mark.queue == nullptr) return;
  const Lock lock(mutex);
  if (!in_operator && mark.queue->done < mark.until) ++mark.queue->host_waits;
  RunUntil(*mark.queue, mark.until);
}

// As of CUDA: with its first work a thread has the device's context.
thread_local bool has_context = false;

void Enqueue(Queue& queue, std::function<void()> task) {
  has_context = true;
  queue.tasks.push_back(std::move(task));
  ++queue.enqueued;
}

void Wait(Queue& queue, const Mark& mark) {
  if (mark.queue == nullptr) return;
  Enqueue(queue, [mark] { RunUntil(*mark.queue, mark.until); });
}

void Bury(void* data, std::size_t size) {
  std::memset(data, kPoison, size);
  graves.emplace_back(data, size);
  buried += size;
  while (buried > kGraves) {
    std::free(graves.front().first);
    buried -= graves.front().second;
    graves.pop_front();
  }
}

void BuryUnused() {
  std::erase_if(leaving, [](const Leaving& block) {
    for (const Mark& mark : block.users) {
      if (mark.queue->done < mark.until) return false;
    }
    Bury(block.data, block.size);
    return true;
  });
}

void Free(void* data) {
  const Lock lock(mutex);
  const auto found = blocks.find(data);
  if (found == blocks.end()) return;
  const Block block = std::move(found->second);
  blocks.erase(found);
  Leaving left{data, block.size, {{block.queue, block.queue->enqueued}}};
  for (Queue* user : block.users) left.users.push_back({user, user->enqueued});
  leaving.push_back(std::move(left));
  BuryUnused();
}

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(std::size_t size) override {
    Check();
    const c10::Device device(kType, current_device);
    if (size == 0) return {nullptr, nullptr, &Free, device};
    void* data = std::aligned_alloc(64, (size + 63) / 64 * 64);
    std::memset(data, kPoison, size);
    const Lock lock(mutex);
    blocks[data] = {size, &CurrentQueue(device), {}};
    return {data, data, &Free, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Free; }
  void copy_data(void* to, const void* from, std::size_t size) const override {
    std::memcpy(to, from, size);
  }
};

// As torch's for CUDA it gives nothing back that a stream may still use: here,
// nothing at all.
struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(std::size_t size) override {
    const auto limit = pinned_limit.load();
    TORCH_CHECK(limit < 0 || static_cast<std::int64_t>(size) <= limit,
                "queued device: out of page-locked memory");
    auto* data =
        static_cast<char*>(std::aligned_alloc(64, (size + 64) / 64 * 64));
    std::memset(data, kPoison, size);
    const Lock lock(mutex);
    pinned[data] = size;
    return {data, data, &Forget, c10::Device(c10::kCPU)};
  }
  static void Forget(void* data) {}
  c10::DeleterFnPtr raw_deleter() const override { return &Forget; }
  void copy_data(void* to, const void* from, std::size_t size) const override {
    std::memcpy(to, from, size);
  }
};

bool IsPinned(const void* data) {
  const Lock lock(mutex);
  const auto* place = static_cast<const char*>(data);
  auto found = pinned.upper_bound(place);
  return found != pinned.begin() && place < (--found)->first + found->second;
}

DeviceAllocator device_allocator;
PinnedAllocator pinned_allocator;
REGISTER_ALLOCATOR(kType, &device_allocator);

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {kType, current_device}; }
  void setDevice(c10::Device device) const override {
    current_device = device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0) current_device = device.index();
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  static c10::Stream StreamOf(c10::Device device, c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, device, id);
  }
  static c10::Device WithIndex(c10::Device device) {
    return device.has_index() ? device : c10::Device(kType, current_device);
  }
  c10::Stream getStream(c10::Device device) const override {
    device = WithIndex(device);
    return StreamOf(device, current_streams[device.index()]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return StreamOf(WithIndex(device), 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getNewStream(device, 0);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return StreamOf(WithIndex(device), ++last_stream);
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return reinterpret_cast<void*>(static_cast<std::intptr_t>(stream.id()));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const auto before = getStream(stream.device());
    current_streams[stream.device_index()] = stream.id();
    return before;
  }

  static Queue& Of(const c10::Stream& stream) {
    return QueueOf(stream.device_index(), stream.id());
  }
  void destroyEvent(void* event,
                    const c10::DeviceIndex) const noexcept override {
    delete static_cast<Mark*>(event);
  }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag flag) const override {
    Check();
    const Lock lock(mutex);
    if (*event == nullptr) *event = new Mark;
    std::shared_ptr<Clock::time_point> time;
    if (flag == c10::EventFlag::BACKEND_DEFAULT) {
      time = std::make_shared<Clock::time_point>();
      Enqueue(Of(stream), [time] { *time = Clock::now(); });
    }
    *static_cast<Mark*>(*event) = {&Of(stream), Of(stream).enqueued, time};
  }
  double elapsedTime(void* from, void* to,
                     const c10::DeviceIndex) const override {
    const std::chrono::duration<double, std::milli> between =
        *static_cast<Mark*>(to)->come_to - *static_cast<Mark*>(from)->come_to;
    return between.count();
  }
  void block(void* event, const c10::Stream& stream) const override {
    Check();
    const Lock lock(mutex);
    if (event != nullptr) Wait(Of(stream), *static_cast<Mark*>(event));
  }
  bool queryEvent(void* event) const override {
    const Lock lock(mutex);
    const auto* mark = static_cast<Mark*>(event);
    return mark == nullptr || mark->queue == nullptr ||
           mark->queue->done >= mark->until;
  }
  bool queryStream(const c10::Stream& stream) const override {
    const Lock lock(mutex);
    return Of(stream).tasks.empty();
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    Check();
    const Lock lock(mutex);
    HostWaits({&Of(stream), Of(stream).enqueued});
    Check();
  }
  bool isStreamCapturing(const c10::Stream&) const override {
    return capturing;
  }
  void synchronizeEvent(void* event) const override {
    Check();
    if (event != nullptr) HostWaits(*static_cast<Mark*>(event));
    Check();
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    Check();
    const Lock lock(mutex);
    for (auto& [key, queue] : queues) {
      if (key.first == device) HostWaits({&queue, queue.enqueued});
    }
  }
  void recordDataPtrOnStream(const c10::DataPtr& data,
                             const c10::Stream& stream) const override {
    const Lock lock(mutex);
    const auto found = blocks.find(data.get());
    if (found != blocks.end()) found->second.users.push_back(&Of(stream));
  }
};

const c10::impl::DeviceGuardImplRegistrar guard(kType,
                                                new Guard);  // Lives for ever.

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  void setCurrentDevice(c10::DeviceIndex device) const override {
    current_device = device;
  }
  c10::DeviceIndex getCurrentDevice() const override { return current_device; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return std::exchange(current_device, device);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return exchangeDevice(device);
  }
  bool isPinnedPtr(const void* data) const override { return IsPinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    return &pinned_allocator;
  }
};

const bool registered =
    (at::RegisterPrivateUse1HooksInterface(new Hooks), true);

// The same memory as a tensor of the CPU, which does not own it.
Tensor OnCpu(const Tensor& tensor) {
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(),
                       tensor.options().device(c10::kCPU).pinned_memory(false));
}

// Of what its stream has done so far.
Tensor Snapshot(const Tensor& tensor) {
  const at::AutoDispatchBelowADInplaceOrView below;
  if (tensor.is_cpu()) return tensor.clone();
  const Lock lock(mutex);
  auto& queue = CurrentQueue(tensor.device());
  HostWaits({&queue, queue.enqueued});
  return OnCpu(tensor).clone();
}

Tensor CopyFrom(const Tensor& from, const Tensor& to, bool non_blocking) {
  Check();
  if (to.numel() == 0) return to;
  const at::AutoDispatchBelowADInplaceOrView below;
  const bool down = to.is_cpu();
  const bool up = from.is_cpu();
  if (down && !(non_blocking && IsPinned(to.data_ptr()))) {
    to.copy_(Snapshot(from).view_as(from));
    return to;
  }
  {
    const Lock lock(mutex);
    auto& queue = CurrentQueue(down ? from.device() : to.device());
    // Read late where CUDA may read late.
    const bool late = down ||
                      (up && non_blocking && IsPinned(from.data_ptr())) ||
                      (!up && from.sizes() == to.sizes());
    const Tensor source = late ? OnCpu(from) : Snapshot(from);
    Enqueue(queue, [source, target = OnCpu(to)] {
      const at::AutoDispatchBelowADInplaceOrView inside;
      target.copy_(source);
    });
  }
  return to;  // Another handle of Python's object: that takes Python's lock.
}

Tensor Resized(const Tensor& tensor, at::IntArrayRef size);

Tensor CopyFromAndResize(const Tensor& from, const Tensor& to) {
  Resized(to, from.sizes());
  return CopyFrom(from, to, false);
}

Tensor Empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype,
             std::optional<at::Layout>, std::optional<at::Device> device,
             std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard on(device);
  return at::detail::empty_generic(
      size, &device_allocator,
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::dtype_or_default(dtype), format);
}

Tensor EmptyStrided(c10::IntArrayRef size, c10::IntArrayRef stride,
                    std::optional<at::ScalarType> dtype,
                    std::optional<at::Layout>, std::optional<at::Device> device,
                    std::optional<bool>) {
  const c10::OptionalDeviceGuard on(device);
  return at::detail::empty_strided_generic(
      size, stride, &device_allocator,
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::dtype_or_default(dtype));
}

// What was in it is lost where it has to grow: only results are resized.
Tensor Resized(const Tensor& tensor, at::IntArrayRef size) {
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(size);
  const auto bytes = impl->numel() * impl->itemsize() +
                     impl->storage_offset() * impl->itemsize();
  if (bytes > impl->storage().nbytes()) {
    const c10::OptionalDeviceGuard on(tensor.device());
    impl->storage().set_data_ptr_noswap(device_allocator.allocate(bytes));
    impl->storage().unsafeGetStorageImpl()->set_nbytes(bytes);
  }
  return tensor;
}

const Tensor& Resize(const Tensor& tensor, at::IntArrayRef size,
                     std::optional<at::MemoryFormat>) {
  Resized(tensor, size);
  return tensor;
}

Tensor AsStrided(const Tensor& tensor, at::IntArrayRef size,
                 at::IntArrayRef stride, std::optional<std::int64_t> offset) {
  return at::native::as_strided_tensorimpl(tensor, size, stride, offset);
}

Tensor View(const Tensor& tensor, at::IntArrayRef size) {
  return at::native::view(tensor, size);
}

Tensor ReshapeAlias(const Tensor& tensor, at::IntArrayRef size,
                    at::IntArrayRef stride) {
  return at::native::_reshape_alias(tensor, size, stride);
}

Tensor& SetPart(Tensor& tensor, c10::Storage storage, std::int64_t offset,
                at::IntArrayRef size, at::IntArrayRef stride) {
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  impl->set_storage_offset(offset);
  impl->set_sizes_and_strides(size, stride);
  return tensor;
}

Tensor& SetWhole(Tensor& tensor, c10::Storage storage) {
  const auto size =
      static_cast<std::int64_t>(storage.nbytes() / tensor.itemsize());
  return SetPart(tensor, std::move(storage), 0, {size}, {1});
}

void RecordStream(Tensor& tensor, c10::Stream stream) {
  Guard().recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
}

struct InOperator {
  bool before = std::exchange(in_operator, true);
  ~InOperator() { in_operator = before; }
};

// Its schema does not say that it writes to the running statistics.
std::tuple<Tensor, Tensor, Tensor> BatchNorm(
    const Tensor& input, const std::optional<Tensor>& weight,
    const std::optional<Tensor>& bias, const std::optional<Tensor>& mean,
    const std::optional<Tensor>& variance, bool training, double momentum,
    double eps) {
  const InOperator inside;
  const auto down =
      [](const std::optional<Tensor>& tensor) -> std::optional<Tensor> {
    if (!tensor || !tensor->defined()) return std::nullopt;
    return Snapshot(*tensor);
  };
  const auto mean_here = down(mean);
  const auto variance_here = down(variance);
  auto [output, saved_mean, saved_deviation] =
      at::native_batch_norm(Snapshot(input), down(weight), down(bias),
                            mean_here, variance_here, training, momentum, eps);
  if (training && mean_here) CopyFrom(*mean_here, *mean, false);
  if (training && variance_here) CopyFrom(*variance_here, *variance, false);
  const auto device = input.device();
  return {output.to(device), saved_mean.to(device), saved_deviation.to(device)};
}

Tensor Convolution(const Tensor& input, const Tensor& weight,
                   const std::optional<Tensor>& bias, at::IntArrayRef stride,
                   at::IntArrayRef padding, at::IntArrayRef dilation,
                   bool transposed, at::IntArrayRef output_padding,
                   std::int64_t groups) {
  const InOperator inside;
  std::optional<Tensor> bias_here;
  if (bias && bias->defined()) bias_here = Snapshot(*bias);
  return at::convolution(Snapshot(input), Snapshot(weight), bias_here, stride,
                         padding, dilation, transposed, output_padding, groups)
      .to(input.device());
}

std::tuple<Tensor, Tensor, Tensor> ConvolutionBackward(
    const Tensor& gradient, const Tensor& input, const Tensor& weight,
    at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
    bool transposed, at::IntArrayRef output_padding, std::int64_t groups,
    std::array<bool, 3> wanted) {
  const InOperator inside;
  const std::array<std::int64_t, 1> bias = {weight.size(transposed ? 1 : 0) *
                                            (transposed ? groups : 1)};
  auto [of_input, of_weight, of_bias] = at::convolution_backward(
      Snapshot(gradient), Snapshot(input), Snapshot(weight), bias, stride,
      padding, dilation, transposed, output_padding, groups, wanted);
  const auto up = [&](const Tensor& tensor) {
    return tensor.defined() ? tensor.to(input.device()) : tensor;
  };
  return {up(of_input), up(of_weight), up(of_bias)};
}

void Fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const InOperator inside;
  at::native::cpu_fallback(op, stack);
}

// As CUDA does where a module is moved: the parameter is the same, its data are
// elsewhere.
void SetData(const Tensor& parameter, const Tensor& data) {
  auto* impl = parameter.unsafeGetTensorImpl();
  impl->shallow_copy_from(data.getIntrusivePtr());
  if (auto* meta = torch::autograd::impl::get_autograd_meta(parameter)) {
    meta->grad_accumulator_.reset();
  }
}

TORCH_LIBRARY(queued, library) {
  library.def("set_data(Tensor(a!) parameter, Tensor data) -> ()", &SetData);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&Fallback>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &Empty);
  library.impl("empty_strided", &EmptyStrided);
  library.impl("as_strided", &AsStrided);
  library.impl("view", &View);
  library.impl("_reshape_alias", &ReshapeAlias);
  library.impl("resize_", &Resize);
  library.impl("_copy_from", &CopyFrom);
  library.impl("_copy_from_and_resize", &CopyFromAndResize);
  library.impl("set_.source_Storage", &SetWhole);
  library.impl("set_.source_Storage_storage_offset", &SetPart);
  library.impl("record_stream", &RecordStream);
  library.impl("native_batch_norm", &BatchNorm);
  library.impl("convolution_overrideable", &Convolution);
  library.impl("convolution_backward_overrideable", &ConvolutionBackward);
}

// As torch's for other devices, of the operators that tests have.
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  KERNEL_PRIVATEUSEONE(linear, lower_precision_fp)
}

}  // namespace

extern "C" {
// How often the host waited for unfinished work of the default stream,
// operators apart.
std::uint64_t queued_host_waits(int device) {
  const Lock lock(mutex);
  return QueueOf(static_cast<c10::DeviceIndex>(device), 0).host_waits;
}
void queued_limit_pinned(std::int64_t bytes) { pinned_limit = bytes; }
void queued_set_capturing(bool on) { capturing = on; }
void queued_break(bool on) { broken = on; }
// Once the first device's default stream comes to it.
void queued_break_there() {
  const Lock lock(mutex);
  Enqueue(QueueOf(0, 0), [] { broken = true; });
}
// This process gets the signal once the current stream comes to it, and the
// thread that waits for the stream is the first to: it goes no step further.
void queued_signal_there(int signal) {
  const Lock lock(mutex);
  Enqueue(CurrentQueue({kType, current_device}), [signal] { raise(signal); });
}
bool queued_has_context() { return has_context; }
// For work that is not torch's: `run(call)` in this stream of the device of
// now.
void queued_enqueue(void* stream, void (*run)(void*), void* call) {
  const Lock lock(mutex);
  const auto id =
      static_cast<c10::StreamId>(reinterpret_cast<std::intptr_t>(stream));
  Enqueue(QueueOf(current_device, id), [run, call] { run(call); });
}
}
