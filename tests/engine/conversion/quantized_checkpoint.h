#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <iosfwd>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/parallel.h"
#include "sparse/quantize/quantized_matrix.h"
#include "tests/models/storage/write_quantized.h"
#include "tests/testing/temp_dir.h"

namespace sparsellm::testing {

// A kind of checkpoint, as compressed-tensors writes it.
struct QuantizedKind {
  std::string name;    // of letters and digits
  std::string format;  // of config.json
  ValueType type = ValueType::i8;
  int64_t group = 0;
  QuantizedStorage storage = {};
  std::string prune = "none";
  double sparsity = 0.0;
};
void PrintTo(const QuantizedKind& kind, std::ostream* to);

// All of them.
std::span<const QuantizedKind> checkpoint_kinds();

// A model of tests/data quantised, the same with the values of its codes, and these codes.
class QuantizedCheckpoint {
 public:
  using Ignored = std::function<bool(const std::string& module)>;

  QuantizedCheckpoint(
      const std::filesystem::path& base, const QuantizedKind& kind,
      const Ignored& ignored = [](const std::string&) { return false; });

  // Again, after a change of the tensors or of the config.
  void write() const { write("quantized", tensors, config); }

  std::filesystem::path path() const { return directory_.path() / "quantized"; }
  std::filesystem::path plain() const { return directory_.path() / "plain"; }
  std::filesystem::path output(const std::string& name) const { return directory_.path() / name; }

  TestTensor& tensor(const std::string& name);

  std::vector<TestTensor> tensors;
  nlohmann::json config;
  std::map<std::string, QuantizedMatrix> codes;  // by the weights' names

 private:
  void write(const std::string& name, const std::vector<TestTensor>& which,
             const nlohmann::json& with) const;

  TempDir directory_;
  ThreadPool threads_{2};
};

}  // namespace sparsellm::testing
