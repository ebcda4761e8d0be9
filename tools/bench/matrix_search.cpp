#include "tools/bench/matrix_search.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/run_time_compiler.h"
#include "kernels/base/tune_cache.h"
#include "sparse/general_sparse/search/plan_search.h"

namespace sparsellm {
namespace {

using general_sparse::Division;
using general_sparse::KernelPlan;
using general_sparse::Matrix;
using general_sparse::MatrixTuning;
using general_sparse::RankedPlan;
using general_sparse::Reduction;
using general_sparse::RowCount;
using general_sparse::RowEnds;

bool is_block_per_row(const KernelPlan& plan) {
  return plan.block == Division{RowCount::one, RowEnds::whole} && plan.step_nonzeros == 1;
}

bool adds_one_row_at_a_time(const KernelPlan& plan) {
  const auto adds = [](Reduction reduction) {
    return reduction == Reduction::none || reduction == Reduction::total;
  };
  return adds(plan.thread_reduction) && adds(plan.warp_reduction) && adds(plan.block_reduction);
}

// What all matrices have in common.
struct SearchTools {
  explicit SearchTools(const KernelCache::Options& options) : kernels(compiler, options) {}

  RunTimeCompiler compiler;
  KernelCache kernels;
};

class MatrixStage {
 public:
  // `takes`: which plans may be chosen; nullptr: any.
  MatrixStage(std::shared_ptr<SearchTools> tools, int64_t plans, bool (*takes)(const KernelPlan&),
              bool program_kernels)
      : tools_(std::move(tools)), plans_(plans), takes_(takes), program_kernels_(program_kernels) {}

  std::unique_ptr<MatrixContender> contender(const MatrixInput& input) const {
    const std::string problem = tools_->compiler.why_not();
    require(problem.empty(), "{}", problem);
    std::unique_ptr<Matrix> matrix =
        general_sparse::load_matrix(input.matrix, input.ctx.device, input.threads, input.layout);
    ExecContext ctx{.device = input.ctx.device,
                    .workspace = input.ctx.workspace,
                    .threads = input.threads,  // of the host, which prepare plans
                    .isa = input.ctx.isa,
                    .cuda = input.ctx.cuda,
                    .queue = input.ctx.queue,
                    .sums = input.ctx.sums,
                    .launches = Launches::ordinary};
    MatrixTuning what{.columns = input.columns,
                      .orders = input.orders,
                      .kernels = &tools_->kernels,
                      .most_plans = plans_,
                      .program_kernels = program_kernels_};
    if (takes_ != nullptr) {
      what.choose = [this](const std::vector<RankedPlan>& plans) { return best(plans); };
    }
    TuneCache choices;  // in memory
    matrix->tune(what, choices, ctx);
    return make_matrix_contender(std::move(matrix), input);
  }

 private:
  std::vector<RankedPlan> best(const std::vector<RankedPlan>& plans) const {
    std::vector<RankedPlan> result;
    for (const RankedPlan& plan : plans) {
      if (std::ssize(result) < plans_ && takes_(plan.plan)) {
        result.push_back(plan);
      }
    }
    return result;
  }

  std::shared_ptr<SearchTools> tools_;
  int64_t plans_;
  bool (*takes_)(const KernelPlan&);
  bool program_kernels_;
};

}  // namespace

std::vector<MatrixContenderKind> searched_contenders(const MatrixSearch& search) {
  std::vector<MatrixContenderKind> kinds;
  if (search.plans == 0) {
    return kinds;
  }
  const auto tools = std::make_shared<SearchTools>(search.kernels);
  const auto add = [&](std::string name, bool (*takes)(const KernelPlan&), bool program_kernels) {
    kinds.push_back({.name = std::move(name),
                     .role = MatrixContenderKind::Role::measured,
                     .make = [stage = MatrixStage(tools, search.plans, takes, program_kernels)](
                                 const MatrixInput& input) { return stage.contender(input); }});
  };
  if (search.stages) {
    add("general_sparse block per row", is_block_per_row, false);
    add("general_sparse + division", adds_one_row_at_a_time, false);
    add("general_sparse + reductions", nullptr, false);
  }
  add("general_sparse searched", nullptr, true);
  return kinds;
}

}  // namespace sparsellm
