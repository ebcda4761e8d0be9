#include "tests/testing/reference.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "tests/testing/paths.h"

namespace sparsellm::testing {
namespace {

template <class T>
std::optional<T> optional_value(const nlohmann::json& object, const char* key) {
  const auto it = object.find(key);
  if (it == object.end() || it->is_null()) {
    return {};
  }
  return it->get<T>();
}

std::vector<std::filesystem::path> checkpoints_in(const char* folder) {
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::directory_iterator(data(folder))) {
    if (std::filesystem::exists(entry.path() / "reference.json")) {
      found.push_back(entry.path());
    }
  }
  std::sort(found.begin(), found.end());
  require(!found.empty(), "no checkpoints in {}", data(folder).string());
  return found;
}

}  // namespace

Reference read_reference(const std::filesystem::path& directory) {
  std::ifstream file(directory / "reference.json");
  const nlohmann::json json = nlohmann::json::parse(file);
  Reference reference;
  reference.directory = directory;
  for (const nlohmann::json& entry : json.at("greedy")) {
    reference.greedy.push_back(
        {.prompt = optional_value<std::string>(entry, "prompt"),
         .ids = entry.at("ids").get<std::vector<int32_t>>(),
         .top5_ids = entry.at("top5_ids").get<std::vector<int32_t>>(),
         .top5_logits = entry.at("top5_logits").get<std::vector<float>>(),
         .last_logits = optional_value<std::vector<float>>(entry, "prompt_logits_last")
                            .value_or(std::vector<float>()),
         .output_ids = entry.at("output_ids").get<std::vector<int32_t>>(),
         .text = optional_value<std::string>(entry, "text")});
  }
  if (json.contains("tokenizer_samples") && json["tokenizer_samples"].is_array()) {
    for (const nlohmann::json& entry : json["tokenizer_samples"]) {
      reference.tokenizer_samples.push_back({.text = entry.at("text").get<std::string>(),
                                             .ids = entry.at("ids").get<std::vector<int32_t>>(),
                                             .parse_special = entry.value("parse_special", false)});
    }
  }
  if (json.contains("ppl_fp32")) {
    reference.perplexity = json["ppl_fp32"].at("text/peter_pan.txt").get<double>();
  }
  return reference;
}

std::vector<std::filesystem::path> trained_checkpoints() { return checkpoints_in("models"); }

std::vector<std::filesystem::path> tiny_checkpoints() { return checkpoints_in("tiny"); }

std::vector<std::filesystem::path> all_checkpoints() {
  std::vector<std::filesystem::path> all = trained_checkpoints();
  const std::vector<std::filesystem::path> tiny = tiny_checkpoints();
  all.insert(all.end(), tiny.begin(), tiny.end());
  return all;
}

}  // namespace sparsellm::testing
