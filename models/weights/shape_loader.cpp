#include "models/weights/shape_loader.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "models/weights/encode_slice.h"
#include "sparse/activation/sign_words.h"
#include "sparse/dense/dense.h"
#include "sparse/record_slice.h"
#include "sparse/records_choice.h"
#include "sparse/registry.h"

namespace sparsellm {

namespace {

// A weight in a sparse format that is never multiplied with.
class WeightOfSize : public WeightMatrix {
 public:
  // `header`: of its encoding, without parts; `nonzeros`: those of the header, if they are known.
  WeightOfSize(EncodedWeight header, std::optional<int64_t> nonzeros, Device device, int64_t bytes)
      : header_(std::move(header)), nonzeros_(nonzeros), device_(device), bytes_(bytes) {}

  std::string_view format() const override { return header_.format; }
  int64_t out() const override { return header_.rows; }
  int64_t in() const override { return header_.columns; }
  DType dtype() const override { return header_.dtype; }
  int64_t bytes() const override { return bytes_; }
  std::optional<int64_t> nonzeros() const override { return nonzeros_; }
  void matmul(const Tensor&, Tensor, const Epilogue&, ExecContext&) const override { refuse(); }
  void expand(Range, Tensor, ExecContext&) const override { refuse(); }
  int64_t workspace_bytes(int64_t tokens, Sums sums) const override {
    return weight_format(header_.format).workspace_bytes(header_, device_, tokens, sums);
  }
  int64_t tune(const MatmulTuning&, TuneCache&, ExecContext&) const override { return 0; }

 private:
  [[noreturn]] void refuse() const {
    fail("a weight without values in the format {}", header_.format);
  }

