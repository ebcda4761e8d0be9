// sparsellm-bench kernel on sparse matrices, on the CPU: measuring, verification, summary, tables.

#include "tools/bench/matrix_bench.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "sparse/general_sparse/format/layout.h"
#include "sparse/matrices/random_matrix.h"
#include "tests/sparse/matrices/write_matrix_market.h"
#include "tests/testing/cpu_context.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"
#include "tests/tools/bench/report_tables.h"
#include "tools/bench/matrix_operands.h"
#include "tools/bench/matrix_reference.h"
#include "tools/bench/matrix_report.h"
#include "tools/bench/matrix_summary.h"
#include "tools/bench/verify_product.h"

namespace sparsellm {
namespace {

using general_sparse::Order;
using nlohmann::json;
using Role = MatrixContenderKind::Role;
using namespace sparsellm::testing;

MatrixSource small_source(MatrixClass matrix_class) {
  return {.name = std::string(name_of(matrix_class)),
          .file = {},
          .random = {.matrix_class = matrix_class,
                     .rows = 72,
                     .columns = 72,
                     .nonzeros = 400,
                     .seed = 5,
                     .empty_rows = 0.5}};
}

MatrixBenchOptions small_options() {
  MatrixBenchOptions options;
  options.matrices = {small_source(MatrixClass::skewed)};
  options.columns = {3};
  options.repeat = 2;
  options.rotation_bytes = 1 << 14;
  options.threads = 2;
  return options;
}

std::vector<MatrixResult> bench(const MatrixBenchOptions& options) {
  return bench_matrices(options, matrix_contenders({}, MatrixSearch()), [](const MatrixResult&) {});
}

TEST(MatrixBench, EveryClassIsVerified) {
  MatrixBenchOptions options = small_options();
  options.matrices.clear();
  for (const MatrixClass matrix_class : kMatrixClasses) {
    options.matrices.push_back(small_source(matrix_class));
  }
  options.columns = {1, 5};
  options.orders = {Order::rows, Order::columns};
  std::vector<std::string> delivered;
  const std::vector<MatrixResult> results =
      bench_matrices(options, matrix_contenders({}, MatrixSearch()),
                     [&](const MatrixResult& result) { delivered.push_back(result.matrix); });
  ASSERT_EQ(results.size(), kMatrixClasses.size() * 4);
  ASSERT_EQ(delivered.size(), results.size());
  for (size_t i = 0; i < results.size(); ++i) {
    const MatrixResult& result = results[i];
    SCOPED_TRACE(result.matrix + ": " + result.note);
    EXPECT_EQ(result.matrix, delivered[i]);
    EXPECT_EQ(result.matrix, name_of(kMatrixClasses[i / 4]));
    EXPECT_EQ(result.matrix_class, result.matrix);
    EXPECT_EQ(result.order, i % 4 < 2 ? Order::rows : Order::columns);
    EXPECT_EQ(result.n, i % 2 == 0 ? 1 : 5);
    EXPECT_EQ(result.contender, "general_sparse");
    EXPECT_EQ(result.role, Role::measured);
    EXPECT_EQ(result.rows, 72);
    EXPECT_EQ(result.columns, 72);
    EXPECT_GT(result.nonzeros, 0);
    EXPECT_DOUBLE_EQ(result.mean_row, static_cast<double>(result.nonzeros) / 72.0);
    EXPECT_GE(static_cast<double>(result.longest_row), result.mean_row);
    EXPECT_TRUE(result.verified);
    EXPECT_LE(result.worst_error, 1.0);
    EXPECT_GT(result.us.min, 0.0);
    EXPECT_LE(result.us.min, result.us.median);
    EXPECT_LE(result.us.median, result.us.max);
    EXPECT_NEAR(result.gflops * result.us.median * 1e3,
                2.0 * static_cast<double>(result.nonzeros * result.n), 1e-6);
    EXPECT_NEAR(result.gb_per_s * result.us.median * 1e3,
                static_cast<double>(result.bytes + 2 * 72 * 4 * result.n), 1e-6);
    // There is no library here.
    EXPECT_EQ(result.speedup, 0.0);
    EXPECT_FALSE(result.verdict);
    EXPECT_EQ(result.dense_us, 0.0);
  }
}

TEST(MatrixBench, FilesOfTheMatrixMarket) {
  ThreadPool threads(1);
  const CompressedRows matrix = random_matrix(
      {.matrix_class = MatrixClass::uniform, .rows = 30, .columns = 50, .nonzeros = 90}, threads);
  const TempDir folder;
  MatrixBenchOptions options = small_options();
  options.matrices = {market_source(folder.write("bridge.mtx", matrix_market_text(matrix)))};
  const std::vector<MatrixResult> results = bench(options);
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].matrix, "bridge");
  EXPECT_EQ(results[0].matrix_class, "file");
  EXPECT_EQ(results[0].rows, 30);
  EXPECT_EQ(results[0].columns, 50);
  EXPECT_EQ(results[0].nonzeros, 90);
  EXPECT_TRUE(results[0].verified) << results[0].note;
}

