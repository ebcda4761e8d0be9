#pragma once

#include <filesystem>
#include <string>

#include "tools/convert/convert.h"

namespace sparsellm {

// The README.md of a converted model: front matter as model hubs read it, how the model is run, and
// the tables of report_conversion(). Names of the directories, of which `options` has two, are
// shown as text whatever characters they have.
std::string model_card(const ConvertOptions& options, const Conversion& conversion);

// "owner/name" of a model that lies where huggingface_hub keeps what it downloads,
// .../models--owner--name/snapshots/REVISION; empty for other directories.
std::string hub_id(const std::filesystem::path& model);

}  // namespace sparsellm
