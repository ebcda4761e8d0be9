// The reductions as they are compiled for GPUs, by 32 lanes on the host.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "tests/sparse/general_sparse/host_lanes.h"
#include "tests/testing/random.h"

namespace sparsellm {
namespace {

using namespace general_sparse;
using namespace sparsellm::testing;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

size_t at(int index) { return static_cast<size_t>(index); }

// Some nonzeros, in order, and x for them.
struct Nonzeros {
  std::vector<uint8_t> starts;  // 0 or 1
  std::vector<float> values;
  int tokens = 0;
  std::vector<float> x;  // [nonzeros, tokens]

  int count() const { return static_cast<int>(values.size()); }
  float at_token(int nonzero, int token) const { return x[at(nonzero * tokens + token)]; }
};

// The sums of what comes before the first start, and of the rows after it: [rows + 1, tokens].
using RowSums = std::vector<float>;

// What a kernel does with the nonzeros of a block: `warps` of them, in each 32 / G groups of `each`
// nonzeros. Rows go on from warp to warp, and the last one may go on in the next block. Their sums
// are written once.
template <int G, int T>
class SimulatedBlock {
 public:
  using Lanes = HostLanes<G>;
  static constexpr int kGroups = Lanes::kGroups;

  enum class Thread {
    skipped,
    total,
    bitmap
  };  // total: rows start at the first nonzero of threads

  SimulatedBlock(const Nonzeros& nonzeros, int warps, int each, Thread thread)
      : nonzeros_(nonzeros), warps_(warps), each_(each), thread_(thread) {
    EXPECT_EQ(nonzeros.count(), warps * kGroups * each);
    EXPECT_EQ(nonzeros.tokens, G * T);
    rows_before_.reserve(nonzeros.starts.size() + 1);
    for (const uint8_t start : nonzeros.starts) {
      rows_before_.push_back(rows_);
      rows_ += start;
    }
    rows_before_.push_back(rows_);
  }

  RowSums run() {
    const int stride = G * T;
    sums_.assign(at((rows_ + 1) * stride), kNan);
    std::vector<float> part_sums(at(warps_ * stride), kNan);
    std::vector<unsigned> started(at(warps_), 0);
    std::vector<Warp> warps(at(warps_));
    for (int w = 0; w < warps_; ++w) {
      warps[at(w)] = run_warp(w);
      for (int place = 0; place < G; ++place) {
        put_part(parts(part_sums, started, place), w, warps[at(w)].starts != 0,
                 values_of(warps[at(w)].leading, place).of);
      }
    }
    for (int place = 0; place < G; ++place) {
      const PartSums<G> all = parts(part_sums, started, place);
      Values leading = values_of(warps[0].leading, place);
      if (started[0] == 0) {
        block_segment(all, 0, leading.of);
      }
      store(0, place, leading.of);
      for (int w = 0; w < warps_; ++w) {
        if (started[at(w)] != 0) {
          const int last = 31 - std::countl_zero(warps[at(w)].starts);
          Values trailing = values_of(warps[at(w)].sums, last * G + place);
          block_segment(all, w, trailing.of);
          store(row_after(w, last), place, trailing.of);
        }
      }
    }
    return sums_;
  }

 private:
  struct Values {
    float of[T];
  };
  struct Warp {
    unsigned starts = 0;  // a bit per group
    LaneFloats leading[T];
    LaneFloats sums[T];
  };

  static PartSums<G> parts(std::vector<float>& sums, std::vector<unsigned>& started, int place) {
    return {.sums = sums.data() + place,
            .started = started.data(),
            .stride = G * T,
            .count = static_cast<int>(started.size())};
  }

  static Values values_of(const LaneFloats (&x)[T], int lane) {
    Values values;
    for (int t = 0; t < T; ++t) {
      values.of[t] = x[t].of[at(lane)];
    }
    return values;
  }

  int first_nonzero(int warp, int group) const { return (warp * kGroups + group) * each_; }
  // The number, from 1 on, of the row that starts last in a group.
  int row_after(int warp, int group) const {
    return rows_before_[at(first_nonzero(warp, group) + each_)];
  }

