#include "tools/eval/neuron_report.h"

#include <spdlog/fmt/fmt.h>

#include <limits>

#include "models/activation_sparsity.h"

namespace sparsellm {

std::string neuron_shares_text(const Engine& engine) {
  const NeuronCounts& neurons = engine.stats().neurons;
  return neurons.neurons > 0
             ? fmt::format("{:.1f} % not zero; {:.1f} % skipped", 100.0 * neurons.active_share(),
                           100.0 * neurons.skipped_share())
             : std::string();
}

std::string activation_sparsity_text(const Engine& engine) {
  const std::string settings = describe(engine.config().activation_sparsity);
  const std::string shares = neuron_shares_text(engine);
  return shares.empty() ? settings : fmt::format("{}; {}", settings, shares);
}

void add_activation_sparsity(std::string_view name, const Engine& engine, JsonWriter& json) {
  const NeuronCounts& neurons = engine.stats().neurons;
  const auto share = [&](double value) {
    return neurons.neurons > 0 ? value : std::numeric_limits<double>::quiet_NaN();  // null
  };
  json.key(name)
      .object()
      .member("mode", name_of(engine.config().activation_sparsity.mode))
      .member("skipped", share(neurons.skipped_share()))
      .member("active", share(neurons.active_share()))
      .end();
}

}  // namespace sparsellm
