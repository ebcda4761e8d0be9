#include "tests/sparse/general_sparse/plan_matrices.h"

#include <algorithm>

#include "tests/testing/random.h"

namespace sparsellm::testing {
namespace {

using Lengths = std::vector<int64_t>;

Lengths random_lengths(int64_t rows, int64_t most, uint64_t seed) {
  Random random(seed);
  Lengths lengths(static_cast<size_t>(rows));
  for (int64_t& length : lengths) {
    length = random.below(most + 1);
  }
  return lengths;
}

// Most rows are short, some empty, and one has nearly all columns.
Lengths with_a_huge_row(int64_t rows, int64_t huge) {
  Lengths lengths = random_lengths(rows, 5, 3);
  lengths[lengths.size() / 3] = huge;
  lengths.back() = 40;
  return lengths;
}

Lengths mostly_empty() {
  Lengths lengths(200, 0);
  for (size_t row = 3; row < lengths.size(); row += 37) {
    lengths[row] = static_cast<int64_t>(row) / 8;
  }
  return lengths;
}

CompressedRows blocks_of_four() {
  constexpr int64_t kBlockRows = 13;
  constexpr int64_t kColumns = 64;
  Random random(8);
  std::vector<std::vector<int64_t>> columns;
  int64_t nonzeros = 0;
  for (int64_t row = 0; row < kBlockRows; ++row) {
    std::vector<int64_t> of_row;
    for (int64_t column = 0; column < kColumns; column += 4) {
      if (random.below(3) == 0) {
        of_row.insert(of_row.end(), {column, column + 1, column + 2, column + 3});
      }
    }
    nonzeros += 4 * std::ssize(of_row);
    columns.push_back(of_row);
  }
  CompressedRows m(DType::f32, 4 * kBlockRows, kColumns, nonzeros);
  int64_t at = 0;
  for (int64_t row = 0; row < m.rows(); ++row) {
    m.starts()[static_cast<size_t>(row)] = at;
    for (const int64_t column : columns[static_cast<size_t>(row / 4)]) {
      m.column_indices()[static_cast<size_t>(at)] = static_cast<uint32_t>(column);
      m.values<float>()[static_cast<size_t>(at)] = static_cast<float>(1 + random.below(4));
      ++at;
    }
  }
  m.starts().back() = at;
  return m;
}

}  // namespace

CompressedRows matrix_of_lengths(const Lengths& lengths, int64_t columns, uint64_t seed) {
  Random random(seed);
  int64_t nonzeros = 0;
  for (const int64_t length : lengths) {
    nonzeros += std::min(length, columns);
  }
  CompressedRows m(DType::f32, std::ssize(lengths), columns, nonzeros);
  int64_t at = 0;
  for (size_t row = 0; row < lengths.size(); ++row) {
    m.starts()[row] = at;
    const int64_t length = std::min(lengths[row], columns);
    std::vector<int32_t> chosen = random.permutation(static_cast<int32_t>(columns));
    chosen.resize(static_cast<size_t>(length));
    std::sort(chosen.begin(), chosen.end());
    for (const int32_t column : chosen) {
      const auto magnitude = static_cast<float>(1 + random.below(4));
      m.column_indices()[static_cast<size_t>(at)] = static_cast<uint32_t>(column);
      m.values<float>()[static_cast<size_t>(at)] = random.below(2) == 0 ? magnitude : -magnitude;
      ++at;
    }
  }
  m.starts().back() = at;
  return m;
}

std::vector<PlanMatrixCase> plan_matrices() {
  std::vector<PlanMatrixCase> cases;
  const auto add = [&](const char* name, const Lengths& lengths, int64_t columns) {
    cases.push_back({name, matrix_of_lengths(lengths, columns, cases.size())});
  };
  add("uneven", random_lengths(150, 24, 1), 90);
  add("a huge row", with_a_huge_row(100, 900), 1000);
  add("even", Lengths(64, 16), 80);
  add("mostly empty", mostly_empty(), 40);
  add("one entry a row", Lengths(333, 1), 50);
  add("dense", Lengths(20, 70), 70);
  add("one row", {700}, 800);
  add("one element", {1}, 1);
  add("no nonzeros", Lengths(37, 0), 9);
  add("no columns", Lengths(5, 0), 0);
  add("no rows", {}, 10);
  cases.push_back({"blocks", blocks_of_four()});
  return cases;
}

general_sparse::Layout plan_layout(const general_sparse::KernelPlan& plan, int shared_rows,
                                   bool wide_positions, bool sorted) {
  using general_sparse::PositionCode;
  return {.positions = wide_positions ? PositionCode::u32 : PositionCode::u16,
          .shared_rows = shared_rows,
          .panel_columns = wide_positions ? 0 : 65536,
          .window_rows = 32 * shared_rows,
          .sorted = sorted,
          .interleave = 1,
          .vector = plan.a_vector};
}

}  // namespace sparsellm::testing
