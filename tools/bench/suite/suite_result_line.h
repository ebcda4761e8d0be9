#pragma once

#include <string>
#include <string_view>

#include "tools/bench/suite/suite_results.h"

namespace sparsellm {

// What to_json_line() writes. Throws Error that begins with `source` for anything else: unknown
// keys, other types, both of row and error or neither.
SuiteResult parse_suite_result(std::string_view line, const std::string& source);

}  // namespace sparsellm
