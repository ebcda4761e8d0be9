#pragma once

#include <cstddef>
#include <span>

// Scans of logits [vocabulary] at the speed of memory: vocabularies have up to 256k entries, and
// every generated token takes at least one scan.
namespace sparsellm {

// No NaN and no infinity.
bool all_finite(std::span<const float> logits);

// NaNs are passed over; -infinity if nothing is left.
float largest(std::span<const float> logits);

// The first of equal ones. The logits are not empty and without NaN.
size_t index_of_largest(std::span<const float> logits);

// A value that at least `count` logits reach, near the largest that is reached by so many where
// count is small; -infinity where it is not. To look at few logits when the largest are wanted.
// NaNs are passed over.
float reached_by(std::span<const float> logits, size_t count);

}  // namespace sparsellm
