#include "models/checkpoint_loader.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/mapped_file.h"

namespace sparsellm {
namespace {

std::string shape_string(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

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
                                   std::optional<DType> dtype, LoadProgress progress)
    : WeightLoader(device, dtype ? *dtype : default_dtype(checkpoint, device)),
      checkpoint_(&checkpoint),
      progress_(std::move(progress)) {}

std::string CheckpointLoader::describe(const std::string& name) const {
  return fmt::format("{}: the tensor {}", checkpoint_->directory().string(), name);
}

const StoredTensor& CheckpointLoader::get(const std::string& name,
                                          const std::vector<int64_t>& shape) {
  for (std::string_view prefix : {"", "model.", "model.decoder."}) {
    if (!name.starts_with(prefix)) {
      continue;
    }
    const std::string stored_name = name.substr(prefix.size());
    if (const StoredTensor* tensor = checkpoint_->find(stored_name)) {
      require(tensor->shape == shape, "{} has shape {}, but the config asks for {}", describe(name),
              shape_string(tensor->shape), shape_string(shape));
      used_.insert(stored_name);
      return *tensor;
    }
  }
  fail("{} is missing", describe(name));
}

void CheckpointLoader::require_all_used(std::initializer_list<std::string_view> ignored) const {
  for (const std::string& name : checkpoint_->names()) {
    const bool is_ignored = std::any_of(ignored.begin(), ignored.end(),
                                        [&](std::string_view end) { return name.ends_with(end); });
    require(is_ignored || used_.contains(name),
            "{}: the checkpoint has the tensor {}, which its config does not ask for",
            checkpoint_->directory().string(), name);
  }
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
  const DType stored_dtype = stored.front()->float_dtype(wanted.parts.front().name);
  OwnedTensor result = allocate(wanted, device().is_cuda() ? activation_dtype() : stored_dtype);

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

void CheckpointLoader::finish() {
  std::vector<Upload> copies = std::exchange(copies_, {});
  // A file that is not in the page cache is read from its begin to its end.
  std::sort(copies.begin(), copies.end(), [](const Upload& a, const Upload& b) {
    return std::less<>()(a.source.data(), b.source.data());
  });
  const auto report = [&](int64_t done) {
    if (progress_) {
      progress_(done, checkpoint_->bytes());
    }
  };
  if (device().is_cuda()) {
    Uploader uploader(device());
    for (Upload& copy : copies) {
      uploader.submit(std::move(copy));
    }
    uploader.finish(report);
    return;
  }
  int64_t done = 0;
  for (const Upload& copy : copies) {
    copy_bytes(device(), copy.destination, Device{}, copy.source.data(), std::ssize(copy.source));
    release_pages(copy.source);
    done += std::ssize(copy.source);
    report(done);
  }
}

}  // namespace sparsellm
