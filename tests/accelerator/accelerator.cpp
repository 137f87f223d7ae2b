// A stand-in accelerator: a device of torch's PrivateUse1 kind with memory of the host. Autograd has threads for it,
// as for a GPU; each read of a value on the host is reported to Python; float64 can be refused; and while collectives
// are pending, what reads a value spins in C++ as a GPU's driver does.
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias.h>
#include <ATen/ops/_reshape_alias_cpu_dispatch.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/view_cpu_dispatch.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/extension.h>

#include <array>
#include <atomic>
#include <tuple>
#include <vector>

constexpr auto TYPE = c10::DeviceType::PrivateUse1;
using Sizes = at::IntArrayRef;
static std::atomic<bool> has_double{true};
static std::atomic<int> pending{0};
static thread_local int inside = 0;

// Within the device's own work nothing is reported.
struct Inside {
  Inside() { ++inside; }
  ~Inside() { --inside; }
};

static void wait_for_device() {
  if (!pending) return;
  if (PyGILState_Check()) {
    py::gil_scoped_release released;
    while (pending) {
    }
  } else {
    while (pending) {
    }
  }
}

static void report(const char* what) {
  if (inside) return;
  wait_for_device();
  py::gil_scoped_acquire gil;
  auto modules = py::module_::import("sys").attr("modules");
  if (modules.contains("accelerator_reads")) modules["accelerator_reads"].attr("read")(what);
}

struct Guard final : public c10::impl::DeviceGuardImplInterface {
  static thread_local c10::DeviceIndex now;
  c10::DeviceType type() const override { return TYPE; }
  c10::Device exchangeDevice(c10::Device device) const override {
    auto before = now;
    now = device.index();
    return {TYPE, before};
  }
  c10::Device getDevice() const override { return {TYPE, now}; }
  void setDevice(c10::Device device) const override { now = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { now = device.index(); }
  c10::Stream getStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream getDefaultStream(c10::Device device) const override { return getStream(device); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return c10::Stream(c10::Stream::UNSAFE, device, 1);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return c10::Stream(c10::Stream::UNSAFE, device, 2);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 2; }
  void record(void** event, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {
    *event = reinterpret_cast<void*>(1);
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override { report("synchronize"); }
  void synchronizeEvent(void*) const override { report("synchronize"); }
  void synchronizeDevice(const c10::DeviceIndex) const override { report("synchronize"); }
};
thread_local c10::DeviceIndex Guard::now = 0;
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Allocator final : public c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = malloc(bytes ? bytes : 1);
    return {memory, memory, &free, c10::Device(TYPE, Guard::now)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { memcpy(to, from, bytes); }
};
static Allocator allocator;
REGISTER_ALLOCATOR(TYPE, &allocator);

struct Hooks : public at::PrivateUse1HooksInterface {
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isAvailable() const override { return true; }
  bool isBuilt() const override { return true; }
  at::Allocator* getPinnedMemoryAllocator() const override { return at::getCPUAllocator(); }
  bool isPinnedPtr(const void*) const override { return true; }
  at::Device getDeviceFromPtr(void*) const override { return {TYPE, 0}; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    static auto generator = at::detail::getDefaultCPUGenerator();
    return generator;
  }
};
static Hooks hooks;

static void refuse(at::ScalarType type) { TORCH_CHECK(has_double || type != at::kDouble, "the device has no float64"); }

at::Tensor empty(Sizes size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  auto type = c10::dtype_or_default(dtype);
  if (!inside) refuse(type);
  c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(size, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), type, format);
}

at::Tensor empty_strided(Sizes size, Sizes stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool>) {
  auto type = c10::dtype_or_default(dtype);
  if (!inside) refuse(type);
  c10::OptionalDeviceGuard guard(device);
  auto keys = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_strided_generic(size, stride, &allocator, keys, type);
}

// The same memory as a tensor of the host.
static at::Tensor on_host(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  auto holder = tensor;
  auto memory = const_cast<void*>(tensor.const_data_ptr());
  auto options = tensor.options().device(at::kCPU).requires_grad(false);
  return at::from_blob(memory, tensor.sizes(), tensor.strides(), [holder](void*) {}, options);
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (to.is_cpu() && !from.is_cpu() && !non_blocking) report("copy to the host");
  Inside within;
  on_host(to).copy_(on_host(from));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (from.sizes() != to.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar local_scalar(const at::Tensor& tensor) {
  report("item");
  return at::_local_scalar_dense(on_host(tensor));
}

const at::Tensor& resize(const at::Tensor& self, c10::SymIntArrayRef size, std::optional<at::MemoryFormat>) {
  auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  size_t bytes = (c10::multiply_integers(sizes) + self.storage_offset()) * self.itemsize();
  auto* storage = self.storage().unsafeGetStorageImpl();
  if (bytes > storage->nbytes()) {
    auto memory = allocator.allocate(bytes);
    memcpy(memory.get(), storage->data(), storage->nbytes());
    storage->set_data_ptr(std::move(memory));
    storage->set_nbytes(bytes);
  }
  self.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return self;
}

at::Tensor as_strided(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                      std::optional<c10::SymInt> offset) {
  return at::cpu::as_strided_symint(self, size, stride, offset);
}

at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef size) { return at::cpu::view_symint(self, size); }

at::Tensor reshape_alias(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::cpu::_reshape_alias_symint(self, size, stride);
}

at::Tensor& set_storage(at::Tensor& self, at::Storage storage, int64_t offset, Sizes size, Sizes stride) {
  return at::cpu::set_(self, storage, offset, size, stride);
}

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                       Sizes stride, Sizes padding, Sizes dilation, bool transposed, Sizes output, int64_t groups) {
  Inside within;
  std::optional<at::Tensor> own;
  if (bias && bias->defined()) own = on_host(*bias);
  auto found = at::convolution(on_host(input), on_host(weight), own, stride, padding, dilation, transposed, output, groups);
  return found.to(input.device());
}

using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
Three convolution_backward(const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight, Sizes stride,
                           Sizes padding, Sizes dilation, bool transposed, Sizes output, int64_t groups,
                           std::array<bool, 3> mask) {
  Inside within;
  auto bias = Sizes({weight.size(0)});
  auto found = at::convolution_backward(on_host(gradient), on_host(input), on_host(weight), bias, stride, padding,
                                        dilation, transposed, output, groups, mask);
  auto back = [&](const at::Tensor& tensor) { return tensor.defined() ? tensor.to(input.device()) : tensor; };
  return {back(std::get<0>(found)), back(std::get<1>(found)), back(std::get<2>(found))};
}

void on_the_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  auto& name = op.schema().name();
  for (auto reads : {"aten::equal", "aten::nonzero", "aten::masked_select", "aten::unique2"})
    if (name == reads) report(reads);
  Inside within;
  at::native::cpu_fallback(op, stack);
  for (auto& value : *stack)
    if (value.isTensor() && value.toTensor().defined() && value.toTensor().device().type() == TYPE)
      refuse(value.toTensor().scalar_type());
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_the_host>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar);
  m.impl("resize_", resize);
  m.impl("as_strided", as_strided);
  m.impl("view", view);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("convolution_overrideable", convolution);
  m.impl("convolution_backward_overrideable", convolution_backward);
  m.impl("set_.source_Storage_storage_offset", set_storage);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("start", [] { at::RegisterPrivateUse1HooksInterface(&hooks); });
  m.def("set_double", [](bool on) { has_double = on; });
  m.def("pend", [](int more) { pending += more; });
}
