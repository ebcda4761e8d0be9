#include "models/weights/checkpoint_loader.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <utility>

#include "kernels/base/convert.h"
#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "kernels/base/mapped_file.h"
#include "models/storage/required_tensor.h"
#include "models/weights/shape_loader.h"
#include "sparse/dense/dense.h"
#include "sparse/registry.h"

namespace sparsellm {
namespace {

bool has_tensor_of(const Checkpoint& checkpoint, std::string_view dtype) {
  const std::vector<std::string> names = checkpoint.names();
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return checkpoint.find(name)->dtype == dtype;
  });
}

DType default_dtype(const Checkpoint& checkpoint, Device device) {
  if (!device.is_cuda()) {
    return DType::f32;
  }
  return has_tensor_of(checkpoint, "BF16") ? DType::bf16 : DType::f16;
}

// f(), the Error of which says nothing of the weight.
template <class F>
std::unique_ptr<WeightMatrix> naming(const std::string& weight, F&& f) {
  try {
    return f();
  } catch (const OutOfMemory&) {
    throw;
  } catch (const DeviceLost&) {
    throw;
  } catch (const Error& error) {
    fail("{}: {}", weight, error.what());
  }
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
                                   WeightEncoding encoding)
    : WeightLoader(device, dtype ? *dtype : default_dtype(checkpoint, device)),
      checkpoint_(&checkpoint),
      store_(checkpoint),
      encoding_(std::move(encoding)),
      progress_(std::move(progress)) {
  if (!encoding_.format.empty()) {
    weight_format(encoding_.format);
  }
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

void CheckpointLoader::require_all_used(std::initializer_list<std::string_view> ignored) const {
  store_.require_all_used(used_, ignored);
}

OwnedTensor CheckpointLoader::load(const Wanted& wanted) {
  std::vector<const StoredTensor*> stored;
  for (const Wanted::Rows& part : wanted.parts) {
    std::vector<int64_t> shape{part.count};
    if (wanted.kind != Wanted::Kind::vector) {
      shape.push_back(wanted.columns);
    }
    stored.push_back(&get(part.name, shape));
    require(stored.back()->dtype == stored.front()->dtype,
            "{}: {} is {}, but {} is {}; joined tensors need one dtype",
            checkpoint_->directory().string(), part.name, stored.back()->dtype,
            wanted.parts.front().name, stored.front()->dtype);
  }
  const DType stored_dtype = stored.front()->float_dtype(describe(wanted.parts.front().name));
  OwnedTensor result = allocate(
      wanted, device().is_cuda() ? activation_dtype() : rounded_to_.value_or(stored_dtype));

  auto* destination = static_cast<std::byte*>(result.view.raw());
  for (size_t i = 0; i < stored.size(); ++i) {
    const std::span<const std::byte> source = stored[i]->bytes;
    copies_.push_back({.what = describe(wanted.parts[i].name),
                       .source = source,
                       .from = stored_dtype,
                       .destination = destination,
                       .to = result.view.dtype(),
                       .file = &checkpoint_->file_of(source)});
    destination += std::ssize(source) / size_of(stored_dtype) * size_of(result.view.dtype());
  }
  return result;
}

std::unique_ptr<WeightMatrix> CheckpointLoader::load_weight(const Wanted& wanted) {
  std::vector<WeightStore::Stored> parts;
  for (const Wanted::Rows& part : wanted.parts) {
    const WeightStore::Stored& stored = parts.emplace_back(store_.get(part.name));
    require(stored.rows == part.count && stored.columns == wanted.columns,
            "{} has shape {}, but the config asks for {}", describe(part.name),
            shape_string({stored.rows, stored.columns}),
            shape_string({part.count, wanted.columns}));
    require(stored.dtype == parts.front().dtype,
            "{}: {} is {}, but {} is {}; joined tensors need one dtype",
            checkpoint_->directory().string(), part.name, safetensors_name(stored.dtype),
            wanted.parts.front().name, safetensors_name(parts.front().dtype));
    used_.insert(stored.tensors.begin(), stored.tensors.end());
  }
  const std::string_view format =
      encoding_.format.empty() ? joined_format(parts) : std::string_view(encoding_.format);
  if (format != dense_format().name()) {
    return load_sparse(wanted, parts, format);
  }
  const bool plain = std::all_of(parts.begin(), parts.end(), [](const auto& stored) {
    return stored.form == WeightStore::Form::plain;
  });
  return std::make_unique<DenseWeight>(count(plain ? load(wanted) : load_dense(wanted, parts)));
}

OwnedTensor CheckpointLoader::load_dense(const Wanted& wanted,
                                         std::span<const WeightStore::Stored> parts) {
  OwnedTensor result =
      allocate(wanted, device().is_cuda() ? activation_dtype() : parts.front().dtype);
  fill_dense(wanted, parts, result.view);
  return result;
}

// One part after the other, so that no more than one of them is in memory twice.
void CheckpointLoader::fill_dense(const Wanted& wanted, std::span<const WeightStore::Stored> parts,
                                  const Tensor& dense) {
  auto* destination = static_cast<std::byte*>(dense.raw());
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string& name = wanted.parts[i].name;
    const OwnedTensor part = store_.dense(name, threads());
    const std::span source(static_cast<const std::byte*>(part.view.raw()),
                           static_cast<size_t>(part.view.bytes()));
    if (device().is_cuda()) {
      upload({{.what = describe(name),
               .source = source,
               .from = parts[i].dtype,
               .destination = destination,
               .to = dense.dtype(),
               .file = checkpoint_->find_file(source)}});
      other_uploads_ += std::ssize(source);
    } else {
      copy_bytes({}, destination, {}, source.data(), std::ssize(source));
    }
    destination += part.view.element_count() * size_of(dense.dtype());
    store_.release(parts[i]);
    report(parts[i].bytes);
  }
}

