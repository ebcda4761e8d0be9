#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "models/activation_sparsity.h"
#include "models/linear_layers.h"
#include "sparse/choice/format_rules.h"
#include "sparse/prune/plan.h"
#include "sparse/quantize/quantization_error.h"

namespace sparsellm {

// A text to measure on.
struct CalibrationFile {
  std::filesystem::path file;
  int64_t tokens = 0;  // at most
};

// How activation sparsity `predict` is calibrated (engine/calibrate_activation_sparsity.h).
struct ActivationSparsitySearch {
  CalibrationFile calibration;
  Votes votes = Votes::weighted;
  double max_loss = 0.005;
};

struct Conversion;

// Bytes of the input that are done, and all; the tensor that is next.
using ConvertProgress = std::function<void(int64_t done, int64_t total, std::string_view tensor)>;

// The callbacks are called on the caller's thread. What they throw ends the conversion as an Error
// does, and is thrown on.
struct ConvertOptions {
  std::filesystem::path input;   // a model directory
  std::filesystem::path output;  // that is made; not used by inspect_model()
  SparsityPlan plan;
  FormatRules rules = FormatRules::built_in();  // that "auto" of the plan goes by
  // f16 or bf16: what all floating-point tensors are converted to, before they are pruned. Nothing:
  // each keeps its own.
  std::optional<DType> dtype = {};
  // What Wanda's norms are measured on. Without it, N:M pruning goes by magnitude, and Wanda is an
  // Error.
  std::optional<CalibrationFile> calibration = {};
  // The alphas that it finds are stored in the output's config.json. An Error if the plan prunes,
  // because the weights of the input are calibrated. Not used by inspect_model().
  std::optional<ActivationSparsitySearch> activation_sparsity = {};
  // The input's is copied, and has to be one that the engine reads.
  bool with_tokenizer = true;
  int threads = 0;  // 0: usable_cores()
  bool replace = false;
  // Decode what was encoded, and read back what was written; narrow values are compared with what
  // the weights were rounded to.
  bool verify = false;
  int64_t max_shard_bytes = 5'000'000'000;
  ConvertProgress progress = {};
  // Called with every step of `progress`, and now and then while a text for calibration is
  // tokenized: throw here to stop.
  std::function<void()> poll = {};
  // The text of the output's README.md. Without it there is none. Not used by inspect_model().
  std::function<std::string(const Conversion& conversion)> model_card = {};
};

// What rounding to narrow values changed of a weight.
struct RoundedWeight {
  QuantizationError error;      // of the pruned weight
  double pruned_squares = 0.0;  // the sum of squares of what this conversion's pruning set to zero
};

// What became of the weight of a linear layer.
struct ConvertedWeight {
  LinearLayer layer;
  std::string method;       // of pruning
  std::string format;       // in which it is stored
  std::string why_dense;    // of one that is dense though the plan says otherwise
  std::string values = {};  // their type: "bf16", "i8", "i4:64" (sparse/narrow_encoding.h)
  std::optional<RoundedWeight> rounded = {};  // of narrow values
  int64_t stored_nonzeros = 0;                // of the input
  int64_t nonzeros = 0;
  int64_t dense_bytes = 0;
  int64_t formula_bytes = 0;  // by the formula of the format's paper; may be more than `bytes`
  int64_t bytes = 0;

  int64_t elements() const { return layer.rows * layer.columns; }
};

struct Conversion {
  std::vector<ConvertedWeight> weights;  // in the order of linear_layers()
  int64_t other_bytes = 0;               // tensors that are copied, or only converted
  bool has_tokenizer = true;
  std::optional<ActivationSparsity> activation_sparsity = {};  // that was found
  // The input had stored alphas, which are not those of pruned weights; the output has none.
  bool dropped_alphas = false;
  std::vector<std::string> left_out = {};  // tensors of the input (models/foreign_tensors.h)
  std::string quantization_warning = {};   // of the input (ModelConfig)

  int64_t dense_bytes() const;  // of the linear layers
  int64_t bytes() const;
  std::set<std::string> sparse_formats() const;  // that some of the weights are stored in
  std::set<std::string> narrow_values() const;   // the types that some of them have
};

// Reads the input tensor by tensor, and writes a model directory with the same tensors except for
// the weights of the decoder blocks' linear layers, which are pruned and stored as the plan says; a
// config.json that names the sparse formats in it (models/storage/sparse_config.h), and the model
// card. Besides what calibration takes (engine/calibrate.h) and the pruned weights of one block
// with it, less than four times the largest tensor is in memory that is not the files' own. If it
// throws, nothing is left of the output, and what was there before is as it was. Throws Error for a
// weight that the format which the plan names does not hold, and for values that are too large for
// `dtype` (with the tensor's name, and how many).
Conversion convert_model(const ConvertOptions& options);

// The same without an output, for each format that the weights could have: as "planned", "auto",
// "smallest", and all of sparse/registry.h, where a weight that cannot be encoded stays dense. Of
// narrow values that the plan asks for nothing but "planned" has any.
struct Inspection {
  std::string format;
  Conversion conversion;
};
std::vector<Inspection> inspect_model(const ConvertOptions& options);

}  // namespace sparsellm
