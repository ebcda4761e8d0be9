#include "models/weights/checkpoint_loader.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string_view>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "kernels/base/mapped_file.h"
#include "kernels/transpose.h"
#include "models/storage/required_tensor.h"
#include "models/weights/encode_slice.h"
#include "models/weights/shape_loader.h"
#include "sparse/dense/dense.h"
#include "sparse/join_parts.h"
#include "sparse/record_slice.h"
#include "sparse/records_choice.h"
#include "sparse/registry.h"

namespace sparsellm {
namespace {

bool is_encoded_for(const WeightStore::Stored& stored, Device device, DType compute) {
  return stored.form == WeightStore::Form::encoded && stored.dtype == compute &&
         weight_format(stored.format).runs_on(device);
}

DType default_dtype(const Checkpoint& checkpoint, Device device) {
  if (!device.is_cuda()) {
    return DType::f32;
  }
  return has_tensor_of(checkpoint, "BF16") ? DType::bf16 : DType::f16;
}

}  // namespace

DType weight_dtype(const Checkpoint& checkpoint, Device device, std::optional<DType> dtype) {
  if (device.is_cuda()) {
    return dtype.value_or(default_dtype(checkpoint, device));
  }
  return has_tensor_of(checkpoint, "F32")    ? DType::f32
         : has_tensor_of(checkpoint, "BF16") ? DType::bf16
                                             : DType::f16;
}

CheckpointLoader::CheckpointLoader(const Checkpoint& checkpoint, Device device,
                                   std::optional<DType> dtype, LoadProgress progress,
                                   WeightEncoding encoding, const Shard& shard)
    : WeightLoader(device, dtype ? *dtype : default_dtype(checkpoint, device), shard),
      checkpoint_(&checkpoint),
      store_(checkpoint),
      encoding_(std::move(encoding)),
      progress_(std::move(progress)) {
  if (!encoding_.format.empty()) {
    weight_format(encoding_.format);
  }
  for (const auto& [weight, in] : encoding_.layers) {
    weight_format(in.format).check_layout(in.layout);
  }
  check_records(encoding_.records);
}

std::string CheckpointLoader::describe(const std::string& name) const {
  return fmt::format("{}: the tensor {}", checkpoint_->directory().string(), quote(name));
}

const StoredTensor& CheckpointLoader::get(const std::string& name,
                                          const std::vector<int64_t>& shape) {
  const NamedTensor found = required_tensor(*checkpoint_, name, shape);
  used_.emplace(found.name);
  return *found.tensor;
}

void CheckpointLoader::require_all_used(std::span<const std::string_view> ignored) const {
  store_.require_all_used(used_, ignored);
}

std::vector<const StoredTensor*> CheckpointLoader::find_plain(const Wanted& wanted) {
  std::vector<const StoredTensor*> stored;
  for (const Wanted::Part& part : wanted.parts) {
    std::vector<int64_t> shape{part.rows};
    if (wanted.kind != Wanted::Kind::vector) {
      shape.push_back(wanted.stored_columns);
    }
    stored.push_back(&get(part.name, shape));
    require(stored.back()->dtype == stored.front()->dtype,
            "{}: {} is {}, but {} is {}; joined tensors need one dtype",
            checkpoint_->directory().string(), part.name, stored.back()->dtype,
            wanted.parts.front().name, stored.front()->dtype);
  }
  return stored;
}

void CheckpointLoader::pass_over(const Wanted& wanted) {
  if (wanted.kind == Wanted::Kind::linear) {
    find(wanted);
  } else {
    find_plain(wanted);
  }
}

OwnedTensor CheckpointLoader::load(const Wanted& wanted) {
  const std::vector<const StoredTensor*> stored = find_plain(wanted);
  const DType stored_dtype = stored.front()->float_dtype(describe(wanted.parts.front().name));
  OwnedTensor result = allocate(
      wanted, device().is_cuda() ? activation_dtype() : rounded_to_.value_or(stored_dtype));
  const int64_t item = size_of(stored_dtype);
  const int64_t pitch = wanted.stored_columns * item;

  int64_t row = 0;
  for (size_t i = 0; i < stored.size(); ++i) {
    const Range rows = wanted.parts[i].slice;
    const Tensor part = part_of(wanted, i, row, result.view);
    // All rows in one piece, or some columns of each.
    const int64_t pieces = wanted.whole_columns() ? 1 : rows.count;
    const int64_t bytes = rows.count * wanted.columns.count * item;
    const int64_t first = rows.begin * pitch + wanted.columns.begin * item;
    Upload copy{
        .what = describe(wanted.parts[i].name),
        .source = stored[i]->bytes.subspan(
            static_cast<size_t>(first), static_cast<size_t>(bytes / std::max(pieces, int64_t{1}))),
        .rows = pieces,
        .pitch = pitch,
        .from = stored_dtype,
        .destination = part.raw(),
        .to = part.dtype(),
        .file = &checkpoint_->file_of(stored[i]->bytes)};
    if (device().is_cuda()) {
      if (wanted.order == Order::transposed) {
        transpose_later(wanted, std::move(copy), part);
      } else {
        uploads().submit(std::move(copy));
        if (i == 0 && wanted.signs != nullptr) {
          steps_.push_back({.weight = {}, .to = part, .signs = wanted.signs});
        }
      }
      loaded_ += bytes;
    } else {
      copies_.push_back({.copy = std::move(copy),
                         .to = part,
                         .transposes = wanted.order == Order::transposed,
                         .signs = i == 0 ? wanted.signs : nullptr});
    }
    row += rows.count;
  }
  return result;
}

void CheckpointLoader::transpose_later(const Wanted& wanted, Upload copy, const Tensor& to) {
  // Of weights that wait: the copies come to an end before these are transposed, which takes a
  // millisecond or two each time.
  constexpr int64_t kMostBytes = 1 << 30;
  const std::string& name = wanted.parts.front().name;
  OwnedTensor weight;
  try {
    weight = space_for(to, name);
  } catch (const OutOfMemory&) {
    if (steps_.empty()) {
      throw;
    }
    uploads().flush(0);
    settle();
    weight = space_for(to, name);
  }
  step_bytes_ += weight.view.bytes();
  copy.destination = weight.view.raw();
  uploads().submit(std::move(copy));
  steps_.push_back({.weight = std::move(weight), .to = to});
  if (step_bytes_ >= kMostBytes) {
    uploads().flush(0);
    settle();
  }
}

// For a weight whose transpose has the shape of `to`. Memory that is freed goes back to the driver,
// which takes its time to give it again.
OwnedTensor CheckpointLoader::space_for(const Tensor& to, std::string_view purpose) {
  const auto spare = std::ranges::find_if(spare_, [&](const OwnedTensor& of) {
    return of.view.dtype() == to.dtype() && of.view.size(0) == to.size(1) &&
           of.view.size(1) == to.size(0);
  });
  if (spare == spare_.end()) {
    spare_.clear();  // of other shapes
    return allocate_scratch(exec(), to.dtype(), {to.size(1), to.size(0)}, purpose);
  }
  OwnedTensor space = std::move(*spare);
  spare_.erase(spare);
  return space;
}

void CheckpointLoader::settle() {
  for (const DeviceStep& step : steps_) {
    if (!step.weight.view.empty()) {
      transpose(step.weight.view, step.to, exec());
    }
    if (step.signs != nullptr) {
      pack_signs(step.to, *step.signs, exec());
    }
  }
  if (!steps_.empty()) {
    cuda_->synchronize();
  }
  for (DeviceStep& step : steps_) {
    if (!step.weight.view.empty()) {
      spare_.push_back(std::move(step.weight));
    }
  }
  steps_.clear();
  step_bytes_ = 0;
}

// The place of part i in the loaded tensor; the part begins with this row.
Tensor CheckpointLoader::part_of(const Wanted& wanted, size_t i, int64_t row,
                                 const Tensor& loaded) {
  const int64_t count = wanted.parts[i].slice.count;
  return wanted.order == Order::transposed ? loaded.columns(row, count) : loaded.rows(row, count);
}

std::vector<WeightStore::Stored> CheckpointLoader::find(const Wanted& wanted) {
  std::vector<Stored> parts;
  for (const Wanted::Part& part : wanted.parts) {
    const Stored& stored = parts.emplace_back(store_.get(part.name));
    require(stored.rows == part.rows && stored.columns == wanted.stored_columns,
            "{} has shape {}, but the config asks for {}", describe(part.name),
            shape_string({stored.rows, stored.columns}),
            shape_string({part.rows, wanted.stored_columns}));
    require(stored.dtype == parts.front().dtype,
            "{}: {} is {}, but {} is {}; joined tensors need one dtype",
            checkpoint_->directory().string(), part.name, safetensors_name(stored.dtype),
            wanted.parts.front().name, safetensors_name(parts.front().dtype));
    used_.insert(stored.tensors.begin(), stored.tensors.end());
  }
  return parts;
}

std::unique_ptr<WeightMatrix> CheckpointLoader::load_weight(const Wanted& wanted) {
  const std::vector<Stored> parts = find(wanted);
  const std::string requested =
      format_of(encoding_.layers, wanted.parts.front().name, encoding_.format).format;
  const WeightFormat& format =
      weight_format(requested.empty() ? store_.joined_format(parts) : requested);
  if (format.name() == dense_format().name()) {
    return std::make_unique<DenseWeight>(count(load_dense(wanted, parts)));
  }
  const std::string name = describe(wanted.parts.front().name);
  naming_errors(name, [&] { require_runs_on(device(), format); });
  const bool as_stored = std::ranges::all_of(parts, [&](const Stored& stored) {
    return stored.format == format.name() &&
           (stored.form == WeightStore::Form::quantized || stored.dtype == activation_dtype());
  });
  const bool by_device =
      device().is_cuda() && !as_stored &&
      std::ranges::none_of(
          wanted.parts, [&, layout = layout_in(wanted, format, parts)](const Wanted::Part& part) {
            return is_rounded_on_host(
                {.store = store_, .name = part.name, .slice = wanted.slice_of(part)}, layout);
          });
  std::unique_ptr<WeightMatrix> weight =
      by_device ? encode_on_device(wanted, parts, format) : load_encoded(wanted, parts, format);
  count_bytes(weight->bytes());
  return weight;
}

OwnedTensor CheckpointLoader::load_dense(const Wanted& wanted) {
  const std::vector<Stored> parts = find(wanted);
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].form == WeightStore::Form::encoded ||
        parts[i].form == WeightStore::Form::quantized) {
      count_decoded(
          {.bytes = wanted.parts[i].slice.count * wanted.columns.count * size_of(parts[i].dtype),
           .stored_bytes = read_bytes(wanted, i, parts[i])});
    }
  }
  return load_dense(wanted, parts);
}

