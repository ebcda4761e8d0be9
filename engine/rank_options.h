#pragma once

#include <string>
#include <string_view>

#include "engine/engine_options.h"
#include "models/weights/layer_formats.h"

namespace sparsellm {

// What rank 0 decides for ranks that are other processes, as JSON on one line: all options of an
// engine but those of a process itself (device, cpu_isa, tune_cache, what reports and observes),
// and the formats that "auto" has chosen.
std::string rank_options_text(const EngineOptions& options, const LayerFormats& formats);

struct RankOptions {
  EngineOptions options;
  LayerFormats formats;
};

// The same with the options that are this process's own taken from `own`. Throws Error for a text
// that is not as described above; whether the options are in range is looked at where they are
// used.
RankOptions read_rank_options(std::string_view text, const EngineOptions& own);

}  // namespace sparsellm
