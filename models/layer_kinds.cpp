#include "models/layer_kinds.h"

#include <algorithm>
#include <map>
#include <utility>

#include "sparse/records_choice.h"
#include "sparse/registry.h"

namespace sparsellm {
namespace {

struct Candidate {
  const JoinedLinear* layer;
  LayerWeight weight;
};

bool same_but_density(const Candidate& a, const Candidate& b) {
  return a.layer->rows == b.layer->rows && a.layer->columns == b.layer->columns &&
         a.layer->has_bias == b.layer->has_bias && a.layer->activation == b.layer->activation &&
         a.weight.stored == b.weight.stored && a.weight.planned == b.weight.planned &&
         a.weight.records == b.weight.records && a.weight.dtype == b.weight.dtype &&
         a.weight.zeros == b.weight.zeros;
}

// Of at least one, by density.
LayerKind kind_from(std::span<const Candidate> alike) {
  const Candidate& median = alike[alike.size() / 2];
  LayerKind kind{.layer = *median.layer, .weight = median.weight, .first_weights = {}};
  for (const Candidate& each : alike) {
    kind.first_weights.push_back(each.layer->first_weight());
    kind.weights.push_back(each.weight);
  }
  return kind;
}

}  // namespace

LayerFormat LayerKind::in(std::string_view format) const {
  // What is stored has its values.
  return {.format = std::string(format),
          .layout =
              format == weight.stored ? std::string() : records_in(format, weight.records).layout};
}

int64_t expected_bytes(const LayerKind& kind, const LayerWeight& weight, const LayerFormat& in,
                       const Device& device) {
  if (device.is_cuda() && in.format == weight.stored && weight.stored_bytes > 0) {
    return weight.stored_bytes;
  }
  const WeightFormat& format = weight_format(in.format);
  EncodedWeight header = weight_header(
      format, {.rows = kind.layer.rows, .columns = kind.layer.columns, .density = weight.density},
      weight.dtype);
  format.tell_layout(header, {.layout = in.layout});
  return device.is_cuda() ? format.expected_bytes(header) : format.bytes_on_cpu(header);
}

std::vector<LayerKind> layer_kinds(std::span<const JoinedLinear> layers,
                                   const WeightOfLayer& weight_of, double spread) {
  std::vector<std::vector<Candidate>> shapes;
  for (const JoinedLinear& layer : layers) {
    Candidate candidate{.layer = &layer, .weight = weight_of(layer)};
    const auto shape = std::ranges::find_if(
        shapes, [&](const auto& alike) { return same_but_density(alike.front(), candidate); });
    (shape == shapes.end() ? shapes.emplace_back() : *shape).push_back(std::move(candidate));
  }
  std::vector<LayerKind> kinds;
  for (std::vector<Candidate>& shape : shapes) {
    const auto density = [](const Candidate& candidate) { return candidate.weight.density; };
    std::ranges::stable_sort(shape, {}, density);
    for (auto first = shape.begin(); first != shape.end();) {
      const auto last =
          std::ranges::upper_bound(first, shape.end(), density(*first) + spread, {}, density);
      kinds.push_back(kind_from({first, last}));
      first = last;
    }
  }
  return kinds;
}

std::vector<AlikeBlocks> alike_blocks(std::span<const JoinedLinear> layers,
                                      std::span<const LayerKind> kinds) {
  std::map<std::string, size_t> kind_of_layer;  // by first weight
  for (size_t i = 0; i < kinds.size(); ++i) {
    for (const std::string& weight : kinds[i].first_weights) {
      kind_of_layer.emplace(weight, i);
    }
  }
  std::map<int64_t, std::vector<size_t>> kinds_of_block;
  for (const JoinedLinear& layer : layers) {
    kinds_of_block[layer.parts.front().block].push_back(kind_of_layer.at(layer.first_weight()));
  }
  std::vector<std::vector<int64_t>> groups;
  for (const auto& [block, own] : kinds_of_block) {
    const auto group = std::ranges::find_if(groups, [&, &own = own](const auto& blocks) {
      return kinds_of_block.at(blocks.front()) == own;
    });
    (group == groups.end() ? groups.emplace_back() : *group).push_back(block);
  }
  std::vector<AlikeBlocks> alike;
  alike.reserve(groups.size());
  for (const std::vector<int64_t>& blocks : groups) {
    alike.push_back({.block = blocks[blocks.size() / 2], .count = std::ssize(blocks)});
  }
  return alike;
}

}  // namespace sparsellm
