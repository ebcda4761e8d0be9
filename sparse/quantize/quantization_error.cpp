#include "sparse/quantize/quantization_error.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "kernels/base/error.h"

namespace sparsellm {
namespace {

constexpr double kLargestHalf = 65504.0;           // scale of i4
constexpr int64_t kMinElementsMeasured = 8 << 10;  // worth the waking of a thread

template <class T>
QuantizationError error_of_row(const T* w, const QuantizedMatrix& q, int64_t row,
                               const std::array<double, 256>& values) {
  const int8_t* const codes = q.codes.data() + row * q.columns;
  const float* const scales = q.scales.data() + row * q.groups();
  QuantizationError sums;
  for (int64_t group = 0; group < q.groups(); ++group) {
    const double scale = scales[group];
    const int64_t first = group * q.group;
    const int64_t stop = std::min(q.columns, first + q.group);
    QuantizationError own;  // in registers
    double largest = 0.0;
    for (int64_t column = first; column < stop; ++column) {
      const double weight = to_float(w[column]);
      const double value = values[static_cast<uint8_t>(codes[column])];
      const double error = weight - value * scale;
      const int nonzero = static_cast<int>(weight != 0.0);
      own.squared_error += error * error;
      largest = std::max(largest, std::fabs(error));
      own.squared_weights += weight * weight;
      own.nonzeros += nonzero;
      own.lost += nonzero & static_cast<int>(value == 0.0);
    }
    own.groups = own.nonzeros > 0 ? 1 : 0;
    own.lost_groups = own.groups > 0 && own.lost == own.nonzeros ? 1 : 0;
    // A smaller scale may clip, too: where that makes the sum of squares less.
    own.clipped_groups =
        q.type == ValueType::i4 && scale == kLargestHalf && largest > 0.5 * scale ? 1 : 0;
    sums += own;
  }
  return sums;
}

}  // namespace

double QuantizationError::relative() const {
  return squared_error == 0.0 ? 0.0 : std::sqrt(squared_error / squared_weights);
}

QuantizationError& QuantizationError::operator+=(const QuantizationError& other) {
  squared_error += other.squared_error;
  squared_weights += other.squared_weights;
  nonzeros += other.nonzeros;
  lost += other.lost;
  groups += other.groups;
  lost_groups += other.lost_groups;
  clipped_groups += other.clipped_groups;
  return *this;
}

QuantizationError quantization_error(const Tensor& w, const QuantizedMatrix& q,
                                     ThreadPool& threads) {
  require_valid(q);
  require(w.rank() == 2 && w.size(0) == q.rows && w.size(1) == q.columns,
          "a weight {} is compared with a quantised matrix [{}, {}]", w.shape_string(), q.rows,
          q.columns);
  require(w.device() == Device{}, "a weight is compared in host memory, not on {}",
          to_string(w.device()));
  std::array<double, 256> values{};
  for (size_t bits = 0; bits < values.size(); ++bits) {
    values[bits] = value_of(q.type, static_cast<int8_t>(bits));
  }
  // Summed in the order of rows whatever the threads.
  std::vector<QuantizationError> of_rows(static_cast<size_t>(q.rows));
  const int64_t grain = kMinElementsMeasured / std::max<int64_t>(q.columns, 1) + 1;
  visit_float(w.dtype(), [&]<class T>(T) {
    threads.parallel_for(q.rows, grain, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        of_rows[static_cast<size_t>(row)] = error_of_row(w.row<T>(row), q, row, values);
      }
    });
  });
  QuantizationError total;
  for (const QuantizationError& of_row : of_rows) {
    total += of_row;
  }
  return total;
}

}  // namespace sparsellm
