#include "tools/convert/convert.h"

#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "engine/calibrate.h"
#include "engine/calibration_sequences.h"
#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "kernels/base/mapped_file.h"
#include "models/config.h"
#include "models/required_tensors.h"
#include "models/storage/model_directory.h"
#include "models/storage/model_files.h"
#include "models/storage/model_manifest.h"
#include "models/storage/model_writer.h"
#include "models/storage/sparse_config.h"
#include "models/weights/weight_store.h"
#include "sparse/count_nonzeros.h"
#include "sparse/dense/dense.h"
#include "sparse/registry.h"
#include "sparse/smallest_encoding.h"
#include "tokenizer/tokenizer.h"
#include "tools/cli/interrupt.h"
#include "tools/convert/convert_dtype.h"
#include "tools/convert/model_card.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxTextBytes = int64_t{1} << 30;
constexpr int64_t kSequenceTokens = 2048;  // of calibration, if the model takes as many

std::string weight_name(const LinearLayer& layer) { return layer.module + ".weight"; }

OwnedTensor copy_of(const Tensor& w) {
  OwnedTensor copy = allocate_tensor({}, w.dtype(), {w.size(0), w.size(1)}, "a weight to prune");
  std::memcpy(copy.view.raw(), w.raw(), static_cast<size_t>(w.bytes()));
  return copy;
}

// The weight of a layer as it is to be stored.
struct PlannedWeight {
  const LinearLayer& layer;
  const LayerPlan& plan;
  const WeightStore::Stored& stored;
  const Tensor& values;
  int64_t stored_nonzeros;
  bool changed;  // by pruning, or by another dtype; else it is as in the input
};

// A model that is read layer by layer.
class Input {
 public:
  explicit Input(const ConvertOptions& options)
      : options_(options),
        directory_(open_model_directory(options.input)),
        config_(read_model_config(directory_)),
        checkpoint_(directory_),
        store_(checkpoint_),
        layers_(linear_layers(config_)),
        threads_(options.threads) {
    std::vector<std::string> modules;
    std::vector<int64_t> blocks;
    for (const LinearLayer& layer : layers_) {
      modules.push_back(layer.module);
      blocks.push_back(layer.block);
      const WeightStore::Stored stored = store_.get(weight_name(layer));
      require(stored.rows == layer.rows && stored.columns == layer.columns,
              "{}: the tensor {} has shape [{}, {}], but the config asks for [{}, {}]",
              options.input.string(), quote(stored.name), stored.rows, stored.columns, layer.rows,
              layer.columns);
      plans_.push_back(options.plan.for_tensor(layer.module, layer.block, config_.num_layers));
      stored_.push_back(stored);
      taken_.insert(stored.tensors.begin(), stored.tensors.end());
    }
    require_tensors(checkpoint_, config_);
    store_.file().require_undamaged_headers();
    options.plan.require_rules_used(modules, blocks);
    require(!options.calibration ||
                std::any_of(plans_.begin(), plans_.end(),
                            [&](const LayerPlan& plan) { return wants_norms(plan); }),
            "the text {} for calibration is of no use: no layer is pruned by Wanda or N:M",
            options.calibration ? options.calibration->file.string() : "");
  }

  const OpenDirectory& directory() const { return directory_; }
  const Checkpoint& checkpoint() const { return checkpoint_; }
  // Else damage would get new, right checksums.
  void require_undamaged(const std::string& tensor) const {
    store_.file().require_undamaged(tensor);
  }
  ThreadPool& threads() { return threads_; }
  std::string describe(const std::string& tensor) const {
    return fmt::format("{}: the tensor {}", options_.input.string(), quote(tensor));
  }