  void store(int row, int place, const float (&sums)[T]) {
    for (int t = 0; t < T; ++t) {
      float& sum = sums_[at((row * T + t) * G + place)];
      EXPECT_TRUE(std::isnan(sum)) << "row " << row << " is written twice";
      sum = sums[t];
    }
  }

  void run_thread(int w, int lane, Warp& warp) {
    const int first = first_nonzero(w, lane / G);
    ThreadRows<T> rows{};
    for (int i = first; i < first + each_; ++i) {
      float x[T];
      for (int t = 0; t < T; ++t) {
        x[t] = nonzeros_.at_token(i, t * G + lane % G);
      }
      if (thread_ == Thread::bitmap) {
        thread_bitmap(nonzeros_.starts[at(i)] != 0, nonzeros_.values[at(i)], x, rows,
                      [&](int row, const float(&sums)[T]) {
                        store(rows_before_[at(first)] + 1 + row, lane % G, sums);
                      });
      } else {
        EXPECT_TRUE(i == first || nonzeros_.starts[at(i)] == 0);
        thread_total(nonzeros_.values[at(i)], x, rows.sums);
        rows.starts += nonzeros_.starts[at(i)];
      }
    }
    if (thread_ == Thread::bitmap) {
      end_thread_rows(rows);
    }
    for (int t = 0; t < T; ++t) {
      warp.leading[t].of[at(lane)] = rows.leading[t];
      warp.sums[t].of[at(lane)] = rows.sums[t];
    }
    warp.starts |= rows.starts > 0 ? 1u << (lane / G) : 0u;
  }

  Warp run_warp(int w) {
    Warp warp;
    for (int lane = 0; lane < 32; ++lane) {
      run_thread(w, lane, warp);
    }
    if (thread_ == Thread::bitmap) {
      warp_segment<Lanes>(warp.starts, warp.leading, warp.sums);
    } else {
      warp_bitmap<Lanes>(warp.starts, warp.sums);
    }
    // Rows that end in the warp; the last one may go on.
    for (int g = 0; g < kGroups; ++g) {
      const bool starts = (warp.starts >> g & 1u) != 0;
      const bool last = warp.starts >> g == 1u;
      for (int place = 0; place < G && starts && !last; ++place) {
        store(row_after(w, g), place, values_of(warp.sums, g * G + place).of);
      }
    }
    for (int t = 0; t < T; ++t) {
      if ((warp.starts & 1u) == 0) {
        warp.leading[t] = warp.sums[t];
      }
    }
    return warp;
  }

