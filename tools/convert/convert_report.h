#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/conversion/convert.h"
#include "tools/cli/report.h"

namespace sparsellm {

// Tables of a conversion: the linear layers by what they have in common, the whole model, and with
// Detail::weights each of them.
enum class Detail : uint8_t { groups, weights };
void report_conversion(const Conversion& conversion, Detail detail, ReportWriter& report);

// What a user would want to know of a conversion, a line each: that it has no tokenizer; how many
// weights stay dense, and why.
std::vector<std::string> conversion_warnings(const Conversion& conversion);

// What the groups, and the model, would take in each format.
void report_inspection(std::span<const Inspection> inspections, Detail detail,
                       ReportWriter& report);

}  // namespace sparsellm