OwnedTensor CheckpointLoader::load_dense(const Wanted& wanted, std::span<const Stored> parts) {
  const bool plain = std::ranges::all_of(
      parts, [](const Stored& stored) { return stored.form == WeightStore::Form::plain; });
  if (plain) {
    return load(wanted);
  }
  OwnedTensor dense =
      allocate(wanted, device().is_cuda() ? activation_dtype() : parts.front().dtype);
  fill(wanted, parts, dense.view);
  return dense;
}

std::unique_ptr<WeightMatrix> CheckpointLoader::load_encoded(const Wanted& wanted,
                                                             std::span<const Stored> stored,
                                                             const WeightFormat& format) {
  std::vector<WeightPart> parts;
  const size_t others = encoded_.size();
  const int64_t held = device().is_cuda() ? uploads().held() : 0;
  bool in_memory = false;
  for (size_t i = 0; i < stored.size(); ++i) {
    const std::string& name = wanted.parts[i].name;
    const PartSlice slice = wanted.slice_of(wanted.parts[i]);
    const WeightToEncode part{.store = store_, .name = name, .slice = slice};
    const bool as_it_is =
        stored[i].form == WeightStore::Form::encoded && stored[i].format == format.name() &&
        (!device().is_cuda() || (stored[i].dtype == activation_dtype() && !is_cut_on_host(part)));
    if (as_it_is) {
      parts.push_back({.weight = &encoded_.emplace_back(store_.unchecked(name)),
                       .name = store_.file().describe(stored[i].name),
                       .file = stored[i].file,
                       .slice = slice});
    } else {
      EncodedWeight encoded =
          encode_slice(part, format, device().is_cuda() ? activation_dtype() : stored[i].dtype,
                       layout_in(wanted, format, std::span(&stored[i], 1)), threads());
      store_.release(stored[i]);
      in_memory = true;
      parts.push_back(
          {.weight = &encoded_.emplace_back(std::move(encoded)), .name = describe(name)});
    }
  }
  std::unique_ptr<WeightMatrix> weight = format.load(parts, context());
  if (device().is_cuda() && in_memory) {
    uploads().flush(held);  // only one of the weights encoded here is in memory
  }
  if (!device().is_cuda() || in_memory) {
    encoded_.resize(others);
  }
  int64_t bytes = 0;
  for (size_t i = 0; i < stored.size(); ++i) {
    store_.release(stored[i]);  // copies read the file
    bytes += read_bytes(wanted, i, stored[i]);
  }
  count_loaded(bytes);
  return weight;
}

