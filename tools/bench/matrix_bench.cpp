#include "tools/bench/matrix_bench.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <memory>
#include <set>
#include <utility>

#include "kernels/base/error.h"
#include "sparse/general_sparse/general_sparse.h"
#include "tools/bench/matrix_operands.h"
#include "tools/bench/matrix_reference.h"
#include "tools/bench/product_meter.h"

namespace sparsellm {
namespace {

using general_sparse::Order;
using Role = MatrixContenderKind::Role;

constexpr int64_t kAlgorithmRepeat = 5;  // enough to tell one algorithm from another

void note_down(const std::string& note, MatrixResult& result) {
  result.note += (result.note.empty() ? "" : "; ") + note;
}

// B and C of a number of columns in an order.
struct DenseOperands {
  int64_t n = 0;
  Order order = Order::rows;
  OwnedTensor b = {};
  OwnedTensor c = {};
  OwnedTensor other_c = {};  // of what takes turns with the product of c

  int64_t bytes() const { return b.view.bytes() + c.view.bytes(); }
};

// A right algorithm of a contender, and how many of the copies of A take turns.
struct RightProduct {
  MatrixProduct product = {};
  int64_t pieces = 0;
  Tensor c = {};

  TimedWork work() const {
    return {.pieces = pieces, .run = [kernel = product.kernel.get()](int64_t copy) {
              kernel->enqueue(copy, Launches::ordinary);
            }};
  }
};

struct LoadedContender {
  const MatrixContenderKind* kind = nullptr;
  std::unique_ptr<MatrixContender> contender = {};
  std::string problem = {};  // why there is none
};

class MatrixBench {
 public:
  MatrixBench(const MatrixBenchOptions& options, const std::vector<MatrixContenderKind>& kinds,
              const std::function<void(const MatrixResult&)>& on_result)
      : options_(options),
        kinds_(kinds),
        on_result_(on_result),
        meter_(options.device, options.repeat, Sums::fastest, options.threads),
        own_threads_(options.device.is_cuda() ? std::make_unique<ThreadPool>() : nullptr),
        threads_(own_threads_ ? *own_threads_ : meter_.context().threads) {
    meter_.context().isa = options.cpu_isa;
  }

  std::vector<MatrixResult> run() {
    for (const MatrixSource& source : options_.matrices) {
      bench_source(source);
    }
    return std::move(results_);
  }

 private:
  void bench_source(const MatrixSource& source) {
    MatrixResult result{.matrix = source.name, .matrix_class = source.class_name()};
    try {
      bench_matrix(source, result);
    } catch (const DeviceLost&) {
      throw;  // nothing is measured any more
    } catch (const MatrixFailure& failure) {
      deliver_failure(result, failure.what());
    }
  }

  // That a matrix cannot be measured, for want of memory say: what on_result throws is not one.
  class MatrixFailure : public Error {
   public:
    using Error::Error;
  };

  template <class Work>
  auto or_failure(Work&& work) {
    try {
      return work();
    } catch (const DeviceLost&) {
      throw;
    } catch (const std::exception& error) {
      meter_.wait();
      throw MatrixFailure(error.what());
    }
  }

  void bench_matrix(const MatrixSource& source, MatrixResult& result) {
    std::optional<CompressedRows> matrix = or_failure([&] { return make_matrix(source); });
    describe(*matrix, result);
    const int64_t most = *std::ranges::max_element(options_.columns);
    const OwnedTensor b = or_failure([&] {
      return random_dense(matrix->columns(), most,
                          dense_operand_dtype(options_.dtype, options_.device), options_.seed,
                          threads_);
    });
    MatrixReference reference =
        or_failure([&] { return MatrixReference(*matrix, b.view, options_.seed, threads_); });
    const std::vector<LoadedContender> contenders = load_contenders(source, *matrix, b.view);
    matrix.reset();  // from here on the contenders' are enough
    for (const Order order : options_.orders) {
      for (const int64_t n : options_.columns) {
        result.order = order;
        result.n = n;
        try {
          const DenseOperands operands =
              or_failure([&] { return make_operands(result.rows, n, order, b.view); });
          bench_product(contenders, operands, reference, result);
        } catch (const MatrixFailure& failure) {
          deliver_failed_product(result, failure.what());
        }
      }
    }
  }

