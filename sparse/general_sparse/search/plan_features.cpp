#include "sparse/general_sparse/search/plan_features.h"

#include <algorithm>
#include <bit>

#include "sparse/general_sparse/plan_work.h"

namespace sparsellm::general_sparse {
namespace {

constexpr double kMillion = 1e6;
constexpr double kBytesOfSector = 32.0;

constexpr std::array<std::string_view, kPlanFeatures> kNames{
    "launch",          "a_bytes",          "a_reread_bytes",
    "b_bytes",         "b_gathered_bytes", "c_bytes",
    "zeros",           "transposed_bytes", "steps",
    "products",        "gathers",          "wavefronts",
    "resident_steps",  "longest",          "longest_products",
    "longest_gathers", "longest_lines",    "warps",
    "thread_bitmaps",  "warp_totals",      "warp_bitmaps",
    "warp_segments",   "block_totals",     "block_bitmaps",
    "block_segments",  "split_rows",       "longest_split"};

int division_number(const Division& division) {
  return static_cast<int>(division.rows) * 2 + static_cast<int>(division.ends);
}

double in_sectors(double bytes) { return std::max(bytes, kBytesOfSector); }

double ceil_of(int64_t n, int64_t by) { return static_cast<double>(ceil_div(n, by)); }

}  // namespace

std::string_view name_of(PlanFeature feature) { return kNames.at(static_cast<size_t>(feature)); }

PlanFeatures PlanCounts::features(const KernelPlan& plan, int64_t n, Order order) {
  PlanFeatures features{};
  const auto set = [&](PlanFeature feature, double value) {
    features[static_cast<size_t>(feature)] = value;
  };
  const auto millions = [&](PlanFeature feature, double value) { set(feature, value / kMillion); };
  const Steps& counted = steps(plan);
  const auto value_bytes = static_cast<double>(size_of(sample_.dtype));
  const double position_bytes = sample_.layout.positions == PositionCode::u16 ? 2.0 : 4.0;
  const double shared_rows = sample_.layout.shared_rows;
  const double tile = tile_tokens(plan);
  const double tiles = ceil_of(n, tile_tokens(plan));
  const double token_warps = plan.warps_per_group;
  const double tokens = plan.tokens_per_thread;
  const double sums = shared_rows * tokens;  // of a thread
  const auto entries = static_cast<double>(sample_.entries);
  const auto columns = static_cast<double>(n);
  const bool by_token = plan.x_order == XOrder::by_token;

  const double a_bytes = entries * (position_bytes + shared_rows * value_bytes);
  set(PlanFeature::launch, 1.0);
  millions(PlanFeature::a_bytes, a_bytes);
  millions(PlanFeature::a_reread_bytes, a_bytes * (tiles * token_warps - 1.0));
  const double b_bytes = static_cast<double>(sample_.columns) * columns * value_bytes;
  millions(PlanFeature::b_bytes, b_bytes);
  millions(PlanFeature::b_gathered_bytes,
           by_token ? entries * sample_.distinct_sectors * columns * kBytesOfSector
                    : entries * sample_.distinct_columns * tiles *
                          in_sectors(std::min(columns, tile) * value_bytes));
  const double c_rows = static_cast<double>(sample_.rows) * shared_rows;
  millions(PlanFeature::c_bytes, c_rows * (order == Order::rows ? in_sectors(columns * value_bytes)
                                                                : columns * value_bytes));
  millions(PlanFeature::zeros, static_cast<double>(sample_.empty_rows) * shared_rows * columns);
  if (order == Order::columns && !by_token && n > 1) {
    millions(PlanFeature::transposed_bytes, 2.0 * b_bytes);
  }

  const double warp_steps = counted.of_warps * token_warps * tiles;
  const double step = plan.step_nonzeros;
  const double loads = by_token ? tokens : tokens / plan.x_vector;
  millions(PlanFeature::steps, warp_steps);
  millions(PlanFeature::products, warp_steps * step * sums);
  millions(PlanFeature::gathers, warp_steps * step * loads);
  // Lanes of a group have adjacent vectors, or one column of other tokens.
  const double group_sectors =
      by_token
          ? plan.threads_per_group
          : std::max(1.0, plan.threads_per_group * plan.x_vector * value_bytes / kBytesOfSector);
  millions(PlanFeature::wavefronts, warp_steps * step * loads * groups(plan) * group_sectors);
  const double block_warps = plan.threads / 32.0;
  millions(PlanFeature::resident_steps, counted.of_blocks * tiles * block_warps);
  set(PlanFeature::longest, counted.longest);
  set(PlanFeature::longest_products, counted.longest * step * sums);
  set(PlanFeature::longest_gathers, counted.longest * step * loads);
  // Threads that take turns are far apart.
  constexpr double kLineBytes = 128.0;
  const bool takes_turns = plan.thread.rows == RowCount::one;
  const double stride_bytes =
      plan.step_nonzeros * position_bytes * (takes_turns ? part_groups(plan) : 1);
  set(PlanFeature::longest_lines, counted.longest * std::min(stride_bytes / kLineBytes, 1.0));
  const double warps = counted.blocks * tiles * block_warps;
  millions(PlanFeature::warps, warps);

  if (plan.thread.rows == RowCount::several) {
    millions(PlanFeature::thread_bitmaps, warp_steps * step * sums);
  }
  const double levels = std::countr_zero(static_cast<unsigned>(groups(plan)));
  const auto add_reduction = [&](Reduction reduction, PlanFeature total, double value) {
    if (reduction != Reduction::none) {
      const auto kind = static_cast<size_t>(reduction) - static_cast<size_t>(Reduction::total);
      features[static_cast<size_t>(total) + kind] = value / kMillion;
    }
  };
  add_reduction(plan.warp_reduction, PlanFeature::warp_totals, warps * sums * levels);
  add_reduction(plan.block_reduction, PlanFeature::block_totals, warps * sums * sparse_warps(plan));
  if (counted.split_rows > 0.0) {
    constexpr double kThousandth = 1e-3;
    set(PlanFeature::split_rows,
        kThousandth + counted.split_rows * shared_rows * tile * tiles / kMillion);
    set(PlanFeature::longest_split, counted.longest_split);
  }
  return features;
}

const PlanCounts::Steps& PlanCounts::steps(const KernelPlan& plan) {
  const DivisionKey key{division_number(plan.block),
                        division_number(plan.warp),
                        division_number(plan.thread),
                        plan.thread_nonzeros,
                        groups(plan),
                        sparse_warps(plan),
                        plan.step_nonzeros,
                        plan.a_vector};
  const auto [found, is_new] = steps_.try_emplace(key);
  if (is_new) {
    add_steps(sample_.usual, plan, found->second);
    add_steps(sample_.longest, plan, found->second);
  }
  return found->second;
}

void PlanCounts::add_steps(const RowSample& rows, const KernelPlan& plan, Steps& steps) const {
  const PlanWork work = plan_work(sample_.view(rows), plan);
  const int64_t step_loads = plan.step_nonzeros / plan.a_vector;
  const int64_t groups_of_part = part_groups(plan);
  const bool several_split = part_division(plan) == Division{RowCount::several, RowEnds::split} ||
                             (plan.thread.rows == RowCount::several && groups_of_part > 1);
  const int64_t warps = sparse_warps(plan);
  const int64_t warp_parts = std::max<int64_t>(block_parts(plan) / warps, 1);
  // A thread has consecutive loads of its part, or takes turns with the others.
  const auto part_steps = [&](int64_t part) {
    const int64_t begin = work.part_begins[static_cast<size_t>(part)];
    const int64_t end =
        std::min<int64_t>(work.part_begins[static_cast<size_t>(part + 1)], work.loads);
    const int64_t loads = end - begin;
    const int64_t share =
        several_split
            ? std::min<int64_t>(
                  loads, work.group_loads > 0 ? work.group_loads : ceil_div(loads, groups_of_part))
            : ceil_div(loads, groups_of_part);
    return ceil_div(share, step_loads);
  };
  int64_t of_warps = 0;
  int64_t of_blocks = 0;
  int64_t longest = 0;
  for (int64_t block = 0; block < work.part_blocks; ++block) {
    int64_t slowest = 0;
    const int64_t first = block * block_parts(plan);
    const int64_t last = std::min(first + block_parts(plan), work.parts);
    if (block_parts(plan) < warps) {  // a part is the block's, or several warps have it
      for (int64_t part = first; part < last; ++part) {
        const int64_t of_part = part_steps(part);
        of_warps += of_part * warps / block_parts(plan);
        slowest = std::max(slowest, of_part);
      }
    } else {
      for (int64_t part = first; part < last; part += warp_parts) {
        int64_t of_warp = 0;
        for (int64_t i = part; i < std::min(part + warp_parts, last); ++i) {
          of_warp = std::max(of_warp, part_steps(i));
        }
        of_warps += of_warp;
        slowest = std::max(slowest, of_warp);
      }
    }
    of_blocks += slowest;
    longest = std::max(longest, slowest);
  }
  steps.blocks += static_cast<double>(work.part_blocks) * rows.scale;
  steps.of_warps += static_cast<double>(of_warps) * rows.scale;
  steps.of_blocks += static_cast<double>(of_blocks) * rows.scale;
  steps.longest = std::max(steps.longest, static_cast<double>(longest));
  for (const BlockRow& row : work.block_rows) {
    steps.longest_split = std::max<double>(steps.longest_split, row.blocks);
  }
  steps.split_rows += static_cast<double>(work.block_rows.size()) * rows.scale;
}

}  // namespace sparsellm::general_sparse
