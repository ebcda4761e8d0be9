#include "engine/conversion/convert.h"

#include <algorithm>
#include <utility>

#include "engine/calibrate_activation_sparsity.h"
#include "engine/calibration_sequences.h"
#include "engine/conversion/conversion_input.h"
#include "engine/conversion/convert_dtype.h"
#include "engine/conversion/encode_planned.h"
#include "engine/conversion/output_config.h"
#include "kernels/base/error.h"
#include "kernels/base/mapped_file.h"
#include "models/foreign_tensors.h"
#include "models/storage/model_files.h"
#include "models/storage/model_manifest.h"
#include "models/storage/model_writer.h"
#include "sparse/count_nonzeros.h"
#include "sparse/dense/dense.h"
#include "sparse/load_context.h"
#include "sparse/narrow_encoding.h"
#include "sparse/records_choice.h"
#include "sparse/registry.h"
#include "tokenizer/tokenizer.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;

int64_t nonzeros_of(const PlannedWeight& weight, ConversionInput& input) {
  return weight.changed ? count_nonzeros(weight.values, input.threads()) : weight.stored_nonzeros;
}

PlannedEncoding encode(const PlannedWeight& weight, const LayerPlan& plan,
                       const ConvertOptions& options, ConversionInput& input) {
  const auto encoded = [&] {
    return encode_planned(
        weight.values, plan,
        {.rules = options.rules, .joined = weight.joined, .quantized = weight.quantized},
        input.threads());
  };
  return has_narrow_values(plan.records())  // which not all weights can have
             ? naming_errors(input.describe(weight.stored.name), encoded)
             : encoded();
}

std::optional<RoundedWeight> rounded(const PlannedWeight& weight, const PlannedEncoding& encoding,
                                     ThreadPool& threads) {
  if (!encoding.rounded) {
    return std::nullopt;
  }
  RoundedWeight result{.error = quantization_error(weight.values, *encoding.rounded, threads)};
  if (weight.squares) {
    result.pruned_squares = std::max(*weight.squares - result.error.squared_weights, 0.0);
  }
  return result;
}

ConvertedWeight converted(const PlannedWeight& weight, int64_t nonzeros,
                          const PlannedEncoding& encoding, ThreadPool& threads) {
  const std::optional<EncodedWeight>& encoded = encoding.encoded;
  return {
      .layer = weight.layer,
      .method = describe_pruning(weight.plan.prune),
      .format = encoded ? encoded->format : std::string(dense_format().name()),
      .why_dense = encoding.why_dense,
      .values = encoded ? type_of_values(*encoded) : std::string(name_of(weight.values.dtype())),
      .rounded = rounded(weight, encoding, threads),
      .stored_nonzeros = weight.stored_nonzeros,
      .nonzeros = encoding.rounded ? encoded->nonzeros : nonzeros,
      .dense_bytes = weight.values.bytes(),
      .formula_bytes =
          encoded ? weight_format(encoded->format).formula_bytes(*encoded) : weight.values.bytes(),
      .bytes = encoded ? encoded->bytes() : weight.values.bytes()};
}

// Writes the weight of a linear layer.
ConvertedWeight add_weight(const PlannedWeight& weight, const ConvertOptions& options,
                           ConversionInput& input, ModelWriter& writer) {
  const std::string& name = weight.stored.name;
  const int64_t nonzeros = nonzeros_of(weight, input);
  const std::string& format = weight.plan.format;
  const PlannedEncoding encoding = encode(weight, weight.plan, options, input);
  if (encoding.encoded) {
    if (options.verify) {
      require_decodes(encoding, weight.values, name, input.threads());
    }
    writer.add(name, *encoding.encoded);
  } else {
    require(encoding.why_dense.empty() || format == kAutoFormat || format == kSmallestFormat,
            "{} cannot be stored as {}: {}", input.describe(name), format, encoding.why_dense);
    writer.add(name, {.dtype = std::string(safetensors_name(weight.values.dtype())),
                      .shape = {weight.layer.rows, weight.layer.columns},
                      .bytes = {static_cast<const std::byte*>(weight.values.raw()),
                                static_cast<size_t>(weight.values.bytes())}});
  }
  return converted(weight, nonzeros, encoding, input.threads());
}

