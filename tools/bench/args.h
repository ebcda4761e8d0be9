#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/zero_pattern.h"
#include "tools/bench/mlp_weights.h"
#include "tools/bench/requests.h"
#include "tools/cli/cli_fwd.h"
#include "tools/cli/report.h"

namespace sparsellm {

// What --output and --format say. --output has two meanings, which its value tells apart: a number
// is tokens, a word is the format of the report.
struct OutputArgs {
  std::optional<LengthRange> tokens;
  std::optional<ReportFormat> format;
};

// --kernel-cache.
CLI::Option* add_kernel_cache(CLI::App& app, std::filesystem::path& directory);

enum class OutputTokens : uint8_t { no, yes };
void add_output_args(CLI::App& app, OutputArgs& args, OutputTokens tokens);

// All throw UsageError that names `flag`.
LengthRange parse_length_range(const std::string& flag, const std::string& text);  // 64, 32:512
std::pair<int64_t, int64_t> parse_shape(const std::string& flag,
                                        const std::string& text);  // OUTxIN
std::pair<int64_t, int64_t> parse_matrix_size(const std::string& flag,
                                              const std::string& text);  // ROWSxCOLUMNS
MlpShape parse_mlp_shape(const std::string& flag,
                         const std::string& text);  // 11008x4096, 28672x7168:plain
ZeroPattern parse_pattern(const std::string& flag,
                          const std::string& text);  // uniform, rows:0.5, ...
// Of a matrix that cannot have both.
void check_pattern(const std::string& flag, const ZeroPattern& pattern, double sparsity);
double parse_poisson(const std::string& flag, const std::string& text);  // poisson:2.5

}  // namespace sparsellm
