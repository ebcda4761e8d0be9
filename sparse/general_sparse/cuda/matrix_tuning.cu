#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "kernels/base/cuda_state.cuh"
#include "kernels/base/error.h"
#include "kernels/base/kernel_cache.h"
#include "kernels/base/token_buckets.h"
#include "kernels/base/tune_cache.h"
#include "kernels/fill_random.h"
#include "kernels/tune/cuda_meter.cuh"
#include "kernels/tune/tuner.h"
#include "sparse/general_sparse/cuda/cuda_matrix.cuh"
#include "sparse/general_sparse/plan_source.h"
#include "sparse/general_sparse/search/cost_model.h"
#include "sparse/general_sparse/search/plan_search.h"
#include "sparse/product_plan.h"

namespace sparsellm::general_sparse {
namespace {

constexpr int kVersion = 1;  // rises when an earlier choice may no longer be right
constexpr std::string_view kRowsPrefix = "rows ";
constexpr std::string_view kPlanPrefix = "plan ";

// What is made of a plan before it runs, on the host.
struct PreparedPlan {
  PlanWork work;
  std::optional<PlanFacts> facts;
  std::span<const std::byte> code;
};

EncodedRows rows_of(const CudaMatrix& matrix) {
  const DeviceEncoding& e = matrix.encoding();
  return {e.layout, ChunkGrid(e.layout, e.rows, e.columns), matrix.host().starts,
          matrix.host().row_order};
}

PreparedPlan prepare(const CudaMatrix& matrix, const KernelPlan& plan, KernelCache& kernels,
                     int architecture) {
  PreparedPlan prepared;
  prepared.work = plan_work(rows_of(matrix), plan);
  prepared.facts = plan_facts(matrix.encoding().layout, matrix.dtype(), prepared.work);
  prepared.code = kernels.get(plan_source(plan, *prepared.facts, architecture));
  return prepared;
}

PlanProduct product_of(const CudaMatrix& matrix, const KernelPlan& plan,
                       const PreparedPlan& prepared, const CudaContext& context) {
  return {matrix.plan_matrix(), plan, prepared.work, *prepared.facts, prepared.code, context};
}

// Products with B and C of one shape.
class MatrixTunable : public Tunable<MatrixPlan> {
 public:
  MatrixTunable(const CudaMatrix& matrix, const MatrixTuning& what,
                std::function<std::vector<RankedPlan>()> search, const MatrixOperands& operands,
                ExecContext& ctx)
      : matrix_(matrix), what_(what), search_(std::move(search)), operands_(operands), ctx_(ctx) {}

  std::string key() const override {
    const DeviceEncoding& e = matrix_.encoding();
    return fmt::format("general_sparse matrix {}, {} x {}, {}, {}, {:016x}, {} columns{}{}{}",
                       kVersion, e.rows, e.columns, name_of(e.dtype), to_text(e.layout),
                       matrix_.host().fingerprint, n(),
                       operands_.order == Order::columns ? " by columns" : "",
                       what_.kernels == nullptr ? ", not generated"
                       : what_.program_kernels  ? ""
                                                : ", generated",
                       ctx_.launches == Launches::ordinary ? ", ordinary launches" : "");
  }

  std::vector<MatrixPlan> candidates() const override {
    generated_ = search_();
    std::vector<MatrixPlan> plans;
    if (what_.program_kernels) {
      for (const RowConfig& config : row_candidates(matrix_.weight(), n())) {
        plans.emplace_back(config);
      }
    }
    for (const RankedPlan& ranked : generated_) {
      plans.emplace_back(ranked.plan);
    }
    return plans;
  }
  // The cache may have any valid plan: not all multiply by this encoding, nor in this order.
  bool fits_all(const MatrixPlan& plan) const override {
    const auto* const generated = std::get_if<KernelPlan>(&plan);
    if (generated == nullptr) {
      return true;
    }
    if (space_.empty() && what_.kernels != nullptr) {
      space_ = searched_plans({.dtype = matrix_.dtype(),
                               .layout = matrix_.encoding().layout,
                               .n = n(),
                               .order = operands_.order});
    }
    return std::ranges::find(space_, *generated) != space_.end();
  }
  MatrixPlan fallback() const override { return row_rule(matrix_.weight(), n()); }
  bool times_slow_ones() const override { return what_.choose != nullptr; }

