#include "sparse/general_sparse/plan.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "kernels/base/error.h"
#include "sparse/general_sparse/text_fields.h"

namespace sparsellm::general_sparse {
namespace {

constexpr int kMostTokensPerThread = 8;
constexpr int kMostThreadsPerGroup = 32;
constexpr int kMostWarpsPerGroup = 8;
constexpr int kMostThreadNonzeros = 64;
constexpr int kMostInStep = 8;
constexpr int kMostInVector = 8;
constexpr int kMostSize = 65536;  // of any field, as text
constexpr int kLeastThreads = 32;
constexpr int kMostThreads = 1024;
constexpr int kMostLoadBytes = 16;

// In the order of their enumerators.
constexpr std::array<std::string_view, 2> kRowCounts{"one", "several"};
constexpr std::array<std::string_view, 2> kRowEnds{"whole", "split"};
constexpr std::array<std::string_view, 4> kReductions{"none", "total", "bitmap", "segment"};
constexpr std::array<std::string_view, 2> kXOrders{"by-token", "transposed"};

template <class Enum, size_t count>
std::string_view enumerator_name(const std::array<std::string_view, count>& names, Enum value) {
  return names.at(static_cast<size_t>(value));
}

constexpr std::array kDivisions{
    Division{RowCount::one, RowEnds::whole}, Division{RowCount::one, RowEnds::split},
    Division{RowCount::several, RowEnds::whole}, Division{RowCount::several, RowEnds::split}};

std::string division_text(const Division& division) {
  return fmt::format("{},{}", enumerator_name(kRowCounts, division.rows),
                     enumerator_name(kRowEnds, division.ends));
}

bool is_power_of_two(int value, int least, int most) {
  return value >= least && value <= most && std::has_single_bit(static_cast<unsigned>(value));
}

// A field that is a power of 2.
struct PowerField {
  const char* name;
  int value;
  int least;
  int most;
  bool may_be_zero = false;
};

std::optional<std::string> wrong_field(const KernelPlan& plan) {
  const std::array fields{
      PowerField{"tokens", plan.tokens_per_thread, 1, kMostTokensPerThread},
      PowerField{"group", plan.threads_per_group, 1, kMostThreadsPerGroup},
      PowerField{"token-warps", plan.warps_per_group, 1, kMostWarpsPerGroup},
      PowerField{"thread-nonzeros", plan.thread_nonzeros, 1, kMostThreadNonzeros, true},
      PowerField{"step", plan.step_nonzeros, 1, kMostInStep},
      PowerField{"a-vector", plan.a_vector, 1, kMostInVector},
      PowerField{"x-vector", plan.x_vector, 1, kMostInVector},
      PowerField{"threads", plan.threads, kLeastThreads, kMostThreads}};
  for (const PowerField& field : fields) {
    if (!is_power_of_two(field.value, field.least, field.most) &&
        !(field.may_be_zero && field.value == 0)) {
      return fmt::format("{}={} is no power of 2 from {} to {}{}", field.name, field.value,
                         field.least, field.most, field.may_be_zero ? ", nor 0" : "");
    }
  }
  if (plan.threads / 32 < plan.warps_per_group) {
    return fmt::format("threads={} are fewer than the warps of token-warps={}", plan.threads,
                       plan.warps_per_group);
  }
  return {};
}

// A level above another: a warp over the groups of its threads, a block over its sparse warps.
struct ChainLevel {
  std::string_view name;
  std::string_view part_name;
  int parts;
  Division division;
  Division part_division;
  Reduction reduction;
  Reduction below;  // the last one below that is not none
};

ChainLevel warp_level(const KernelPlan& plan) {
  return {.name = "warp",
          .part_name = "thread",
          .parts = groups(plan),
          .division = plan.warp,
          .part_division = plan.thread,
          .reduction = plan.warp_reduction,
          .below = plan.thread_reduction};
}

ChainLevel block_level(const KernelPlan& plan) {
  const bool warp_has_one = plan.warp_reduction != Reduction::none;
  return {.name = "block",
          .part_name = "warp",
          .parts = sparse_warps(plan),
          .division = plan.block,
          .part_division = plan.warp,
          .reduction = plan.block_reduction,
          .below = warp_has_one ? plan.warp_reduction : plan.thread_reduction};
}

std::optional<std::string> wrong_division(const ChainLevel& level) {
  const Division& parts = level.part_division;
  if (level.parts == 1) {
    if (level.division == parts) {
      return {};
    }
    return fmt::format("{}={}, but its one part has {}={}", level.name,
                       division_text(level.division), level.part_name, division_text(parts));
  }
  if (parts.rows == RowCount::several && level.division.rows == RowCount::one) {
    return fmt::format("{}={}, but {}={}: a part has several rows", level.name,
                       division_text(level.division), level.part_name, division_text(parts));
  }
  constexpr Division kSeveralWhole{RowCount::several, RowEnds::whole};
  if (parts.ends == RowEnds::whole && level.division != kSeveralWhole) {
    return fmt::format("{}={}, but {}={}: parts of whole rows make several, whole rows", level.name,
                       division_text(level.division), level.part_name, division_text(parts));
  }
  return {};
}

Reduction thread_reduction_of(const KernelPlan& plan) {
  if (plan.thread_nonzeros == 1) {
    return Reduction::none;
  }
  return plan.thread.rows == RowCount::one ? Reduction::total : Reduction::bitmap;
}

Reduction reduction_of(const ChainLevel& level) {
  if (level.parts == 1 || level.part_division.ends == RowEnds::whole) {
    return Reduction::none;
  }
  if (level.below == Reduction::bitmap || level.below == Reduction::segment) {
    return Reduction::segment;
  }
  return level.division.rows == RowCount::one ? Reduction::total : Reduction::bitmap;
}

std::string_view reason_for(const ChainLevel& level) {
  if (level.parts == 1) {
    return "there is one part";
  }
  if (level.part_division.ends == RowEnds::whole) {
    return "whole rows end the chain";
  }
  switch (level.below) {
    case Reduction::bitmap:
      return "rows that are split go on, above a bitmap by a segment";
    case Reduction::segment:
      return "rows that are split go on, above a segment by a segment";
    default:
      return level.division.rows == RowCount::one
                 ? "rows that are split go on, one row by a total"
                 : "rows that are split go on, several rows by a bitmap";
  }
}

std::optional<std::string> wrong_chain(const KernelPlan& plan) {
  const Reduction of_thread = thread_reduction_of(plan);
  if (plan.thread_reduction != of_thread) {
    return fmt::format("the reduction of a thread is {}; expected {}: {}",
                       enumerator_name(kReductions, plan.thread_reduction),
                       enumerator_name(kReductions, of_thread),
                       of_thread == Reduction::none    ? "one nonzero skips the thread's level"
                       : of_thread == Reduction::total ? "one row is added by a total"
                                                       : "several rows are added by a bitmap");
  }
  for (const ChainLevel& level : {warp_level(plan), block_level(plan)}) {
    if (std::optional<std::string> wrong = wrong_division(level)) {
      return wrong;
    }
    const Reduction expected = reduction_of(level);
    if (level.reduction != expected) {
      return fmt::format("the reduction of a {} is {}; expected {}: {}", level.name,
                         enumerator_name(kReductions, level.reduction),
                         enumerator_name(kReductions, expected), reason_for(level));
    }
  }
  return {};
}

std::optional<std::string> wrong_nonzeros(const KernelPlan& plan) {
  if (plan.thread_nonzeros > 0) {
    if (plan.thread.ends == RowEnds::whole) {
      return fmt::format("thread-nonzeros={}, but threads have whole rows", plan.thread_nonzeros);
    }
    constexpr Division kOneWhole{RowCount::one, RowEnds::whole};
    if (plan.warp == kOneWhole || plan.block == kOneWhole) {
      return fmt::format("thread-nonzeros={}, but threads share one whole row",
                         plan.thread_nonzeros);
    }
    if (plan.thread_nonzeros == 1 && plan.thread.rows != RowCount::one) {
      return "thread-nonzeros=1, but threads have several rows";
    }
    if (plan.thread_nonzeros % plan.step_nonzeros != 0) {
      return fmt::format("step={} does not divide thread-nonzeros={}", plan.step_nonzeros,
                         plan.thread_nonzeros);
    }
  }
  if (plan.step_nonzeros % plan.a_vector != 0) {
    return fmt::format("a-vector={} does not divide step={}", plan.a_vector, plan.step_nonzeros);
  }
  return {};
}

std::optional<std::string> wrong_x(const KernelPlan& plan) {
  if (plan.tokens_per_thread % plan.x_vector != 0) {
    return fmt::format("x-vector={} does not divide tokens={}", plan.x_vector,
                       plan.tokens_per_thread);
  }
  if (plan.x_vector > 1 && plan.x_order == XOrder::by_token) {
    return fmt::format("x-vector={}, but the tokens of a column are apart (x-order=by-token)",
                       plan.x_vector);
  }
  return {};
}

// --- Text.

template <class Enum, size_t count>
Enum read_enumerator(const TextFields& fields, std::string_view key, std::string_view value,
                     const std::array<std::string_view, count>& names) {
  const auto found = std::find(names.begin(), names.end(), value);
  if (found == names.end()) {
    fields.refuse(key, value, fmt::format("one of {}", fmt::join(names, ", ")));
  }
  return static_cast<Enum>(found - names.begin());
}

// "a,b,c"
template <size_t count>
std::array<std::string_view, count> read_list(TextFields& fields, std::string_view key) {
  const std::string_view text = fields.value(key);
  std::array<std::string_view, count> items;
  std::string_view rest = text;
  for (size_t i = 0; i < count; ++i) {
    const size_t comma = rest.find(',');
    if ((comma == std::string_view::npos) != (i + 1 == count)) {
      fields.refuse(key, text, fmt::format("{} words with commas between them", count));
    }
    items[i] = rest.substr(0, comma);
    rest.remove_prefix(i + 1 == count ? rest.size() : comma + 1);
  }
  return items;
}

Division read_division(TextFields& fields, std::string_view key) {
  const auto [rows, ends] = read_list<2>(fields, key);
  return {.rows = read_enumerator<RowCount>(fields, key, rows, kRowCounts),
          .ends = read_enumerator<RowEnds>(fields, key, ends, kRowEnds)};
}

int read_size(TextFields& fields, std::string_view key) {
  return static_cast<int>(fields.integer(key, 0, kMostSize));
}

// --- All plans.

// The powers of 2 from `least` to `most`.
std::vector<int> powers_of_two(int least, int64_t most) {
  std::vector<int> powers;
  for (int64_t power = least; power <= most; power *= 2) {
    powers.push_back(static_cast<int>(power));
  }
  return powers;
}

void add_reductions(KernelPlan& plan) {
  plan.thread_reduction = thread_reduction_of(plan);
  plan.warp_reduction = Reduction::none;
  plan.warp_reduction = reduction_of(warp_level(plan));
  plan.block_reduction = reduction_of(block_level(plan));
}

// A list of plans in which the values of some fields are multiplied out, one after the other; those
// that cannot become valid, whatever the fields after them are, may be left out early.
class PlanList {
 public:
  template <class Value, class Values>
  PlanList& times(Value KernelPlan::*field, const Values& values) {
    std::vector<KernelPlan> more;
    for (KernelPlan plan : plans_) {
      for (const Value value : values) {
        plan.*field = value;
        more.push_back(plan);
      }
    }
    plans_ = std::move(more);
    return *this;
  }