TEST(MatrixBench, EveryDType) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    MatrixBenchOptions options = small_options();
    options.dtype = dtype;
    for (const MatrixResult& result : bench(options)) {
      EXPECT_TRUE(result.verified) << name_of(dtype) << ": " << result.note;
    }
  }
}

// The next matrix is measured all the same.
TEST(MatrixBench, AMatrixThatCannotBeReadIsANote) {
  const TempDir folder;
  MatrixBenchOptions options = small_options();
  options.columns = {2, 4};
  options.matrices = {market_source("/no/such/matrix.mtx"),
                      market_source(folder.write("bad.mtx", "%%MatrixMarket matrix\n")),
                      small_source(MatrixClass::banded)};
  const std::vector<MatrixResult> results = bench(options);
  ASSERT_EQ(results.size(), 6u);
  for (size_t i = 0; i < results.size(); ++i) {
    EXPECT_EQ(results[i].n, i % 2 == 0 ? 2 : 4);
    EXPECT_EQ(results[i].contender, "general_sparse");
    EXPECT_EQ(results[i].verified, i >= 4) << results[i].note;
    EXPECT_EQ(results[i].us.median > 0.0, i >= 4);
  }
  EXPECT_NE(results[0].note.find("/no/such/matrix.mtx"), std::string::npos) << results[0].note;
  EXPECT_NE(results[2].note.find("bad.mtx"), std::string::npos) << results[2].note;
}

// As one that is too large.
TEST(MatrixBench, ALayoutWithoutKernelsIsANote) {
  MatrixBenchOptions options = small_options();
  options.layout = to_text(general_sparse::Layout{.panel_columns = 64});
  for (const MatrixResult& result : bench(options)) {
    EXPECT_FALSE(result.verified);
    EXPECT_EQ(result.note,
              "layout: there are no kernels of sparse matrices for several panels: panel=64, 72 "
              "columns");
  }
  options.layout = to_text(general_sparse::Layout{.panel_columns = 128});
  for (const MatrixResult& result : bench(options)) {
    EXPECT_TRUE(result.verified) << result.note;
  }
}

TEST(MatrixBench, OptionsThatMakeNoSense) {
  const auto refuses = [](const auto& change, const char* message) {
    MatrixBenchOptions options = small_options();
    change(options);
    return throws_error([&] { check_options(options); }, message);
  };
  EXPECT_TRUE(refuses([](MatrixBenchOptions& o) { o.dtype = DType::i32; }, "i32"));
  EXPECT_TRUE(refuses([](MatrixBenchOptions& o) { o.columns = {8, 0}; }, "0 columns"));
  EXPECT_TRUE(refuses([](MatrixBenchOptions& o) { o.columns.clear(); }, "no columns"));
  EXPECT_TRUE(refuses([](MatrixBenchOptions& o) { o.orders.clear(); }, "no columns"));
  EXPECT_TRUE(refuses([](MatrixBenchOptions& o) { o.repeat = 0; }, "0 replays"));
  EXPECT_TRUE(refuses([](MatrixBenchOptions& o) { o.rotation_bytes = -1; }, "-1 bytes"));
  EXPECT_TRUE(refuses([](MatrixBenchOptions& o) { o.matrices.push_back(o.matrices.front()); },
                      "two matrices have the name 'skewed'"));
  EXPECT_TRUE(refuses([](MatrixBenchOptions& o) { o.matrices[0].random.nonzeros = 72 * 72 + 1; },
                      "5185 nonzeros"));
  EXPECT_TRUE(refuses([](MatrixBenchOptions& o) { o.layout = "fast"; },
                      "layout: expected 'positions=', found 'fast'"));
}

