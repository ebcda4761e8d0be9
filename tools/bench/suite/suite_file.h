#pragma once

#include <cstdint>
#include <filesystem>

#include "kernels/base/open_directory.h"
#include "tools/bench/suite/suite.h"

namespace sparsellm {

enum class SuiteFormats : uint8_t {
  listed,  // those that the file has
  all,     // and in each group with a sparse format all other formats of sparse/registry.h
};

// Cells of one suite, at most.
inline constexpr int64_t kMaxSuiteCells = 10'000;

// Where the configs and plans of a suite are: configs, for configs/benchmarks/NAME.json.
std::filesystem::path suite_configs(const std::filesystem::path& file);

// Reads a suite such as configs/benchmarks/flash_llm_fig13.json; docs/bench.md has its keys.
// `configs` is the folder of the models' config files, whose folder "plans" has the plans. They are
// read, too: a cell that no model can have is refused here, not in the middle of a run. Throws
// Error of one line that names the file and the key, for everything that is not as it should be.
Suite read_suite(const InputFile& file, const std::filesystem::path& configs,
                 SuiteFormats formats = SuiteFormats::listed);

}  // namespace sparsellm
