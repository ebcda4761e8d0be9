#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sparse/quantize/cuda/device_quantization.h"
#include "sparse/quantize/quantize.h"
#include "sparse/tca_bme/quantized/cuda/quantized_encode_cuda.h"
#include "sparse/tca_bme/quantized/quantized_parts.h"
#include "tests/sparse/gpu_weight_test.h"
#include "tests/sparse/hard_weights.h"

namespace sparsellm::testing {

struct RoundedTo {
  ValueType type;
  int64_t group;  // of i4

  // Those that hold such values.
  std::vector<std::string_view> formats() const {
    return type == ValueType::i8   ? std::vector<std::string_view>{"tca_bme", "dense_i8"}
           : type == ValueType::i4 ? std::vector<std::string_view>{"tca_bme", "dense_i4"}
                                   : std::vector<std::string_view>{"tca_bme"};
  }
  std::string text() const {  // of LayoutOptions
    return group == 0 ? std::string(name_of(type)) : fmt::format("{}:{}", name_of(type), group);
  }
};
inline constexpr RoundedTo kRoundedTo[] = {{ValueType::i8, 0},
                                           {ValueType::f8, 0},
                                           {ValueType::i4, 32},
                                           {ValueType::i4, 64},
                                           {ValueType::i4, 128}};

// Weights that a CUDA device rounds and encodes: every byte is that of the host.
class GpuQuantizeTest : public GpuWeightTest {
 protected:
  static OwnedTensor on_gpu(const Tensor& w) {
    OwnedTensor copy = allocate_tensor(kGpu, w.dtype(), {w.size(0), w.size(1)}, "a test");
    copy_bytes(kGpu, copy.view.raw(), {}, w.raw(), w.bytes());
    return copy;
  }

  template <class T>
  static std::vector<T> read(const Buffer& buffer) {
    const std::vector<std::byte> bytes = bytes_of_buffer(buffer);
    std::vector<T> values(bytes.size() / sizeof(T));
    if (!bytes.empty()) {
      std::memcpy(values.data(), bytes.data(), bytes.size());
    }
    return values;
  }
  // The bits of all values are the same; a failure names the first that differ.
  template <class T>
  static ::testing::AssertionResult same(const std::vector<T>& got, std::span<const T> expected) {
    if (got.size() != expected.size()) {
      return ::testing::AssertionFailure()
             << got.size() << " values, but " << expected.size() << " are expected";
    }
    if (got.empty() || std::memcmp(got.data(), expected.data(), got.size() * sizeof(T)) == 0) {
      return ::testing::AssertionSuccess();
    }
    size_t first = got.size();
    size_t wrong = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      if (std::memcmp(&got[i], &expected[i], sizeof(T)) != 0) {
        first = std::min(first, i);
        ++wrong;
      }
    }
    return ::testing::AssertionFailure()
           << wrong << " of " << got.size() << " values differ, the first of them value " << first
           << ": " << static_cast<double>(got[first]) << ", but "
           << static_cast<double>(expected[first]) << " is expected";
  }

  // `w` and `on_device` are the same matrix, in host memory and on the device.
  void expect_same(const Tensor& w, const Tensor& on_device, const RoundedTo& to) {
    const QuantizedMatrix expected = quantize(w, to.type, to.group, cpu.threads);
    const DeviceQuantizedMatrix q = quantize_cuda(on_device, to.type, to.group, *exec);
    EXPECT_EQ(q.type, to.type);
    EXPECT_EQ(q.rows, expected.rows);
    EXPECT_EQ(q.columns, expected.columns);
    EXPECT_EQ(q.group, expected.group);
    ASSERT_TRUE(same(read<float>(q.scales), std::span<const float>(expected.scales)));
    ASSERT_TRUE(same(read<int8_t>(q.codes), std::span<const int8_t>(expected.codes)));

    for (const std::string_view format : to.formats()) {
      SCOPED_TRACE(format);
      const EncodedWeight e = tca_bme::encode_quantized(expected, format, GetParam(), cpu.threads);
      const tca_bme::QuantizedParts parts(e);
      const tca_bme::DeviceQuantized made = tca_bme::encode_quantized_cuda(
          quantize_cuda(on_device, to.type, to.group, *exec), format, *exec);
      EXPECT_EQ(made.layout, parts.layout);
      EXPECT_EQ(made.nonzeros, e.nonzeros);
      ASSERT_TRUE(same(read<uint32_t>(made.starts), parts.starts));
      ASSERT_TRUE(same(read<float>(made.scales), parts.scales));
      const auto* const records = reinterpret_cast<const uint8_t*>(parts.records.data());
      ASSERT_TRUE(same(read<uint8_t>(made.records), std::span(records, parts.records.size())));
    }
  }

  void expect_same(const HardWeight& what, uint64_t seed,
                   std::span<const RoundedTo> all = kRoundedTo) {
    const OwnedTensor w = make_hard_weight(what, seed);
    const OwnedTensor copy = on_gpu(w.view);
    for (const RoundedTo& to : all) {
      SCOPED_TRACE(fmt::format("[{}, {}], {}, density {}, {}, seed {}", what.rows, what.columns,
                               name_of(what.hardness), what.density, to.text(), seed));
      expect_same(w.view, copy.view, to);
    }
  }
};

}  // namespace sparsellm::testing
