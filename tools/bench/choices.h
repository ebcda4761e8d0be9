#pragma once

#include <span>

#include "models/format_choice.h"
#include "tools/cli/report.h"

namespace sparsellm {

// Adds the table "format choices" of the weight format "auto": a row for each kind of linear layers
// and each format that was tried for it, or, where none was, the one that rules chose.
void report_choices(std::span<const FormatChoice> choices, ReportWriter& report);

}  // namespace sparsellm