// Writes a tensor that belongs to no linear layer; returns its bytes there.
int64_t add_other(const std::string& name, ConversionInput& input, std::optional<DType> dtype,
                  ModelWriter& writer) {
  const StoredTensor& stored = *input.checkpoint().find(name);
  const std::optional<DType> from = input.dtype_to_convert(name);
  if (!from) {
    writer.add(name, stored);
    return std::ssize(stored.bytes);
  }
  const Buffer values =
      convert_values(*from, stored.bytes, *dtype, input.describe(name), input.threads());
  writer.add(name, {.dtype = std::string(safetensors_name(*dtype)),
                    .shape = stored.shape,
                    .bytes = {static_cast<const std::byte*>(values.data()),
                              static_cast<size_t>(values.bytes())}});
  return values.bytes();
}

// config.json, the tokenizer, the licence.
void copy_companions(const ConversionInput& input, const ConvertOptions& options,
                     const Conversion& conversion, ModelWriter& writer) {
  for (const std::string& name : input.directory().names()) {
    if (!is_companion_file(name) || (!options.with_tokenizer && is_tokenizer_file(name))) {
      continue;
    }
    const InputFile file = input.directory() / name;
    const std::optional<std::string> config =
        name == "config.json" ? output_config(file, {.had_bitmasks = input.has_bitmasks(),
                                                     .dtype = options.dtype,
                                                     .formats = conversion.sparse_formats(),
                                                     .values = conversion.narrow_values(),
                                                     .drops_alphas = conversion.dropped_alphas,
                                                     .sparsity = conversion.activation_sparsity})
                              : std::nullopt;
    if (config) {
      writer.write_text(name, *config);
    } else {
      writer.copy_file(file);
    }
  }
}

// Whether the output has a tokenizer. One that the engine could not read is an Error before any
// work is done, not when the output is loaded.
bool check_tokenizer(const ConversionInput& input, const ConvertOptions& options) {
  if (!options.with_tokenizer || !has_tokenizer(input.directory())) {
    return false;
  }
  try {
    load_tokenizer(input.directory());
  } catch (const Error& error) {
    fail("{} (--no-tokenizer converts the model without its tokenizer)", error.what());
  }
  return true;
}

ActivationSparsity find_activation_sparsity(const ConversionInput& input,
                                            const ConvertOptions& options) {
  const ActivationSparsitySearch& search = *options.activation_sparsity;
  require(!input.prunes(),
          "activation sparsity is calibrated on the weights of the input, which are pruned here; "
          "prune first, and calibrate what was written");
  require(has_tokenizer(input.directory()),
          "{}: calibration of activation sparsity needs a tokenizer, and there is none",
          options.input.string());
  return calibrate_activation_sparsity(
      input.directory(), {.text = read_text_file(search.calibration.file, kMaxCalibrationTextBytes),
                          .tokens = search.calibration.tokens,
                          .votes = search.votes,
                          .max_loss = search.max_loss,
                          .threads = options.threads,
                          .progress = [&options](int64_t done, int64_t total) {
                            if (options.poll) {
                              options.poll();
                            }
                            if (options.progress) {
                              options.progress(done, total, "(calibrating activation sparsity)");
                            }
                          }});
}

// Room for the header of a file: names of tensors and metadata, and some more.
int64_t header_bytes(const Checkpoint& checkpoint) {
  constexpr int64_t kOfATensor = 600;  // that becomes three parts, with the name in each
  int64_t bytes = 4096;
  for (const std::string& name : checkpoint.names()) {
    bytes += kOfATensor + 6 * std::ssize(name);
  }
  return std::min(bytes, SafetensorsFile::kMaxHeaderBytes);
}

void read_back(const fs::path& written, const ConvertOptions& options) {
  ModelFile(Checkpoint(written)).verify([&](int64_t done, int64_t total) {
    if (options.poll) {
      options.poll();
    }
    if (options.progress) {
      options.progress(done, total, "(reading back)");
    }
  });
}

}  // namespace

int64_t Conversion::dense_bytes() const {
  int64_t sum = 0;
  for (const ConvertedWeight& weight : weights) {
    sum += weight.dense_bytes;
  }
  return sum;
}

int64_t Conversion::bytes() const {
  int64_t sum = 0;
  for (const ConvertedWeight& weight : weights) {
    sum += weight.bytes;
  }
  return sum;
}

