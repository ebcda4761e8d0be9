#include "tools/bench/matrix_args.h"

#include <CLI/CLI.hpp>
#include <utility>

#include "kernels/base/error.h"
#include "sparse/prune/glob.h"
#include "tools/bench/args.h"
#include "tools/bench/list_option.h"
#include "tools/bench/matrix_list.h"
#include "tools/cli/args.h"
#include "tools/cli/tool_main.h"

namespace sparsellm {
namespace {

MatrixClass class_argument(const std::string& text) {
  try {
    return parse_matrix_class(text);
  } catch (const Error& error) {
    throw UsageError(fmt::format("--class {}: {}", text, error.what()));
  }
}

MatrixSource random_source(MatrixClass matrix_class, const std::pair<int64_t, int64_t>& size,
                           int64_t nonzeros, uint64_t seed) {
  MatrixSource source{
      .name = fmt::format("{} {}x{} {}", name_of(matrix_class), size.first, size.second, nonzeros),
      .file = {},
      .random = {.matrix_class = matrix_class,
                 .rows = size.first,
                 .columns = size.second,
                 .nonzeros = nonzeros,
                 .seed = seed}};
  try {
    check_random_matrix(source.random);
  } catch (const Error& error) {
    throw UsageError(fmt::format("--class {}: {}", name_of(matrix_class), error.what()));
  }
  return source;
}

std::vector<MatrixSource> listed_sources(const MatrixArgs& args) {
  std::vector<MatrixSource> listed = read_matrix_list(args.list);
  if (!args.only.empty()) {
    std::erase_if(
        listed, [&](const MatrixSource& source) { return !glob_matches(args.only, source.name); });
    require(!listed.empty(), "{}: no matrix is called '{}' (--only)", args.list, args.only);
  }
  return listed;
}

}  // namespace

void add_matrix_args(CLI::App& app, MatrixArgs& args, const std::vector<CLI::Option*>& layers) {
  CLI::Option* const files =
      app.add_option(
             "--matrix", args.files,
             "Products C = A * B of the sparse matrices in these files of the Matrix Market")
          ->type_name("FILE.mtx ...")
          ->check(not_empty());
  CLI::Option* const classes =
      add_list(app, "--class", args.classes,
               fmt::format("Of random matrices of these classes: {}", matrix_class_names()));
  classes->type_name("CLASS,...");
  CLI::Option* const list = app.add_option("--matrices", args.list,
                                           "Of the random matrices in a list, such as "
                                           "configs/matrices/spmm.json")
                                ->type_name("FILE.json")
                                ->check(not_empty());
  app.add_option("--only", args.only, "With --matrices: those whose names this pattern matches")
      ->type_name("GLOB")
      ->check(not_empty())
      ->needs(list);
  CLI::Option* const sizes =
      add_list(app, "--size", args.sizes, "With --class: of the matrices")->needs(classes);
  sizes->type_name("ROWSxCOLUMNS,...");
  CLI::Option* const nonzeros =
      add_list(app, "--nonzeros", args.nonzeros, "With --class: of each matrix, about")
          ->check(CLI::Range(int64_t{1}, int64_t{1} << 36))
          ->needs(classes);
  nonzeros->type_name("N,...");
  classes->needs(sizes)->needs(nonzeros);
  app.add_option("--order", args.order,
                 "With matrices, how the elements of B and C lie: rows, columns or both [rows]")
      ->check(CLI::IsMember({"rows", "columns", "both"}));
  CLI::Option* const search =
      app.add_option("--search", args.search.plans,
                     "With matrices on CUDA, also with the fastest of this many generated kernels")
          ->check(CLI::Range(int64_t{1}, int64_t{1} << 16));
  add_kernel_cache(app, args.search.kernels.directory)->needs(search);
  for (CLI::Option* const source : {files, classes, list}) {
    for (CLI::Option* const layer : layers) {
      source->excludes(layer);
    }
  }
}

void check_matrix_args(const MatrixArgs& args) {
  if (!args.given() && !args.order.empty()) {
    throw UsageError("--order is for --matrix, --class and --matrices");
  }
  if (!args.given() && args.search.plans > 0) {
    throw UsageError("--search is for --matrix, --class and --matrices");
  }
}

std::vector<MatrixSource> matrix_sources(const MatrixArgs& args, uint64_t seed) {
  std::vector<MatrixSource> sources;
  for (const std::string& file : args.files) {
    sources.push_back(market_source(file));
  }
  for (const std::string& text : args.classes) {
    const MatrixClass matrix_class = class_argument(text);
    for (const std::string& size : args.sizes) {
      for (const int64_t nonzeros : args.nonzeros) {
        sources.push_back(
            random_source(matrix_class, parse_matrix_size("--size", size), nonzeros, seed));
      }
    }
  }
  if (!args.list.empty()) {
    std::vector<MatrixSource> listed = listed_sources(args);
    sources.insert(sources.end(), std::make_move_iterator(listed.begin()),
                   std::make_move_iterator(listed.end()));
  }
  return sources;
}

std::vector<general_sparse::Order> matrix_orders(const MatrixArgs& args) {
  using general_sparse::Order;
  if (args.order == "both") {
    return {Order::rows, Order::columns};
  }
  return {args.order == "columns" ? Order::columns : Order::rows};
}

}  // namespace sparsellm
