#pragma once

#include <span>

#include "tools/convert.h"
#include "tools/report.h"

namespace sparsellm {

// Tables of a conversion: the linear layers by what they have in common, the whole model, and with
// Detail::weights each of them.
enum class Detail : uint8_t { groups, weights };
void report_conversion(const Conversion& conversion, Detail detail, ReportWriter& report);

// What the groups, and the model, would take in each format.
void report_inspection(std::span<const Inspection> inspections, Detail detail,
                       ReportWriter& report);

}  // namespace sparsellm