std::unique_ptr<WeightMatrix> CheckpointLoader::load_sparse(
    const Wanted& wanted, std::span<const WeightStore::Stored> parts, std::string_view format) {
  const WeightFormat& to = weight_format(format);
  std::unique_ptr<WeightMatrix> result =
      device().is_cuda() ? load_on_device(wanted, parts, to) : nullptr;
  if (result == nullptr) {
    EncodedWeight encoded = load_encoded(wanted, parts, to);
    result = naming(describe(wanted.parts.front().name),
                    [&] { return to.load(std::move(encoded), device()); });
  }
  count_bytes(result->bytes());
  return result;
}

EncodedWeight CheckpointLoader::load_encoded(const Wanted& wanted,
                                             std::span<const WeightStore::Stored> parts,
                                             const WeightFormat& to) {
  std::vector<EncodedWeight> encoded;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string& name = wanted.parts[i].name;
    if (parts[i].form == WeightStore::Form::encoded && parts[i].format == to.name()) {
      encoded.push_back(store_.encoded(name, threads()));
    } else {
      encoded.push_back(store_.encode(name, to, parts[i].dtype, threads()));
    }
    store_.release(parts[i]);
    report(parts[i].bytes);
  }
  if (encoded.size() > 1) {
    std::vector<const EncodedWeight*> pointers;
    for (const EncodedWeight& part : encoded) {
      pointers.push_back(&part);
    }
    encoded.front() = concat_rows(pointers, threads());
  }
  return std::move(encoded.front());
}

std::unique_ptr<WeightMatrix> CheckpointLoader::load_on_device(
    const Wanted& wanted, std::span<const WeightStore::Stored> parts, const WeightFormat& format) {
  const bool encoded = std::all_of(parts.begin(), parts.end(), [&](const auto& stored) {
    return stored.form == WeightStore::Form::encoded && stored.format == format.name() &&
           stored.dtype == activation_dtype();
  });
  if (encoded) {
    return prepare_encoded(wanted, parts, format);
  }
  ExecContext ctx = exec();
  const OwnedTensor dense = allocate_scratch(
      ctx, activation_dtype(), {rows_of(wanted), wanted.columns}, wanted.parts.front().name);
  fill_dense(wanted, parts, dense.view);
  return naming(describe(wanted.parts.front().name),
                [&] { return format.encode_on_device(dense.view, ctx); });
}

std::unique_ptr<WeightMatrix> CheckpointLoader::prepare_encoded(
    const Wanted& wanted, std::span<const WeightStore::Stored> parts, const WeightFormat& format) {
  std::vector<NamedWeight> encoded;
  int64_t done = 0;  // all but what finish() copies
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string& name = wanted.parts[i].name;
    encoded.push_back({.name = name, .weight = &encoded_.emplace_back(store_.unchecked(name))});
    done += parts[i].bytes;
  }
  std::vector<Upload> copies;
  std::unique_ptr<WeightMatrix> weight = prepare(encoded, format, copies);
  if (weight == nullptr) {
    weight = join_on_device(encoded, format);
  }
  for (const WeightStore::Stored& part : parts) {
    store_.release(part);  // copies read the file
  }
  for (Upload& copy : copies) {
    done -= std::ssize(copy.source);
    copies_.push_back(std::move(copy));
  }
  if (weight != nullptr) {
    report(done);
  }
  return weight;
}

