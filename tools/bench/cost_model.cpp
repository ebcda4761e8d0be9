#include "tools/bench/cost_model.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <utility>

#include "kernels/base/cuda_context.h"
#include "kernels/base/device_info.h"
#include "kernels/base/error.h"
#include "kernels/base/file_replacement.h"
#include "kernels/base/run_time_compiler.h"
#include "kernels/base/tune_cache.h"
#include "kernels/fill_random.h"
#include "sparse/general_sparse/plan.h"
#include "sparse/general_sparse/search/plan_search.h"
#include "tools/bench/cost_samples.h"
#include "tools/bench/matrix_bench.h"
#include "tools/cli/interrupt.h"

namespace sparsellm {
namespace {

using general_sparse::CostModel;
using general_sparse::Matrix;
using general_sparse::Order;
using general_sparse::PlanTrial;
using general_sparse::RankedPlan;

constexpr double kMicroseconds = 1e6;
constexpr double kPercent = 100.0;

std::vector<Column> plan_columns() {
  using Kind = Column::Kind;
  return {{.key = "matrix", .title = "matrix", .kind = Kind::text},
          {.key = "dtype", .title = "dtype", .kind = Kind::text},
          {.key = "n", .title = "N"},
          {.key = "order", .title = "order", .kind = Kind::text},
          {.key = "plan", .title = "plan", .kind = Kind::text},
          {.key = "predicted_us", .title = "predicted", .unit = "us", .decimals = 1},
          {.key = "time_us", .title = "time", .unit = "us", .decimals = 1}};
}

std::vector<Column> search_columns() {
  using Kind = Column::Kind;
  return {{.key = "matrix", .title = "matrix", .kind = Kind::text},
          {.key = "dtype", .title = "dtype", .kind = Kind::text},
          {.key = "n", .title = "N"},
          {.key = "order", .title = "order", .kind = Kind::text},
          {.key = "plans", .title = "plans"},
          {.key = "program_us", .title = "program's kernels", .unit = "us", .decimals = 1},
          {.key = "best_us", .title = "best plan", .unit = "us", .decimals = 1},
          {.key = "first", .title = "model's first", .unit = "of best", .decimals = 2},
          {.key = "best_of_most", .title = "best of 40", .unit = "of best", .decimals = 2},
          {.key = "error_percent", .title = "error", .unit = "%", .decimals = 1},
          {.key = "best_plan", .title = "best plan", .kind = Kind::text}};
}

std::vector<Column> fit_columns() {
  return {{.key = "class", .title = "class", .kind = Column::Kind::text},
          {.key = "samples", .title = "samples"},
          {.key = "error_percent", .title = "error", .unit = "%", .decimals = 1}};
}

struct Trial {
  PlanTrial trial;
  std::optional<RankedPlan> ranked;
};

double error_of(double predicted, double measured) {
  return std::abs(predicted - measured) / measured;
}

// Of the trials of one product.
Row search_row(const Row& head, const std::vector<Trial>& trials) {
  constexpr size_t kMost = 40;
  double program = 0.0;
  double error = 0.0;
  const Trial* best = nullptr;
  std::vector<const Trial*> by_model;
  for (const Trial& t : trials) {
    if (!t.ranked) {
      program = program == 0.0 ? t.trial.seconds : std::min(program, t.trial.seconds);
      continue;
    }
    by_model.push_back(&t);
    error += error_of(t.ranked->seconds, t.trial.seconds);
    if (best == nullptr || t.trial.seconds < best->trial.seconds) {
      best = &t;
    }
  }
  Row row = head;
  row.emplace_back(std::ssize(by_model));
  row.push_back(known_cell(program * kMicroseconds));
  if (best == nullptr) {
    row.resize(row.size() + 4);
    row.emplace_back(std::string());
    return row;
  }
  std::stable_sort(by_model.begin(), by_model.end(), [](const Trial* a, const Trial* b) {
    return a->ranked->seconds < b->ranked->seconds;
  });
  double best_of_most = by_model.front()->trial.seconds;
  for (size_t i = 0; i < std::min(kMost, by_model.size()); ++i) {
    best_of_most = std::min(best_of_most, by_model[i]->trial.seconds);
  }
  row.emplace_back(best->trial.seconds * kMicroseconds);
  row.emplace_back(best->trial.seconds / by_model.front()->trial.seconds);
  row.emplace_back(best->trial.seconds / best_of_most);
  row.emplace_back(error / static_cast<double>(by_model.size()) * kPercent);
  row.emplace_back(best->trial.plan);
  return row;
}

class CostModelBench {
 public:
  CostModelBench(const CostModelOptions& options, ReportWriter& report)
      : options_(options), report_(report) {}

