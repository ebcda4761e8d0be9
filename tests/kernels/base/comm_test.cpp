#include "kernels/base/comm.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <thread>
#include <tuple>
#include <utility>

#include "kernels/base/comm_threads.h"
#include "tests/kernels/base/comm_ranks.h"
#include "tests/testing/cpu_context.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;
using std::chrono::milliseconds;

constexpr float kPoison = -12345.0f;

// Rows of `columns` floats, `gap` floats apart that nobody may touch.
class Matrix {
 public:
  Matrix(int64_t rows, int64_t columns, int64_t gap, float value = kPoison)
      : rows_(rows),
        columns_(columns),
        values_(static_cast<size_t>(rows * (columns + gap)), value),
        view_(Tensor(values_.data(), DType::f32, {rows, columns + gap}, Device{})
                  .columns(0, columns)) {}

  Tensor view() const { return view_; }
  float& at(int64_t row, int64_t column) { return view_.row<float>(row)[column]; }
  // Magnitudes are far apart, so that the order of a sum shows in its bits.
  void fill(uint32_t seed) {
    std::mt19937 random(seed);
    for (int64_t row = 0; row < rows_; ++row) {
      for (int64_t column = 0; column < columns_; ++column) {
        at(row, column) = std::ldexp(static_cast<float>(random() % 2000) - 1000.0f,
                                     static_cast<int>(random() % 24));
      }
    }
  }
  bool gaps_are(float value) {
    for (int64_t row = 0; row < rows_; ++row) {
      for (int64_t i = columns_; i < view_.row_stride(); ++i) {
        if (view_.row<float>(row)[i] != value) {
          return false;
        }
      }
    }
    return true;
  }
  bool same_bits(Matrix& other) {
    for (int64_t row = 0; row < rows_; ++row) {
      if (std::memcmp(&at(row, 0), &other.at(row, 0), sizeof(float) * columns_) != 0) {
        return false;
      }
    }
    return true;
  }

 private:
  int64_t rows_;
  int64_t columns_;
  std::vector<float> values_;
  Tensor view_;
};

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

class CommTest : public ::testing::TestWithParam<std::tuple<Wires, int>> {
 protected:
  static Wires wires() { return std::get<0>(GetParam()); }
  static int ranks() { return std::get<1>(GetParam()); }

  static std::vector<std::string> run(const RankBody& body, RankTimes times = {}) {
    return run_ranks(wires(), ranks(), body, times);
  }
};
INSTANTIATE_TEST_SUITE_P(All, CommTest,
                         ::testing::Combine(::testing::Values(Wires::threads, Wires::path),
                                            ::testing::Range(1, 5)),
                         [](const auto& value) {
                           return to_string(std::get<0>(value.param)) +
                                  std::to_string(std::get<1>(value.param));
                         });
INSTANTIATE_TEST_SUITE_P(Port, CommTest,
                         ::testing::Values(std::tuple(Wires::port, 2), std::tuple(Wires::port, 3)),
                         [](const auto& value) {
                           return "port" + std::to_string(std::get<1>(value.param));
                         });

TEST_P(CommTest, RanksKnowThemselvesAndEachOther) {
  std::atomic<int> seen{0};
  expect_all(run([&](Communicator& comm, ExecContext&) {
               EXPECT_EQ(comm.size(), ranks());
               EXPECT_EQ(comm.name(ranks() - 1),
                         fmt::format("rank {} (d{})", ranks() - 1, ranks() - 1));
               EXPECT_EQ(comm.abort_reason(), std::nullopt);
               comm.check();
               seen += 1 << (4 * comm.rank());
             }),
             "");
  EXPECT_EQ(seen, (1 << (4 * ranks())) / 15);
}

TEST_P(CommTest, SumsAreInTheOrderOfTheRanksToTheSameBits) {
  const std::vector<std::pair<int64_t, int64_t>> shapes{{1, 1}, {1, 7}, {3, 513}, {17, 130}};
  expect_all(run([&](Communicator& comm, ExecContext& ctx) {
               for (const auto& [rows, columns] : shapes) {
                 for (const int64_t gap : {0, 3}) {
                   Matrix y(rows, columns, gap);
                   y.fill(static_cast<uint32_t>(comm.rank()));
                   Matrix expected(rows, columns, 0);
                   expected.fill(0);
                   for (int rank = 1; rank < ranks(); ++rank) {
                     Matrix part(rows, columns, 0);
                     part.fill(static_cast<uint32_t>(rank));
                     for (int64_t i = 0; i < rows * columns; ++i) {
                       expected.at(i / columns, i % columns) += part.at(i / columns, i % columns);
                     }
                   }
                   comm.all_reduce_sum(y.view(), ctx);
                   EXPECT_TRUE(y.same_bits(expected)) << rows << "x" << columns << ", gap " << gap;
                   EXPECT_TRUE(y.gaps_are(kPoison));
                 }
               }
             }),
             "");
}