// As WeightFormat::prepare(), with the copies' names and files.
std::unique_ptr<WeightMatrix> CheckpointLoader::prepare(std::span<const NamedWeight> parts,
                                                        const WeightFormat& format,
                                                        std::vector<Upload>& copies) {
  std::vector<const EncodedWeight*> weights;
  for (const NamedWeight& part : parts) {
    weights.push_back(part.weight);
  }
  std::unique_ptr<WeightMatrix> weight;
  try {
    weight = format.prepare(weights, device(), copies);
  } catch (const OutOfMemory&) {
    throw;
  } catch (const DeviceLost&) {
    throw;
  } catch (const Error&) {
    for (const NamedWeight& part : parts) {
      store_.encoded(part.name, threads());  // throws an Error that names the part
    }
    throw;
  }
  for (Upload& copy : copies) {
    const auto owner = std::find_if(parts.begin(), parts.end(), [&](const NamedWeight& part) {
      return std::any_of(part.weight->parts.begin(), part.weight->parts.end(),
                         [&](const EncodedPart& p) { return is_inside(copy.source, p.bytes); });
    });
    copy.what = describe(owner->name);
    copy.file = checkpoint_->find_file(copy.source);
  }
  return weight;
}

// Expands one after the other.
std::unique_ptr<WeightMatrix> CheckpointLoader::join_on_device(std::span<const NamedWeight> parts,
                                                               const WeightFormat& format) {
  int64_t rows = 0;
  for (const NamedWeight& part : parts) {
    rows += part.weight->rows;
  }
  ExecContext ctx = exec();
  const OwnedTensor dense = allocate_scratch(
      ctx, activation_dtype(), {rows, parts.front().weight->columns}, "a joined weight");
  int64_t row = 0;
  for (const NamedWeight& part : parts) {
    std::vector<Upload> copies;
    const std::unique_ptr<WeightMatrix> weight = prepare({&part, 1}, format, copies);
    if (weight == nullptr) {
      return nullptr;
    }
    for (const Upload& copy : copies) {
      other_uploads_ += std::ssize(copy.source);
    }
    upload(std::move(copies));
    const int64_t part_rows = part.weight->rows;
    weight->expand({.begin = 0, .count = part_rows}, dense.view.rows(row, part_rows), ctx);
    cuda_->synchronize();
    row += part_rows;
  }
  return format.encode_on_device(dense.view, ctx);
}

ExecContext CheckpointLoader::exec() {
  if (!cuda_) {
    cuda_ = std::make_unique<CudaContext>(device());
    workspace_ = std::make_unique<Workspace>(device(), 0);
  }
  cuda_->make_current();
  return {.device = device(), .workspace = *workspace_, .threads = threads(), .cuda = cuda_.get()};
}

std::unique_ptr<WeightLoader> CheckpointLoader::shapes() const {
  return std::make_unique<ShapeLoader>(
      device(), activation_dtype(),
      LinearShapes{.store = &store_, .format = encoding_.format, .density = 0.0});
}

void CheckpointLoader::report(int64_t more) {
  done_ += more;
  if (progress_) {
    progress_(done_, checkpoint_->bytes());
  }
}

void CheckpointLoader::upload(std::vector<Upload> uploads, const Uploader::Progress& progress) {
  if (!uploader_) {
    uploader_ = std::make_unique<Uploader>(device());
  }
  try {
    for (Upload& one : uploads) {
      uploader_->submit(std::move(one));
    }
    uploader_->finish(progress);
  } catch (...) {
    uploader_.reset();  // waits: those that were submitted use memory that is about to go
    throw;
  }
}

ThreadPool& CheckpointLoader::threads() {
  if (!threads_) {
    threads_ = std::make_unique<ThreadPool>(encoding_.threads);
  }
  return *threads_;
}

void CheckpointLoader::finish() {
  std::vector<Upload> copies = std::exchange(copies_, {});
  // A file that is not in the page cache is read from its begin to its end.
  std::sort(copies.begin(), copies.end(), [](const Upload& a, const Upload& b) {
    return std::less<>()(a.source.data(), b.source.data());
  });
  if (device().is_cuda()) {
    const int64_t before = done_;
    upload(std::move(copies),
           [&](int64_t bytes) { report(before + bytes - other_uploads_ - done_); });
    uploader_.reset();  // its threads and buffers are not needed any more
    cuda_.reset();
    encoded_.clear();
    checkpoint_->require_intact();
    return;
  }
  for (const Upload& copy : copies) {
    if (copy.from == copy.to) {
      copy.file->read(copy.source, static_cast<std::byte*>(copy.destination));
    } else {
      const std::optional<float> overflow =
          convert(copy.from, copy.source.data(), copy.to, static_cast<std::byte*>(copy.destination),
                  std::ssize(copy.source) / size_of(copy.from));
      require(!overflow, "{}: the value {} is too large for {}", copy.what, overflow.value_or(0),
              name_of(copy.to));
      release_pages(copy.source);
    }
    report(std::ssize(copy.source));
  }
  checkpoint_->require_intact();
}

}  // namespace sparsellm
