#include "tests/testing/tensor_values.h"

#include <cstring>
#include <type_traits>

#include "kernels/base/error.h"
#include "tests/testing/wait_for_device.h"

namespace sparsellm::testing {
namespace {

template <class T>
T from_double(double value) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(value);
  } else {
    return from_float<T>(static_cast<float>(value));
  }
}

template <class T>
double as_double(T value) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<double>(value);
  } else {
    return to_float(value);
  }
}

template <class Body>
void visit_any(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::i32:
      return body(int32_t{});
    case DType::u8:
      return body(uint8_t{});
    case DType::u32:
      return body(uint32_t{});
    default:
      return visit_float(dtype, body);
  }
}

}  // namespace

std::vector<std::byte> bytes_of(const Tensor& x) {
  if (x.element_count() == 0) {
    return {};
  }
  const int64_t elements = (x.size(0) - 1) * x.row_stride() + x.row_size();
  std::vector<std::byte> bytes(static_cast<size_t>(elements * size_of(x.dtype())));
  wait_for_device(x.device());
  copy_bytes({}, bytes.data(), x.device(), x.raw(), static_cast<int64_t>(bytes.size()));
  return bytes;
}

std::vector<double> values_of(const Tensor& x) {
  const std::vector<std::byte> bytes = bytes_of(x);
  std::vector<double> values;
  values.reserve(static_cast<size_t>(x.element_count()));
  visit_any(x.dtype(), [&]<class T>(T element) {
    for (int64_t row = 0; row < x.size(0); ++row) {
      for (int64_t i = 0; i < x.row_size(); ++i) {
        const int64_t offset = (row * x.row_stride() + i) * size_of(x.dtype());
        std::memcpy(&element, bytes.data() + offset, sizeof(T));
        values.push_back(as_double(element));
      }
    }
  });
  return values;
}

void set_values(const Tensor& x, std::span<const double> values) {
  require(static_cast<int64_t>(values.size()) == x.element_count(), "{} values for a tensor {}",
          values.size(), x.shape_string());
  wait_for_device(x.device());
  visit_any(x.dtype(), [&]<class T>(T) {
    std::vector<T> row;
    for (int64_t r = 0; r < x.size(0); ++r) {
      row.clear();
      for (double value : values.subspan(static_cast<size_t>(r * x.row_size()),
                                         static_cast<size_t>(x.row_size()))) {
        row.push_back(from_double<T>(value));
      }
      copy_bytes(x.device(), x.row<T>(r), {}, row.data(), x.row_size() * size_of(x.dtype()));
    }
  });
}

}  // namespace sparsellm::testing