TEST_P(CommTest, NanAndInfinityStayInSums) {
  expect_all(run([&](Communicator& comm, ExecContext& ctx) {
               std::vector<float> y(3, 1.0f);
               if (comm.rank() == ranks() - 1) {
                 y[0] = std::numeric_limits<float>::quiet_NaN();
                 y[1] = std::numeric_limits<float>::infinity();
               }
               comm.all_reduce_sum(Tensor(y.data(), DType::f32, {3}, Device{}), ctx);
               EXPECT_TRUE(std::isnan(y[0]));
               EXPECT_TRUE(std::isinf(y[1]));
               EXPECT_EQ(y[2], static_cast<float>(ranks()));
             }),
             "");
}

TEST_P(CommTest, SumsOfMoreThanSocketsHold) {
  const int64_t count = 600'001;
  expect_all(run([&](Communicator& comm, ExecContext& ctx) {
               std::vector<float> y(static_cast<size_t>(count));
               for (size_t i = 0; i < y.size(); ++i) {
                 y[i] = static_cast<float>(i % 1000) * static_cast<float>(comm.rank() + 1);
               }
               comm.all_reduce_sum(Tensor(y.data(), DType::f32, {1, count}, Device{}), ctx);
               const int factor = ranks() * (ranks() + 1) / 2;
               int64_t wrong = 0;
               for (size_t i = 0; i < y.size(); ++i) {
                 wrong += y[i] == static_cast<float>(i % 1000 * factor) ? 0 : 1;
               }
               EXPECT_EQ(wrong, 0);
             }),
             "");
}

TEST_P(CommTest, GathersColumnsOfUnevenShares) {
  // Columns of each rank: some have none.
  for (const std::vector<int64_t>& shares :
       {std::vector<int64_t>{3, 64, 0, 5}, std::vector<int64_t>{0, 1, 7, 0}}) {
    std::vector<int64_t> borders{0};
    for (int rank = 0; rank < ranks(); ++rank) {
      borders.push_back(borders.back() + shares[static_cast<size_t>(rank)]);
    }
    const int64_t columns = borders.back();
    expect_all(run([&](Communicator& comm, ExecContext& ctx) {
                 const auto own = static_cast<size_t>(comm.rank());
                 for (const int64_t tokens : {1, 3}) {
                   for (const bool in_place : {false, true}) {
                     Matrix part(tokens, shares[own], 2);
                     Matrix whole(tokens, columns, 5);
                     for (int64_t i = 0; i < tokens * shares[own]; ++i) {
                       const int64_t row = i / shares[own];
                       const int64_t column = i % shares[own];
                       const auto value = static_cast<float>(1000 * row + borders[own] + column);
                       part.at(row, column) = value;
                       whole.at(row, in_place ? borders[own] + column : 0) = value;
                     }
                     comm.all_gather(
                         in_place ? whole.view().columns(borders[own], shares[own]) : part.view(),
                         borders, whole.view(), ctx);
                     for (int64_t i = 0; i < tokens * columns; ++i) {
                       const int64_t row = i / columns;
                       ASSERT_EQ(whole.at(row, i % columns),
                                 static_cast<float>(row * 1000 + i % columns));
                     }
                     EXPECT_TRUE(whole.gaps_are(kPoison));
                   }
                 }
               }),
               "");
  }
}

