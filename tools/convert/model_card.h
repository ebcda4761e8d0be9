#pragma once

#include <filesystem>
#include <string>

#include "engine/conversion/convert.h"

namespace sparsellm {

// The README.md of the model in the directory `output` that was made of the one in `input`: front
// matter as model hubs read it, how the model is run, and the tables of report_conversion(). Names
// of the directories are shown as text whatever characters they have. Throws Error for a directory
// whose path cannot be read.
std::string model_card(const std::filesystem::path& input, const std::filesystem::path& output,
                       const Conversion& conversion);

// "owner/name" of a model that lies where huggingface_hub keeps what it downloads,
// .../models--owner--name/snapshots/REVISION; empty for other directories.
std::string hub_id(const std::filesystem::path& model);

}  // namespace sparsellm