  template <class Keep>
  PlanList& keep(const Keep& keep) {
    std::erase_if(plans_, [&](const KernelPlan& plan) { return !keep(plan); });
    return *this;
  }

  template <class Change>
  PlanList& change(const Change& change) {
    std::for_each(plans_.begin(), plans_.end(), change);
    return *this;
  }

  std::vector<KernelPlan> take() { return std::move(plans_); }

 private:
  std::vector<KernelPlan> plans_{KernelPlan()};
};

}  // namespace

std::optional<std::string> why_invalid(const KernelPlan& plan) {
  for (const auto wrong : {wrong_field, wrong_nonzeros, wrong_chain, wrong_x}) {
    if (std::optional<std::string> reason = wrong(plan)) {
      return reason;
    }
  }
  return {};
}

std::vector<KernelPlan> enumerate_plans(const PlanLimits& limits) {
  constexpr std::array kOrders{XOrder::by_token, XOrder::transposed};
  require(limits.tokens > 0 && is_power_of_two(limits.most_tokens, 1, 1 << 20) &&
              limits.value_bytes > 0,
          "plans for {} tokens, {} at once, and values of {} bytes", limits.tokens,
          limits.most_tokens, limits.value_bytes);
  const auto tokens = std::min<int64_t>(limits.tokens, limits.most_tokens);
  const auto tile = static_cast<int>(std::bit_ceil(static_cast<uint64_t>(tokens)));
  const int64_t most_in_load = kMostLoadBytes / limits.value_bytes;
  const std::vector<int> vectors = powers_of_two(1, std::min<int64_t>(kMostInVector, most_in_load));
  // Fields in the order of the text, except for `threads`: reductions depend on it.
  return PlanList()
      .times(&KernelPlan::tokens_per_thread, powers_of_two(1, kMostTokensPerThread))
      .times(&KernelPlan::threads_per_group, powers_of_two(1, kMostThreadsPerGroup))
      .times(&KernelPlan::warps_per_group, powers_of_two(1, kMostWarpsPerGroup))
      .keep([tile](const KernelPlan& plan) { return tile_tokens(plan) == tile; })
      .times(&KernelPlan::threads, limits.threads)
      .keep([](const KernelPlan& plan) { return !wrong_field(plan); })
      .times(&KernelPlan::block, kDivisions)
      .times(&KernelPlan::warp, kDivisions)
      .times(&KernelPlan::thread, kDivisions)
      .times(&KernelPlan::thread_nonzeros, limits.thread_nonzeros)
      .change(add_reductions)
      .keep([](const KernelPlan& plan) { return !wrong_chain(plan) && !wrong_nonzeros(plan); })
      .times(&KernelPlan::step_nonzeros, limits.steps)
      .times(&KernelPlan::a_vector, vectors)
      .keep([](const KernelPlan& plan) { return !wrong_field(plan) && !wrong_nonzeros(plan); })
      .times(&KernelPlan::x_vector, vectors)
      .times(&KernelPlan::x_order, kOrders)
      .keep([](const KernelPlan& plan) { return !why_invalid(plan); })
      .take();
}

std::string to_text(const KernelPlan& plan) {
  return fmt::format(
      "tokens={} group={} token-warps={} block={} warp={} thread={} thread-nonzeros={} step={} "
      "a-vector={} x-vector={} x-order={} reductions={},{},{} threads={}",
      plan.tokens_per_thread, plan.threads_per_group, plan.warps_per_group,
      division_text(plan.block), division_text(plan.warp), division_text(plan.thread),
      plan.thread_nonzeros, plan.step_nonzeros, plan.a_vector, plan.x_vector,
      enumerator_name(kXOrders, plan.x_order), enumerator_name(kReductions, plan.thread_reduction),
      enumerator_name(kReductions, plan.warp_reduction),
      enumerator_name(kReductions, plan.block_reduction), plan.threads);
}

KernelPlan plan_from(std::string_view text) {
  TextFields fields("plan", text);
  KernelPlan plan;
  plan.tokens_per_thread = read_size(fields, "tokens");
  plan.threads_per_group = read_size(fields, "group");
  plan.warps_per_group = read_size(fields, "token-warps");
  plan.block = read_division(fields, "block");
  plan.warp = read_division(fields, "warp");
  plan.thread = read_division(fields, "thread");
  plan.thread_nonzeros = read_size(fields, "thread-nonzeros");
  plan.step_nonzeros = read_size(fields, "step");
  plan.a_vector = read_size(fields, "a-vector");
  plan.x_vector = read_size(fields, "x-vector");
  plan.x_order = read_enumerator<XOrder>(fields, "x-order", fields.value("x-order"), kXOrders);
  const auto [thread, warp, block] = read_list<3>(fields, "reductions");
  plan.thread_reduction = read_enumerator<Reduction>(fields, "reductions", thread, kReductions);
  plan.warp_reduction = read_enumerator<Reduction>(fields, "reductions", warp, kReductions);
  plan.block_reduction = read_enumerator<Reduction>(fields, "reductions", block, kReductions);
  plan.threads = read_size(fields, "threads");
  fields.end();
  if (const std::optional<std::string> reason = why_invalid(plan)) {
    fail("plan: {}", *reason);
  }
  return plan;
}

}  // namespace sparsellm::general_sparse
