#include "tools/bench/suite/suite_group_parts.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "kernels/base/error.h"
#include "sparse/registry.h"

namespace sparsellm {
namespace {

std::vector<std::optional<ZeroPattern>> read_group_patterns(const JsonValue& list) {
  if (!list.present()) {
    return {std::nullopt};
  }
  return read_suite_list(list, [](const JsonValue& value) {
    const std::optional<ZeroPattern> pattern = parse_zero_pattern(value.string());
    if (!pattern) {
      value.refuse(fmt::format("expected {}", kZeroPatternSyntax));
    }
    return pattern;
  });
}

void require_absent_key(const JsonValue& value, std::string_view why) {
  if (value.present()) {
    value.refuse(why);
  }
}

// With plans or sparsities and without patterns.
std::vector<SuiteZeros> read_group_shares(const JsonValue& group, SuiteModels& models) {
  const JsonValue plans = group["plans"];
  const JsonValue sparsities = group["sparsities"];
  std::vector<SuiteZeros> all;
  if (plans.present()) {
    require_absent_key(sparsities, "plans say how many zeros there are");
    for (const std::string& plan : read_suite_texts(plans)) {
      for (const std::string& model : group["models"].strings()) {
        models.require_plan(plans, plan, model);
      }
      all.push_back({.plan = plan, .plan_file = models.plan_file(plan)});
    }
  } else {
    for (const double sparsity : read_suite_numbers(sparsities, 1.0)) {
      all.push_back({.sparsity = sparsity});
    }
  }
  return all;
}

SuiteActivation read_group_activation(const JsonValue& value) {
  SuiteActivation activation;
  activation.mode =
      one_of_suite(value["mode"], {ActivationSparsity::Mode::off, ActivationSparsity::Mode::exact,
                                   ActivationSparsity::Mode::predict});
  const auto share = [&](const char* key) { return read_suite_number(value[key], 1.0); };
  if (activation.mode == ActivationSparsity::Mode::predict) {
    value.allow_only({"mode", "votes", "predicted", "zeros"});
    activation.predicted = share("predicted");
    activation.zeros = share("zeros");
    if (value["votes"].present()) {
      activation.votes = one_of_suite(value["votes"], {Votes::sign, Votes::weighted});
    }
    if (*activation.predicted > *activation.zeros) {
      value["predicted"].refuse("what is predicted counts as zero, of which there are fewer");
    }
  } else if (activation.mode == ActivationSparsity::Mode::exact) {
    value.allow_only({"mode", "zeros"});
    if (value["zeros"].present()) {
      activation.zeros = share("zeros");
    }
  } else {
    value.allow_only({"mode"});
  }
  return activation;
}

}  // namespace

std::vector<std::string> read_suite_formats(const JsonValue& list, SuiteGroup::Kind kind) {
  return read_suite_list(list, [&](const JsonValue& value) {
    const std::string& name = value.string();
    const bool known =
        find_weight_format(name) != nullptr ||
        (kind == SuiteGroup::Kind::engine ? name == kAutoFormat || name == kSmallestFormat
                                          : name == "cusparse");
    if (!known) {
      value.refuse(fmt::format("expected one of {}, {}", weight_format_names(),
                               kind == SuiteGroup::Kind::engine ? "auto, smallest" : "cusparse"));
    }
    return name;
  });
}

std::vector<SuiteZeros> read_suite_zeros(const JsonValue& group,
                                         const std::vector<std::string>& formats,
                                         SuiteModels& models) {
  if (formats == std::vector<std::string>{std::string(weight_formats().front()->name())}) {
    for (const char* key : {"plans", "sparsities", "patterns", "records"}) {
      require_absent_key(group[key], "a group with no other format than dense has none");
    }
    return {{}};
  }
  const std::vector<SuiteZeros> shares = read_group_shares(group, models);
  std::vector<SuiteZeros> all;
  for (const std::optional<ZeroPattern>& pattern : read_group_patterns(group["patterns"])) {
    for (SuiteZeros zeros : shares) {
      zeros.pattern = pattern;
      const std::string reason =
          pattern && zeros.plan.empty() ? why_not(*pattern, zeros.sparsity) : std::string();
      require(reason.empty(), "{}: {}", group["patterns"].name(), reason);
      all.push_back(zeros);
    }
  }
  return all;
}

std::vector<SuiteActivation> read_suite_activations(const JsonValue& list) {
  if (!list.present()) {
    return {{}};
  }
  require_suite_list(list);
  std::vector<SuiteActivation> all;
  for (int64_t i = 0; i < list.size(); ++i) {
    all.push_back(read_group_activation(list.element(i)));
    if (std::ranges::find(all, all.back()) != std::prev(all.end())) {
      list.element(i).refuse("it is in the list already");
    }
  }
  return all;
}

}  // namespace sparsellm
