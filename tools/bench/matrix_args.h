#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/bench/matrix_bench.h"
#include "tools/bench/matrix_search.h"
#include "tools/cli/cli_fwd.h"

namespace sparsellm {

// Which sparse matrices `kernel` multiplies by, in place of linear layers.
struct MatrixArgs {
  std::vector<std::string> files = {};    // .mtx
  std::vector<std::string> classes = {};  // each with each size and number of nonzeros
  std::vector<std::string> sizes = {};    // ROWSxCOLUMNS
  std::vector<int64_t> nonzeros = {};
  std::string list = {};   // of random matrices, in JSON
  std::string only = {};   // a pattern (glob.h) of the names in the list; empty: all of them
  std::string order = {};  // of B and C; empty: of rows
  MatrixSearch search = {};

  bool given() const { return !files.empty() || !classes.empty() || !list.empty(); }
};

// `layers`: the options of linear layers, which have no meaning for matrices.
void add_matrix_args(CLI::App& app, MatrixArgs& args, const std::vector<CLI::Option*>& layers);

// Throws UsageError for options of matrices without one, and for those that make no sense together.
void check_matrix_args(const MatrixArgs& args);

// In the order of the command line; reads the list. Throws UsageError and Error.
std::vector<MatrixSource> matrix_sources(const MatrixArgs& args, uint64_t seed);
std::vector<general_sparse::Order> matrix_orders(const MatrixArgs& args);

}  // namespace sparsellm
