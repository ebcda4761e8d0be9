#include "engine/conversion/conversion_input.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <utility>

#include "engine/calibration_sequences.h"
#include "engine/conversion/convert_dtype.h"
#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "kernels/base/mapped_file.h"
#include "models/foreign_tensors.h"
#include "models/required_tensors.h"
#include "models/storage/model_directory.h"
#include "sparse/count_nonzeros.h"
#include "sparse/load_context.h"
#include "sparse/records_choice.h"
#include "tokenizer/tokenizer.h"

namespace sparsellm {
namespace {

constexpr int64_t kSequenceTokens = 2048;  // of calibration, if the model takes as many

std::string weight_name(const LinearLayer& layer) { return layer.module + ".weight"; }

// The share of nonzeros that pruning leaves, at most; with blocks about as many.
double most_density(const PruneSettings& prune) {
  using Kind = PruneMethod::Kind;
  switch (prune.method.kind) {
    case Kind::none:
      return 1.0;
    case Kind::n_m:
      return static_cast<double>(prune.method.kept) / prune.method.group;
    case Kind::magnitude:
    case Kind::random:
    case Kind::wanda:
      return 1.0 - prune.sparsity;
  }
  return 1.0;
}

OwnedTensor copy_of(const Tensor& w) {
  OwnedTensor copy = allocate_tensor({}, w.dtype(), {w.size(0), w.size(1)}, "a weight to prune");
  std::memcpy(copy.view.raw(), w.raw(), static_cast<size_t>(w.bytes()));
  return copy;
}

// Of what pruning has made zeros.
void drop_pruned(const Tensor& values, QuantizedMatrix& q) {
  visit_float(values.dtype(), [&]<class T>(T) {
    for (int64_t row = 0; row < q.rows; ++row) {
      const T* const of_row = values.row<T>(row);
      for (int64_t column = 0; column < q.columns; ++column) {
        if (is_zero(of_row[column])) {
          q.codes[static_cast<size_t>(row * q.columns + column)] = 0;
        }
      }
    }
  });
}

// In the order of rows, whatever the number of threads.
double sum_of_squares(const Tensor& w, ThreadPool& threads) {
  std::vector<double> of_rows(static_cast<size_t>(w.size(0)));
  visit_float(w.dtype(), [&]<class T>(T) {
    threads.parallel_for(w.size(0), 1, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* const values = w.row<T>(row);
        double sum = 0.0;
        for (int64_t column = 0; column < w.size(1); ++column) {
          const double value = to_float(values[column]);
          sum += value * value;
        }
        of_rows[static_cast<size_t>(row)] = sum;
      }
    });
  });
  return std::accumulate(of_rows.begin(), of_rows.end(), 0.0);
}

}  // namespace

ConversionInput::ConversionInput(const ConvertOptions& options)
    : options_(options),
      directory_(open_model_directory(options.input)),
      config_(read_model_config(directory_)),
      checkpoint_(directory_),
      store_(checkpoint_),
      layers_(linear_layers(config_)),
      threads_(options.threads) {
  require_separate_projections(checkpoint_);
  require_only_linear_layers_quantized(checkpoint_, config_);
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
  for (const JoinedLinear& joined : joined_linear_layers(config_)) {
    joined_parts_.push_back(joined.parts.size());
    joined_parts_.resize(joined_parts_.size() + joined.parts.size() - 1, 0);
  }
  require_tensors(checkpoint_, config_);
  store_.file().require_undamaged_headers();
  options.plan.require_rules_used(modules, blocks);
  require(
      !options.calibration || std::any_of(plans_.begin(), plans_.end(),
                                          [&](const LayerPlan& plan) { return wants_norms(plan); }),
      "the text {} for calibration is of no use: no layer is pruned by Wanda or N:M",
      options.calibration ? options.calibration->file.string() : "");
}

WeightSize ConversionInput::joined_size(size_t first) const {
  WeightSize size{.rows = 0, .columns = layers_[first].columns};
  double nonzero_rows = 0.0;  // as many elements as nonzeros
  for (size_t i = first; i < first + joined_parts_[first]; ++i) {
    size.rows += layers_[i].rows;
    nonzero_rows +=
        static_cast<double>(layers_[i].rows) *
        std::min(store_.density(weight_name(layers_[i])), most_density(plans_[i].prune));
  }
  size.density = nonzero_rows / static_cast<double>(size.rows);
  return size;
}

std::string ConversionInput::describe(const std::string& tensor) const {
  return fmt::format("{}: the tensor {}", options_.input.string(), quote(tensor));
}

std::vector<std::string> ConversionInput::other_tensors() const {
  std::vector<std::string> names;
  for (const std::string& name : checkpoint_.names()) {
    if (is_left_out(name, config_) || taken_.contains(name) || store_.file().is_padding(name)) {
      continue;
    }
    require(!store_.file().is_part(name),
            "{}: the tensor {} is a part of a weight that is no linear layer of a decoder block",
            options_.input.string(), quote(name));
    names.push_back(name);
  }
  return names;
}

std::optional<DType> ConversionInput::dtype_to_convert(const std::string& name) const {
  return options_.dtype
             ? sparsellm::dtype_to_convert(*checkpoint_.find(name), *options_.dtype, describe(name))
             : std::nullopt;
}

void ConversionInput::require_convertible(const std::string& name) {
  if (const std::optional<DType> from = dtype_to_convert(name)) {
    require_in_range(*from, checkpoint_.find(name)->bytes, *options_.dtype, describe(name),
                     threads_);
  }
}

void ConversionInput::require_undamaged(const std::string& tensor) const {
  store_.file().require_undamaged(tensor);
}