std::unique_ptr<WeightMatrix> CheckpointLoader::encode_on_device(const Wanted& wanted,
                                                                 std::span<const Stored> parts,
                                                                 const WeightFormat& format) {
  const OwnedTensor dense =
      allocate_scratch(exec(), activation_dtype(), {rows_of(wanted), wanted.columns.count},
                       wanted.parts.front().name);
  fill(wanted, parts, dense.view);
  return naming_errors(describe(wanted.parts.front().name), [&] {
    return format.encode_on_device(dense.view, layout_in(wanted, format, parts), context());
  });
}

LayoutOptions CheckpointLoader::layout_in(const Wanted& wanted, const WeightFormat& format,
                                          std::span<const Stored> parts) const {
  const auto chosen = encoding_.layers.find(wanted.parts.front().name);
  if (chosen != encoding_.layers.end() && !chosen->second.layout.empty()) {
    return {.layout = chosen->second.layout};
  }
  const Stored& largest = *std::ranges::max_element(parts, {}, &Stored::rows);
  return largest.format == format.name() ? store_.layout_like(largest)
                                         : records_in(format.name(), encoding_.records);
}

// One part after the other, so that no more than one of them is in memory twice.
void CheckpointLoader::fill(const Wanted& wanted, std::span<const Stored> parts,
                            const Tensor& dense) {
  int64_t row = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string& name = wanted.parts[i].name;
    const PartSlice slice = wanted.slice_of(wanted.parts[i]);
    const Tensor part = part_of(wanted, i, row, dense);
    const bool transposes = wanted.order == Order::transposed;
    OwnedTensor weight;
    if (transposes) {
      weight = device().is_cuda()
                   ? allocate_scratch(exec(), part.dtype(), {part.size(1), part.size(0)}, name)
                   : allocate_tensor({}, part.dtype(), {part.size(1), part.size(0)}, name);
    }
    const Tensor& to = transposes ? weight.view : part;
    if (device().is_cuda() && is_encoded_for(parts[i], device(), activation_dtype())) {
      expand_part(name, parts[i], slice, to);
    } else {
      decode_part(name, parts[i], slice, to);
    }
    if (transposes) {
      transpose(weight.view, part, exec());
    }
    if (i == 0 && wanted.signs != nullptr) {
      pack_signs(part, *wanted.signs, exec());
    }
    if (transposes && device().is_cuda()) {
      cuda_->synchronize();  // before the weight goes
    }
    row += wanted.parts[i].slice.count;
    store_.release(parts[i]);
    count_loaded(read_bytes(wanted, i, parts[i]));
  }
}

