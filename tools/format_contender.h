#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "tools/contender.h"

namespace sparsellm {

// The formats that weights can be benchmarked in, through WeightMatrix::matmul.
std::vector<std::string_view> benchmark_formats();

// Throws Error for an unknown format, naming the known ones, and where there is not enough memory.
std::unique_ptr<Contender> make_format_contender(std::string_view format,
                                                 const ContenderInput& input);

}  // namespace sparsellm
