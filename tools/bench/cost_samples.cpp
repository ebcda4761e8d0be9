#include "tools/bench/cost_samples.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "kernels/base/mapped_file.h"
#include "sparse/general_sparse/plan.h"

namespace sparsellm {
namespace {

using general_sparse::KernelPlan;
using general_sparse::Order;

constexpr int64_t kMaxSampleBytes = int64_t{1} << 28;
constexpr int kMaxLineDepth = 3;
constexpr float kLeastMicroseconds = 1e-3f;
constexpr float kMostMicroseconds = 1e9f;

constexpr std::string_view kPlanPrefix = "plan ";

DType sample_dtype(const JsonValue& value) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    if (value.string() == name_of(dtype)) {
      return dtype;
    }
  }
  value.refuse("expected f32, f16 or bf16");
}

Order sample_order(const JsonValue& value) {
  if (value.string() != "rows" && value.string() != "columns") {
    value.refuse("expected rows or columns");
  }
  return value.string() == "rows" ? Order::rows : Order::columns;
}

// Of the text after the prefix.
KernelPlan sample_plan(const JsonValue& value) {
  try {
    return general_sparse::plan_from(std::string_view(value.string()).substr(kPlanPrefix.size()));
  } catch (const OutOfMemory&) {
    throw;
  } catch (const Error& error) {
    fail("{}: {}", value.name(), error.what());
  }
}

}  // namespace

CostSamples read_cost_samples(const InputFile& file) {
  const std::string text = read_text_file(file, kMaxSampleBytes);
  CostSamples report;
  std::string_view rest = text;
  for (int64_t line = 1; !rest.empty(); ++line) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view one = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    const std::string name = fmt::format("{}({})", file.string(), line);
    const JsonDocument document = parse_json(one, name, kMaxLineDepth);
    const JsonValue row(document, name);
    const std::string table = row["table"].present() ? row["table"].string() : "";
    if (table == "environment" && row["gpu"].present()) {
      report.gpu = row["gpu"].string();
    }
    if (table != "plans") {
      continue;
    }
    if (!row["plan"].string().starts_with(kPlanPrefix)) {
      continue;  // kernels of the program
    }
    row["time_us"].number(kLeastMicroseconds, kMostMicroseconds);
    report.samples.push_back({.matrix = row["matrix"].string(),
                              .dtype = sample_dtype(row["dtype"]),
                              .n = row["n"].integer(1, int64_t{1} << 20),
                              .order = sample_order(row["order"]),
                              .plan = sample_plan(row["plan"]),
                              .seconds = row["time_us"].raw().get<double>() * 1e-6});
  }
  require(!report.samples.empty() && !report.gpu.empty(), "{} has no times of plans on a GPU",
          file.string());
  return report;
}

}  // namespace sparsellm