// On a CUDA device, from an encoding that it multiplies by.
void CheckpointLoader::expand_part(const std::string& name, const Stored& stored,
                                   const PartSlice& slice, const Tensor& dense) {
  EncodedWeight encoded = store_.unchecked(name);
  const WeightPart part{.weight = &encoded,
                        .name = store_.file().describe(stored.name),
                        .file = stored.file,
                        .slice = slice};
  sparsellm::expand_part(weight_format(stored.format), part, dense, context());
}

void CheckpointLoader::decode_part(const std::string& name, const Stored& stored,
                                   const PartSlice& slice, const Tensor& dense) {
  const OwnedTensor part = store_.dense(name, threads(), slice);
  const std::span source(static_cast<const std::byte*>(part.view.raw()),
                         static_cast<size_t>(part.view.bytes()));
  if (!device().is_cuda()) {
    copy_bytes({}, dense.raw(), {}, source.data(), std::ssize(source));
    return;
  }
  const int64_t held = uploads().held();
  uploads().submit({.what = describe(name),
                    .source = source,
                    .from = stored.dtype,
                    .destination = dense.raw(),
                    .to = dense.dtype(),
                    .file = checkpoint_->find_file(source)});
  uploads().flush(held);
}

int64_t CheckpointLoader::read_bytes(const Wanted& wanted, size_t i, const Stored& stored) {
  return proportional(stored.bytes, wanted.parts[i].slice.count * wanted.columns.count,
                      stored.rows * stored.columns);
}