  EncodedWeight header_;
  std::optional<int64_t> nonzeros_;
  Device device_;
  int64_t bytes_;
};

}  // namespace

ShapeLoader::ShapeLoader(Device device, DType dtype, LinearShapes linears, const Shard& shard)
    : WeightLoader(device, device.is_cuda() ? dtype : DType::f32, shard),
      dtype_(dtype),
      linears_(std::move(linears)) {
  if (linears_.random) {
    require_possible(*linears_.random);
    linears_.store = nullptr;
  }
}

std::optional<double> ShapeLoader::density_of(const std::string& weight) const {
  if (linears_.random) {
    return 1.0 - linears_.random->linear(weight).sparsity;
  }
  const bool by_itself = !linears_.density && !linears_.encodes && linears_.store != nullptr;
  return by_itself ? linears_.store->density(weight) : linears_.density;
}

std::unique_ptr<WeightMatrix> ShapeLoader::load_weight(const Wanted& wanted) {
  const std::string& first = wanted.parts.front().name;
  const std::string requested = linears_.random
                                    ? linears_.random->linear(first).format
                                    : format_of(linears_.layers, first, linears_.format).format;
  EncodedWeight header{.format = requested,
                       .version = 0,
                       .dtype = dtype_,
                       .rows = rows_of(wanted),
                       .columns = wanted.columns.count,
                       .nonzeros = 0,
                       .parts = {}};
  std::vector<WeightStore::Stored> stored;
  for (const Wanted::Part& part : wanted.parts) {
    if (linears_.store != nullptr) {
      stored.push_back(linears_.store->get(part.name));
    }
  }
  if (header.format.empty() && !stored.empty()) {
    header.format = linears_.store->joined_format(stored);
  }
  if (header.format.empty() || header.format == dense_format().name()) {
    return WeightLoader::load_weight(wanted);
  }
  const WeightFormat& format = weight_format(header.format);
  require_runs_on(device(), format);
  // Joined with others on a CUDA device, quantised weights lose their codes.
  const bool keeps_codes =
      !device().is_cuda() || std::ranges::all_of(stored, [](const WeightStore::Stored& part) {
        return part.form == WeightStore::Form::quantized;
      });
  // Parts with several types of values have 16 bits a value once they are joined there.
  const bool mixed =
      device().is_cuda() && !stored.empty() && !linears_.store->are_alike(stored) &&
      std::ranges::any_of(stored, [&](const WeightStore::Stored& part) {
        return part.format == header.format && !linears_.store->narrow_values(part).empty();
      });
  int64_t bytes = 0;
  // Those of the header say in which layout it is: slices have that of their source, whatever their
  // own density is.
  int64_t nonzeros = 0;
  bool counted = true;
  LayoutOptions layout;  // of the part with the most rows, as joins have it
  int64_t most_rows = -1;
  for (size_t i = 0; i < wanted.parts.size(); ++i) {
    const Wanted::Part& wanted_part = wanted.parts[i];
    const LayoutOptions part_layout =
        layout_in(header.format, first, i < stored.size() ? &stored[i] : nullptr);
    if (wanted_part.slice.count > most_rows) {
      most_rows = wanted_part.slice.count;
      layout = part_layout;
    }
    const std::optional<Slice> slice = wanted.slice_of(wanted_part);
    const int64_t elements = wanted_part.slice.count * wanted.columns.count;
    const bool in_format = i < stored.size() && stored[i].format == header.format;
    const bool as_stored =
        in_format && (keeps_codes || stored[i].form != WeightStore::Form::quantized);
    if (mixed && (in_format || requested.empty())) {
      // Values of 16 bits; of a part in another format all are taken to be there.
      EncodedWeight part{
          .format = header.format,
          .version = 0,
          .dtype = dtype_,
          .rows = wanted_part.slice.count,
          .columns = wanted.columns.count,
          .nonzeros = in_format ? linears_.store->size(stored[i], slice).nonzeros : elements,
          .parts = {}};
      format.tell_layout(part, {});
      bytes += format.expected_bytes(part);
      nonzeros += part.nonzeros;
      header.nonzeros += part.nonzeros;
      counted = counted && in_format;
    } else if (as_stored) {
      EncodedSize size = linears_.store->size(stored[i], slice);
      // It may be cut through its records.
      if (!size.exact && !linears_.density && linears_.encodes && device().is_cuda()) {
        const EncodedWeight part = encode(wanted_part.name, stored[i], slice, part_layout, format);
        size = {.bytes = part.bytes(), .nonzeros = part.nonzeros, .exact = false};
      }
      bytes += size.bytes;
      nonzeros += size.nonzeros;
      header.nonzeros += size.exact ? proportional(stored[i].nonzeros, elements,
                                                   stored[i].rows * stored[i].columns)
                                    : size.nonzeros;
    } else if (requested.empty()) {
      bytes += elements * size_of(dtype_);
      nonzeros += elements;
      header.nonzeros += elements;
      counted = false;
    } else if (!density_of(wanted_part.name) && i < stored.size()) {
      const EncodedWeight part = encode(wanted_part.name, stored[i], slice, part_layout, format);
      bytes += part.bytes();
      nonzeros += part.nonzeros;
      header.nonzeros += part.nonzeros;
    } else {
      const std::optional<double> density = density_of(wanted_part.name);
      require(density.has_value(),
              "what weights take as {} is known when they are encoded; a model that was converted "
              "to it tells",
              header.format);
      EncodedWeight part{.format = header.format,
                         .version = 0,
                         .dtype = dtype_,
                         .rows = wanted_part.slice.count,
                         .columns = wanted.columns.count,
                         .nonzeros = std::llround(*density * static_cast<double>(elements)),
                         .parts = {}};
      format.tell_layout(part, part_layout);
      bytes += format.expected_bytes(part);
      nonzeros += part.nonzeros;
      header.nonzeros += part.nonzeros;
    }
  }
  if (!device().is_cuda()) {
    header.nonzeros = nonzeros;
    bytes = format.bytes_on_cpu(header);
  }
  format.tell_layout(header, mixed ? LayoutOptions() : layout);
  count_bytes(bytes);
  return std::make_unique<WeightOfSize>(
      std::move(header), counted ? std::optional(nonzeros) : std::nullopt, device(), bytes);
}

EncodedWeight ShapeLoader::encode(const std::string& name, const WeightStore::Stored& stored,
                                  const std::optional<Slice>& slice, const LayoutOptions& layout,
                                  const WeightFormat& format) {
  if (!threads_) {
    threads_ = std::make_unique<ThreadPool>(linears_.threads);
  }
  EncodedWeight encoded =
      encode_slice({.store = *linears_.store, .name = name, .slice = slice}, format,
                   device().is_cuda() ? dtype_ : stored.dtype, layout, *threads_);
  linears_.store->release(stored);
  done_ += stored.bytes;
  if (linears_.progress) {
    linears_.progress(done_, linears_.store->checkpoint().bytes());
  }
  return encoded;
}

LayoutOptions ShapeLoader::layout_in(const std::string& format, const std::string& layer,
                                     const WeightStore::Stored* stored) const {
  if (linears_.random) {
    return records_in(format, linears_.random->linear(layer).records);
  }
  const std::string chosen = format_of(linears_.layers, layer, format).layout;
  if (!chosen.empty()) {
    return {.layout = chosen};
  }
  if (stored == nullptr || stored->format != format) {
    return records_in(format, linears_.records);
  }
  std::string values = linears_.store->narrow_values(*stored);
  return values.empty() ? linears_.store->layout_like(*stored)
                        : LayoutOptions{.layout = std::move(values)};
}

OwnedTensor ShapeLoader::constants(std::string_view, std::span<const float> values) {
  return {.buffer = {}, .view = Tensor(nullptr, DType::f32, {std::ssize(values)}, device())};
}

OwnedTensor ShapeLoader::load_dense(const Wanted& wanted) {
  if (wanted.signs != nullptr) {
    const Wanted::Part& first = wanted.parts.front();
    // The second one is there if an element is zero.
    const bool has_none = linears_.random && linears_.random->linear(first.name).sparsity == 0.0;
    const int64_t planes = has_none ? 1 : 2;
    count_bytes(planes * first.slice.count * sign_word_count(wanted.columns.count) *
                size_of(DType::u32));
  }
  return load(wanted);
}

OwnedTensor ShapeLoader::load(const Wanted& wanted) {
  const auto [rows, columns] = shape_of(wanted);
  return {.buffer = {},
          .view = wanted.kind == Wanted::Kind::vector
                      ? Tensor(nullptr, dtype_, {rows}, device())
                      : Tensor(nullptr, dtype_, {rows, columns}, device())};
}

}  // namespace sparsellm
