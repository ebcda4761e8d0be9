#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kernels/base/tensor.h"

namespace sparsellm::testing {

// The memory from a tensor's first to its last element, the gaps between its rows included, copied
// from its device.
std::vector<std::byte> bytes_of(const Tensor& x);

// The elements of a tensor of any dtype and stride on any device, exactly, row after row.
std::vector<double> values_of(const Tensor& x);

// Rounds to the tensor's dtype and stores; the other way round.
void set_values(const Tensor& x, std::span<const double> values);

}  // namespace sparsellm::testing