  std::optional<CompressedRows> make_matrix(const MatrixSource& source) {
    CompressedRows matrix = source.make(threads_);
    require(matrix.rows() > 0 && matrix.columns() > 0, "a matrix {} x {} has no products",
            matrix.rows(), matrix.columns());
    return with_dtype(std::move(matrix), options_.dtype, threads_);
  }

  static void describe(const CompressedRows& matrix, MatrixResult& result) {
    result.rows = matrix.rows();
    result.columns = matrix.columns();
    result.nonzeros = matrix.nonzeros();
    result.mean_row = static_cast<double>(matrix.nonzeros()) / static_cast<double>(matrix.rows());
    for (int64_t row = 0; row < matrix.rows(); ++row) {
      result.longest_row =
          std::max<int64_t>(result.longest_row, std::ssize(matrix.columns_of(row)));
    }
  }

  std::vector<LoadedContender> load_contenders(const MatrixSource& source,
                                               const CompressedRows& matrix, const Tensor& b) {
    const int64_t least = *std::ranges::min_element(options_.columns);
    const MatrixInput input{.matrix = matrix,
                            .block_size = source.block_size(),
                            .copy_bytes = copy_bytes_with((matrix.rows() + matrix.columns()) *
                                                          least * size_of(b.dtype())),
                            .columns = options_.columns,
                            .orders = options_.orders,
                            .threads = threads_,
                            .ctx = meter_.context(),
                            .layout = options_.layout};
    std::vector<LoadedContender> contenders;
    for (const MatrixContenderKind& kind : kinds_) {
      LoadedContender loaded{.kind = &kind, .contender = {}, .problem = {}};
      try {
        loaded.contender = kind.make(input);
        if (loaded.contender == nullptr) {
          continue;
        }
      } catch (const DeviceLost&) {
        throw;
      } catch (const std::exception& error) {
        meter_.wait();
        loaded.problem = error.what();
      }
      contenders.push_back(std::move(loaded));
    }
    return contenders;
  }

  // How many bytes all copies of A need together, given those of B and C.
  int64_t copy_bytes_with(int64_t operand_bytes) const {
    return std::max<int64_t>(options_.rotation_bytes - operand_bytes, 0);
  }

  DenseOperands make_operands(int64_t rows, int64_t n, Order order, const Tensor& b) {
    const auto product = [&] {
      return allocate_product(rows, n, order, b.dtype(), options_.device);
    };
    return {.n = n,
            .order = order,
            .b = first_columns(b, n, order, options_.device, threads_),
            .c = product(),
            .other_c = product()};
  }

  // What is dense first, then the sparse libraries, then what takes turns with the fastest of them.
  void bench_product(const std::vector<LoadedContender>& contenders, const DenseOperands& operands,
                     MatrixReference& reference, const MatrixResult& head) {
    std::vector<MatrixResult> results;
    double dense_us = 0.0;
    const auto result_of = [&](const LoadedContender& loaded) {
      MatrixResult result = head;
      result.contender = loaded.kind->name;
      result.role = loaded.kind->role;
      result.note = loaded.problem;
      return result;
    };
    const auto each = [&](Role role, const auto& body) {
      for (const LoadedContender& loaded : contenders) {
        if (loaded.kind->role == role) {
          body(loaded);
        }
      }
    };
    each(Role::dense, [&](const LoadedContender& loaded) {
      MatrixResult result = result_of(loaded);
      bench_alone(loaded, operands, reference, result);
      if (result.verified && (dense_us == 0.0 || result.us.median < dense_us)) {
        dense_us = result.us.median;
      }
      results.push_back(std::move(result));
    });
    Baseline baseline;
    each(Role::sparse, [&](const LoadedContender& loaded) {
      MatrixResult result = result_of(loaded);
      std::optional<RightProduct> product = bench_alone(loaded, operands, reference, result);
      if (result.verified &&
          (!baseline.product || result.us.median < results[baseline.result].us.median)) {
        baseline = {.product = std::move(product), .result = results.size()};
      }
      results.push_back(std::move(result));
    });
    each(Role::measured, [&](const LoadedContender& loaded) {
      MatrixResult result = result_of(loaded);
      bench_by_turns(loaded, operands, reference, baseline, results, result);
      results.push_back(std::move(result));
    });
    for (MatrixResult& result : results) {
      complete(dense_us, operands, result);
      deliver(std::move(result));
    }
  }

