#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "tools/bench/suite/suite_file.h"
#include "tools/bench/suite/suite_group.h"

namespace sparsellm {

// Adds the cells of a group. What a format does not
// have is left out, and its cells come once: zeros and records of "dense", records of all formats
// but tca_bme (and what may choose it). Throws Error that names the group for cells that are there
// already, unless all formats are wanted, and for more than kMaxSuiteCells.
void add_suite_cells(const SuiteGroup& group, const SuiteModels& models, SuiteFormats formats,
                     std::vector<SuiteCell>& cells);

// Puts cells that share a load behind the first of them.
void gather_loads(std::vector<SuiteCell>& cells);

}  // namespace sparsellm
