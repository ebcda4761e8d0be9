// The panels that CPU products of sparse weights read, by every instruction set that this CPU has.

#include "sparse/cpu/panels/panels.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/base/cpu_isa.h"
#include "kernels/base/error.h"
#include "sparse/cpu/panels/panel_weight.h"
#include "sparse/registry.h"
#include "sparse/tca_bme/v1/paper_layout.h"
#include "tests/testing/random.h"
#include "tests/testing/throws_error.h"

namespace sparsellm::panels {
namespace {

using namespace sparsellm::testing;

float to_f32(DType dtype, uint16_t bits) {
  return dtype == DType::f16 ? to_float(Half{bits}) : to_float(BFloat16{bits});
}

// Values of a panel [columns][64], of which a share is not 0; of any exponent but infinities.
std::vector<uint16_t> random_values(int64_t columns, double density, DType dtype, Random& random) {
  std::vector<uint16_t> values(static_cast<size_t>(columns * kRows));
  const uint16_t exponent = dtype == DType::f16 ? 0x7c00 : 0x7f80;
  for (uint16_t& value : values) {
    if (random.uniform(0.0, 1.0) < density) {
      do {
        value = static_cast<uint16_t>(random.below(1 << 16));
      } while ((value & 0x7fff) == 0 || (value & exponent) == exponent);
    }
  }
  return values;
}

int64_t count_values(const std::vector<uint16_t>& values) {
  return std::count_if(values.begin(), values.end(),
                       [](uint16_t value) { return (value & 0x7fff) != 0; });
}

Panels packed(const std::vector<uint16_t>& values, int64_t columns, DType dtype) {
  const int64_t nonzeros = count_values(values);
  Panels panels(columns, dtype, {&nonzeros, 1});
  panels.pack(0, values.data());
  return panels;
}

std::vector<float> random_x(int64_t count, Random& random) {
  std::vector<float> x(static_cast<size_t>(count));
  for (float& value : x) {
    value = static_cast<float>(random.uniform(-1.0, 1.0));
  }
  return x;
}

// A chain of fused multiply-adds over all columns, one by one.
std::vector<float> chains(const std::vector<uint16_t>& values, DType dtype,
                          const std::vector<float>& x, int64_t tokens) {
  const int64_t columns = std::ssize(values) / kRows;
  std::vector<float> sums(static_cast<size_t>(tokens * kRows));
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t r = 0; r < kRows; ++r) {
      float sum = 0.0f;
      for (int64_t c = 0; c < columns; ++c) {
        sum = std::fma(to_f32(dtype, values[static_cast<size_t>(c * kRows + r)]),
                       x[static_cast<size_t>(c * tokens + t)], sum);
      }
      sums[static_cast<size_t>(t * kRows + r)] = sum;
    }
  }
  return sums;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class PanelKernels : public ::testing::TestWithParam<std::tuple<CpuIsa, DType>> {
 protected:
  void SetUp() override {
    if (isa() > best_cpu_isa()) {
      GTEST_SKIP() << "this CPU has no " << name_of(isa());
    }
  }
  static CpuIsa isa() { return std::get<0>(GetParam()); }
  static DType dtype() { return std::get<1>(GetParam()); }

  static std::vector<float> multiply(const uint8_t* panel, int64_t columns,
                                     const std::vector<float>& x, int64_t tokens) {
    const Kernels& kernels = kernels_for(isa());
    std::vector<float> sums(static_cast<size_t>(tokens * kRows),
                            std::numeric_limits<float>::quiet_NaN());
    (dtype() == DType::f16 ? kernels.f16 : kernels.bf16)(panel, columns, x.data(), tokens,
                                                         sums.data());
    return sums;
  }
};

TEST_P(PanelKernels, SumsAreChainsBitForBit) {
  Random random(2026);
  for (const int64_t columns : {1, 2, 7, 63, 64, 65, 128, 200, 333}) {
    for (const double density : {0.0, 0.02, 0.4, 0.9, 1.0}) {
      const std::vector<uint16_t> values = random_values(columns, density, dtype(), random);
      const Panels panels = packed(values, columns, dtype());
      for (const int64_t tokens : {1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 16, 33, 64}) {
        SCOPED_TRACE(fmt::format("{} columns, density {}, {} tokens", columns, density, tokens));
        const std::vector<float> x = random_x(columns * tokens, random);
        EXPECT_TRUE(same_bits(multiply(panels.panel(0), columns, x, tokens),
                              chains(values, dtype(), x, tokens)));
      }
    }
  }
}

TEST_P(PanelKernels, EveryMaskFindsItsValues) {
  Random random(7);
  constexpr int64_t kColumns = 256 * 8;  // each mask of eight rows, at each of eight places
  std::vector<uint16_t> values(kColumns * kRows);
  for (int64_t c = 0; c < kColumns; ++c) {
    for (int64_t bit = 0; bit < 8; ++bit) {
      if ((c / 8 >> bit & 1) != 0) {
        values[static_cast<size_t>(c * kRows + c % 8 * 8 + bit)] =
            static_cast<uint16_t>(0x3c00 + random.below(1 << 9));
      }
    }
  }
  const Panels panels = packed(values, kColumns, dtype());
  const std::vector<float> x = random_x(kColumns, random);
  EXPECT_TRUE(same_bits(multiply(panels.panel(0), kColumns, x, 1), chains(values, dtype(), x, 1)));
}

TEST_P(PanelKernels, SubnormalAndLargestValuesAreExact) {
  const std::vector<uint16_t> extremes =
      dtype() == DType::f16 ? std::vector<uint16_t>{0x0001, 0x83ff, 0x0400, 0x7bff, 0xfbff}
                            : std::vector<uint16_t>{0x0001, 0x807f, 0x0080, 0x7f7f, 0xff7f};
  std::vector<uint16_t> values(5 * kRows);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = extremes[i % extremes.size()];
  }
  const Panels panels = packed(values, 5, dtype());
  const std::vector<float> x = {1.0f, 0.5f, -3.0f, 0x1p-40f, 0x1p-60f};
  EXPECT_TRUE(same_bits(multiply(panels.panel(0), 5, x, 1), chains(values, dtype(), x, 1)));
}