  // The tensors that belong to no linear layer of a decoder block.
  std::vector<std::string> other_tensors() const {
    std::vector<std::string> names;
    for (const std::string& name : checkpoint_.names()) {
      if (taken_.contains(name) || store_.file().is_padding(name)) {
        continue;
      }
      require(!store_.file().is_part(name),
              "{}: the tensor {} is a part of a weight that is no linear layer of a decoder block",
              options_.input.string(), quote(name));
      names.push_back(name);
    }
    return names;
  }
  // What such a tensor is to be converted from, if it is.
  std::optional<DType> dtype_to_convert(const std::string& name) const {
    return options_.dtype ? sparsellm::dtype_to_convert(*checkpoint_.find(name), *options_.dtype,
                                                        describe(name))
                          : std::nullopt;
  }
  // Throws Error if it has values that are too large for its new dtype.
  void require_convertible(const std::string& name) {
    if (const std::optional<DType> from = dtype_to_convert(name)) {
      require_in_range(*from, checkpoint_.find(name)->bytes, *options_.dtype, describe(name),
                       threads_);
    }
  }
  bool has_bitmasks() const {
    return std::any_of(stored_.begin(), stored_.end(), [](const WeightStore::Stored& stored) {
      return stored.form == WeightStore::Form::bitmask;
    });
  }

  // Calls body(PlannedWeight) for all layers, in order.
  template <class Body>
  void for_each_weight(Body&& body) {
    const std::unique_ptr<Calibrator> calibrator = make_calibrator();
    for (size_t first = 0; first < layers_.size();) {
      size_t end = first;
      while (end < layers_.size() && layers_[end].block == layers_[first].block) {
        ++end;
      }
      run_block(first, end, calibrator.get(), body);
      first = end;
    }
  }

  // That of the input which is done.
  void report(int64_t bytes, std::string_view next) {
    done_ += bytes;
    if (options_.progress) {
      options_.progress(done_, checkpoint_.bytes(), next);
    }
  }

 private:
  bool wants_norms(const LayerPlan& plan) const {
    using Kind = PruneMethod::Kind;
    const Kind kind = plan.prune.method.kind;
    return kind == Kind::wanda || (kind == Kind::n_m && options_.calibration.has_value());
  }

  std::unique_ptr<Calibrator> make_calibrator() {
    if (std::none_of(plans_.begin(), plans_.end(),
                     [&](const LayerPlan& plan) { return wants_norms(plan); })) {
      return nullptr;
    }
    require(options_.calibration.has_value(), "pruning by Wanda needs a text for calibration");
    for (const std::string& name : other_tensors()) {  // else calibration would find them
      require_convertible(name);
    }
    const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(directory_);
    const std::string text = read_text_file(options_.calibration->file, kMaxTextBytes);
    return std::make_unique<Calibrator>(
        config_, checkpoint_,
        calibration_sequences(*tokenizer,
                              {.text = text,
                               .tokens = options_.calibration->tokens,
                               .length = std::min(config_.max_positions, kSequenceTokens),
                               .poll = throw_if_interrupted}),
        threads_, options_.dtype);
  }

  // A weight in the dtype that is asked for.
  OwnedTensor in_dtype(OwnedTensor stored, const std::string& name) {
    const Tensor& view = stored.view;
    if (!options_.dtype || view.dtype() == *options_.dtype) {
      return stored;
    }
    Buffer converted = convert_values(
        view.dtype(),
        {static_cast<const std::byte*>(view.raw()), static_cast<size_t>(view.bytes())},
        *options_.dtype, describe(name), threads_);
    const Tensor of_buffer(converted.data(), *options_.dtype, {view.size(0), view.size(1)}, {});
    return {.buffer = std::move(converted), .view = of_buffer};
  }