  Tensor result() const override { return operands_.c; }
  void run_reference(const Tensor& expected) override {
    run_in_workspace(row_rule(matrix_.weight(), n()), expected,
                     matrix_.run_workspace_bytes(n(), operands_.order));
  }
  void run(const MatrixPlan& plan, int64_t) override {
    if (const auto* const generated = std::get_if<KernelPlan>(&plan)) {
      const PlanProduct& made = product(*generated);
      run_in_workspace(made, operands_.c, matrix_.run_workspace_bytes(made, n(), operands_.order));
    } else {
      run_in_workspace(std::get<RowConfig>(plan), operands_.c,
                       matrix_.run_workspace_bytes(n(), operands_.order));
    }
  }
  int64_t bytes_in_turn() const override {
    return matrix_.bytes() + operands_.b.bytes() + operands_.c.bytes();
  }

  void timed(const MatrixPlan& plan, double seconds) override {
    const auto* const generated = std::get_if<KernelPlan>(&plan);
    if (generated != nullptr) {
      keep_fastest(*generated, seconds);
    }
    if (!what_.on_trial) {
      return;
    }
    PlanTrial trial{.n = n(), .order = operands_.order, .plan = to_text(plan), .seconds = seconds};
    if (generated != nullptr) {
      trial.generated = &*std::ranges::find(generated_, *generated, &RankedPlan::plan);
    }
    what_.on_trial(trial);
  }

  std::string to_text(const MatrixPlan& plan) const override { return matrix_plan_text(plan); }
  std::optional<MatrixPlan> plan_from(std::string_view text) const override {
    return matrix_plan_from(text, matrix_.weight(), n());
  }

 private:
  using ProductMap = std::map<std::string, PlanProduct, std::less<>>;  // by text

  int64_t n() const { return operands_.b.size(operands_.order == Order::rows ? 1 : 0); }
  static std::string to_text(const Layout& layout) { return general_sparse::to_text(layout); }

  // Plans take different workspaces; the first run of each is in no graph.
  template <class Way>
  void run_in_workspace(const Way& way, const Tensor& c, int64_t bytes) {
    if (!workspace_ || workspace_->bytes() < bytes) {
      workspace_.reset();
      workspace_.emplace(ctx_.device, bytes);
    }
    ExecContext ctx{.device = ctx_.device,
                    .workspace = *workspace_,
                    .threads = ctx_.threads,
                    .isa = ctx_.isa,
                    .cuda = ctx_.cuda,
                    .queue = ctx_.queue,
                    .sums = ctx_.sums,
                    .launches = ctx_.launches};
    matrix_.run(way, {.b = operands_.b, .c = c, .order = operands_.order}, ctx);
  }

  const PlanProduct& product(const KernelPlan& plan) {
    std::string text = general_sparse::to_text(plan);
    if (const auto made = products_.find(text); made != products_.end()) {
      return made->second;
    }
    PlanProduct made = product_of(matrix_, plan, prepared(plan), *ctx_.cuda);
    return products_.emplace(std::move(text), std::move(made)).first->second;
  }

  // Of the candidates some at once: each takes a compilation.
  const PreparedPlan& prepared(const KernelPlan& plan) {
    constexpr int64_t kAtOnce = 64;
    if (const auto found = prepared_.find(general_sparse::to_text(plan));
        found != prepared_.end()) {
      return found->second;
    }
    const auto first = std::ranges::find(generated_, plan, &RankedPlan::plan) - generated_.begin();
    const int64_t count = std::min<int64_t>(kAtOnce, std::ssize(generated_) - first);
    std::vector<std::optional<PreparedPlan>> made(static_cast<size_t>(count));
    ctx_.threads.parallel_for(count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        made[static_cast<size_t>(i)] =
            prepare(matrix_, generated_[static_cast<size_t>(first + i)].plan, *what_.kernels,
                    cuda_state(ctx_).compute_capability);
      }
    });
    prepared_.clear();
    for (int64_t i = 0; i < count; ++i) {
      prepared_.emplace(general_sparse::to_text(generated_[static_cast<size_t>(first + i)].plan),
                        *std::move(made[static_cast<size_t>(i)]));
    }
    return prepared_.at(general_sparse::to_text(plan));
  }

  // The others' work arrays are not needed again.
  void keep_fastest(const KernelPlan& plan, double seconds) {
    constexpr size_t kKept = 8;  // more than the tuner has finalists
    fastest_.emplace(seconds, general_sparse::to_text(plan));
    if (fastest_.size() > kKept) {
      const auto slowest = std::prev(fastest_.end());
      products_.erase(slowest->second);
      fastest_.erase(slowest);
    }
  }

  const CudaMatrix& matrix_;
  const MatrixTuning& what_;
  std::function<std::vector<RankedPlan>()> search_;
  mutable std::vector<RankedPlan> generated_;  // candidates() searches
  mutable std::vector<KernelPlan> space_;      // that plans are chosen from; made when needed
  MatrixOperands operands_;
  ExecContext& ctx_;
  std::optional<Workspace> workspace_;
  ProductMap products_;
  std::map<std::string, PreparedPlan, std::less<>> prepared_;
  std::multimap<double, std::string> fastest_;
};