void CheckpointLoader::count_loaded(int64_t bytes) {
  loaded_ += bytes;
  report();
}

void CheckpointLoader::report() {
  if (progress_) {
    const Uploader::Bytes copies = uploads_ ? uploads_->file_bytes() : Uploader::Bytes();
    progress_(loaded_ - (copies.submitted - copies.done), checkpoint_->bytes());
  }
}

LoadContext CheckpointLoader::context() {
  return {.device = device(),
          .compute = activation_dtype(),
          .threads = threads(),
          .exec = [this]() -> ExecContext& { return exec(); },
          .uploads = device().is_cuda() ? &uploads() : nullptr};
}

ThreadPool& CheckpointLoader::threads() {
  if (!threads_) {
    threads_ = std::make_unique<ThreadPool>(encoding_.threads);
  }
  return *threads_;
}

ExecContext& CheckpointLoader::exec() {
  if (!exec_) {
    cuda_ = device().is_cuda() ? std::make_unique<CudaContext>(device()) : nullptr;
    workspace_ = std::make_unique<Workspace>(device(), 0);
    exec_.emplace(ExecContext{
        .device = device(), .workspace = *workspace_, .threads = threads(), .cuda = cuda_.get()});
  }
  if (cuda_) {
    cuda_->make_current();
  }
  return *exec_;
}

Uploader& CheckpointLoader::uploads() {
  if (!uploads_) {
    uploads_ = std::make_unique<Uploader>(device());
  }
  return *uploads_;
}

std::unique_ptr<WeightLoader> CheckpointLoader::shapes() const {
  return std::make_unique<ShapeLoader>(device(), activation_dtype(),
                                       LinearShapes{.store = &store_,
                                                    .format = encoding_.format,
                                                    .layers = encoding_.layers,
                                                    .records = encoding_.records,
                                                    .density = 0.0},
                                       shard());
}

void CheckpointLoader::finish() {
  if (device().is_cuda()) {
    uploads().finish([&] { report(); });
    settle();
    spare_.clear();
    uploads_.reset();  // its threads and buffers are not needed any more
    exec_.reset();
    cuda_.reset();
    encoded_.clear();
    checkpoint_->require_intact();
    return;
  }
  std::vector<HostCopy> copies = std::exchange(copies_, {});
  std::ranges::sort(copies, is_read_before, &HostCopy::copy);
  for (HostCopy& each : copies) {
    Upload& copy = each.copy;
    OwnedTensor weight;  // that is transposed; one at a time
    if (each.transposes) {
      weight = allocate_tensor({}, copy.to, {each.to.size(1), each.to.size(0)}, copy.what);
      copy.destination = weight.view.raw();
    }
    read_source(copy, static_cast<std::byte*>(copy.destination));
    if (each.transposes) {
      transpose(weight.view, each.to, exec());
    }
    if (each.signs != nullptr) {
      pack_signs(each.to, *each.signs, exec());
    }
    loaded_ += copy.bytes();
    report();
  }
  checkpoint_->require_intact();
}

}  // namespace sparsellm
