// The kernels of plans as they are compiled for GPUs, thread by thread on the host.

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/base/dtype.h"
#include "sparse/general_sparse/general_sparse.h"
#include "sparse/general_sparse/plan_work.h"
#include "tests/sparse/general_sparse/host_grid.h"
#include "tests/sparse/general_sparse/plan_matrices.h"
#include "tests/testing/cpu_context.h"
#include "tests/testing/random.h"
// After host_grid.h.
#include "sparse/general_sparse/device/array_plan.cuh"

namespace sparsellm::general_sparse {

inline float as_float(DeviceF16 x) { return to_float(std::bit_cast<Half>(x.bits)); }
inline float as_float(DeviceBf16 x) { return to_float(std::bit_cast<BFloat16>(x.bits)); }
inline void round_to(float x, DeviceF16& result) {
  result.bits = std::bit_cast<unsigned short>(from_float<Half>(x));
}
inline void round_to(float x, DeviceBf16& result) {
  result.bits = std::bit_cast<unsigned short>(from_float<BFloat16>(x));
}

}  // namespace sparsellm::general_sparse

namespace sparsellm {
namespace {

using namespace general_sparse;
using namespace sparsellm::testing;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

constexpr Division kOneWhole{RowCount::one, RowEnds::whole};
constexpr Division kOneSplit{RowCount::one, RowEnds::split};
constexpr Division kSeveralWhole{RowCount::several, RowEnds::whole};
constexpr Division kSeveralSplit{RowCount::several, RowEnds::split};

// All that there are where a warp has several groups, and a block several warps.
struct Divisions {
  Division thread;
  Division warp;
  Division block;
};
constexpr std::array kDivisions{Divisions{kOneWhole, kSeveralWhole, kSeveralWhole},
                                Divisions{kSeveralWhole, kSeveralWhole, kSeveralWhole},
                                Divisions{kOneSplit, kOneWhole, kSeveralWhole},
                                Divisions{kOneSplit, kOneSplit, kOneWhole},
                                Divisions{kOneSplit, kOneSplit, kOneSplit},
                                Divisions{kOneSplit, kOneSplit, kSeveralWhole},
                                Divisions{kOneSplit, kOneSplit, kSeveralSplit},
                                Divisions{kOneSplit, kSeveralWhole, kSeveralWhole},
                                Divisions{kOneSplit, kSeveralSplit, kSeveralWhole},
                                Divisions{kOneSplit, kSeveralSplit, kSeveralSplit},
                                Divisions{kSeveralSplit, kSeveralWhole, kSeveralWhole},
                                Divisions{kSeveralSplit, kSeveralSplit, kSeveralWhole},
                                Divisions{kSeveralSplit, kSeveralSplit, kSeveralSplit}};

constexpr Reduction reduction_above(const Division& parts, const Division& division,
                                    Reduction below) {
  if (parts.ends == RowEnds::whole) {
    return Reduction::none;
  }
  if (below == Reduction::bitmap || below == Reduction::segment) {
    return Reduction::segment;
  }
  return division.rows == RowCount::one ? Reduction::total : Reduction::bitmap;
}

// The plan with these divisions, as far as it has several parts at each level, and what reductions
// they take.
constexpr KernelPlan with_divisions(KernelPlan plan, const Divisions& divisions) {
  plan.thread = divisions.thread;
  plan.warp = groups(plan) == 1 ? plan.thread : divisions.warp;
  plan.block = sparse_warps(plan) == 1 ? plan.warp : divisions.block;
  if (plan.thread.ends == RowEnds::whole || plan.warp == kOneWhole || plan.block == kOneWhole ||
      (plan.thread_nonzeros == 1 && plan.thread.rows == RowCount::several)) {
    plan.thread_nonzeros = 0;
  }
  plan.thread_reduction = plan.thread_nonzeros == 1           ? Reduction::none
                          : plan.thread.rows == RowCount::one ? Reduction::total
                                                              : Reduction::bitmap;
  plan.warp_reduction = groups(plan) == 1
                            ? Reduction::none
                            : reduction_above(plan.thread, plan.warp, plan.thread_reduction);
  const Reduction below =
      plan.warp_reduction == Reduction::none ? plan.thread_reduction : plan.warp_reduction;
  plan.block_reduction =
      sparse_warps(plan) == 1 ? Reduction::none : reduction_above(plan.warp, plan.block, below);
  return plan;
}

template <class Value>
float value_to_float(Value value) {
  return as_float(value);
}
template <class Value>
Value rounded(float x) {
  Value value;
  round_to(x, value);
  return value;
}

template <class Value>
constexpr DType dtype_of_value() {
  return std::is_same_v<Value, float>       ? DType::f32
         : std::is_same_v<Value, DeviceF16> ? DType::f16
                                            : DType::bf16;
}

struct ProductShape {
  int tokens = 1;
  bool by_columns = false;  // of C: element (m, t) at t * stride + m
  bool padded = false;      // rows of B and C have elements between them
};

// C by the plan's kernels, [M, N], from B [K, N].
template <class C>
std::vector<float> planned_product(const EncodedWeight& e, const PlanWork& work,
                                   const std::vector<float>& b, const ProductShape& shape) {
  using Value = typename C::Value;
  using Kernel = PlanKernel<C>;
  constexpr KernelPlan plan = C::kPlan;
  const int64_t tokens = shape.tokens;
  const int64_t gap = shape.padded ? 3 : 0;
  const bool by_token = plan.x_order == XOrder::by_token;
  const int64_t b_stride = (by_token ? e.columns : tokens) + gap;
  std::vector<Value> x(static_cast<size_t>(b_stride * (by_token ? tokens : e.columns)),
                       rounded<Value>(kNan));
  for (int64_t k = 0; k < e.columns; ++k) {
    for (int64_t t = 0; t < tokens; ++t) {
      x[static_cast<size_t>(by_token ? t * b_stride + k : k * b_stride + t)] =
          rounded<Value>(b[static_cast<size_t>(k * tokens + t)]);
    }
  }
  const int64_t c_stride = (shape.by_columns ? e.rows : tokens) + gap;
  std::vector<Value> c(static_cast<size_t>(c_stride * (shape.by_columns ? tokens : e.rows)),
                       rounded<Value>(kNan));
  const int64_t tiles = ceil_div(tokens, int64_t{Kernel::kTile});
  const int64_t partials =
      work.block_rows.empty() ? 0 : tiles * work.part_blocks * 2 * Kernel::kSums;
  std::vector<float> workspace(static_cast<size_t>(partials), kNan);
  const auto aligned = [&](const void* pointer, int64_t stride) {
    return std::bit_cast<uintptr_t>(pointer) % (sizeof(Value) * plan.x_vector) == 0 &&
           stride % plan.x_vector == 0;
  };
  PlanOperands o;
  o.positions = e.part(kPositions).bytes.data();
  o.values = e.part(kValues).bytes.data();
  o.loads = static_cast<unsigned>(work.loads);
  o.rows = static_cast<unsigned>(e.rows);
  o.parts = static_cast<unsigned>(work.parts);
  o.part_blocks = static_cast<unsigned>(work.part_blocks);
  o.part_table = work.part_begins.data();
  o.row_table = work.rows.data();
  o.starts = work.starts.data();
  o.empty_rows = work.empty_rows.data();
  o.block_rows = work.block_rows.data();
  o.empty_count = static_cast<unsigned>(work.empty_rows.size());
  o.vectors = aligned(x.data(), b_stride) && (shape.by_columns || aligned(c.data(), c_stride));
  o.b = x.data();
  o.c = c.data();
  o.partials = workspace.data();
  o.b_stride = b_stride;
  o.c_row = shape.by_columns ? 1 : c_stride;
  o.c_token = shape.by_columns ? c_stride : 1;
  o.tokens = shape.tokens;
  const int64_t zero_blocks =
      ceil_div(int64_t{o.empty_count} * Kernel::kSums / Kernel::X, int64_t{plan.threads});
  run_grid({.x = static_cast<unsigned>(work.part_blocks + zero_blocks),
            .y = static_cast<unsigned>(tiles)},
           plan.threads, [&] { multiply_by_plan<C>(o); });
  run_grid({.x = static_cast<unsigned>(work.block_rows.size()), .y = static_cast<unsigned>(tiles)},
           plan.threads, [&] { add_block_rows<C>(o); });
  std::vector<float> result(static_cast<size_t>(e.rows * tokens));
  for (int64_t m = 0; m < e.rows; ++m) {
    for (int64_t t = 0; t < tokens; ++t) {
      auto& element = c[static_cast<size_t>(m * o.c_row + t * o.c_token)];
      result[static_cast<size_t>(m * tokens + t)] = value_to_float(element);
      element = rounded<Value>(kNan);
    }
  }
  for (const Value& other : c) {
    EXPECT_TRUE(std::isnan(value_to_float(other))) << "something else is written";
  }
  return result;
}

std::vector<float> naive_product(const CompressedRows& m, const std::vector<float>& b, int tokens) {
  std::vector<float> c(static_cast<size_t>(m.rows() * tokens));
  for (int64_t row = 0; row < m.rows(); ++row) {
    for (size_t i = 0; i < m.columns_of(row).size(); ++i) {
      for (int t = 0; t < tokens; ++t) {
        c[static_cast<size_t>(row * tokens + t)] +=
            m.values_of<float>(row)[i] *
            b[static_cast<size_t>(int64_t{m.columns_of(row)[i]} * tokens + t)];
      }
    }
  }
  return c;
}

class GeneralSparsePlanProduct : public ::testing::Test {
 protected:
  void SetUp() override {
#ifdef __SANITIZE_THREAD__
    GTEST_SKIP() << "ThreadSanitizer does not follow threads that are contexts (host_grid.h)";
#endif
  }