bool ConversionInput::prunes() const {
  return std::any_of(plans_.begin(), plans_.end(), [](const LayerPlan& plan) {
    return plan.prune.method.kind != PruneMethod::Kind::none;
  });
}

bool ConversionInput::has_bitmasks() const {
  return std::any_of(stored_.begin(), stored_.end(), [](const WeightStore::Stored& stored) {
    return stored.form == WeightStore::Form::bitmask || stored.form == WeightStore::Form::quantized;
  });
}

void ConversionInput::for_each_weight(const std::function<void(const PlannedWeight&)>& body) {
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

void ConversionInput::report(int64_t bytes, std::string_view next) {
  done_ += bytes;
  if (options_.poll) {
    options_.poll();
  }
  if (options_.progress) {
    options_.progress(done_, checkpoint_.bytes(), next);
  }
}

bool ConversionInput::wants_norms(const LayerPlan& plan) const {
  using Kind = PruneMethod::Kind;
  const Kind kind = plan.prune.method.kind;
  return kind == Kind::wanda || (kind == Kind::n_m && options_.calibration.has_value());
}

// Nothing if no layer's pruning asks for norms.
std::unique_ptr<Calibrator> ConversionInput::make_calibrator() {
  if (std::none_of(plans_.begin(), plans_.end(),
                   [&](const LayerPlan& plan) { return wants_norms(plan); })) {
    return nullptr;
  }
  require(options_.calibration.has_value(), "pruning by Wanda needs a text for calibration");
  for (const std::string& name : other_tensors()) {  // else calibration would find them
    require_convertible(name);
  }
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(directory_);
  const std::string text = read_text_file(options_.calibration->file, kMaxCalibrationTextBytes);
  return std::make_unique<Calibrator>(
      config_, checkpoint_,
      calibration_sequences(*tokenizer, {.text = text,
                                         .tokens = options_.calibration->tokens,
                                         .length = std::min(config_.max_positions, kSequenceTokens),
                                         .poll = options_.poll}),
      threads_, options_.dtype);
}

// A weight in the requested dtype.
OwnedTensor ConversionInput::in_dtype(OwnedTensor stored, const std::string& name) {
  const Tensor& view = stored.view;
  if (!options_.dtype || view.dtype() == *options_.dtype) {
    return stored;
  }
  Buffer converted = convert_values(
      view.dtype(), {static_cast<const std::byte*>(view.raw()), static_cast<size_t>(view.bytes())},
      *options_.dtype, describe(name), threads_);
  const Tensor of_buffer(converted.data(), *options_.dtype, {view.size(0), view.size(1)}, {});
  return {.buffer = std::move(converted), .view = of_buffer};
}

OwnedTensor ConversionInput::values_of(size_t layer, std::optional<QuantizedMatrix>& quantized) {
  const std::string name = weight_name(layers_[layer]);
  const WeightStore::Stored& stored = stored_[layer];
  if (stored.form != WeightStore::Form::quantized) {
    return in_dtype(store_.dense(name, threads_), stored.name);
  }
  // In one step: of values that were rounded twice the codes are not those.
  const DType dtype = options_.dtype.value_or(stored.dtype);
  quantized = store_.quantized(name, threads_);
  naming_errors(describe(name), [&] { require_finite(*quantized, dtype); });
  return dequantize(*quantized, dtype, threads_);
}

void ConversionInput::run_block(size_t first, size_t end, Calibrator* calibrator,
                                const std::function<void(const PlannedWeight&)>& body) {
  const int64_t block = layers_[first].block;
  Calibrator::Norms norms;
  if (calibrator != nullptr) {
    norms = calibrator->norms(block, [&](const std::string& name) {
      std::optional<QuantizedMatrix> unused;
      for (size_t i = first; i < end; ++i) {
        if (weight_name(layers_[i]) == name) {
          return values_of(i, unused);
        }
      }
      return in_dtype(store_.dense(name, threads_), store_.get(name).name);
    });
  }
  std::map<std::string, OwnedTensor> pruned;  // for the calibration of the next block
  WeightSize joined;
  for (size_t i = first; i < end; ++i) {
    const LinearLayer& layer = layers_[i];
    LayerPlan& plan = plans_[i];
    const std::string name = weight_name(layer);
    report(0, name);
    if (joined_parts_[i] > 0) {
      joined = joined_size(i);
    }
    for (const std::string& tensor : stored_[i].tensors) {
      require_undamaged(tensor);
    }
    std::optional<QuantizedMatrix> quantized;
    int64_t nonzeros = 0;
    OwnedTensor values;
    if (stored_[i].form == WeightStore::Form::quantized) {
      values = values_of(i, quantized);
      nonzeros = count_nonzeros(values.view, threads_);
    } else {
      values = store_.dense(name, threads_);
      nonzeros = count_nonzeros(values.view, threads_);
      values = in_dtype(std::move(values), stored_[i].name);
    }
    const bool prunes = plan.prune.method.kind != PruneMethod::Kind::none;
    std::optional<double> squares;
    if (prunes && has_narrow_values(plan.records())) {
      squares = sum_of_squares(values.view, threads_);
    }
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
      if (quantized) {
        drop_pruned(values.view, *quantized);
      }
    }
    body(PlannedWeight{.layer = layer,
                       .plan = plan,
                       .stored = stored_[i],
                       .values = values.view,
                       .stored_nonzeros = nonzeros,
                       .changed = prunes || values.view.dtype() != stored_[i].dtype,
                       .quantized = quantized ? &*quantized : nullptr,
                       .squares = squares,
                       .joined = joined});
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

}  // namespace sparsellm