  template <class Body>
  void run_block(size_t first, size_t end, Calibrator* calibrator, Body& body) {
    const int64_t block = layers_[first].block;
    Calibrator::Norms norms;
    if (calibrator != nullptr) {
      norms = calibrator->norms(block, [&](const std::string& name) {
        return in_dtype(store_.dense(name, threads_), store_.get(name).name);
      });
    }
    std::map<std::string, OwnedTensor> pruned;  // for the calibration of the next block
    for (size_t i = first; i < end; ++i) {
      const LinearLayer& layer = layers_[i];
      LayerPlan& plan = plans_[i];
      const std::string name = weight_name(layer);
      report(0, name);
      for (const std::string& tensor : stored_[i].tensors) {
        require_undamaged(tensor);
      }
      OwnedTensor values = store_.dense(name, threads_);
      const int64_t nonzeros = count_nonzeros(values.view, threads_);
      values = in_dtype(std::move(values), stored_[i].name);
      const bool prunes = plan.prune.method.kind != PruneMethod::Kind::none;
      if (prunes) {
        if (values.buffer.bytes() == 0) {
          values = copy_of(values.view);
        }
        if (wants_norms(plan)) {
          std::vector<float>& of_layer = norms.at(layer.module);
          plan.prune.norms = Tensor(of_layer.data(), DType::f32, {std::ssize(of_layer)}, Device{});
        }
        try {
          prune(values.view, plan.prune, threads_);
        } catch (const Error& error) {
          fail("{}: {}", describe(name), error.what());
        }
      }
      body(PlannedWeight{.layer = layer,
                         .plan = plan,
                         .stored = stored_[i],
                         .values = values.view,
                         .stored_nonzeros = nonzeros,
                         .changed = prunes || values.view.dtype() != stored_[i].dtype});
      plan.prune.norms = {};
      if (calibrator == nullptr) {
        store_.release(stored_[i]);
      } else {
        pruned.emplace(name, std::move(values));
      }
      report(stored_[i].bytes, name);
    }
    if (calibrator != nullptr) {
      calibrator->advance(block, [&](const std::string& name) -> OwnedTensor {
        return {.buffer = {}, .view = pruned.at(name).view};
      });
      for (size_t i = first; i < end; ++i) {
        store_.release(stored_[i]);
      }
    }
  }

  const ConvertOptions& options_;
  OpenDirectory directory_;
  ModelConfig config_;
  Checkpoint checkpoint_;
  WeightStore store_;
  std::vector<LinearLayer> layers_;
  std::vector<LayerPlan> plans_;              // of the layers
  std::vector<WeightStore::Stored> stored_;   // of the layers
  std::set<std::string, std::less<>> taken_;  // tensors of the layers
  ThreadPool threads_;
  int64_t done_ = 0;
};

// The encoding that a weight is stored in; nothing if it stays dense, and why if that is not what
// the format says.
struct Encoding {
  std::optional<EncodedWeight> encoded = {};
  std::string why_dense = {};
};

constexpr std::string_view kDTypeHint = "pass --dtype f16 or bf16";

// Of a weight for which encode_smallest() finds nothing.
std::string why_dense(const Tensor& w, std::span<const WeightFormat* const> formats) {
  std::vector<std::string_view> names;
  bool holds = false;
  std::optional<std::string> reason;  // of the first
  bool takes = false;
  for (const WeightFormat* format : formats) {
    if (format != &dense_format()) {
      names.push_back(format->name());
      holds = holds || format->holds(w.dtype());
      const std::string why_not = format->why_not(w);
      takes = takes || why_not.empty();
      reason = reason ? reason : why_not;
    }
  }
  if (!holds) {
    return fmt::format("stored as {}, which {} {} not hold: {}", name_of(w.dtype()),
                       fmt::join(names, " and "), names.size() == 1 ? "does" : "do", kDTypeHint);
  }
  return takes ? fmt::format("no smaller as {}", fmt::join(names, " or ")) : *reason;
}

Encoding encode(const PlannedWeight& weight, std::string_view format, ThreadPool& threads) {
  const Tensor& values = weight.values;
  if (format == kAutoFormat || format == kSmallestFormat) {
    const std::vector<const WeightFormat*> portable = portable_formats();
    const std::span<const WeightFormat* const> formats =
        format == kAutoFormat ? std::span(portable) : weight_formats();
    Encoding result{.encoded = encode_smallest(values, formats, threads)};
    if (!result.encoded) {
      result.why_dense = why_dense(values, formats);
    }
    return result;
  }
  const WeightFormat& to = weight_format(format);
  if (&to == &dense_format()) {
    return {};
  }
  if (std::string reason = to.why_not(values); !reason.empty()) {
    return {.why_dense = to.holds(values.dtype()) ? std::move(reason)
                                                  : fmt::format("{}: {}", reason, kDTypeHint)};
  }
  return {.encoded = to.encode(values, threads)};
}

ConvertedWeight converted(const PlannedWeight& weight, int64_t nonzeros, const Encoding& encoding) {
  const std::optional<EncodedWeight>& encoded = encoding.encoded;
  return {.layer = weight.layer,
          .method = to_string(weight.plan.prune.method),
          .format = encoded ? encoded->format : std::string(dense_format().name()),
          .why_dense = encoding.why_dense,
          .stored_nonzeros = weight.stored_nonzeros,
          .nonzeros = nonzeros,
          .dense_bytes = weight.values.bytes(),
          .formula_bytes = encoded ? weight_format(encoded->format).formula_bytes(*encoded)
                                   : weight.values.bytes(),
          .bytes = encoded ? encoded->bytes() : weight.values.bytes()};
}

