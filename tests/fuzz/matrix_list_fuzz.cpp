// The input is a list of matrices of sparsellm-bench kernel --matrices.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/parallel.h"
#include "tests/fuzz/expect.h"
#include "tests/fuzz/fuzz_one.h"
#include "tests/fuzz/input_folder.h"
#include "tools/bench/matrix_list.h"

namespace sparsellm::fuzz {
namespace {

// Of all matrices that are made of a list: more take longer than the fuzzer waits.
constexpr int64_t kMostElements = 1 << 16;

void check_made(const MatrixSource& source) {
  static ThreadPool threads(1);
  try {
    const CompressedRows m = source.make(threads);
    validate(m, threads);
    expect(m.rows() == source.random.rows && m.columns() == source.random.columns,
           "a matrix of the size that is asked for");
    expect(std::ranges::all_of(m.values<float>(),
                               [](float value) { return value != 0.0f && std::isfinite(value); }),
           "values that are numbers and not 0");
  } catch (const Error&) {
    expect(false, "a matrix that can be made, and is valid");
  }
}

}  // namespace

void fuzz_one(std::string_view input) {
  static const InputFolder folder;
  folder.write("list.json", input);
  const std::vector<MatrixSource> list = read_matrix_list(folder.path() / "list.json");
  expect(!list.empty(), "a matrix at least");
  std::set<std::string> names;
  int64_t elements = 0;
  for (const MatrixSource& source : list) {
    expect(!source.name.empty() && names.insert(source.name).second, "a name of its own");
    expect(source.file.empty() && source.class_name() != "file", "no file");
    const int64_t block = source.block_size();
    expect(block == 0 || (source.random.rows % block == 0 && source.random.columns % block == 0),
           "blocks that fill the matrix");
    const int64_t size = source.random.rows * source.random.columns;
    if (size <= kMostElements - elements) {
      elements += size;
      check_made(source);
    }
  }
}

}  // namespace sparsellm::fuzz