// The product by a plain loop, or something else.
enum class Fault : uint8_t {
  none,
  wrong,       // one element, by a thousandth of its size
  unfinished,  // the last row stays as it was
  infinite,    // one element
  late,        // wrong from the third call on
  fails
};

class FakeKernel : public BoundKernel {
 public:
  FakeKernel(std::string name, Fault fault, const CompressedRows& a, const Tensor& b,
             const Tensor& c, Order order)
      : name_(std::move(name)), fault_(fault), a_(a), b_(b), c_(c), order_(order) {}

  std::string algorithm(Launches) const override { return name_; }
  void enqueue(int64_t, Launches) override {
    require(fault_ != Fault::fails, "no such kernel");
    ++calls_;
    const bool by_rows = order_ == Order::rows;
    const int64_t n = b_.size(by_rows ? 1 : 0);
    const int64_t rows = a_.rows() - (fault_ == Fault::unfinished ? 1 : 0);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t j = 0; j < n; ++j) {
        double sum = 0.0;
        for (size_t k = 0; k < a_.columns_of(row).size(); ++k) {
          const int64_t column = a_.columns_of(row)[k];
          const float b = by_rows ? b_.row<float>(column)[j] : b_.row<float>(j)[column];
          sum += static_cast<double>(a_.values_of<float>(row)[k]) * static_cast<double>(b);
        }
        (by_rows ? c_.row<float>(row)[j] : c_.row<float>(j)[row]) = static_cast<float>(sum);
      }
    }
    float& last = c_.row<float>(c_.size(0) - 1)[c_.size(1) - 1];
    if (fault_ == Fault::wrong || (fault_ == Fault::late && calls_ > 2)) {
      last += 0.001f * std::max(std::abs(last), 1.0f);
    } else if (fault_ == Fault::infinite) {
      last = std::numeric_limits<float>::infinity();
    }
  }

 private:
  std::string name_;
  Fault fault_;
  const CompressedRows& a_;
  Tensor b_;
  Tensor c_;
  Order order_;
  int calls_ = 0;
};

class FakeContender : public MatrixContender {
 public:
  struct Algorithm {
    std::string name;
    Fault fault;
  };
  FakeContender(std::vector<Algorithm> algorithms, const MatrixInput& input)
      : algorithms_(std::move(algorithms)),
        a_(with_dtype(copy_of(input.matrix), DType::f32, input.threads)) {}

  int64_t copies() const override { return 2; }
  std::vector<MatrixProduct> bind(const Tensor& b, const Tensor& c, Order order) override {
    std::vector<MatrixProduct> products;
    for (const Algorithm& algorithm : algorithms_) {
      products.push_back(
          {.kernel = std::make_unique<FakeKernel>(algorithm.name, algorithm.fault, a_, b, c, order),
           .bytes = 1000});
    }
    return products;
  }

 private:
  static CompressedRows copy_of(const CompressedRows& m) {
    CompressedRows copy(m.dtype(), m.rows(), m.columns(), m.nonzeros());
    std::ranges::copy(m.starts(), copy.starts().begin());
    std::ranges::copy(m.column_indices(), copy.column_indices().begin());
    std::ranges::copy(m.values<float>(), copy.values<float>().begin());
    return copy;
  }

  std::vector<Algorithm> algorithms_;
  CompressedRows a_;
};