// But for the signs of zeros.
bool same_values(const Tensor& a, const Tensor& b) {
  bool same = a.dtype() == b.dtype() && a.size(0) == b.size(0) && a.size(1) == b.size(1);
  visit_float(a.dtype(), [&]<class T>(T) {
    constexpr size_t kPiece = 4096;
    const auto* x = static_cast<const T*>(a.raw());
    const auto* y = static_cast<const T*>(b.raw());
    for (auto left = static_cast<size_t>(a.element_count()); same && left > 0;) {
      const size_t count = std::min(left, kPiece);
      if (std::memcmp(x, y, count * sizeof(T)) != 0) {
        for (size_t i = 0; i < count; ++i) {
          const bool equal = std::memcmp(x + i, y + i, sizeof(T)) == 0 ||
                             (to_float(x[i]) == 0.0f && to_float(y[i]) == 0.0f);
          same = same && equal;
        }
      }
      x += count;
      y += count;
      left -= count;
    }
  });
  return same;
}

// A few rows at a time, since the matrix and its encoding are in memory already.
void require_decodes(const EncodedWeight& encoded, const PlannedWeight& weight, Input& input) {
  constexpr int64_t kRows = 256;  // at borders of tiles, so that nothing is decoded to be sliced
  const WeightFormat& format = weight_format(encoded.format);
  format.validate(encoded);
  for (int64_t row = 0; row < encoded.rows; row += kRows) {
    const Range rows{.begin = row, .count = std::min(kRows, encoded.rows - row)};
    const EncodedWeight strip = slice(encoded, Axis::rows, rows, input.threads());
    const OwnedTensor decoded = format.decode(strip, input.threads());
    require(same_values(decoded.view, weight.values.rows(rows.begin, rows.count)),
            "the tensor {} in the format {} does not decode to the same values",
            quote(weight.stored.name), encoded.format);
  }
}

// The config of the output, if it is not that of the input: what it says of how the weights are
// stored, and in which dtype, has to be true.
std::optional<std::string> changed_config(const Input& input, const InputFile& file,
                                          std::optional<DType> dtype,
                                          const std::set<std::string>& formats) {
  constexpr int64_t kMaxBytes = 1 << 20;
  constexpr int kMaxDepth = 64;
  const JsonDocument document = read_json_file(file, kMaxBytes, kMaxDepth);
  const nlohmann::json& config = document.root();
  JsonDocument copy = read_json_file(file, kMaxBytes, kMaxDepth);
  nlohmann::json& changed = copy.root();
  const std::string key(kQuantizationConfig);
  if (input.has_bitmasks() || is_sparse_config(JsonValue(config, file.string())[key])) {
    remove_member(changed, key);
  }
  JsonDocument quantization;
  if (!formats.empty()) {
    quantization = parse_json(sparse_config(formats), key, kMaxDepth);
    remove_member(changed, key);
    changed[key].swap(quantization.root());
  }
  if (dtype) {
    const std::string name = *dtype == DType::f16 ? "float16" : "bfloat16";
    // The second is what transformers called it until 4.56, and reads to this day.
    const bool is_new = changed.contains("dtype");
    const bool is_old = !is_new || changed.contains("torch_dtype");
    for (const auto& [member, is_wanted] : {std::pair("dtype", is_new), {"torch_dtype", is_old}}) {
      if (is_wanted) {
        remove_member(changed, member);
        changed[member] = name;
      }
    }
  }
  return changed == config ? std::nullopt : std::optional(changed.dump(2) + "\n");
}

void copy_other_files(const Input& input, const ConvertOptions& options,
                      const std::set<std::string>& formats, ModelWriter& writer) {
  for (const std::string& name : input.directory().names()) {
    if (!is_companion_file(name)) {
      continue;
    }
    const InputFile file = input.directory() / name;
    const std::optional<std::string> config =
        name == "config.json" ? changed_config(input, file, options.dtype, formats) : std::nullopt;
    if (config) {
      writer.write_text(name, *config);
    } else {
      writer.copy_file(file);
    }
  }
}

