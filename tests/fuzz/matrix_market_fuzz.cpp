// The input is a .mtx file.

#include <algorithm>
#include <cmath>
#include <string_view>

#include "kernels/base/parallel.h"
#include "sparse/matrices/matrix_market.h"
#include "tests/fuzz/expect.h"
#include "tests/fuzz/fuzz_one.h"
#include "tests/fuzz/input_folder.h"
#include "tests/sparse/matrices/write_matrix_market.h"

namespace sparsellm::fuzz {
namespace {

bool are_same(const CompressedRows& a, const CompressedRows& b) {
  return a.columns() == b.columns() && std::ranges::equal(a.starts(), b.starts()) &&
         std::ranges::equal(a.column_indices(), b.column_indices()) &&
         std::ranges::equal(a.values<float>(), b.values<float>());
}

}  // namespace

void fuzz_one(std::string_view input) {
  static const InputFolder folder;
  folder.write("matrix.mtx", input);
  const CompressedRows m = read_matrix_market(folder.path() / "matrix.mtx");
  try {
    ThreadPool threads(1);
    validate(m, threads);
    folder.write("again.mtx", testing::matrix_market_text(m));
    expect(are_same(read_matrix_market(folder.path() / "again.mtx"), m), "the same matrix again");
  } catch (const Error&) {
    expect(false, "a valid matrix that can be written");
  }
  expect(std::ranges::all_of(m.values<float>(),
                             [](float value) { return value != 0.0f && std::isfinite(value); }),
         "values that are numbers and not 0");
}

}  // namespace sparsellm::fuzz