  // Whole numbers from -4 to 4.
  std::vector<float> numbers(int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) {
      value = static_cast<float>(random_.below(9)) - 4.0f;
    }
    return values;
  }

  template <KernelPlan plan, class Value, class Position, int R>
  void check(const PlanMatrixCase& matrix) {
    const CompressedRows m = with_dtype(copy_of(matrix.m), dtype_of_value<Value>(), cpu_.threads);
    const general_sparse::Layout layout =
        plan_layout(plan, R, sizeof(Position) == 4, /*sorted=*/random_.below(2) == 0);
    const EncodedWeight e = encode(m, layout, cpu_.threads);
    const Parts parts(e);
    const PlanWork work = plan_work(parts, plan);
    const int tile = tile_tokens(plan);
    const std::array<int, 4> counts{1, 3, tile, tile + 1 + static_cast<int>(random_.below(tile))};
    ProductShape shape{.tokens = counts[static_cast<size_t>(random_.below(4))],
                       .by_columns = random_.below(2) == 0,
                       .padded = random_.below(2) == 0};
    SCOPED_TRACE(::testing::Message()
                 << matrix.name << ", " << to_text(plan) << ", " << R << " rows, " << shape.tokens
                 << " tokens, by columns " << shape.by_columns << ", padded " << shape.padded
                 << ", sorted " << layout.sorted << ", group loads " << work.group_loads);
    const std::vector<float> b = numbers(m.columns() * shape.tokens);
    constexpr int kLoads = plan.thread_nonzeros / plan.a_vector;
    const std::vector<float> got =
        kLoads > 0 && work.group_loads == kLoads
            ? planned_product<ArrayPlan<plan, Value, Position, R, kLoads>>(e, work, b, shape)
            : planned_product<ArrayPlan<plan, Value, Position, R, 0>>(e, work, b, shape);
    const std::vector<float> expected = naive_product(matrix.m, b, shape.tokens);
    for (size_t i = 0; i < expected.size(); ++i) {
      // Larger sums are rounded in f16 and bf16.
      ASSERT_EQ(got[i], value_to_float(rounded<Value>(expected[i])))
          << "row " << i / static_cast<size_t>(shape.tokens) << ", token "
          << i % static_cast<size_t>(shape.tokens);
    }
  }

