#include "tools/bench/neuron_table.h"

#include <string>

#include "tools/cli/statistics.h"

namespace sparsellm {

std::vector<Column> neuron_columns() {
  std::vector<Column> columns{{.key = "batch", .title = "batch"}, {.key = "rows", .title = "rows"}};
  for (const std::string share : {"predicted", "zeros"}) {
    columns.push_back(
        {.key = share + "_min_percent", .title = share + " min", .unit = "%", .decimals = 1});
    columns.push_back(
        {.key = share + "_mean_percent", .title = share + " mean", .unit = "%", .decimals = 1});
    columns.push_back(
        {.key = share + "_max_percent", .title = share + " max", .unit = "%", .decimals = 1});
  }
  return columns;
}

Row neuron_row(int64_t batch, const std::vector<NeuronCounts>& before,
               const std::vector<NeuronCounts>& after) {
  Row row{batch};
  std::vector<double> predicted;
  std::vector<double> zeros;
  int64_t rows = 0;
  for (size_t layer = 0; layer < after.size(); ++layer) {
    NeuronCounts counts = after[layer];
    counts -= before[layer];
    rows = counts.rows;
    if (counts.neurons > 0) {
      predicted.push_back(100.0 * counts.skipped_share());
      zeros.push_back(100.0 * (1.0 - counts.active_share()));
    }
  }
  row.emplace_back(rows);
  for (const std::vector<double>& shares : {predicted, zeros}) {
    if (shares.empty()) {
      row.resize(row.size() + 3);
      continue;
    }
    const Spread spread = spread_of(shares);
    row.insert(row.end(), {spread.min, mean(shares), spread.max});
  }
  return row;
}

}  // namespace sparsellm
