#include "tests/engine/conversion/quantized_checkpoint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <ostream>
#include <utility>

#include "sparse/prune/prune.h"
#include "sparse/quantize/quantize.h"
#include "tests/engine/conversion/converted_model.h"

namespace sparsellm::testing {
namespace {

namespace fs = std::filesystem;
using Codes = QuantizedStorage::Codes;
using Scales = QuantizedStorage::Scales;

const QuantizedKind kQuantizedKinds[] = {
    {"F8Rows", "float-quantized", ValueType::f8, 0, {.scale_dtype = "BF16"}},
    {"F8Matrix", "float-quantized", ValueType::f8, 0, {.scales = Scales::matrix}},
    {"F8Sparse24",
     "float-quantized",
     ValueType::f8,
     0,
     {.codes = Codes::bitmask_24, .scale_dtype = "BF16"},
     "2:4"},
    {"F8Bitmask",
     "naive-quantized",
     ValueType::f8,
     0,
     {.codes = Codes::bitmask, .scales = Scales::rows},
     "magnitude",
     0.7},
    {"I8Rows", "int-quantized", ValueType::i8, 0, {.scale_dtype = "F16"}},
    {"I8Matrix", "int-quantized", ValueType::i8, 0, {.scales = Scales::matrix}},
    {"I8Sparse24", "int-quantized", ValueType::i8, 0, {.codes = Codes::bitmask_24}, "2:4"},
    {"I8Bitmask",
     "int-quantized",
     ValueType::i8,
     0,
     {.codes = Codes::bitmask, .scale_dtype = "BF16"},
     "magnitude",
     0.6},
    {"I4Groups32", "pack-quantized", ValueType::i4, 32, {.scale_dtype = "BF16"}},
    {"I4Groups64", "pack-quantized", ValueType::i4, 64, {.scale_dtype = "F16"}},
    {"I4Groups128", "pack-quantized", ValueType::i4, 128, {.scale_dtype = "F32"}, "2:4"},
};

nlohmann::json quantization_config(const QuantizedKind& kind) {
  const bool is_packed = kind.type == ValueType::i4;
  nlohmann::json weights = {{"num_bits", is_packed ? 4 : 8},
                            {"type", kind.type == ValueType::f8 ? "float" : "int"},
                            {"strategy", is_packed                               ? "group"
                                         : kind.storage.scales == Scales::matrix ? "tensor"
                                                                                 : "channel"},
                            {"symmetric", true},
                            {"dynamic", false}};
  if (is_packed) {
    weights["group_size"] = kind.group;
  }
  nlohmann::json config = {
      {"quant_method", "compressed-tensors"},
      {"format", kind.format},
      {"ignore", {"lm_head"}},
      {"quantization_status", "compressed"},
      {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}}};
  if (kind.storage.codes != Codes::plain) {
    config["sparsity_config"] = {
        {"format", kind.storage.codes == Codes::bitmask ? "sparse-bitmask" : "sparse-24-bitmask"}};
  }
  return config;
}

float rounded_to(const std::string& dtype, float scale) {
  return dtype == "F16"    ? to_float(to_half(scale))
         : dtype == "BF16" ? to_float(to_bfloat16(scale))
                           : scale;
}

std::string bytes_in(const Tensor& w) {
  return {static_cast<const char*>(w.raw()), static_cast<size_t>(w.bytes())};
}

QuantizedMatrix quantized(const Tensor& from, const QuantizedKind& kind, ThreadPool& threads) {
  OwnedTensor w = allocate_tensor({}, from.dtype(), {from.size(0), from.size(1)}, "a weight");
  std::memcpy(w.view.raw(), from.raw(), static_cast<size_t>(from.bytes()));
  prune(w.view, {.method = parse_prune_method(kind.prune), .sparsity = kind.sparsity}, threads);
  // One group is one of 128.
  const bool has_groups =
      kind.group > 0 && from.size(1) > kind.group && from.size(1) % kind.group == 0;
  QuantizedMatrix q = quantize(w.view, kind.type, has_groups ? kind.group : 128, threads);
  for (float& scale : q.scales) {
    scale = rounded_to(kind.storage.scale_dtype, scale);
    scale = kind.storage.scales == Scales::matrix ? q.scales.front() : scale;
  }
  return q;
}

}  // namespace

std::span<const QuantizedKind> checkpoint_kinds() { return kQuantizedKinds; }

void PrintTo(const QuantizedKind& kind, std::ostream* to) { *to << kind.name; }

QuantizedCheckpoint::QuantizedCheckpoint(const fs::path& base, const QuantizedKind& kind,
                                         const Ignored& ignored) {
  const Model model(base);
  std::vector<TestTensor> plain;
  for (const LinearLayer& layer : model.layers) {
    OwnedTensor w = model.dense(layer);
    const std::string name = layer.module + ".weight";
    const std::string dtype(safetensors_name(w.view.dtype()));
    const std::vector<int64_t> shape{layer.rows, layer.columns};
    if (ignored(layer.module)) {
      tensors.push_back({name, dtype, shape, bytes_in(w.view)});
      plain.push_back(tensors.back());
      continue;
    }
    const QuantizedMatrix& q = codes.emplace(name, quantized(w.view, kind, threads_)).first->second;
    for (TestTensor& tensor : quantized_tensors(layer.module, q, kind.storage)) {
      tensors.push_back(std::move(tensor));
    }
    plain.push_back({name, dtype, shape, bytes_in(dequantize(q, w.view.dtype(), threads_).view)});
  }
  for (const std::string& name : model.other_tensors()) {
    const StoredTensor& tensor = *model.checkpoint.find(name);
    tensors.push_back(
        {name, tensor.dtype, tensor.shape,
         std::string(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size())});
    plain.push_back(tensors.back());
  }
  config = nlohmann::json::parse(contents(base / "config.json"));
  write("plain", plain, config);
  config["quantization_config"] = quantization_config(kind);
  write();
}

TestTensor& QuantizedCheckpoint::tensor(const std::string& name) {
  const auto found = std::ranges::find(tensors, name, &TestTensor::name);
  EXPECT_NE(found, tensors.end()) << name;
  return *found;
}

void QuantizedCheckpoint::write(const std::string& name, const std::vector<TestTensor>& which,
                                const nlohmann::json& with) const {
  std::vector<TestTensor> sorted = which;  // by falling alignment: nothing needs padding
  std::ranges::stable_sort(sorted, [](const auto& a, const auto& b) {
    return *stored_item_bits(a.dtype) > *stored_item_bits(b.dtype);
  });
  directory_.write(fs::path(name) / "model.safetensors", write_safetensors(sorted));
  directory_.write(fs::path(name) / "config.json", with.dump());
}

}  // namespace sparsellm::testing
