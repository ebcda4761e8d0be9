#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/open_directory.h"
#include "tools/serve/layer_table.h"

namespace sparsellm {

// A row of the table "layers" that sparsellm-bench layers writes: a layer of a block that was
// measured for some number of tokens.
struct ReportedLayer {
  int64_t block = 0;
  std::string name = {};
  int64_t blocks = 0;  // alike, which the block stands for
  int64_t out = 0;
  int64_t in = 0;
  std::string format = {};
  int64_t bytes = 0;
  LayerTimes times = {};
};

struct LayersReport {
  std::string path;  // for messages
  std::vector<ReportedLayer> layers;
};

// What `sparsellm-bench layers --output json` has written, which may be hostile. Columns that are
// not needed may hold anything. Throws Error, which begins with the path, for a file that is too
// large, not JSON, or not such a report.
LayersReport read_layers_report(const InputFile& file);

// Gives the rows of a table the times of a report. A block that was not measured has those of the
// one that stands for it: the report says for how many, but not for which, so it is the only one
// that stands for several and whose layers have the shapes and formats of this one's; where there
// are two of these, the block has no times. Throws Error, which begins with the report's path, for
// a report of another model, or of the same one with other weights: layers that the table does not
// have, other shapes, formats or bytes, or a number of blocks that differs.
void add_layer_times(const LayersReport& report, LayerTable& table);

}  // namespace sparsellm
