#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <span>

#include "kernels/base/buffer.h"
#include "kernels/base/tensor.h"

namespace sparsellm::testing {

enum class Layout : uint8_t {
  contiguous,
  strided,  // rank 2: some columns of a wider matrix, at an odd offset
};

// A tensor between guards. At first it is filled with NaN, guards included (i32: with a large
// number): what is left unwritten, and what is read from outside, shows up as NaN.
class GuardedTensor {
 public:
  GuardedTensor(DType dtype, std::initializer_list<int64_t> sizes,
                Layout layout = Layout::contiguous, Device device = {});

  const Tensor& view() const { return view_; }
  // Whether the memory around the tensor still holds what it held at first.
  ::testing::AssertionResult guards_intact() const;

 private:
  OwnedTensor memory_;  // [rows, columns]
  Tensor view_;
};

// i32 [values.size()]
GuardedTensor i32_tensor(std::initializer_list<int32_t> values);
GuardedTensor i32_tensor(std::span<const int32_t> values, Device device = {});

}  // namespace sparsellm::testing