  struct Baseline {
    std::optional<RightProduct> product = {};
    size_t result = 0;  // its place among the results
  };

  // Notes down what fails.
  template <class Work>
  void or_note(MatrixResult& result, Work&& work) {
    try {
      work();
    } catch (const DeviceLost&) {
      throw;
    } catch (const std::exception& error) {
      meter_.wait();
      result.verified = false;
      note_down(error.what(), result);
    }
  }

  std::optional<RightProduct> bench_alone(const LoadedContender& loaded,
                                          const DenseOperands& operands, MatrixReference& reference,
                                          MatrixResult& result) {
    std::optional<RightProduct> product;
    if (loaded.contender == nullptr) {
      return product;
    }
    or_note(result, [&] {
      product = fastest(*loaded.contender, operands, operands.other_c.view, reference, result);
      time_alone(*product, operands, reference, result);
    });
    if (!result.verified) {
      product.reset();
    }
    return product;
  }

  void bench_by_turns(const LoadedContender& loaded, const DenseOperands& operands,
                      MatrixReference& reference, const Baseline& baseline,
                      std::vector<MatrixResult>& results, MatrixResult& result) {
    if (loaded.contender == nullptr) {
      return;
    }
    std::optional<RightProduct> made;  // outlives what waits for it
    or_note(result, [&] {
      made = fastest(*loaded.contender, operands, operands.c.view, reference, result);
      const RightProduct& product = *made;
      if (!baseline.product || !results[baseline.result].verified) {
        time_alone(product, operands, reference, result);
        return;
      }
      MatrixResult& other = results[baseline.result];
      poison(product.c, meter_.context());
      poison(baseline.product->c, meter_.context());
      const TimedWork works[] = {product.work(), baseline.product->work()};
      const std::vector<std::vector<double>> seconds = meter_.time_by_turns(works, options_.repeat);
      take_error(product, operands, reference, result);
      or_note(other, [&] { take_error(*baseline.product, operands, reference, other); });
      const Turns turns = scaled(compare_turns(seconds[0], seconds[1]), kMicroseconds);
      result.us = turns.time;
      result.verified = true;
      if (!other.verified) {
        return;
      }
      result.baseline = fmt::format("{} {}", other.contender, other.algorithm);
      result.baseline_us = turns.baseline.median;
      result.speedup = turns.speedup();
      result.verdict = turns.verdict;
      // One time in both rows; of several that are measured, that of the last turns.
      other.us = turns.baseline;
    });
  }

  void time_alone(const RightProduct& product, const DenseOperands& operands,
                  MatrixReference& reference, MatrixResult& result) {
    poison(product.c, meter_.context());
    const TimedWork work = product.work();
    const std::vector<double> seconds = meter_.time_by_turns({&work, 1}, options_.repeat).front();
    take_error(product, operands, reference, result);
    result.us = scaled(spread_of(seconds), kMicroseconds);
    result.verified = true;
  }

  // Throws if C is wrong.
  void take_error(const RightProduct& product, const DenseOperands& operands,
                  MatrixReference& reference, MatrixResult& result) {
    const double error =
        reference.worst_error(product.c, operands.order, meter_.context(), threads_);
    result.worst_error = std::max(result.worst_error, error);
    require(error <= 1.0, "wrong result: the worst error is {:.3g} times the tolerance", error);
  }

  // Of the algorithms that are right; throws if none is. All are right on the first copy of A
  // before they are timed, the fastest then on all.
  RightProduct fastest(MatrixContender& contender, const DenseOperands& operands, const Tensor& c,
                       MatrixReference& reference, MatrixResult& result) {
    std::vector<MatrixProduct> products = contender.bind(operands.b.view, c, operands.order);
    const bool is_choice = products.size() > 1;
    RightProduct best;
    double best_seconds = std::numeric_limits<double>::infinity();
    for (MatrixProduct& candidate : products) {
      const std::string algorithm = candidate.kernel->algorithm(Launches::ordinary);
      RightProduct product{.product = std::move(candidate), .pieces = 0, .c = c};
      product.pieces =
          std::min(contender.copies(), cold_copies(std::max<int64_t>(product.product.bytes, 1),
                                                   copy_bytes_with(operands.bytes())));
      MatrixResult attempt;
      try {
        verify_copies(product, 1, operands, reference, attempt);
        double seconds = 0.0;
        if (is_choice) {
          prepare(product);
          const TimedWork work = product.work();
          seconds = median(meter_.time_by_turns({&work, 1}, kAlgorithmRepeat).front());
        }
        if (seconds < best_seconds) {
          best_seconds = seconds;
          best = std::move(product);
          result.algorithm = algorithm;
          result.bytes = best.product.bytes;
        }
      } catch (const DeviceLost&) {
        throw;
      } catch (const Error& error) {
        meter_.wait();
        result.worst_error = std::max(result.worst_error, attempt.worst_error);
        if (!is_choice) {
          throw;
        }
        note_down(fmt::format("{}: {}", algorithm, error.what()), result);
      }
    }
    require(best.product.kernel != nullptr, "no algorithm is right");
    result.worst_error = 0.0;
    verify_copies(best, best.pieces, operands, reference, result);
    return best;
  }