  void run() {
    std::optional<FileReplacement> file;
    if (!options_.write.empty()) {
      file.emplace(options_.write);  // what cannot be written is refused before all measurements
    }
    if (options_.samples.empty()) {
      measure();
    } else {
      take_samples();
    }
    if (file) {
      file->write(fit().to_json());
      file->commit();
    }
  }

 private:
  void measure() {
    require(options_.device.is_cuda(), "plans are measured on CUDA devices, not on {}",
            to_string(options_.device));
    if (!options_.model.empty()) {
      model_ = CostModel::read(options_.model);
    }
    RunTimeCompiler compiler;
    const std::string problem = compiler.why_not();
    require(problem.empty(), "{}", problem);
    KernelCache kernels(compiler, options_.kernels);
    CudaContext cuda(options_.device);
    Workspace workspace(options_.device, 0);
    ThreadPool threads;
    ExecContext ctx{.device = options_.device,
                    .workspace = workspace,
                    .threads = threads,
                    .cuda = &cuda,
                    .launches = Launches::ordinary};
    gpu_ = query_gpu(options_.device.index).name;
    report_.begin_table("plans", plan_columns());
    for (const MatrixSource& source : options_.matrices) {
      const CompressedRows matrix = source.make(threads);
      for (const DType dtype : options_.dtypes) {
        throw_if_interrupted();
        const std::unique_ptr<Matrix> loaded = general_sparse::load_matrix(
            with_dtype(copy_of(matrix), dtype, threads), options_.device, threads);
        for (const Order order : options_.orders) {
          for (const int64_t n : options_.columns) {
            measure_product(source.name, *loaded, n, order, kernels, ctx);
          }
        }
      }
    }
    report_.begin_table("search", search_columns());
    for (Row& row : search_rows_) {
      report_.add_row(std::move(row));
    }
  }

  void measure_product(const std::string& name, Matrix& matrix, int64_t n, Order order,
                       KernelCache& kernels, ExecContext& ctx) {
    const Row head{name, std::string(name_of(matrix.dtype())), n, std::string(name_of(order))};
    std::vector<Trial> trials;
    TuneCache choices;  // in memory, of this alone
    matrix.tune(
        {.columns = {n},
         .orders = {order},
         .kernels = &kernels,
         .model = model_ ? &*model_ : nullptr,
         .choose = [&](const std::vector<RankedPlan>& plans) { return chosen(plans); },
         .on_trial =
             [&](const PlanTrial& trial) {
               Trial one{.trial = trial, .ranked = std::nullopt};
               if (trial.generated != nullptr) {
                 one.ranked = *trial.generated;
               }
               one.trial.generated = nullptr;
               Row row = head;
               row.emplace_back(trial.plan);
               row.push_back(known_cell(one.ranked ? one.ranked->seconds * kMicroseconds : 0.0));
               row.emplace_back(trial.seconds * kMicroseconds);
               report_.add_row(std::move(row));
               trials.push_back(std::move(one));
             }},
        choices, ctx);
    search_rows_.push_back(search_row(head, trials));
    for (const Trial& t : trials) {
      if (t.ranked) {
        samples_.push_back({.access_class = access_class(t.ranked->plan),
                            .features = t.ranked->features,
                            .seconds = t.trial.seconds});
      }
    }
  }