OwnedTensor dense_scratch(int64_t size, int64_t n, Order order, DType dtype, ExecContext& ctx) {
  return order == Order::rows ? allocate_scratch(ctx, dtype, {size, n}, "tuning")
                              : allocate_scratch(ctx, dtype, {n, size}, "tuning");
}

Tensor flat(const Tensor& contiguous) {
  return {contiguous.raw(), contiguous.dtype(), {contiguous.element_count()}, contiguous.device()};
}

std::vector<std::byte> to_host(const Buffer& buffer) {
  std::vector<std::byte> bytes(static_cast<size_t>(buffer.bytes()));
  copy_bytes({}, bytes.data(), buffer.device(), buffer.data(), buffer.bytes());
  return bytes;
}

// Those that are tried.
std::vector<RankedPlan> generated_plans(const MatrixTuning& what, const SearchedProduct& product,
                                        PlanCounts& counts) {
  std::vector<RankedPlan> plans =
      ranked(product, counts, what.model != nullptr ? *what.model : CostModel::built_in());
  if (what.choose) {
    return what.choose(plans);
  }
  plans.resize(std::min(plans.size(), static_cast<size_t>(std::max<int64_t>(what.most_plans, 0))));
  return plans;
}

}  // namespace

std::string matrix_plan_text(const MatrixPlan& plan) {
  if (const auto* const generated = std::get_if<KernelPlan>(&plan)) {
    return fmt::format("{}{}", kPlanPrefix, to_text(*generated));
  }
  return fmt::format("{}{}", kRowsPrefix, row_name(std::get<RowConfig>(plan)));
}

std::optional<MatrixPlan> matrix_plan_from(std::string_view text, const RowWeight& weight,
                                           int64_t n) {
  if (text.starts_with(kRowsPrefix)) {
    return plan_named<MatrixPlan>(row_candidates(weight, n), row_name,
                                  text.substr(kRowsPrefix.size()));
  }
  if (!text.starts_with(kPlanPrefix)) {
    return std::nullopt;
  }
  try {
    return plan_from(text.substr(kPlanPrefix.size()));
  } catch (const OutOfMemory&) {
    throw;
  } catch (const Error&) {
    return std::nullopt;
  }
}

CudaMatrix::Choice CudaMatrix::choice_of(const MatrixPlan& plan, const MatrixTuning& what,
                                         ExecContext& ctx) const {
  const auto* const generated = std::get_if<KernelPlan>(&plan);
  if (generated == nullptr) {
    return std::get<RowConfig>(plan);
  }
  return product_of(*this, *generated,
                    prepare(*this, *generated, *what.kernels, cuda_state(ctx).compute_capability),
                    *ctx.cuda);
}

void CudaMatrix::tune(const MatrixTuning& what, TuneCache& cache, ExecContext& ctx) {
  require(!is_capturing(ctx), "general_sparse: tuned while a graph is captured");
  if (rows() == 0 || columns() == 0) {
    return;
  }
  std::set<int64_t> buckets;
  for (const int64_t n : what.columns) {
    buckets.insert(token_bucket(n));
  }
  std::optional<MatrixSample> sample;  // where there is something to search for
  std::optional<PlanCounts> counts;
  CudaMeter meter(ctx);
  for (const Order order : what.orders) {
    for (const int64_t n : buckets) {
      const auto search = [&]() -> std::vector<RankedPlan> {
        if (what.kernels == nullptr) {
          return {};
        }
        if (!sample) {
          sample = sample_of(rows_of(*this), dtype(), columns(), to_host(encoding_.positions));
          counts.emplace(*sample);
        }
        return generated_plans(
            what, {.dtype = dtype(), .layout = encoding_.layout, .n = n, .order = order}, *counts);
      };
      const OwnedTensor b = dense_scratch(columns(), n, order, dtype(), ctx);
      const OwnedTensor c = dense_scratch(rows(), n, order, dtype(), ctx);
      fill_random({.key = 1}, flat(b.view), ctx);
      MatrixTunable tunable(*this, what, search, {.b = b.view, .c = c.view, .order = order}, ctx);
      const Tuned<MatrixPlan> tuned = Tuner(meter, cache, ctx).fastest(tunable);
      choices_.erase({n, order});
      choices_.emplace(ChoiceKey{n, order}, choice_of(tuned.plan, what, ctx));
    }
  }
}

}  // namespace sparsellm::general_sparse