TEST_P(CommTest, BroadcastsTensorsOfAnyRank) {
  expect_all(run([&](Communicator& comm, ExecContext& ctx) {
               for (int root = 0; root < ranks(); ++root) {
                 Matrix y(3, 5, 2);
                 Matrix expected(3, 5, 0);
                 expected.fill(static_cast<uint32_t>(root + 100));
                 y.fill(static_cast<uint32_t>(comm.rank() + 100));
                 comm.broadcast(y.view(), root, ctx);
                 EXPECT_TRUE(y.same_bits(expected)) << root;
                 EXPECT_TRUE(y.gaps_are(kPoison));
                 std::vector<uint8_t> small(3, static_cast<uint8_t>(comm.rank()));
                 comm.broadcast(Tensor(small.data(), DType::u8, {3}, Device{}), root, ctx);
                 EXPECT_EQ(small, std::vector<uint8_t>(3, static_cast<uint8_t>(root)));
               }
             }),
             "");
}

TEST_P(CommTest, BytesOfTheHost) {
  expect_all(run([&](Communicator& comm, ExecContext&) {
               for (int root = 0; root < ranks(); ++root) {
                 for (const size_t count : {size_t{0}, size_t{1}, size_t{300'000}}) {
                   std::vector<std::byte> bytes(comm.rank() == root ? count : 17,
                                                static_cast<std::byte>(comm.rank()));
                   comm.broadcast_bytes(bytes, root);
                   EXPECT_EQ(bytes, std::vector(count, static_cast<std::byte>(root)));
                 }
               }
               const std::vector<std::byte> own(static_cast<size_t>(comm.rank() * 1000),
                                                static_cast<std::byte>(comm.rank()));
               const auto all = comm.gather_bytes(own);
               ASSERT_EQ(std::ssize(all), comm.rank() == 0 ? ranks() : 0);
               for (size_t rank = 0; rank < all.size(); ++rank) {
                 EXPECT_EQ(all[rank], std::vector(rank * 1000, static_cast<std::byte>(rank)));
               }
             }),
             "");
}

TEST_P(CommTest, WhoComesFirstDoesNotMatter) {
  expect_all(run([&](Communicator& comm, ExecContext& ctx) {
               std::mt19937 random(static_cast<uint32_t>(comm.rank() + 7));
               for (int i = 0; i < 30; ++i) {
                 std::this_thread::sleep_for(std::chrono::microseconds(random() % 800));
                 float y = 1.0f / static_cast<float>(comm.rank() + i + 1);
                 float expected = 1.0f / static_cast<float>(i + 1);
                 for (int rank = 1; rank < ranks(); ++rank) {
                   expected += 1.0f / static_cast<float>(rank + i + 1);
                 }
                 comm.all_reduce_sum(Tensor(&y, DType::f32, {1}, Device{}), ctx);
                 EXPECT_EQ(y, expected);
                 const int root = i % ranks();
                 auto bytes = bytes_of(comm.rank() == root ? std::to_string(i) : "");
                 comm.broadcast_bytes(bytes, root);
                 EXPECT_EQ(bytes, bytes_of(std::to_string(i)));
               }
             }),
             "");
}

TEST_P(CommTest, TheyAgreeOnTheFirstRankThatFailed) {
  expect_all(
      run([&](Communicator& comm, ExecContext&) {
        comm.agree("");
        const int last = ranks() - 1;
        EXPECT_TRUE(throws_error([&] { comm.agree(comm.rank() == last ? "no\nmemory" : ""); },
                                 fmt::format("rank {} (d{}): no memory", last, last)));
        EXPECT_TRUE(throws_error([&] { comm.agree(fmt::format("cause {}", comm.rank())); },
                                 "rank 0 (d0): cause 0"));
        EXPECT_TRUE(
            throws_error([&] { comm.agree(std::string(100'000, 'x')); }, "rank 0 (d0): xx"));
        EXPECT_EQ(comm.abort_reason(), std::nullopt);
        comm.agree("");
      }),
      "");
}

TEST(CommThreads, MeetBeforeAnyGoesOn) {
  constexpr int kRanks = 3;
  constexpr int kTurns = 200;
  std::array<std::atomic<int>, kRanks> turns{};
  expect_all(run_ranks(Wires::threads, kRanks,
                       [&](Communicator& comm, ExecContext&) {
                         for (int turn = 1; turn <= kTurns; ++turn) {
                           turns[static_cast<size_t>(comm.rank())] = turn;
                           comm.meet();
                           for (const std::atomic<int>& other : turns) {
                             EXPECT_GE(other, turn);
                             EXPECT_LE(other, turn + 1);
                           }
                         }
                       }),
             "");
}

TEST(CommThreads, NobodyMeetsWhoHasLeftOrDoesNotCome) {
  const auto all_but_last = [](Communicator& comm, ExecContext&) {
    if (comm.rank() < 2) {
      comm.meet();
    }
  };
  const std::vector<std::string> left = run_ranks(Wires::threads, 3, all_but_last);
  EXPECT_EQ(left[0], "rank 2 (d2): has left");
  EXPECT_EQ(left[1], left[0]);
  const std::vector<std::string> late =
      run_ranks(Wires::threads, 2,
                [](Communicator& comm, ExecContext&) {
                  if (comm.rank() == 0) {
                    comm.meet();
                  } else {
                    std::this_thread::sleep_for(milliseconds(400));
                    comm.meet();
                  }
                },
                {.timeout = milliseconds(100)});
  EXPECT_EQ(late[0], "rank 1 (d1): did not come within 0.1 s");
  EXPECT_EQ(late[1], "");
}

TEST(CommArguments, AreChecked) {
  const auto comms = make_thread_communicators(2);
  Communicator& comm = *comms[0];
  CpuContext context;
  ExecContext& ctx = context.exec;
  std::vector<float> values(64);
  const auto tensor = [&](DType dtype, int64_t rows, int64_t columns) {
    return Tensor(values.data(), dtype, {rows, columns}, Device{});
  };
  const Tensor y = tensor(DType::f32, 2, 4);
  EXPECT_TRUE(throws_error([&] { comm.all_reduce_sum(tensor(DType::f16, 2, 4), ctx); },
                           "all_reduce_sum: f16 on cpu"));
  EXPECT_TRUE(throws_error([&] { comm.all_reduce_sum(Tensor(), ctx); }, "there is no tensor"));
  const Tensor on_gpu(values.data(), DType::f32, {2}, {.kind = Device::Kind::cuda, .index = 1});
  EXPECT_TRUE(throws_error([&] { comm.all_reduce_sum(on_gpu, ctx); },
                           "the tensor is on cuda:1, the context on cpu"));
  EXPECT_TRUE(throws_error([&] { comm.broadcast(y, 2, ctx); }, "from rank 2 of 2"));
  std::vector<std::byte> bytes;
  EXPECT_TRUE(throws_error([&] { comm.broadcast_bytes(bytes, -1); }, "from rank -1 of 2"));

  const auto gather = [&](const Tensor& part, const std::vector<int64_t>& borders) {
    return [&comm, &ctx, y, part, borders] { comm.all_gather(part, borders, y, ctx); };
  };
  const Tensor part = tensor(DType::f32, 2, 3);
  EXPECT_TRUE(throws_error(gather(part, {0, 4}), "2 borders for 2 ranks"));
  EXPECT_TRUE(throws_error(gather(part, {0, 3, 5}), "borders from 0 to 5 of 4 columns"));
  EXPECT_TRUE(throws_error(gather(part, {1, 3, 4}), "borders from 1 to 4 of 4 columns"));
  EXPECT_TRUE(throws_error(gather(part, {0, 5, 4}), "border 4 comes after 5"));
  EXPECT_TRUE(throws_error(gather(part, {0, 2, 4}), "3 columns, and borders of 0 to 2"));
  EXPECT_TRUE(throws_error(gather(tensor(DType::f32, 1, 3), {0, 3, 4}),
                           "all_gather: from f32 [1, 3] to f32 [2, 4]"));
  EXPECT_TRUE(throws_error(gather(tensor(DType::i32, 2, 3), {0, 3, 4}), "from i32 [2, 3]"));
  EXPECT_EQ(comm.abort_reason(), std::nullopt);

  EXPECT_TRUE(throws_error([] { (void)make_thread_communicators(0); }, "0 ranks"));
  EXPECT_TRUE(throws_error([] { (void)make_thread_communicators(2, {.devices = {"cpu"}}); },
                           "1 names of devices for 2 ranks"));
}

TEST(CommArguments, TensorsWithoutElementsNeedNoMeeting) {
  const auto comms = make_thread_communicators(2);
  CpuContext context;
  float none = 0.0f;
  const Tensor y(&none, DType::f32, {0, 4}, Device{});
  comms[0]->all_reduce_sum(y, context.exec);
  comms[0]->broadcast(y, 1, context.exec);
  const std::vector<int64_t> borders{0, 4, 4};
  comms[0]->all_gather(y, borders, y, context.exec);
}

}  // namespace
}  // namespace sparsellm