TEST_P(PanelKernels, NanReachesAllRowsOfItsTokenAndNoOther) {
  Random random(3);
  const std::vector<uint16_t> values = random_values(70, 0.3, dtype(), random);
  const Panels panels = packed(values, 70, dtype());
  for (const int64_t tokens : {2, 9}) {
    std::vector<float> x = random_x(70 * tokens, random);
    x[static_cast<size_t>(66 * tokens + 1)] = std::numeric_limits<float>::infinity();
    const std::vector<float> sums = multiply(panels.panel(0), 70, x, tokens);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t r = 0; r < kRows; ++r) {
        EXPECT_EQ(std::isfinite(sums[static_cast<size_t>(t * kRows + r)]), t != 1);
      }
    }
  }
}

TEST_P(PanelKernels, ReadsNothingAfterThePadding) {
  Random random(5);
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  void* const memory =
      ::mmap(nullptr, 64 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* const end = static_cast<uint8_t*>(memory) + 63 * page;
  ASSERT_EQ(::mprotect(end, page, PROT_NONE), 0);
  for (const double density : {0.0, 0.5, 1.0}) {
    for (const int64_t columns : {1, 64, 100}) {
      const std::vector<uint16_t> values = random_values(columns, density, dtype(), random);
      const Panels panels = packed(values, columns, dtype());
      uint8_t* const at = end - panels.bytes();
      std::memcpy(at, panels.panel(0), static_cast<size_t>(panels.bytes()));
      for (const int64_t tokens : {1, 7}) {
        const std::vector<float> x = random_x(columns * tokens, random);
        EXPECT_TRUE(
            same_bits(multiply(at, columns, x, tokens), chains(values, dtype(), x, tokens)));
      }
    }
  }
  ::munmap(memory, 64 * page);
}

INSTANTIATE_TEST_SUITE_P(Isas, PanelKernels,
                         ::testing::Combine(::testing::Values(CpuIsa::portable, CpuIsa::avx2,
                                                              CpuIsa::avx512, CpuIsa::avx512_vbmi2),
                                            ::testing::Values(DType::f16, DType::bf16)),
                         [](const auto& chosen) {
                           return std::string(name_of(std::get<0>(chosen.param))) + "_" +
                                  std::string(name_of(std::get<1>(chosen.param)));
                         });

// The same matrix in every layout of a file, by every instruction set and with any threads.
TEST(PanelWeights, HaveTheSameBitsWhateverTheyWereReadFrom) {
  Random random(17);
  constexpr int64_t kOut = 200;
  constexpr int64_t kIn = 333;
  for (const DType dtype : {DType::f16, DType::bf16}) {
    OwnedTensor w = allocate_tensor({}, dtype, {kOut, kIn}, "a test");
    std::vector<uint16_t> values = random_values(kOut * kIn / kRows + 1, 0.4, dtype, random);
    std::memcpy(w.view.raw(), values.data(), static_cast<size_t>(w.view.bytes()));
    ThreadPool one(1);
    std::vector<EncodedWeight> encodings;
    for (const char* format : {"tca_bme", "tiled_csl"}) {
      encodings.push_back(weight_format(format).encode(w.view, one));
    }
    encodings.push_back(tca_bme::encode_paper(w.view, one));
    for (const int64_t tokens : {1, 3, 17, 64, 65, 130}) {
      OwnedTensor x = allocate_tensor({}, DType::f32, {tokens, kIn}, "a test");
      random.fill(x.view);
      std::vector<float> expected;
      for (const EncodedWeight& encoding : encodings) {
        for (const int threads : {1, 2, 3, 8}) {
          ThreadPool pool(threads);
          EncodedWeight e = with_own_memory(view_of(encoding));
          const WeightFormat& format = weight_format(e.format);
          const auto weight = format.load(std::move(e), {.threads = pool});
          EXPECT_EQ(weight->bytes(), panels_bytes(kOut, kIn, *weight->nonzeros()));
          Workspace workspace({}, weight->workspace_bytes(tokens, Sums::fastest));
          for (const CpuIsa isa :
               {CpuIsa::portable, CpuIsa::avx2, CpuIsa::avx512, CpuIsa::avx512_vbmi2}) {
            if (isa > best_cpu_isa()) {
              continue;
            }
            ExecContext exec{.device = {}, .workspace = workspace, .threads = pool, .isa = isa};
            std::vector<float> y(static_cast<size_t>(tokens * kOut),
                                 std::numeric_limits<float>::quiet_NaN());
            weight->matmul(x.view, Tensor(y.data(), DType::f32, {tokens, kOut}, {}), {}, exec);
            expected = expected.empty() ? y : expected;
            EXPECT_TRUE(same_bits(y, expected))
                << encoding.format << " " << name_of(isa) << " " << threads << " " << tokens;
          }
        }
      }
    }
  }
}

TEST(Panels, HoldTheValuesAndNoZeros) {
  Random random(11);
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const int64_t columns : {1, 64, 65, 130}) {
      std::vector<uint16_t> values = random_values(columns, 0.4, dtype, random);
      values.back() = 0x8000;  // a negative zero is a zero
      const Panels panels = packed(values, columns, dtype);
      EXPECT_EQ(panels.bytes(), panels_bytes(kRows, columns, count_values(values)));
      std::vector<uint16_t> unpacked(values.size(), 0xffff);
      panels.unpack(0, unpacked.data());
      values.back() = 0;
      EXPECT_EQ(unpacked, values);
      const Panels copy = panels.copy();
      EXPECT_EQ(std::memcmp(copy.panel(0), panels.panel(0), static_cast<size_t>(panels.bytes())),
                0);
    }
  }
}

TEST(Panels, TakeTheNonzerosThatWereCounted) {
  std::vector<uint16_t> values(3 * kRows);
  values[5] = 0x3c00;
  for (const int64_t counted : {0, 2}) {
    Panels panels(3, DType::f16, {&counted, 1});
    EXPECT_TRUE(throws_error([&] { panels.pack(0, values.data()); }, "nonzeros"));
  }
}

TEST(PanelsBytes, AreMasksAndValues) {
  EXPECT_EQ(panels_bytes(0, 100, 0), kPaddingBytes);
  EXPECT_EQ(panels_bytes(64, 100, 10), 100 * 8 + 20 + kPaddingBytes);
  EXPECT_EQ(panels_bytes(65, 100, 10), 2 * 100 * 8 + 20 + kPaddingBytes);
  EXPECT_TRUE(throws_error([] { panels_bytes(INT64_MAX / 2, INT64_MAX / 2, 0); }, "bytes"));
}

}  // namespace
}  // namespace sparsellm::panels
