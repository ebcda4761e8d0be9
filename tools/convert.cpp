#include "tools/convert.h"

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
#include "models/model_writer.h"
#include "models/sparse_config.h"
#include "models/weight_store.h"
#include "sparse/count_nonzeros.h"
#include "sparse/dense/dense.h"
#include "sparse/registry.h"
#include "sparse/smallest_encoding.h"
#include "tokenizer/tokenizer.h"
#include "tools/model_card.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kAuto = "auto";
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
  bool pruned;  // else it is as in the input
};

// A model that is read layer by layer.
class Input {
 public:
  explicit Input(const ConvertOptions& options)
      : options_(options),
        config_(read_model_config(options.input)),
        checkpoint_(options.input),
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
    options.plan.require_rules_used(modules, blocks);
    require(!options.calibration ||
                std::any_of(plans_.begin(), plans_.end(),
                            [&](const LayerPlan& plan) { return wants_norms(plan); }),
            "the text {} for calibration is of no use: no layer is pruned by Wanda or N:M",
            options.calibration ? options.calibration->file.string() : "");
  }

  const Checkpoint& checkpoint() const { return checkpoint_; }
  const WeightStore& store() const { return store_; }
  ThreadPool& threads() { return threads_; }

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
    const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(options_.input);
    const std::string text = read_text_file(options_.calibration->file, kMaxTextBytes);
    return std::make_unique<Calibrator>(
        config_, checkpoint_,
        calibration_sequences(*tokenizer,
                              {.text = text,
                               .tokens = options_.calibration->tokens,
                               .length = std::min(config_.max_positions, kSequenceTokens)}),
        threads_);
  }

  template <class Body>
  void run_block(size_t first, size_t end, Calibrator* calibrator, Body& body) {
    const int64_t block = layers_[first].block;
    Calibrator::Norms norms;
    if (calibrator != nullptr) {
      norms = calibrator->norms(
          block, [&](const std::string& name) { return store_.dense(name, threads_); });
    }
    std::map<std::string, OwnedTensor> pruned;  // for the calibration of the next block
    for (size_t i = first; i < end; ++i) {
      const LinearLayer& layer = layers_[i];
      LayerPlan& plan = plans_[i];
      const std::string name = weight_name(layer);
      report(0, name);
      OwnedTensor values = store_.dense(name, threads_);
      const int64_t nonzeros = count_nonzeros(values.view, threads_);
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
          fail("{}: the tensor {}: {}", options_.input.string(), quote(name), error.what());
        }
      }
      body(PlannedWeight{.layer = layer,
                         .plan = plan,
                         .stored = stored_[i],
                         .values = values.view,
                         .stored_nonzeros = nonzeros,
                         .pruned = prunes});
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

// The encoding that a weight is stored in; nothing if it stays dense.
std::optional<EncodedWeight> encode(const PlannedWeight& weight, std::string_view format,
                                    int64_t nonzeros, Input& input) {
  if (format == kAuto) {
    return encode_smallest(weight.values, nonzeros, input.threads());
  }
  if (format == dense_format().name()) {
    return std::nullopt;
  }
  const WeightFormat& to = weight_format(format);
  if (!weight.pruned && weight.stored.form == WeightStore::Form::encoded &&
      weight.stored.format == format) {
    EncodedWeight stored = input.store().encoded(weight_name(weight.layer), input.threads());
    if (stored.version == to.version()) {
      return stored;
    }
  }
  const std::string reason = to.why_not(weight.values);
  require(reason.empty(), "{}: the tensor {} cannot be stored as {}: {}",
          input.checkpoint().directory().string(), quote(weight.stored.name), format, reason);
  return to.encode(weight.values, input.threads());
}

