#include "models/weights.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/mapped_file.h"
#include "sparse/dense/dense.h"

namespace sparsellm {
namespace {

std::string shape_string(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

}  // namespace

WeightLoader::WeightLoader(const Checkpoint& checkpoint, Device device, LoadProgress progress)
    : checkpoint_(&checkpoint), device_(device), progress_(std::move(progress)) {}

const StoredTensor& WeightLoader::get(const std::string& name, const std::vector<int64_t>& shape) {
  for (std::string_view prefix : {"", "model.", "model.decoder."}) {
    if (!name.starts_with(prefix)) {
      continue;
    }
    const std::string stored_name = name.substr(prefix.size());
    if (const StoredTensor* tensor = checkpoint_->find(stored_name)) {
      require(tensor->shape == shape, "{}: the tensor {} has shape {}, but the config asks for {}",
              checkpoint_->directory().string(), name, shape_string(tensor->shape),
              shape_string(shape));
      used_.insert(stored_name);
      return *tensor;
    }
  }
  fail("{}: the tensor {} is missing", checkpoint_->directory().string(), name);
}

void WeightLoader::require_all_used(std::initializer_list<std::string_view> ignored) const {
  for (const std::string& name : checkpoint_->names()) {
    const bool is_ignored = std::any_of(ignored.begin(), ignored.end(),
                                        [&](std::string_view end) { return name.ends_with(end); });
    require(is_ignored || used_.contains(name),
            "{}: the checkpoint has the tensor {}, which its config does not ask for",
            checkpoint_->directory().string(), name);
  }
}

void WeightLoader::copy(const std::vector<const StoredTensor*>& parts, const Tensor& destination) {
  auto* data = static_cast<std::byte*>(destination.raw());
  for (const StoredTensor* part : parts) {
    const auto bytes = static_cast<int64_t>(part->bytes.size());
    copy_bytes(device_, data, Device{}, part->bytes.data(), bytes);
    release_pages(part->bytes);
    data += bytes;
    loaded_bytes_ += bytes;
    if (progress_) {
      progress_(loaded_bytes_, checkpoint_->bytes());
    }
  }
}

OwnedTensor WeightLoader::vector(const std::string& name, int64_t size) {
  const StoredTensor& stored = get(name, {size});
  OwnedTensor result = allocate_tensor(device_, stored.float_dtype(name), {size}, name);
  copy({&stored}, result.view);
  return result;
}

OwnedTensor WeightLoader::matrix(const std::string& name, int64_t rows, int64_t columns) {
  const StoredTensor& stored = get(name, {rows, columns});
  OwnedTensor result = allocate_tensor(device_, stored.float_dtype(name), {rows, columns}, name);
  copy({&stored}, result.view);
  return result;
}

Linear WeightLoader::linear(const std::vector<Part>& parts, int64_t in, Bias bias,
                            Activation activation) {
  require(!parts.empty(), "a linear layer without parts");
  const auto joined = [&](const char* suffix, auto shape_of) {
    std::vector<const StoredTensor*> stored;
    for (const Part& part : parts) {
      stored.push_back(&get(part.module + suffix, shape_of(part)));
      require(stored.back()->dtype == stored.front()->dtype,
              "{}: {}{} is {}, but {}{} is {}; joined tensors need one dtype",
              checkpoint_->directory().string(), part.module, suffix, stored.back()->dtype,
              parts.front().module, suffix, stored.front()->dtype);
    }
    return stored;
  };
  int64_t out = 0;
  for (const Part& part : parts) {
    out = checked_add(out, part.out, "rows of a joined weight");
  }

  const auto weights = joined(".weight", [&](const Part& part) {
    return std::vector<int64_t>{part.out, in};
  });
  const std::string name = parts.front().module + ".weight";
  OwnedTensor weight =
      allocate_tensor(device_, weights.front()->float_dtype(name), {out, in}, name);
  copy(weights, weight.view);

  OwnedTensor bias_tensor;
  if (bias == Bias::yes) {
    const auto biases =
        joined(".bias", [](const Part& part) { return std::vector<int64_t>{part.out}; });
    const std::string bias_name = parts.front().module + ".bias";
    bias_tensor =
        allocate_tensor(device_, biases.front()->float_dtype(bias_name), {out}, bias_name);
    copy(biases, bias_tensor.view);
  }
  return {.weight = std::make_unique<DenseWeight>(std::move(weight)),
          .bias = std::move(bias_tensor),
          .activation = activation};
}

}  // namespace sparsellm
