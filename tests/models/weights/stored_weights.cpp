#include "tests/models/weights/stored_weights.h"

#include <fstream>
#include <optional>
#include <span>
#include <utility>

#include "models/storage/model_writer.h"
#include "sparse/registry.h"
#include "tests/sparse/weight_patterns.h"
#include "tests/testing/tensor_values.h"

namespace sparsellm::testing {
namespace {

StoredTensor plain(const Tensor& x, const std::vector<int64_t>& shape) {
  return {.dtype = "F16",
          .shape = shape,
          .bytes = {static_cast<const std::byte*>(x.raw()), static_cast<size_t>(x.bytes())}};
}

}  // namespace

bool can_share(const WeightRequest& request, int64_t degree) {
  return request.unit == 0 || (12 % degree == 0 && (4 % degree == 0 || degree % 4 == 0));
}

StoredWeights::StoredWeights(const std::string& format, double density,
                             const LayoutOptions& options) {
  ThreadPool threads(1);
  ModelWriter writer(path(), {.header_bytes = 4096});
  writer.write_text("config.json", "{}");
  uint64_t seed = 1;
  for (const WeightRequest& request : kRequests) {
    for (const WeightRequest::Part& part : request.parts) {
      OwnedTensor w = make_weight(
          {.dtype = DType::f16, .rows = part.out, .columns = request.in, .density = density},
          ++seed);
      OwnedTensor bias = make_weight({.rows = 1, .columns = part.out, .density = 1.0}, ++seed);
      const std::string name = part.module + ".weight";
      if (format.empty()) {
        writer.add(name, plain(w.view, {part.out, request.in}));
      } else {
        writer.add(name, weight_format(format).encode(w.view, options, threads));
      }
      writer.add(part.module + ".bias", plain(bias.view, {part.out}));
      weights_.emplace(part.module, std::move(w));
      biases_.emplace(part.module, std::move(bias));
    }
  }
  writer.finish();
  checkpoint_ = std::make_unique<Checkpoint>(path());
}

CheckpointLoader StoredWeights::loader(const Shard& shard, const std::string& format,
                                       Device device) const {
  return CheckpointLoader(*checkpoint_, device, std::nullopt, {}, {.format = format, .threads = 1},
                          shard);
}

std::vector<double> StoredWeights::weight(const WeightRequest& request, const Shard& shard) const {
  std::vector<double> values;
  const Range columns = columns_of(request, shard);
  for (const WeightRequest::Part& part : request.parts) {
    const Range rows = rows_of(request, part.out, shard);
    const std::vector<double> some = values_of(weights_.at(part.module)
                                                   .view.rows(rows.begin, rows.count)
                                                   .columns(columns.begin, columns.count));
    values.insert(values.end(), some.begin(), some.end());
  }
  return values;
}

std::vector<double> StoredWeights::bias(const WeightRequest& request, const Shard& shard) const {
  std::vector<double> values;
  for (const WeightRequest::Part& part : request.parts) {
    const Range rows = rows_of(request, part.out, shard);
    const std::vector<double> all = values_of(biases_.at(part.module).view);
    values.insert(values.end(), all.begin() + rows.begin, all.begin() + rows.begin + rows.count);
  }
  return has_bias(request, shard) ? values : std::vector<double>();
}

void StoredWeights::overwrite(const std::string& tensor, int64_t at, const std::string& bytes) {
  const std::span<const std::byte> stored = checkpoint_->find(tensor)->bytes;
  const MappedFile& file = checkpoint_->file_of(stored);
  std::fstream stream(file.path(), std::ios::in | std::ios::out | std::ios::binary);
  stream.seekp(stored.data() - file.bytes().data() + at);
  stream << bytes;
  stream.close();
  checkpoint_ = std::make_unique<Checkpoint>(path());
}

}  // namespace sparsellm::testing