ConvertedWeight converted(const PlannedWeight& weight, int64_t nonzeros,
                          const std::optional<EncodedWeight>& encoded) {
  return {.layer = weight.layer,
          .method = to_string(weight.plan.prune.method),
          .format = encoded ? encoded->format : std::string(dense_format().name()),
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
  constexpr int64_t kRows = 512;  // at borders of tiles, so that nothing is decoded to be sliced
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

// Whether a model without this file is not the same model: what Hugging Face programs read beside
// the weights, and what the authors say of their use.
bool goes_along(const std::string& file) {
  static const std::set<std::string, std::less<>> names{"added_tokens.json",
                                                        "chat_template.jinja",
                                                        "chat_template.json",
                                                        "config.json",
                                                        "generation_config.json",
                                                        "merges.txt",
                                                        "special_tokens_map.json",
                                                        "tokenizer.json",
                                                        "tokenizer.model",
                                                        "tokenizer_config.json",
                                                        "vocab.json"};
  return names.contains(file) || file.starts_with("LICENSE") || file.starts_with("NOTICE") ||
         file.starts_with("USE_POLICY");
}

// What config.json says of how the weights are stored has to be true of the output.
void write_config(const Input& input, const fs::path& file, const std::set<std::string>& formats,
                  ModelWriter& writer) {
  constexpr int64_t kMaxBytes = 1 << 20;
  constexpr int kMaxDepth = 64;
  nlohmann::json config = read_json_file(file, kMaxBytes, kMaxDepth);
  const bool is_sparse = is_sparse_config(JsonValue(config, file.string())[kQuantizationConfig]);
  if (formats.empty() && !is_sparse && !input.has_bitmasks()) {
    writer.copy_file(file);
    return;
  }
  config.erase(std::string(kQuantizationConfig));
  if (!formats.empty()) {
    config[std::string(kQuantizationConfig)] = sparse_config(formats);
  }
  writer.write_text("config.json", config.dump(2) + "\n");
}

void copy_other_files(const Input& input, const fs::path& directory,
                      const std::set<std::string>& formats, ModelWriter& writer) {
  std::set<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    if (entry.is_regular_file() && goes_along(entry.path().filename().string())) {
      files.insert(entry.path());
    }
  }
  for (const fs::path& file : files) {
    if (file.filename() == "config.json") {
      write_config(input, file, formats, writer);
    } else {
      writer.copy_file(file);
    }
  }
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
  input.for_each_weight([&](const PlannedWeight& weight) {
    const int64_t nonzeros =
        weight.pruned ? count_nonzeros(weight.values, input.threads()) : weight.stored_nonzeros;
    const std::optional<EncodedWeight> encoded =
        encode(weight, weight.plan.format, nonzeros, input);
    if (encoded) {
      if (options.verify) {
        require_decodes(*encoded, weight, input);
      }
      writer.add(weight.stored.name, *encoded);
    } else {
      writer.add(weight.stored.name,
                 {.dtype = std::string(safetensors_name(part_type(weight.values.dtype()))),
                  .shape = {weight.layer.rows, weight.layer.columns},
                  .bytes = {static_cast<const std::byte*>(weight.values.raw()),
                            static_cast<size_t>(weight.values.bytes())}});
    }
    result.weights.push_back(converted(weight, nonzeros, encoded));
  });
  for (const std::string& name : others) {
    input.report(0, name);
    const StoredTensor& tensor = *input.checkpoint().find(name);
    writer.add(name, tensor);
    release_pages(tensor.bytes);
    result.other_bytes += std::ssize(tensor.bytes);
    input.report(std::ssize(tensor.bytes), name);
  }
  copy_other_files(input, options.input, result.sparse_formats(), writer);
  writer.write_text("README.md", model_card(options, result));
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
  std::vector<Inspection> result{{.format = "planned", .conversion = {}},
                                 {.format = std::string(kAuto), .conversion = {}}};
  for (const WeightFormat* format : weight_formats()) {
    result.push_back({.format = std::string(format->name()), .conversion = {}});
  }
  input.for_each_weight([&](const PlannedWeight& weight) {
    const int64_t nonzeros =
        weight.pruned ? count_nonzeros(weight.values, input.threads()) : weight.stored_nonzeros;
    std::vector<ConvertedWeight> encodings;  // as planned, as auto, and one for each format
    for (const WeightFormat* format : weight_formats()) {
      const bool can = format->why_not(weight.values).empty();
      const std::optional<EncodedWeight> encoded =
          can ? encode(weight, format->name(), nonzeros, input) : std::nullopt;
      encodings.push_back(converted(weight, nonzeros, encoded));
    }
    // What encode_smallest() makes.
    const auto smallest = std::min_element(
        encodings.begin(), encodings.end(),
        [](const auto& a, const auto& b) { return a.formula_bytes < b.formula_bytes; });
    encodings.insert(encodings.begin(), smallest->bytes < smallest->dense_bytes
                                            ? *smallest
                                            : converted(weight, nonzeros, std::nullopt));
    const auto planned =
        std::find_if(encodings.begin() + 1, encodings.end(),
                     [&](const auto& encoding) { return encoding.format == weight.plan.format; });
    encodings.insert(encodings.begin(), planned == encodings.end() ? encodings.front() : *planned);
    for (size_t i = 0; i < encodings.size(); ++i) {
      result[i].conversion.weights.push_back(std::move(encodings[i]));
    }
  });
  for (const std::string& name : input.other_tensors()) {
    for (Inspection& inspection : result) {
      inspection.conversion.other_bytes += std::ssize(input.checkpoint().find(name)->bytes);
    }
  }
  return result;
}

}  // namespace sparsellm
