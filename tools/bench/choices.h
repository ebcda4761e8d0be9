#pragma once

#include <span>

#include "models/format_choice.h"
#include "tools/cli/report.h"

namespace sparsellm {

// Adds the table "format choices" of the weight format "auto": a row for each kind of linear layers
// and each format that was tried for it, or, where none was, the one that rules chose; and, where
// times decide, for the formats that were not tried, with the reason.
void report_choices(std::span<const FormatChoice> choices, ReportWriter& report);

}  // namespace sparsellm