MatrixContenderKind fake(const std::string& name, Role role,
                         std::vector<FakeContender::Algorithm> algorithms) {
  return {.name = name, .role = role, .make = [=](const MatrixInput& input) {
            return std::make_unique<FakeContender>(algorithms, input);
          }};
}

MatrixResult bench_fault(Fault fault, Order order = Order::rows) {
  MatrixBenchOptions options = small_options();
  options.orders = {order};
  const std::vector<MatrixResult> results = bench_matrices(
      options, {fake("fake", Role::measured, {{"", fault}})}, [](const MatrixResult&) {});
  return results.at(0);
}

TEST(MatrixBench, NothingButARightResultPasses) {
  for (const Order order : {Order::rows, Order::columns}) {
    EXPECT_TRUE(bench_fault(Fault::none, order).verified);
    for (const Fault fault :
         {Fault::wrong, Fault::unfinished, Fault::infinite, Fault::late, Fault::fails}) {
      const MatrixResult result = bench_fault(fault, order);
      EXPECT_FALSE(result.verified);
      EXPECT_EQ(result.us.median, 0.0);
      EXPECT_EQ(result.gflops, 0.0);
      EXPECT_FALSE(result.note.empty());
      EXPECT_EQ(result.worst_error > 1.0, fault != Fault::fails);
      EXPECT_EQ(std::isinf(result.worst_error),
                fault == Fault::unfinished || fault == Fault::infinite);
    }
  }
  EXPECT_EQ(bench_fault(Fault::fails).note, "no such kernel");
  EXPECT_NE(bench_fault(Fault::wrong).note.find("wrong result"), std::string::npos);
}

TEST(MatrixBench, TurnsWithTheBestLibraryThatIsRight) {
  MatrixBenchOptions options = small_options();
  const std::vector<MatrixContenderKind> kinds{
      fake("ours", Role::measured, {{"plan", Fault::none}}),
      fake("library", Role::sparse,
           {{"A1", Fault::fails}, {"A2", Fault::none}, {"A3", Fault::wrong}}),
      fake("broken", Role::sparse, {{"B1", Fault::wrong}, {"B2", Fault::fails}}),
      fake("dense", Role::dense, {{"D", Fault::none}}),
      {.name = "too large",
       .role = Role::dense,
       .make = [](const MatrixInput&) { return std::unique_ptr<MatrixContender>(); }},
      {.name = "missing",
       .role = Role::dense,
       .make = [](const MatrixInput&) -> std::unique_ptr<MatrixContender> {
         fail("no such library");
       }}};
  const std::vector<MatrixResult> results =
      bench_matrices(options, kinds, [](const MatrixResult&) {});
  ASSERT_EQ(results.size(), 5u);
  const MatrixResult& dense = results[0];
  EXPECT_EQ(dense.contender, "dense");
  EXPECT_TRUE(dense.verified);
  EXPECT_EQ(dense.dense_us, dense.us.median);
  EXPECT_EQ(results[1].contender, "missing");
  EXPECT_FALSE(results[1].verified);
  EXPECT_EQ(results[1].note, "no such library");
  const MatrixResult& library = results[2];
  EXPECT_EQ(library.contender, "library");
  EXPECT_TRUE(library.verified);
  EXPECT_EQ(library.algorithm, "A2");
  EXPECT_NE(library.note.find("A1: no such kernel"), std::string::npos) << library.note;
  EXPECT_NE(library.note.find("A3: wrong result"), std::string::npos) << library.note;
  EXPECT_LE(library.worst_error, 1.0);
  EXPECT_EQ(library.speedup, 0.0);
  EXPECT_EQ(results[3].contender, "broken");
  EXPECT_FALSE(results[3].verified);
  const MatrixResult& ours = results[4];
  EXPECT_EQ(ours.contender, "ours");
  EXPECT_TRUE(ours.verified) << ours.note;
  EXPECT_EQ(ours.algorithm, "plan");
  EXPECT_EQ(ours.bytes, 1000);
  EXPECT_EQ(ours.baseline, "library A2");
  EXPECT_EQ(ours.baseline_us, library.us.median);
  EXPECT_DOUBLE_EQ(ours.speedup, ours.baseline_us / ours.us.median);
  EXPECT_TRUE(ours.verdict);
  EXPECT_DOUBLE_EQ(ours.dense_speedup, dense.us.median / ours.us.median);
}

