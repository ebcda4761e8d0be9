#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "kernels/base/dtype.h"
#include "tools/cli/cli_fwd.h"

namespace sparsellm {

// Options that several subcommands of sparsellm-bench have. Their defaults are the values that they
// are given.

// Checks that an option is from 1 to 2^24.
CLI::Validator is_count();

void add_copies(CLI::App& command, int64_t& mib);
void add_dtype(CLI::App& command, std::string& dtype, const char* description);  // f16 or bf16
void add_seed(CLI::App& command, uint64_t& seed, const char* description);
void add_threads(CLI::App& command, int& threads);

// Takes lines of warning, each of which goes to stderr.
std::function<void(const std::string&)> warnings_to_stderr();

// Of "f32", "f16" or "bf16", as the check of an option has left it.
DType dtype_named(const std::string& name);

}  // namespace sparsellm
