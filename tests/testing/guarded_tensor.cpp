#include "tests/testing/guarded_tensor.h"

#include <cstring>
#include <vector>

#include "kernels/base/error.h"
#include "tests/testing/tensor_values.h"

namespace sparsellm::testing {
namespace {

constexpr int64_t kGuard = 64;  // elements before and after a contiguous tensor
constexpr int64_t kLeft = 3;    // columns and rows around a strided one
constexpr int64_t kRight = 6;
constexpr uint64_t kPoison32 = 0x7fc0dead;
constexpr uint64_t kPoison16 = 0x7fed;  // a NaN in both 16-bit dtypes

uint64_t poison_of(DType dtype) { return size_of(dtype) == 4 ? kPoison32 : kPoison16; }

OwnedTensor allocate(DType dtype, std::initializer_list<int64_t> sizes, Layout layout,
                     Device device) {
  if (layout == Layout::strided) {
    require(sizes.size() == 2, "a strided tensor of rank {}", sizes.size());
    return allocate_tensor(device, dtype, {sizes.begin()[0] + 2, kLeft + sizes.begin()[1] + kRight},
                           "a test");
  }
  int64_t elements = 1;
  for (int64_t size : sizes) {
    elements *= size;
  }
  return allocate_tensor(device, dtype, {1, kGuard + elements + kGuard}, "a test");
}

}  // namespace

GuardedTensor::GuardedTensor(DType dtype, std::initializer_list<int64_t> sizes, Layout layout,
                             Device device)
    : memory_(allocate(dtype, sizes, layout, device)) {
  std::vector<std::byte> poison(static_cast<size_t>(memory_.view.bytes()));
  const uint64_t element = poison_of(dtype);
  for (size_t i = 0; i < poison.size(); i += static_cast<size_t>(size_of(dtype))) {
    std::memcpy(poison.data() + i, &element, static_cast<size_t>(size_of(dtype)));
  }
  copy_bytes(device, memory_.view.raw(), {}, poison.data(), memory_.view.bytes());
  if (layout == Layout::strided) {
    view_ = memory_.view.rows(1, sizes.begin()[0]).columns(kLeft, sizes.begin()[1]);
  } else {
    auto* begin = static_cast<std::byte*>(memory_.view.raw()) + kGuard * size_of(dtype);
    view_ = Tensor(begin, dtype, sizes, device);
  }
}

::testing::AssertionResult GuardedTensor::guards_intact() const {
  const std::vector<std::byte> bytes = bytes_of(memory_.view);
  const int64_t size = size_of(view_.dtype());
  const int64_t offset = (static_cast<const std::byte*>(view_.raw()) -
                          static_cast<const std::byte*>(memory_.view.raw())) /
                         size;
  const uint64_t poison = poison_of(view_.dtype());
  for (int64_t i = 0; i < memory_.view.element_count(); ++i) {
    const int64_t inside = i - offset;
    const int64_t stride = view_.row_stride();
    if (inside >= 0 && inside < view_.size(0) * stride && inside % stride < view_.row_size()) {
      continue;
    }
    if (std::memcmp(bytes.data() + i * size, &poison, static_cast<size_t>(size)) != 0) {
      return ::testing::AssertionFailure()
             << "the element at offset " << inside << " of a tensor " << view_.shape_string()
             << " with row stride " << stride << " was overwritten";
    }
  }
  return ::testing::AssertionSuccess();
}

GuardedTensor i32_tensor(std::span<const int32_t> values, Device device) {
  GuardedTensor tensor(DType::i32, {static_cast<int64_t>(values.size())}, Layout::contiguous,
                       device);
  set_values(tensor.view(), std::vector<double>(values.begin(), values.end()));
  return tensor;
}

GuardedTensor i32_tensor(std::initializer_list<int32_t> values) {
  return i32_tensor(std::span(values.begin(), values.size()));
}

}  // namespace sparsellm::testing
