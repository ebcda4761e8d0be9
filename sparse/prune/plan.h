#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sparse/prune/layer_range.h"
#include "sparse/prune/prune.h"
#include "sparse/registry.h"

namespace sparsellm {

// What happens to the weight of one linear layer.
struct LayerPlan {
  PruneSettings prune;                            // without norms
  std::string format = std::string(kAutoFormat);  // a name of sparse/registry.h, or one of these
  // Of the format (LayoutOptions::layout), where "auto" and "smallest" stand for it of what comes
  // to be in tca_bme; empty: by rule.
  std::string layout = {};

  LayoutOptions layout_in(std::string_view chosen) const;  // of a weight in this format
  std::string records() const;                             // sparse/records_choice.h
};

// Which linear layers of a model's decoder blocks are pruned how, and in which format they are
// stored. Plans do not cover embeddings, norms and the head. As a JSON file:
//
//   {"description": "...",
//    "rules": [{"tensors": "*.mlp.*", "layers": {"ends": "1/8"},
//               "prune": "magnitude", "scope": "row", "sparsity": 0.7, "format": "tca_bme"}, ...],
//    "default": {"prune": "none"}}
//
// The first rule that matches a layer is the one that holds for it; "default" is for layers that
// none matches, and without it they are not pruned. A rule has
//   tensors   patterns of module names ("model.layers.3.mlp.up_proj"), one or an array: * stands
//             for any characters, ? for one
//   layers    optional: [begin, end] without the end, where [-4, 0] are the last four and [8, 0]
//             all from the ninth on; or shares of the model's layers, each a number or a fraction
//             such as "1/8": {"first": s}, {"last": s}, {"ends": s}, which is first and last s, or
//             {"between": [s, t]}. LayerRange says how shares are rounded.
// and, like "default",
//   prune     a method of parse_prune_method()
//   sparsity  in [0, 1], of magnitude, random and wanda
//   scope     "row" (the default) or "matrix", of magnitude and random
//   block     "RxC", of magnitude and random: blocks become zero as a whole
//   seed      of random; 0 if it is not there
//   format    a name of sparse/registry.h, "smallest" or "auto", the default; "dense" keeps a layer
//             dense
//   records   "speed" (the default) or "size", of tca_bme, also where "smallest" or "auto" choose
//   it
//   values    instead of records: the type that the weights of tca_bme are rounded to after they
//             are pruned, "i8", "f8", "i4" (a scale for each 128 columns), "i4:32" or "i4:64"; by
//             default they keep theirs. Of dense_i8 "i8", the default, of dense_i4 "i4" and others.
//             Where "smallest" or "auto" choose, weights become one of these formats
class SparsityPlan {
 public:
  // Throws Error with the file's name, and the rule's number from 1 on, for everything that is not
  // as above, and for a rule that cannot match: its layers are none, or an earlier rule takes all
  // that a pattern of it matches.
  static SparsityPlan read(const std::filesystem::path& path);

  // The same for all layers. Throws Error for a format that is not known, and for a layout that it
  // cannot be told to encode in; those of "auto" and "smallest" are those of tca_bme.
  static SparsityPlan uniform(const PruneSettings& settings, std::string format,
                              std::string layout = {});

  // For the linear layer `module` ("model.layers.3.mlp.up_proj") of decoder block `layer` of
  // `layers`. The seed is derived from the plan's and the module's name, so that random zeros are
  // elsewhere in every layer. Throws Error for a rule with layers that the model does not have.
  LayerPlan for_tensor(std::string_view module, int64_t layer, int64_t layers) const;

  // Throws Error for a rule whose patterns match none of these names, as those of a rule with a
  // wrong name in it do (a rule may have patterns for several architectures), or that has layers
  // with none of the names that it matches. `modules` are all linear layers of a model's decoder
  // blocks, modules[i] in block layers[i].
  void require_rules_used(std::span<const std::string> modules,
                          std::span<const int64_t> layers) const;

  const std::string& description() const { return description_; }

 private:
  struct Rule {
    std::string name;  // "plan.json: rule 2"
    std::vector<std::string> patterns;
    LayerRange layers;
    LayerPlan plan;

    bool matches_name(std::string_view module) const;
  };

  void add_rule(Rule rule);

  std::string description_;
  std::vector<Rule> rules_;
  LayerPlan default_;
};

}  // namespace sparsellm
