#pragma once

#include <cstdint>
#include <vector>

namespace sparsellm {

// The lengths of the rows of random matrices (sparse/matrices/random_matrix.h), the same on every
// machine.

// Whole numbers that differ by at most 1 and have the sum `total`.
std::vector<int64_t> even_lengths(int64_t rows, int64_t total);

// How often each of `rows` rows is drawn when one is `total` times, but at most `longest`.
std::vector<int64_t> drawn_lengths(int64_t rows, int64_t total, int64_t longest, uint64_t key);

// In proportion to the weights, but at most `longest`, with a sum of about `total`, which is
// possible; rounded up or down at random.
std::vector<int64_t> weighted_lengths(const std::vector<double>& weights, int64_t total,
                                      int64_t longest, uint64_t key);

// The standard deviation of their logarithms is `deviation`, at most 8.
std::vector<double> log_normal_weights(int64_t rows, double deviation, uint64_t key);

}  // namespace sparsellm
