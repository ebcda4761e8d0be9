#include "models/linear_layers.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <memory>
#include <string_view>
#include <utility>

#include "kernels/base/error.h"
#include "models/build_decoder.h"
#include "models/weights/shape_loader.h"

namespace sparsellm {
namespace {

constexpr std::string_view kBlocks = "layers.";
constexpr std::string_view kWeightEnding = ".weight";

// Where the number of a block begins and ends in a module's name.
std::pair<size_t, size_t> block_number(std::string_view module) {
  const size_t begin = module.find(kBlocks) + kBlocks.size();
  return {begin, module.find('.', begin)};
}

// Notes what the builder of a model asks for.
class Recorder : public ShapeLoader {
 public:
  Recorder(std::vector<JoinedLinear>& layers, const Shard& shard)
      : ShapeLoader({}, DType::f32, {}, shard), layers_(layers) {}

 private:
  std::unique_ptr<WeightMatrix> load_weight(const Wanted& wanted) override {
    record(wanted);
    return ShapeLoader::load_weight(wanted);
  }
  OwnedTensor load_dense(const Wanted& wanted) override {
    record(wanted).always_dense = true;
    return ShapeLoader::load_dense(wanted);
  }

  JoinedLinear& record(const Wanted& wanted) {
    JoinedLinear& joined = layers_.emplace_back();
    joined.rows = rows_of(wanted);
    joined.columns = wanted.columns.count;
    joined.has_bias = has_bias(*wanted.request, shard());
    joined.activation = wanted.request->activation;
    joined.request = *wanted.request;
    for (const Wanted::Part& part : wanted.parts) {
      LinearLayer layer{.module = part.name.substr(0, part.name.size() - kWeightEnding.size()),
                        .block = 0,
                        .rows = part.slice.count,
                        .columns = wanted.columns.count};
      const auto [begin, end] = block_number(layer.module);
      std::from_chars(layer.module.data() + begin, layer.module.data() + end, layer.block);
      joined.parts.push_back(std::move(layer));
    }
    return joined;
  }

  std::vector<JoinedLinear>& layers_;
};

}  // namespace

double JoinedLinear::density(
    const std::function<double(const LinearLayer& part)>& density_of) const {
  double nonzero_rows = 0.0;  // as many elements as nonzeros
  for (const LinearLayer& part : parts) {
    nonzero_rows += static_cast<double>(part.rows) * density_of(part);
  }
  return nonzero_rows / static_cast<double>(rows);
}

std::vector<JoinedLinear> joined_linear_layers(const ModelConfig& config, const Shard& shard) {
  std::vector<JoinedLinear> layers;
  Recorder recorder(layers, shard);
  build_decoder(config, recorder);
  return layers;
}

std::vector<LinearLayer> linear_layers(const ModelConfig& config) {
  std::vector<LinearLayer> layers;
  for (JoinedLinear& joined : joined_linear_layers(config)) {
    std::move(joined.parts.begin(), joined.parts.end(), std::back_inserter(layers));
  }
  return layers;
}

std::string kind_of(const LinearLayer& layer) {
  return layer.module.substr(block_number(layer.module).second + 1);
}

}  // namespace sparsellm
