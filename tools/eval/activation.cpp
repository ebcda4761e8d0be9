#include "tools/eval/activation.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <iterator>

namespace sparsellm {
namespace {

double share(int64_t part, const VoteHistogram& of) {
  const int64_t all = of.zeros() + of.active();
  return all > 0 ? static_cast<double>(part) / static_cast<double>(all) : 0.0;
}

NeuronStatistics::Layer sum_of(const std::vector<NeuronStatistics::Layer>& layers) {
  NeuronStatistics::Layer sum{.votes = layers.front().votes, .unions = layers.front().unions};
  for (size_t i = 1; i < layers.size(); ++i) {
    sum.votes.add(layers[i].votes);
    sum.unions.add(layers[i].unions);
  }
  return sum;
}

// Calls row(name, layer) for each layer, and for all.
template <class AddRow>
void for_each_row(const NeuronStatistics& statistics, AddRow row) {
  const std::vector<NeuronStatistics::Layer>& layers = statistics.layers();
  for (size_t i = 0; i < layers.size(); ++i) {
    row(fmt::format("{}", i), layers[i]);
  }
  row("all", sum_of(layers));
}

void add_layer(const NeuronStatistics::Layer& layer, JsonWriter& json) {
  const VoteHistogram& votes = layer.votes;
  json.member("zeros", share(votes.zeros(), votes)).key("alphas").array();
  for (const float alpha : votes.alphas()) {
    json.object()
        .member("alpha", static_cast<double>(alpha))
        .member("skipped", share(votes.skipped(alpha), votes))
        .member("precision", votes.precision(alpha))
        .member("recall", votes.recall(alpha))
        .end();
  }
  json.end().key("unions").array();
  for (const ActiveUnions::Group& group : layer.unions.groups) {
    if (group.neurons > 0) {  // else there were never so many windows at once
      json.object().member("tokens", group.tokens).member("active", group.share()).end();
    }
  }
  json.end();
}

}  // namespace

std::string neuron_tables(const NeuronStatistics& statistics) {
  std::string text;
  const auto print = std::back_inserter(text);
  for (const float alpha : statistics.layers().front().votes.alphas()) {
    fmt::format_to(print, "\nalpha {}\nlayer   zeros  skipped  precision  recall\n", alpha);
    for_each_row(statistics, [&](const std::string& name, const NeuronStatistics::Layer& layer) {
      const VoteHistogram& votes = layer.votes;
      fmt::format_to(print, "{:>5}  {:.4f}   {:.4f}     {:.4f}  {:.4f}\n", name,
                     share(votes.zeros(), votes), share(votes.skipped(alpha), votes),
                     votes.precision(alpha), votes.recall(alpha));
    });
  }
  fmt::format_to(print, "\nactive for at least one of so many tokens\nlayer");
  for (const ActiveUnions::Group& group : ActiveUnions().groups) {
    fmt::format_to(print, "{:>8}", group.tokens);
  }
  text += '\n';
  for_each_row(statistics, [&](const std::string& name, const NeuronStatistics::Layer& layer) {
    fmt::format_to(print, "{:>5}", name);
    for (const ActiveUnions::Group& group : layer.unions.groups) {
      text += group.neurons > 0 ? fmt::format("  {:.4f}", group.share()) : "       -";
    }
    text += '\n';
  });
  return text;
}

void add_neurons(const NeuronStatistics& statistics, JsonWriter& json) {
  json.key("layers").array();
  for (const NeuronStatistics::Layer& layer : statistics.layers()) {
    json.object();
    add_layer(layer, json);
    json.end();
  }
  json.end().key("all").object();
  add_layer(sum_of(statistics.layers()), json);
  json.end();
}

}  // namespace sparsellm
