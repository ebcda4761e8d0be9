#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "engine/memory_fit.h"
#include "models/config.h"
#include "models/format_sum.h"

namespace sparsellm {

// Lines of a table: what all weights take, and if some are sparse what dense ones would, and with
// how many zeros. `linears` is a part of `weight_bytes`.
std::string weight_rows(std::span<const FormatSum> linears, int64_t weight_bytes);

// What --fit says, as a table and as one line of JSON. `options` are those that it was computed
// for.
std::string fit_table(const ModelConfig& config, const EngineOptions& options,
                      const MemoryFit& fit);
std::string fit_json(const ModelConfig& config, const EngineOptions& options, const MemoryFit& fit);

}  // namespace sparsellm