  // All divisions.
  template <KernelPlan base, class Value, class Position, int R>
  void check_all(std::span<const PlanMatrixCase> matrices) {
    [&]<size_t... i>(std::index_sequence<i...>) {
      (check_divisions<with_divisions(base, kDivisions[i]), Value, Position, R>(matrices), ...);
    }
    (std::make_index_sequence<kDivisions.size()>());
  }
  template <KernelPlan plan, class Value, class Position, int R>
  void check_divisions(std::span<const PlanMatrixCase> matrices) {
    ASSERT_EQ(why_invalid(plan), std::nullopt) << to_text(plan);
    for (const PlanMatrixCase& matrix : matrices) {
      if (random_.below(2) == 0 && matrix.name != "a huge row") {
        continue;  // another plan has it
      }
      check<plan, Value, Position, R>(matrix);
      if (HasFailure()) {
        return;
      }
    }
  }

  CpuContext cpu_{2};
  Random random_{91};
  std::vector<PlanMatrixCase> matrices_ = plan_matrices();
};

// The order of sums is that of the sparse division and the reductions: whatever tokens threads,
// groups of warps and tiles have, and in whatever order they lie.
TEST_F(GeneralSparsePlanProduct, HasTheSameBitsForAnyTokens) {
  constexpr KernelPlan kFew{.threads_per_group = 4, .step_nonzeros = 2, .threads = 64};
  constexpr KernelPlan kMany{.tokens_per_thread = 4,
                             .threads_per_group = 4,
                             .warps_per_group = 2,
                             .step_nonzeros = 2,
                             .x_vector = 2,
                             .x_order = XOrder::transposed,
                             .threads = 128};
  PlanMatrixCase matrix = std::move(matrices_[1]);
  for (float& value : matrix.m.values<float>()) {
    value = static_cast<float>(random_.uniform(-1.0, 1.0));
  }
  constexpr int kTokens = 37;
  std::vector<float> b(static_cast<size_t>(matrix.m.columns() * kTokens));
  for (float& value : b) {
    value = static_cast<float>(random_.uniform(-1.0, 1.0));
  }
  std::vector<float> b_first;  // of the first token
  for (size_t i = 0; i < b.size(); i += kTokens) {
    b_first.push_back(b[i]);
  }
  const auto product_by = [&]<KernelPlan plan>(const std::vector<float>& of, int tokens) {
    const EncodedWeight e = encode(matrix.m, plan_layout(plan, 1, false, true), cpu_.threads);
    return planned_product<ArrayPlan<plan, float, unsigned short, 1, 0>>(
        e, plan_work(Parts(e), plan), of, {.tokens = tokens});
  };
  const auto check_divisions_of = [&]<size_t i>() {
    constexpr KernelPlan few = with_divisions(kFew, kDivisions[i]);
    constexpr KernelPlan many = with_divisions(kMany, kDivisions[i]);
    const std::vector<float> by_few = product_by.template operator()<few>(b, kTokens);
    const std::vector<float> by_many = product_by.template operator()<many>(b, kTokens);
    EXPECT_EQ(by_few, by_many) << to_text(few);
    const std::vector<float> alone = product_by.template operator()<many>(b_first, 1);
    for (size_t row = 0; row < alone.size(); ++row) {
      EXPECT_EQ(alone[row], by_few[row * kTokens]) << to_text(few);
    }
  };
  [&]<size_t... i>(std::index_sequence<i...>) {
    (check_divisions_of.template operator()<i>(), ...);
  }
  (std::make_index_sequence<kDivisions.size()>());
}

TEST_F(GeneralSparsePlanProduct, OfThreadsOfAToken) {
  constexpr KernelPlan kPlan{.threads = 64};
  check_all<kPlan, float, unsigned short, 1>(matrices_);
}

TEST_F(GeneralSparsePlanProduct, OfOneNonzeroAThread) {
  constexpr KernelPlan kPlan{.threads_per_group = 2, .thread_nonzeros = 1, .threads = 64};
  check_all<kPlan, float, unsigned, 1>(matrices_);
}

TEST_F(GeneralSparsePlanProduct, OfGroupsOfFour) {
  constexpr KernelPlan kPlan{.tokens_per_thread = 2,
                             .threads_per_group = 4,
                             .thread_nonzeros = 4,
                             .step_nonzeros = 2,
                             .a_vector = 2,
                             .x_vector = 2,
                             .x_order = XOrder::transposed,
                             .threads = 128};
  check_all<kPlan, DeviceF16, unsigned short, 1>(matrices_);
}

TEST_F(GeneralSparsePlanProduct, OfTwoWarpsAGroup) {
  constexpr KernelPlan kPlan{.threads_per_group = 16,
                             .warps_per_group = 2,
                             .step_nonzeros = 4,
                             .x_order = XOrder::transposed,
                             .threads = 128};
  check_all<kPlan, DeviceBf16, unsigned, 2>(matrices_);
}

TEST_F(GeneralSparsePlanProduct, OfGroupsThatAreWarps) {
  constexpr KernelPlan kPlan{.tokens_per_thread = 2,
                             .threads_per_group = 32,
                             .thread_nonzeros = 8,
                             .step_nonzeros = 8,
                             .a_vector = 4,
                             .threads = 128};
  check_all<kPlan, float, unsigned short, 4>(matrices_);
}

TEST_F(GeneralSparsePlanProduct, OfBlocksThatAreWarps) {
  constexpr KernelPlan kPlan{.tokens_per_thread = 8,
                             .threads_per_group = 2,
                             .thread_nonzeros = 16,
                             .step_nonzeros = 4,
                             .a_vector = 2,
                             .x_vector = 4,
                             .x_order = XOrder::transposed,
                             .threads = 32};
  check_all<kPlan, float, unsigned short, 1>(matrices_);
}

TEST_F(GeneralSparsePlanProduct, OfBlocksThatAreGroups) {
  constexpr KernelPlan kPlan{.threads_per_group = 32, .thread_nonzeros = 2, .threads = 32};
  check_all<kPlan, float, unsigned, 1>(matrices_);
}

TEST_F(GeneralSparsePlanProduct, OfManyWarps) {
  constexpr KernelPlan kPlan{.tokens_per_thread = 4,
                             .threads_per_group = 8,
                             .thread_nonzeros = 64,
                             .step_nonzeros = 8,
                             .a_vector = 8,
                             .x_vector = 4,
                             .x_order = XOrder::transposed,
                             .threads = 256};
  check_all<kPlan, float, unsigned short, 8>(matrices_);
}

// As many sums as do not fit a block's shared memory at once.
TEST_F(GeneralSparsePlanProduct, OfManySums) {
  constexpr KernelPlan kPlan{.tokens_per_thread = 8,
                             .threads_per_group = 16,
                             .thread_nonzeros = 4,
                             .step_nonzeros = 2,
                             .threads = 512};
  constexpr KernelPlan kSegments = with_divisions(kPlan, kDivisions.back());
  constexpr KernelPlan kTotals = with_divisions(kPlan, kDivisions[4]);
  const std::span<const PlanMatrixCase> few(matrices_.data() + 1, 1);
  using Constants = ArrayPlan<kTotals, float, unsigned short, 8, 0>;
  static_assert(PlanKernel<Constants>::kRowsAtOnce < 8);
  check_divisions<kTotals, float, unsigned short, 8>(few);
  check_divisions<kSegments, float, unsigned short, 8>(few);
}

}  // namespace
}  // namespace sparsellm
