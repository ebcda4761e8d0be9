// The kernels that round weights on a GPU, thread by thread on the host, against quantize().

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "sparse/quantize/code_values.h"
#include "sparse/quantize/quantize.h"
#include "tests/sparse/hard_weights.h"
#include "tests/sparse/host_device.h"
#include "tests/testing/random.h"
// After host_device.h.
#include "sparse/quantize/cuda/quantize_group.cuh"
#include "sparse/quantize/cuda/quantize_row.cuh"

namespace sparsellm {
namespace {

using namespace quantization;
using namespace sparsellm::testing;

struct Kind {
  ValueType type;
  int64_t group;  // of i4
};
constexpr Kind kKinds[] = {{ValueType::i8, 0},
                           {ValueType::f8, 0},
                           {ValueType::i4, 32},
                           {ValueType::i4, 64},
                           {ValueType::i4, 128}};

struct Case {
  int64_t rows;
  int64_t columns;
  double density;
};

template <class Search>
ScaleTrials trials_of() {
  ScaleTrials trials{};
  for (int i = 0; i < Search::kTrials; ++i) {
    trials.of[i] = Search::trial(i);
  }
  return trials;
}

template <class Values, class T>
void quantize_rows_on_grid(const DenseSource& w, QuantizedMatrix& q) {
  const ScaleTrials trials = trials_of<Values>();
  run_grid({.x = static_cast<unsigned>(w.rows), .y = 1}, RowBlock<Values>::kThreads,
           [&] { quantize_row<Values, T>(w, trials, q.codes.data(), q.scales.data()); });
}

template <class T>
QuantizedMatrix quantize_on_grid(const DenseSource& w, Kind kind) {
  QuantizedMatrix q{.type = kind.type,
                    .rows = w.rows,
                    .columns = w.columns,
                    .group = kind.type == ValueType::i4 ? kind.group : w.columns};
  q.codes.assign(static_cast<size_t>(q.rows * q.columns), int8_t{99});
  q.scales.assign(static_cast<size_t>(q.rows * q.groups()), -99.0f);
  if (kind.type == ValueType::i8) {
    quantize_rows_on_grid<DeviceI8, T>(w, q);
  } else if (kind.type == ValueType::f8) {
    quantize_rows_on_grid<DeviceF8, T>(w, q);
  } else {
    const ScaleTrials trials = trials_of<DeviceI4>();
    const int64_t blocks = (q.rows * q.groups() + kGroupWarps - 1) / kGroupWarps;
    run_grid({.x = static_cast<unsigned>(blocks), .y = 1}, kGroupThreads, [&] {
      quantize_group<T>(w, static_cast<int>(kind.group), trials, q.codes.data(), q.scales.data());
    });
  }
  return q;
}

void expect_same(const Tensor& w, Kind kind, ThreadPool& threads) {
  const QuantizedMatrix expected = quantize(w, kind.type, kind.group, threads);
  const DenseSource source = dense_source(w);
  const QuantizedMatrix got = w.dtype() == DType::f16 ? quantize_on_grid<Half>(source, kind)
                                                      : quantize_on_grid<BFloat16>(source, kind);
  ASSERT_EQ(got.scales, expected.scales);
  ASSERT_EQ(got.codes, expected.codes);
}

template <class Host, class Device>
void expect_same_arithmetic(double least_scale, double most_scale) {
  Random random(5);
  for (int i = 0; i < 100'000; ++i) {
    const double magnitude = std::exp2(random.uniform(-14.0, 10.0));
    // Numbers, their neighbours and what lies halfway between two, too.
    const double x = i % 4 == 0   ? magnitude
                     : i % 4 == 1 ? std::rint(magnitude * 16.0) / 16.0
                     : i % 4 == 2 ? std::rint(magnitude * 1024.0) / 1024.0
                                  : std::nextafter(std::rint(magnitude * 4.0) / 4.0, magnitude);
    const double signed_x = i % 3 == 0 ? -x : x;
    const double number = Host::nearest(signed_x);
    ASSERT_EQ(std::bit_cast<uint64_t>(Device::nearest(signed_x)), std::bit_cast<uint64_t>(number))
        << signed_x;
    ASSERT_EQ(Device::code_of(number), Host::code_of(number)) << number;
    const auto searched = static_cast<float>(Host::kSymmetric ? x : signed_x);
    float eight[F32x8::kWidth];
    Host::nearest(F32x8::all(searched)).store(eight);
    ASSERT_EQ(Device::nearest(searched), eight[0]) << searched;

    const double scale =
        std::exp2(random.uniform(std::log2(least_scale) - 3.0, std::log2(most_scale) + 3.0));
    const float rounded = Host::scale_of(scale);
    ASSERT_EQ(Device::scale_of(scale), rounded) << scale;
    ASSERT_EQ(Device::scale_below(rounded), Host::scale_below(rounded)) << rounded;
  }
}

TEST(QuantizeDevice, HasTheArithmeticOfTheHost) {
  expect_same_arithmetic<I8Values, DeviceI8>(0x1p-149, 0x1p127);
  expect_same_arithmetic<F8Values, DeviceF8>(0x1p-149, 0x1p127);
  expect_same_arithmetic<I4Values, DeviceI4>(0x1p-24, 0x1p15);
  for (uint32_t bits = 0; bits < 0x7c00; ++bits) {
    for (const uint32_t sign : {0u, 0x8000u}) {
      const Half half{static_cast<uint16_t>(bits | sign)};
      ASSERT_EQ(std::bit_cast<uint32_t>(number_of(half)), std::bit_cast<uint32_t>(to_float(half)));
    }
  }
}

TEST(QuantizeDevice, GivesWhatTheHostGives) {
  ThreadPool threads(2);
  uint64_t seed = 1;
  // Rows of several pieces, too; with both dtypes, but not in all combinations.
  for (const Case& size : {Case{1, 1, 1.0}, Case{2, 129, 0.5}, Case{1, 161, 0.0}, Case{1, 300, 1.0},
                           Case{1, 1200, 0.6}}) {
    ++seed;
    for (const Hardness hardness : kHardnesses) {
      const DType dtype = ++seed % 2 == 0 ? DType::f16 : DType::bf16;
      const OwnedTensor w = make_hard_weight({.dtype = dtype,
                                              .rows = size.rows,
                                              .columns = size.columns,
                                              .density = size.density,
                                              .hardness = hardness},
                                             seed);
      for (const Kind& kind : kKinds) {
        SCOPED_TRACE(fmt::format("[{}, {}] of {}, {}, density {}, {} in groups of {}", size.rows,
                                 size.columns, name_of(dtype), name_of(hardness), size.density,
                                 name_of(kind.type), kind.group));
        expect_same(w.view, kind, threads);
      }
    }
  }
}

TEST(QuantizeDevice, RoundsNothingToInfinity) {
  ThreadPool threads(1);
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const Kind& kind : kKinds) {
      const int64_t columns = kind.type == ValueType::i4 ? 320 : 10;
      const OwnedTensor w = make_hard_weight({.dtype = dtype,
                                              .rows = 6,
                                              .columns = columns,
                                              .density = 0.3,
                                              .hardness = Hardness::largest},
                                             3);
      expect_same(w.view, kind, threads);
    }
  }
}

// Nonzeros of a piece that are no multiple of the lanes that add them up. Which lane adds up which
// changes the last bit of few scales: of these rows, found among thousands.
TEST(QuantizeDevice, AddsUpAsTheHostDoes) {
  ThreadPool threads(1);
  for (const uint64_t seed : {1251, 1742, 2656}) {
    const OwnedTensor w = make_hard_weight({.rows = 1, .columns = 1400, .density = 0.97}, seed);
    expect_same(w.view, kKinds[1], threads);
  }
}

TEST(QuantizeDevice, TakesStridedRowsAndNoColumns) {
  ThreadPool threads(1);
  const OwnedTensor w = make_hard_weight({.rows = 3, .columns = 301, .density = 0.5}, 7);
  for (const Kind& kind : kKinds) {
    expect_same(w.view.columns(1, 131), kind, threads);
    expect_same(w.view.columns(1, 0), kind, threads);
    expect_same(w.view.rows(0, 0), kind, threads);
  }
}

}  // namespace
}  // namespace sparsellm
