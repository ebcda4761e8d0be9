#pragma once

#include <filesystem>
#include <span>

namespace sparsellm {

// How many threads compute fastest: one for each physical core that this process may run on (its
// CPU affinity; hardware threads of one core share its arithmetic units and its caches), and no
// more than the CPU quota of its control groups (v1 or v2) allows. At least 1.
int usable_cores();

// The same for CPUs with these numbers, read from the files below `root`, "/" but in tests. What a
// file does not say counts as no limit, and a CPU without a topology as a core of its own.
int usable_cores(const std::filesystem::path& root, std::span<const int> cpus);

}  // namespace sparsellm
