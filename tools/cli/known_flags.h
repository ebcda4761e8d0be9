#pragma once

#include <span>
#include <string>

#include "tools/cli/cli_fwd.h"

namespace sparsellm {

// Throws UsageError for the first of the arguments that is no flag of `app`, or of its command that
// they name: with the flag to use instead, where the word is one of other programs or nearly one of
// ours. CLI11 by itself takes "-temp 0" for "-t emp" and a "0". Says nothing of values, and nothing
// at all if --help or --version is requested.
void require_known_flags(const CLI::App& app, std::span<const std::string> args);

}  // namespace sparsellm
