// The input is a suite of sparsellm-bench, beside which there are two models and a plan.

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tests/fuzz/expect.h"
#include "tests/fuzz/fuzz_one.h"
#include "tests/fuzz/input_folder.h"
#include "tools/bench/suite/suite_file.h"

namespace sparsellm::fuzz {
namespace {

constexpr char kRelu[] = R"({"architectures": ["OPTForCausalLM"], "model_type": "opt",
  "activation_function": "relu", "do_layer_norm_before": true, "ffn_dim": 64, "hidden_size": 32,
  "max_position_embeddings": 128, "num_attention_heads": 4, "num_hidden_layers": 2,
  "tie_word_embeddings": true, "vocab_size": 96, "word_embed_proj_dim": 32})";
constexpr char kExperts[] = R"({"architectures": ["MixtralForCausalLM"], "model_type": "mixtral",
  "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
  "num_hidden_layers": 2, "num_local_experts": 4, "vocab_size": 96})";
constexpr char kPlan[] = R"({"default": {"prune": "magnitude", "sparsity": 0.8}})";

// With models "a" and "b" and a plan "p", and the input in the same folder.
const InputFolder& suite_folder() {
  static const InputFolder folder;
  static const bool is_filled = [] {
    folder.write("a.json", kRelu);
    folder.write("b.json", kExperts);
    std::filesystem::create_directory(folder.path() / "plans");
    folder.write("plans/p.json", kPlan);
    return true;
  }();
  expect(is_filled, "a folder");
  return folder;
}

void check_engine_cell(const SuiteCell& cell, const EngineCell& engine) {
  expect(engine.model == "a" && !engine.config.empty(), "a model that there is");
  expect(engine.gpus >= 1 && engine.batch >= 1 && engine.prompt >= 1 && engine.output >= 1,
         "sizes above 0");
  expect(engine.prompt + engine.output <= 128, "positions that the model has");
  expect(engine.gpu_memory.empty() == (engine.gpu_memory_bytes == 0), "memory and its size");
  expect(cell.zeros.plan.empty() || cell.zeros.sparsity == 0.0, "a plan or a share of zeros");
  const SuiteActivation& activation = engine.activation;
  expect(!activation.predicted || *activation.predicted <= *activation.zeros,
         "no more predicted than zero");
}

void check_suite(const Suite& suite) {
  expect(!suite.cells.empty(), "a cell at least");
  std::set<std::string> names;
  std::set<std::string> loads;
  std::string load;
  for (const SuiteCell& cell : suite.cells) {
    expect(names.insert(cell.name).second, "a name of its own");
    expect(cell.name.find_first_of("*?|{} \n") == std::string::npos, "a name that is no pattern");
    expect(cell.name.starts_with(cell.load + "/"), "a name that begins with its load");
    expect(cell.load == load || loads.insert(cell.load).second,
           "cells of a load that lie together");
    load = cell.load;
    expect(cell.zeros.sparsity >= 0.0 && cell.zeros.sparsity <= 1.0, "a share");
    if (cell.engine() != nullptr) {
      check_engine_cell(cell, *cell.engine());
    } else {
      expect(cell.kernel()->out >= 1 && cell.kernel()->in >= 1 && cell.kernel()->tokens >= 1,
             "sizes above 0");
    }
  }
  for (const StatedFigure& figure : suite.stated) {
    expect(!figure.points.empty() && !figure.unit.empty(), "a figure with a unit");
  }
}

}  // namespace

void fuzz_one(std::string_view input) {
  const InputFolder& folder = suite_folder();
  folder.write("suite.json", input);
  const Suite suite = read_suite(folder.path() / "suite.json", folder.path());
  expect(std::ssize(suite.cells) <= kMaxSuiteCells, "a bounded number of cells");
  check_suite(suite);
}

}  // namespace sparsellm::fuzz