  // The best, and some of the others. These come from one pool for all matrices, as each takes a
  // compilation, unless the same was compiled for another matrix.
  std::vector<RankedPlan> chosen(const std::vector<RankedPlan>& plans) {
    constexpr int64_t kPool = 64;
    const auto best = std::min<int64_t>(options_.best_plans, std::ssize(plans));
    std::vector<std::pair<uint64_t, size_t>> rest;  // at random, the same for all matrices
    for (auto i = static_cast<size_t>(best); i < plans.size(); ++i) {
      rest.emplace_back(random_key(options_.seed, to_text(plans[i].plan)), i);
    }
    std::sort(rest.begin(), rest.end());
    rest.resize(std::min<size_t>(rest.size(), kPool));
    std::vector<std::pair<uint64_t, size_t>> drawn;
    std::sample(rest.begin(), rest.end(), std::back_inserter(drawn), options_.random_plans,
                std::mt19937_64(options_.seed + samples_.size()));
    std::vector<RankedPlan> result(plans.begin(), plans.begin() + best);
    for (const auto& [key, i] : drawn) {
      result.push_back(plans[i]);
    }
    return result;
  }

  // Features are counted anew, on the host.
  void take_samples() {
    std::map<std::pair<std::string, DType>, std::vector<CostSample>> of_matrices;
    for (const std::string& file : options_.samples) {
      CostSamples read = read_cost_samples(file);
      require(gpu_.empty() || gpu_ == read.gpu, "{} has times of another GPU, {}, than of {}", file,
              read.gpu, gpu_);
      gpu_ = read.gpu;
      for (CostSample& sample : read.samples) {
        of_matrices[{sample.matrix, sample.dtype}].push_back(std::move(sample));
      }
    }
    ThreadPool threads;
    for (const MatrixSource& source : options_.matrices) {
      std::optional<CompressedRows> matrix;
      for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
        throw_if_interrupted();
        const auto found = of_matrices.find({source.name, dtype});
        if (found == of_matrices.end()) {
          continue;
        }
        if (!matrix) {
          matrix = source.make(threads);
        }
        const general_sparse::MatrixSample sample =
            general_sparse::sample_of(with_dtype(copy_of(*matrix), dtype, threads), threads);
        general_sparse::PlanCounts counts(sample);
        for (const CostSample& s : found->second) {
          samples_.push_back({.access_class = access_class(s.plan),
                              .features = counts.features(s.plan, s.n, s.order),
                              .seconds = s.seconds});
        }
      }
    }
  }

  CostModel fit() {
    require(!samples_.empty(), "there are no times of generated kernels for these matrices");
    CostModel fitted = CostModel::fit(samples_, gpu_);
    std::vector<std::pair<int64_t, double>> errors(general_sparse::kAccessClasses);
    for (const CostModel::Sample& sample : samples_) {
      auto& [count, error] = errors[sample.access_class];
      ++count;
      error += error_of(fitted.seconds(sample.access_class, sample.features), sample.seconds);
    }
    report_.begin_table("fit", fit_columns());
    for (size_t i = 0; i < errors.size(); ++i) {
      const auto& [count, error] = errors[i];
      report_.add_row(
          {std::string(general_sparse::access_class_name(i)), count,
           known_cell(error / static_cast<double>(std::max<int64_t>(count, 1)) * kPercent)});
    }
    return fitted;
  }

  CostModelOptions options_;
  ReportWriter& report_;
  std::optional<CostModel> model_;  // in place of the one that is compiled in
  std::string gpu_;
  std::vector<CostModel::Sample> samples_;
  std::vector<Row> search_rows_;
};

}  // namespace

void report_cost_model(const CostModelOptions& options, ReportWriter& report) {
  require(!options.matrices.empty(), "there are no matrices to measure plans with");
  CostModelBench(options, report).run();
}

}  // namespace sparsellm