TEST(MatrixBench, ALostDeviceIsNoNote) {
  const std::vector<MatrixContenderKind> kinds{
      {.name = "lost",
       .role = Role::measured,
       .make = [](const MatrixInput&) -> std::unique_ptr<MatrixContender> {
         throw DeviceLost("the device is lost");
       }}};
  EXPECT_THROW(bench_matrices(small_options(), kinds, [](const MatrixResult&) {}), DeviceLost);
}

TEST(MatrixReference, OfManyRowsComparesSome) {
  constexpr int64_t kRows = 50'000;
  CpuContext cpu(2);
  const CompressedRows a = random_matrix({.matrix_class = MatrixClass::power_law,
                                          .rows = kRows,
                                          .columns = 3'000,
                                          .nonzeros = 200'000,
                                          .seed = 3},
                                         cpu.threads);
  const OwnedTensor b = random_dense(3'000, 4, DType::f32, 1, cpu.threads);
  MatrixReference reference(a, b.view, 1, cpu.threads);
  EXPECT_GE(reference.compared_rows(), 4096);
  EXPECT_LT(reference.compared_rows(), kRows / 2);
  int64_t longest = 0;
  for (int64_t row = 0; row < kRows; ++row) {
    longest = a.columns_of(row).size() > a.columns_of(longest).size() ? row : longest;
  }
  for (const Order order : {Order::rows, Order::columns}) {
    for (const int64_t n : {1, 4}) {
      SCOPED_TRACE(fmt::format("{} {}", name_of(order), n));
      const OwnedTensor some = first_columns(b.view, n, order, {}, cpu.threads);
      const OwnedTensor c = allocate_product(kRows, n, order, DType::f32, {});
      poison(c.view, cpu.exec);
      const auto error = [&] {
        return reference.worst_error(c.view, order, cpu.exec, cpu.threads);
      };
      EXPECT_TRUE(std::isinf(error()));
      FakeKernel("", Fault::none, a, some.view, c.view, order).enqueue(0, Launches::ordinary);
      EXPECT_LE(error(), 1.0);
      const auto element = [&](int64_t row) -> float& {
        return order == Order::rows ? c.view.row<float>(row)[n - 1] : c.view.row<float>(n - 1)[row];
      };
      for (const int64_t row : {int64_t{0}, longest, kRows - 1}) {
        const float right = std::exchange(element(row), element(row) + 1.0f);
        EXPECT_GT(error(), 1.0) << row;
        element(row) = right;
      }
      // Of rows that are not compared, too.
      for (int64_t row = 0; row < kRows; row += 997) {
        const float right = std::exchange(element(row), std::numeric_limits<float>::quiet_NaN());
        EXPECT_TRUE(std::isinf(error())) << row;
        element(row) = right;
      }
      EXPECT_LE(error(), 1.0);
    }
  }
}

MatrixResult compared(const std::string& matrix, const std::string& matrix_class, int64_t n,
                      double speedup) {
  return {.matrix = matrix,
          .matrix_class = matrix_class,
          .n = n,
          .contender = "ours",
          .speedup = speedup,
          .verified = speedup > 0.0};
}

TEST(MatrixSummary, MeansAndShares) {
  std::vector<MatrixResult> results{
      compared("a", "banded", 8, 4.0),   compared("b", "banded", 8, 1.0),
      compared("c", "arrow", 8, 0.5),    compared("d", "arrow", 8, 0.0),
      compared("a", "banded", 32, 1.25), compared("c", "arrow", 32, 2.0)};
  results.push_back({.matrix = "a",
                     .matrix_class = "banded",
                     .n = 8,
                     .contender = "library",
                     .role = Role::sparse,
                     .verified = true});
  const std::vector<MatrixSummary> summaries = summarize_matrices(results);
  ASSERT_EQ(summaries.size(), 9u);  // N 8, 32, all x banded, arrow, all
  const MatrixSummary& banded = summaries[0];
  EXPECT_EQ(banded.contender, "ours");
  EXPECT_EQ(banded.n, 8);
  EXPECT_EQ(banded.matrix_class, "banded");
  EXPECT_EQ(banded.cells, 2);
  EXPECT_EQ(banded.failed, 0);
  EXPECT_DOUBLE_EQ(banded.geometric_mean, 2.0);
  EXPECT_EQ(banded.share_not_slower, 1.0);
  EXPECT_EQ(banded.share_faster, 0.5);
  EXPECT_EQ(banded.share_twice, 0.5);
  EXPECT_EQ(banded.worst_speedup, 1.0);
  EXPECT_EQ(banded.worst_matrix, "b");
  const MatrixSummary& arrow = summaries[1];
  EXPECT_EQ(arrow.matrix_class, "arrow");
  EXPECT_EQ(arrow.cells, 2);
  EXPECT_EQ(arrow.failed, 1);
  EXPECT_DOUBLE_EQ(arrow.geometric_mean, 0.5);
  EXPECT_EQ(arrow.share_not_slower, 0.0);
  const MatrixSummary& all_of_8 = summaries[2];
  EXPECT_EQ(all_of_8.matrix_class, "");
  EXPECT_EQ(all_of_8.cells, 4);
  EXPECT_EQ(all_of_8.failed, 1);
  EXPECT_NEAR(all_of_8.geometric_mean, std::cbrt(2.0), 1e-12);
  EXPECT_EQ(all_of_8.share_not_slower, 0.5);  // a failure counts as a cell
  EXPECT_EQ(all_of_8.share_faster, 0.25);
  EXPECT_EQ(all_of_8.worst_matrix, "c");
  const MatrixSummary& all = summaries[8];
  EXPECT_FALSE(all.n);
  EXPECT_EQ(all.cells, 6);
  EXPECT_NEAR(all.geometric_mean, std::pow(4.0 * 0.5 * 1.25 * 2.0, 0.2), 1e-12);
  EXPECT_EQ(all.share_faster, 0.5);
  EXPECT_DOUBLE_EQ(all.share_twice, 2.0 / 6.0);
  EXPECT_TRUE(summarize_matrices({}).empty());
}

TEST(MatrixReport, RowsHaveAllColumns) {
  Report report;
  MatrixBenchOptions options = small_options();
  options.matrices.push_back(market_source("/no/such/matrix.mtx"));
  report_matrices(options, report.writer());
  const json rows = report.table("matrices");
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].at("matrix"), "skewed");
  EXPECT_EQ(rows[0].at("class"), "skewed");
  EXPECT_EQ(rows[0].at("n"), 3);
  EXPECT_EQ(rows[0].at("order"), "rows");
  EXPECT_EQ(rows[0].at("contender"), "general_sparse");
  EXPECT_GT(rows[0].at("time_us"), 0.0);
  EXPECT_GT(rows[0].at("gflops"), 0.0);
  EXPECT_EQ(rows[0].at("verified"), "yes");
  EXPECT_EQ(rows[1].at("verified"), "NO");
  EXPECT_TRUE(rows[1].at("time_us").is_null());
}

TEST(MatrixReport, Summary) {
  Report report;
  const std::vector<MatrixResult> results{compared("a", "banded", 8, 4.0),
                                          compared("b", "banded", 8, 0.0)};
  report_matrix_summary(results, report.writer());
  const json rows = report.table("summary");
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].at("n"), "8");
  EXPECT_EQ(rows[0].at("class"), "banded");
  EXPECT_EQ(rows[0].at("failed"), 1);
  EXPECT_EQ(rows[0].at("geometric_mean"), 4.0);
  EXPECT_EQ(rows[0].at("percent_twice"), 50.0);
  EXPECT_EQ(rows[0].at("worst_matrix"), "a");
}

}  // namespace
}  // namespace sparsellm