  void prepare(const RightProduct& product) const {
    for (int64_t copy = 0; copy < product.pieces; ++copy) {
      product.product.kernel->enqueue(copy, Launches::ordinary);
    }
  }

  void verify_copies(const RightProduct& product, int64_t count, const DenseOperands& operands,
                     MatrixReference& reference, MatrixResult& result) {
    for (int64_t copy = 0; copy < count; ++copy) {
      poison(product.c, meter_.context());
      product.product.kernel->enqueue(copy, Launches::ordinary);
      take_error(product, operands, reference, result);
    }
  }

  void complete(double dense_us, const DenseOperands& operands, MatrixResult& result) const {
    if (!result.verified) {
      return;
    }
    const double seconds = result.us.median / kMicroseconds;
    result.gflops =
        2.0 * static_cast<double>(result.nonzeros) * static_cast<double>(result.n) / seconds * 1e-9;
    result.gb_per_s = static_cast<double>(result.bytes + operands.bytes()) / seconds * 1e-9;
    result.dense_us = dense_us;
    result.dense_speedup = dense_us / result.us.median;
  }

  void deliver(MatrixResult result) {
    on_result_(result);
    results_.push_back(std::move(result));
  }

  // Of what would have been measured.
  void deliver_failed_product(MatrixResult result, const std::string& reason) {
    result.note = reason;
    for (const MatrixContenderKind& kind : kinds_) {
      if (kind.role == Role::measured) {
        result.contender = kind.name;
        deliver(result);
      }
    }
  }

  void deliver_failure(MatrixResult result, const std::string& reason) {
    for (const Order order : options_.orders) {
      for (const int64_t n : options_.columns) {
        result.order = order;
        result.n = n;
        deliver_failed_product(result, reason);
      }
    }
  }

  const MatrixBenchOptions& options_;
  const std::vector<MatrixContenderKind>& kinds_;
  const std::function<void(const MatrixResult&)>& on_result_;
  ProductMeter meter_;
  std::unique_ptr<ThreadPool> own_threads_;  // of the host beside a CUDA device
  ThreadPool& threads_;
  std::vector<MatrixResult> results_;
};

}  // namespace

std::string_view name_of(Order order) { return order == Order::rows ? "rows" : "columns"; }

void check_options(const MatrixBenchOptions& options) {
  require(is_floating(options.dtype), "matrices are multiplied in f32, f16 and bf16, not in {}",
          name_of(options.dtype));
  require(options.repeat > 0, "{} replays have no median", options.repeat);
  require(options.rotation_bytes >= 0, "{} bytes of copies", options.rotation_bytes);
  require(!options.columns.empty() && !options.orders.empty(), "there are no columns of B");
  for (const int64_t n : options.columns) {
    require(n > 0, "a product with {} columns of B", n);
  }
  general_sparse_format().check_layout(options.layout);
  std::set<std::string> names;
  for (const MatrixSource& source : options.matrices) {
    require(names.insert(source.name).second, "two matrices have the name '{}'", source.name);
    if (source.file.empty()) {
      check_random_matrix(source.random);
    }
  }
}

std::vector<MatrixResult> bench_matrices(
    const MatrixBenchOptions& options, const std::vector<MatrixContenderKind>& contenders,
    const std::function<void(const MatrixResult&)>& on_result) {
  check_options(options);
  return MatrixBench(options, contenders, on_result).run();
}

}  // namespace sparsellm