  const Nonzeros& nonzeros_;
  int warps_;
  int each_;
  Thread thread_;
  int rows_ = 0;
  std::vector<int> rows_before_;  // [nonzeros + 1]
  RowSums sums_;
};

struct Expectation {
  std::vector<double> sums;  // as RowSums
  std::vector<double> magnitudes;
};

Expectation expected_sums(const Nonzeros& nonzeros) {
  const size_t tokens = at(nonzeros.tokens);
  Expectation expected{.sums = std::vector<double>(tokens, 0.0),
                       .magnitudes = std::vector<double>(tokens, 0.0)};
  for (int i = 0; i < nonzeros.count(); ++i) {
    if (nonzeros.starts[at(i)] != 0) {
      expected.sums.resize(expected.sums.size() + tokens, 0.0);
      expected.magnitudes.resize(expected.sums.size(), 0.0);
    }
    for (int token = 0; token < nonzeros.tokens; ++token) {
      const double product = static_cast<double>(nonzeros.values[at(i)]) *
                             static_cast<double>(nonzeros.at_token(i, token));
      const size_t place = expected.sums.size() - tokens + at(token);
      expected.sums[place] += product;
      expected.magnitudes[place] += std::fabs(product);
    }
  }
  return expected;
}

void set_starts(uint32_t pattern, Nonzeros& nonzeros) {
  for (int i = 0; i < nonzeros.count(); ++i) {
    nonzeros.starts[at(i)] = pattern >> i & 1u;
  }
}

// Nonzero i is 2^i: a sum says which nonzeros are in it, and is exact.
Nonzeros powers_of_two(int count, int tokens) {
  Nonzeros nonzeros;
  nonzeros.tokens = tokens;
  nonzeros.starts.assign(at(count), 0);
  for (int i = 0; i < count; ++i) {
    nonzeros.values.push_back(std::ldexp(1.0f, i));
    for (int token = 0; token < tokens; ++token) {
      nonzeros.x.push_back(static_cast<float>(token + 1));
    }
  }
  return nonzeros;
}

constexpr uint32_t kPatterns = 1u << 16;

// All patterns of starts among the 16 nonzeros of a block.
template <int G>
void check_all_patterns(int warps, int each) {
  using Block = SimulatedBlock<G, 1>;
  Nonzeros nonzeros = powers_of_two(16, G);
  for (uint32_t pattern = 0; pattern < kPatterns; ++pattern) {
    set_starts(pattern, nonzeros);
    const RowSums got =
        Block(nonzeros, warps, each, each == 1 ? Block::Thread::skipped : Block::Thread::bitmap)
            .run();
    size_t row = 0;
    uint32_t sum = 0;
    for (int i = 0; i <= 16; ++i) {
      if (i == 16 || (pattern >> i & 1u) != 0) {
        for (int token = 0; token < G; ++token) {
          ASSERT_EQ(got[row * G + at(token)],
                    static_cast<float>(sum) * static_cast<float>(token + 1))
              << "pattern " << pattern << ", row " << row << ", token " << token << ", " << warps
              << " warps, " << each << " nonzeros a thread";
        }
        ++row;
        sum = 0;
      }
      sum += i < 16 ? 1u << i : 0u;
    }
    ASSERT_EQ(got.size(), row * G);
  }
}

TEST(GeneralSparseReductions, AllStartPatternsInOneThread) { check_all_patterns<32>(1, 16); }

TEST(GeneralSparseReductions, AllStartPatternsInOneWarp) {
  check_all_patterns<2>(1, 1);
  check_all_patterns<4>(1, 2);
  check_all_patterns<8>(1, 4);
  check_all_patterns<16>(1, 8);
}

TEST(GeneralSparseReductions, AllStartPatternsInBlocks) {
  check_all_patterns<4>(2, 1);
  check_all_patterns<8>(2, 2);
  check_all_patterns<16>(2, 4);
}

TEST(GeneralSparseReductions, AllStartPatternsInLargerBlocks) {
  check_all_patterns<8>(4, 1);
  check_all_patterns<16>(8, 1);
  check_all_patterns<32>(2, 8);
}

// What a warp gives is the row of its own part.
TEST(GeneralSparseReductions, AllStartPatternsOfPartsWithOneRow) {
  for (uint32_t pattern = 0; pattern < kPatterns; ++pattern) {
    float memory[16];
    unsigned started[16];
    const PartSums<1> parts{.sums = memory, .started = started, .stride = 1, .count = 16};
    for (int part = 0; part < 16; ++part) {
      const float sums[1] = {std::ldexp(1.0f, part)};
      put_part(parts, part, (pattern >> part & 1u) != 0, sums);
    }
    for (int part = 0; part < 16; ++part) {
      float sums[1] = {memory[part]};
      block_bitmap(parts, part, sums);
      uint32_t expected = 1u << part;
      for (int later = part + 1; later < 16 && (pattern >> later & 1u) == 0; ++later) {
        expected |= 1u << later;
      }
      ASSERT_EQ(sums[0], static_cast<float>(expected)) << pattern << ", part " << part;
    }
    ASSERT_EQ(block_total(parts, 0), static_cast<float>(kPatterns - 1));
  }
}

Nonzeros random_nonzeros(int count, int tokens, double share_of_starts, int starts_at,
                         Random& random) {
  Nonzeros nonzeros;
  nonzeros.tokens = tokens;
  for (int i = 0; i < count; ++i) {
    const bool start = i % starts_at == 0 && random.uniform(0.0, 1.0) < share_of_starts;
    nonzeros.starts.push_back(start ? 1 : 0);
    nonzeros.values.push_back(static_cast<float>(random.uniform(-1.0, 1.0)));
    for (int token = 0; token < tokens; ++token) {
      nonzeros.x.push_back(static_cast<float>(random.uniform(-1.0, 1.0)));
    }
  }
  return nonzeros;
}

// Of each token alone, as the order for T = 1 has it.
Nonzeros tokens_of(const Nonzeros& nonzeros, int first, int tokens) {
  Nonzeros few = nonzeros;
  few.tokens = tokens;
  few.x.clear();
  for (int i = 0; i < nonzeros.count(); ++i) {
    for (int token = first; token < first + tokens; ++token) {
      few.x.push_back(nonzeros.at_token(i, token));
    }
  }
  return few;
}

template <int G, int T>
void check_random(Random& random) {
  using Block = SimulatedBlock<G, T>;
  using Thread = typename Block::Thread;
  for (const double share : {0.0, 0.02, 0.2, 0.6, 1.0}) {
    const int warps = static_cast<int>(1 + random.below(8));
    const int each = static_cast<int>(1 + random.below(7));
    const Thread thread = random.below(2) == 0 ? Thread::total : Thread::bitmap;
    SCOPED_TRACE(::testing::Message() << G << " threads of " << T << " tokens a group, " << warps
                                      << " warps, " << each << " nonzeros a thread, " << share
                                      << " are starts, bitmap " << (thread == Thread::bitmap));
    const Nonzeros nonzeros = random_nonzeros(warps * Block::kGroups * each, G * T, share,
                                              thread == Thread::bitmap ? 1 : each, random);
    const Expectation expected = expected_sums(nonzeros);
    const RowSums got = Block(nonzeros, warps, each, thread).run();
    ASSERT_EQ(got.size(), expected.sums.size());
    for (size_t i = 0; i < got.size(); ++i) {
      const double tolerance = 0x1p-22 * expected.magnitudes[i];
      ASSERT_TRUE(std::fabs(static_cast<double>(got[i]) - expected.sums[i]) <= tolerance)
          << "row " << i / (G * T) << ", token " << i % (G * T) << ": " << got[i] << ", expected "
          << expected.sums[i];
    }
    using One = SimulatedBlock<G, 1>;
    for (int t = 0; t < T; ++t) {
      const Nonzeros few = tokens_of(nonzeros, t * G, G);
      const RowSums alone =
          One(few, warps, each, thread == Thread::bitmap ? One::Thread::bitmap : One::Thread::total)
              .run();
      for (size_t i = 0; i < alone.size(); ++i) {
        const size_t together = (i / G * T + at(t)) * G + i % G;
        ASSERT_EQ(got[together], alone[i]) << "not the bits of T = 1";
      }
    }
  }
}

TEST(GeneralSparseReductions, RandomBlocksHaveTheSumsOfTheirRows) {
  constexpr uint64_t kSeed = 31;
  SCOPED_TRACE(kSeed);
  Random random(kSeed);
  for (int round = 0; round < 6; ++round) {
    check_random<1, 1>(random);
    check_random<1, 2>(random);
    check_random<1, 8>(random);
    check_random<2, 4>(random);
    check_random<4, 2>(random);
    check_random<8, 1>(random);
    check_random<8, 4>(random);
    check_random<16, 2>(random);
    check_random<32, 1>(random);
  }
}

// Algorithm 1 as it has to read: steps 1, 2, 4, ..., for all j at once: if bit[j + step] is unset,
// r[j] += r[j + step] and bit[j + step] = bit[j].
std::vector<float> algorithm_1(uint32_t starts, std::vector<float> r) {
  const int length = static_cast<int>(r.size());
  std::vector<bool> bit(r.size());
  for (int j = 0; j < length; ++j) {
    bit[at(j)] = (starts >> j & 1u) != 0;
  }
  for (int step = 1; step < length; step *= 2) {
    const std::vector<bool> old_bit = bit;
    const std::vector<float> old_r = r;
    for (int j = 0; j + step < length; ++j) {
      if (!old_bit[at(j + step)]) {
        r[at(j)] = old_r[at(j)] + old_r[at(j + step)];
        bit[at(j + step)] = old_bit[at(j)];
      }
    }
  }
  return r;
}

TEST(GeneralSparseReductions, WarpBitmapIsAlgorithm1BitForBit) {
  constexpr uint64_t kSeed = 32;
  SCOPED_TRACE(kSeed);
  Random random(kSeed);
  for (int round = 0; round < 2000; ++round) {
    auto starts = static_cast<uint32_t>(random.below(int64_t{1} << 32));
    if (round % 2 == 0) {
      starts &= static_cast<uint32_t>(random.below(int64_t{1} << 32));
      starts &= static_cast<uint32_t>(random.below(int64_t{1} << 32));
    }
    std::vector<float> r;
    LaneFloats sums[1];
    for (size_t lane = 0; lane < 32; ++lane) {
      sums[0].of[lane] = static_cast<float>(random.uniform(-1.0, 1.0));
      r.push_back(sums[0].of[lane]);
    }
    warp_bitmap<HostLanes<1>>(starts, sums);
    const std::vector<float> expected = algorithm_1(starts, r);
    for (size_t lane = 0; lane < 32; ++lane) {
      ASSERT_EQ(sums[0].of[lane], expected[lane]) << starts << ", lane " << lane;
    }
  }
}

// The tree of a total: groups first, first + 1, ... of `count`, halves first.
float halved_sum(const std::vector<float>& x, int first, int step, int count) {
  return count == 1 ? x[at(first)]
                    : halved_sum(x, first, 2 * step, count / 2) +
                          halved_sum(x, first + step, 2 * step, count / 2);
}

template <int G, int T>
void check_totals(Random& random) {
  using Lanes = HostLanes<G>;
  LaneFloats sums[T];
  for (LaneFloats& sum : sums) {
    for (float& x : sum.of) {
      x = static_cast<float>(random.uniform(-1.0, 1.0));
    }
  }
  LaneFloats scattered[T];
  std::copy_n(sums, T, scattered);
  LaneFloats everywhere[T];
  std::copy_n(sums, T, everywhere);
  warp_total<Lanes>(everywhere);
  warp_total_scattered<Lanes>(scattered);
  constexpr int kTokens = kScatteredTokens<Lanes, T>;
  for (int lane = 0; lane < 32; ++lane) {
    for (int t = 0; t < T; ++t) {
      std::vector<float> groups(at(Lanes::kGroups));
      for (int g = 0; g < Lanes::kGroups; ++g) {
        groups[at(g)] = sums[t].of[at(g * G + lane % G)];
      }
      ASSERT_EQ(everywhere[t].of[at(lane)], halved_sum(groups, 0, 1, Lanes::kGroups));
    }
    const int first = lane / G * T / Lanes::kGroups;
    for (int t = 0; t < kTokens; ++t) {
      ASSERT_EQ(scattered[t].of[at(lane)], everywhere[first + t].of[at(lane)])
          << G << " threads a group, " << T << " tokens, lane " << lane;
    }
  }
}

TEST(GeneralSparseReductions, TotalsAreTheSameScatteredOrNot) {
  constexpr uint64_t kSeed = 33;
  SCOPED_TRACE(kSeed);
  Random random(kSeed);
  for (int round = 0; round < 20; ++round) {
    check_totals<1, 1>(random);
    check_totals<1, 2>(random);
    check_totals<1, 4>(random);
    check_totals<1, 8>(random);
    check_totals<2, 16>(random);
    check_totals<4, 8>(random);
    check_totals<8, 8>(random);
    check_totals<16, 8>(random);
    check_totals<32, 4>(random);
  }
}

// A product that is infinite or none spoils the sum of its own row alone.
TEST(GeneralSparseReductions, RowsDoNotSpoilOthers) {
  constexpr uint64_t kSeed = 34;
  SCOPED_TRACE(kSeed);
  Random random(kSeed);
  using Block = SimulatedBlock<2, 1>;
  for (int round = 0; round < 300; ++round) {
    const int each = static_cast<int>(1 + random.below(3));
    Nonzeros nonzeros = random_nonzeros(2 * Block::kGroups * each, 2, 0.2, 1, random);
    const auto bad = static_cast<size_t>(random.below(nonzeros.count()));
    nonzeros.values[bad] = round % 2 == 0 ? kNan : std::numeric_limits<float>::infinity();
    const size_t bad_row = static_cast<size_t>(
        std::count(nonzeros.starts.begin(),
                   nonzeros.starts.begin() + static_cast<std::ptrdiff_t>(bad) + 1, true));
    const RowSums got =
        Block(nonzeros, 2, each, each == 1 ? Block::Thread::skipped : Block::Thread::bitmap).run();
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(std::isfinite(got[i]), i / 2 != bad_row) << "row " << i / 2;
    }
  }
}

}  // namespace
}  // namespace sparsellm