std::set<std::string> Conversion::sparse_formats() const {
  std::set<std::string> formats;
  for (const ConvertedWeight& weight : weights) {
    formats.insert(weight.format);
  }
  formats.erase(std::string(dense_format().name()));
  return formats;
}

std::set<std::string> Conversion::narrow_values() const {
  std::set<std::string> types;
  for (const ConvertedWeight& weight : weights) {
    if (has_narrow_values(weight.values)) {
      types.insert(weight.values);
    }
  }
  return types;
}

Conversion convert_model(const ConvertOptions& options) {
  ConversionInput input(options);
  Conversion result;
  result.has_tokenizer = check_tokenizer(input, options);
  result.left_out = left_out_tensors(input.checkpoint(), input.config());
  result.quantization_warning = input.config().quantization_warning;
  const std::vector<std::string> others = input.other_tensors();
  ModelWriter writer(options.output,
                     {.existing = options.replace ? OutputDirectory::Existing::replace
                                                  : OutputDirectory::Existing::refuse,
                      .input = options.input,
                      .max_shard_bytes = options.max_shard_bytes,
                      .header_bytes = header_bytes(input.checkpoint())});
  if (options.activation_sparsity) {
    result.activation_sparsity = find_activation_sparsity(input, options);
  }
  result.dropped_alphas = input.prunes() && input.config().activation_sparsity.mode ==
                                                ActivationSparsity::Mode::predict;
  input.for_each_weight([&](const PlannedWeight& weight) {
    result.weights.push_back(add_weight(weight, options, input, writer));
  });
  for (const std::string& name : others) {
    input.report(0, name);
    const StoredTensor& tensor = *input.checkpoint().find(name);
    input.require_undamaged(name);
    result.other_bytes += add_other(name, input, options.dtype, writer);
    release_pages(tensor.bytes);
    input.report(std::ssize(tensor.bytes), name);
  }
  copy_companions(input, options, result, writer);
  if (options.model_card) {
    writer.write_text(std::string(kModelCardName), options.model_card(result));
  }
  input.checkpoint().require_intact();
  writer.finish([&](const fs::path& complete) {
    if (options.verify) {
      read_back(complete, options);
    }
  });
  return result;
}

std::vector<Inspection> inspect_model(const ConvertOptions& options) {
  ConversionInput input(options);
  std::vector<std::string> formats{std::string(kAutoFormat), std::string(kSmallestFormat)};
  for (const WeightFormat* format : exact_formats()) {
    formats.emplace_back(format->name());
  }
  Conversion planned;
  planned.has_tokenizer = check_tokenizer(input, options);
  planned.left_out = left_out_tensors(input.checkpoint(), input.config());
  planned.quantization_warning = input.config().quantization_warning;
  std::vector<Conversion> conversions(formats.size());
  input.for_each_weight([&](const PlannedWeight& weight) {
    const int64_t nonzeros = nonzeros_of(weight, input);
    const bool narrow = has_narrow_values(weight.plan.records());
    const auto as = [&](const LayerPlan& plan) {
      return converted(weight, nonzeros, encode(weight, plan, options, input), input.threads());
    };
    if (narrow) {
      planned.weights.push_back(as(weight.plan));
    }
    for (size_t i = 0; i < formats.size(); ++i) {
      const bool is_planned = !narrow && formats[i] == weight.plan.format;
      conversions[i].weights.push_back(
          as(is_planned ? weight.plan : LayerPlan{.prune = {}, .format = formats[i]}));
      if (is_planned) {
        planned.weights.push_back(conversions[i].weights.back());
      }
    }
  });
  for (const std::string& name : input.other_tensors()) {
    const StoredTensor& tensor = *input.checkpoint().find(name);
    input.require_convertible(name);
    const std::optional<DType> from = input.dtype_to_convert(name);
    const int64_t bytes = std::ssize(tensor.bytes);
    planned.other_bytes += from ? bytes / size_of(*from) * size_of(*options.dtype) : bytes;
  }
  std::vector<Inspection> result{{.format = "planned", .conversion = std::move(planned)}};
  for (size_t i = 0; i < formats.size(); ++i) {
    conversions[i].other_bytes = result.front().conversion.other_bytes;
    result.push_back({.format = formats[i], .conversion = std::move(conversions[i])});
  }
  return result;
}

}  // namespace sparsellm