// Writes a tensor that belongs to no linear layer; returns its bytes there.
int64_t add_other(const std::string& name, Input& input, std::optional<DType> dtype,
                  ModelWriter& writer) {
  const StoredTensor& stored = *input.checkpoint().find(name);
  const std::optional<DType> from = input.dtype_to_convert(name);
  if (!from) {
    writer.add(name, stored);
    return std::ssize(stored.bytes);
  }
  const Buffer values =
      convert_values(*from, stored.bytes, *dtype, input.describe(name), input.threads());
  writer.add(name, {.dtype = std::string(safetensors_name(part_type(*dtype))),
                    .shape = stored.shape,
                    .bytes = {static_cast<const std::byte*>(values.data()),
                              static_cast<size_t>(values.bytes())}});
  return values.bytes();
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

Conversion convert_model(const ConvertOptions& options) {
  Input input(options);
  const std::vector<std::string> others = input.other_tensors();
  ModelWriter writer(options.output,
                     {.existing = options.replace ? OutputDirectory::Existing::replace
                                                  : OutputDirectory::Existing::refuse,
                      .input = options.input,
                      .max_shard_bytes = options.max_shard_bytes,
                      .header_bytes = header_bytes(input.checkpoint())});
  Conversion result;
  result.has_tokenizer = has_tokenizer(input.directory());
  input.for_each_weight([&](const PlannedWeight& weight) {
    const int64_t nonzeros =
        weight.changed ? count_nonzeros(weight.values, input.threads()) : weight.stored_nonzeros;
    const std::string& format = weight.plan.format;
    const Encoding encoding = encode(weight, format, input.threads());
    if (encoding.encoded) {
      if (options.verify) {
        require_decodes(*encoding.encoded, weight, input);
      }
      writer.add(weight.stored.name, *encoding.encoded);
    } else {
      require(encoding.why_dense.empty() || format == kAutoFormat || format == kSmallestFormat,
              "{} cannot be stored as {}: {}", input.describe(weight.stored.name), format,
              encoding.why_dense);
      writer.add(weight.stored.name,
                 {.dtype = std::string(safetensors_name(part_type(weight.values.dtype()))),
                  .shape = {weight.layer.rows, weight.layer.columns},
                  .bytes = {static_cast<const std::byte*>(weight.values.raw()),
                            static_cast<size_t>(weight.values.bytes())}});
    }
    result.weights.push_back(converted(weight, nonzeros, encoding));
  });
  for (const std::string& name : others) {
    input.report(0, name);
    const StoredTensor& tensor = *input.checkpoint().find(name);
    input.require_undamaged(name);
    result.other_bytes += add_other(name, input, options.dtype, writer);
    release_pages(tensor.bytes);
    input.report(std::ssize(tensor.bytes), name);
  }
  copy_other_files(input, options, result.sparse_formats(), writer);
  writer.write_text(std::string(kModelCardName), model_card(options, result));
  input.checkpoint().require_intact();
  writer.finish([&](const fs::path& complete) {
    if (options.verify) {
      ModelFile(Checkpoint(complete)).verify([&](int64_t done, int64_t total) {
        if (options.progress) {
          options.progress(done, total, "(reading back)");
        }
      });
    }
  });
  return result;
}

std::vector<Inspection> inspect_model(const ConvertOptions& options) {
  Input input(options);
  std::vector<std::string> formats{std::string(kAutoFormat), std::string(kSmallestFormat)};
  for (const WeightFormat* format : weight_formats()) {
    formats.emplace_back(format->name());
  }
  Conversion planned;
  planned.has_tokenizer = has_tokenizer(input.directory());
  std::vector<Conversion> conversions(formats.size());
  input.for_each_weight([&](const PlannedWeight& weight) {
    const int64_t nonzeros =
        weight.changed ? count_nonzeros(weight.values, input.threads()) : weight.stored_nonzeros;
    for (size_t i = 0; i < formats.size(); ++i) {
      const ConvertedWeight& as = conversions[i].weights.emplace_back(
          converted(weight, nonzeros, encode(weight, formats[i], input.threads())));
      if (formats[i] == weight.plan.format) {
        planned.weights.push_back(as);
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
