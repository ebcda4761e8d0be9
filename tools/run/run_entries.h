#pragma once

#include <filesystem>

#include "models/storage/safetensors.h"
#include "tools/run/prompt.h"
#include "tools/run/run_mark.h"

namespace sparsellm {

// The files of a model that results depend on: configuration and tokenizer by their bytes, weights
// by their checksums where they have some, else by their size alone. A copy of the model has the
// same entries. Throws Error for files that cannot be read.
RunEntries model_entries(const Checkpoint& checkpoint);

// The flags of sampling and results, by the names of tools/run/generation_args.h. `defaults` is
// what they and the model come to.
RunEntries generation_entries(const Prompt& defaults);

}  // namespace sparsellm
