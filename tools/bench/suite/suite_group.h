#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/json_reader.h"
#include "models/config.h"
#include "sparse/prune/plan.h"
#include "tools/bench/suite/suite.h"

namespace sparsellm {

// The files that suites name, each read once. All throw Error that begins with the name of `value`,
// where the file is named.
class SuiteModels {
 public:
  explicit SuiteModels(std::filesystem::path configs) : configs_(std::move(configs)) {}

  std::filesystem::path config_file(const std::string& model) const;
  std::filesystem::path plan_file(const std::string& plan) const;
  const ModelConfig& config(const JsonValue& value, const std::string& model);
  // With a plan whose rules are all of use in this model.
  void require_plan(const JsonValue& value, const std::string& plan, const std::string& model);
  // Out and in, of the linear layers that are usually pruned; each once.
  std::vector<std::pair<int64_t, int64_t>> shapes(const JsonValue& value, const std::string& model);

 private:
  std::filesystem::path configs_;
  std::map<std::string, ModelConfig> read_;
  std::map<std::string, SparsityPlan> plans_;
};

// Cells that are a product of lists; each has at least one element, and none twice. Names are those
// of the keys in the file.
struct SuiteGroup {
  enum class Kind : uint8_t { engine, kernel };

  Kind kind = Kind::engine;
  std::string name;  // for messages: "suite.json: cells[0]"
  std::vector<std::string> formats;
  std::vector<SuiteZeros> zeros{{}};     // plans or sparsities, each with each pattern
  std::vector<std::string> records{{}};  // as those of SuiteCell
  std::optional<DType> dtype;
  // Of engine.
  std::vector<std::string> models;
  std::vector<SuiteActivation> activations{{}};
  std::vector<int64_t> gpus{1};
  std::vector<std::string> gpu_memory{""};
  std::vector<int64_t> batches;
  int64_t prompt = kSuitePrompt;
  std::vector<int64_t> outputs{kSuiteOutput};
  bool breakdown = false;
  // Of kernel.
  std::vector<std::pair<int64_t, int64_t>> shapes;  // also those of `models`
  std::vector<int64_t> tokens;
};

// Throws Error that names the key.
SuiteGroup read_suite_group(const JsonValue& value, SuiteModels& models);

}  // namespace sparsellm
