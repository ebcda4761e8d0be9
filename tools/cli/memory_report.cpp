#include "tools/cli/memory_report.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/base/json_writer.h"
#include "sparse/dense/dense.h"
#include "tools/cli/args.h"

namespace sparsellm {
namespace {

double percent_zeros(const FormatSum& sum) {
  const auto nonzeros = static_cast<double>(*sum.nonzeros);
  return sum.elements > 0 ? 100.0 - 100.0 * nonzeros / static_cast<double>(sum.elements) : 0.0;
}

// Of requests for which it is said how many fit: powers of two, and the whole context.
std::vector<int64_t> lengths_of(const MemoryFit& fit) {
  std::vector<int64_t> lengths;
  for (int64_t tokens = 256; fit.kv_tokens > 0 && tokens < fit.context_size; tokens *= 2) {
    lengths.push_back(tokens);
  }
  if (fit.kv_tokens > 0) {
    lengths.push_back(fit.context_size);
  }
  return lengths;
}

}  // namespace

std::string weight_rows(std::span<const FormatSum> linears, int64_t weight_bytes) {
  const std::string_view dense_name = dense_format().name();
  int64_t dense_bytes = weight_bytes;
  for (const FormatSum& sum : linears) {
    dense_bytes += sum.dense_bytes - sum.bytes;
  }
  const bool sparse = std::any_of(linears.begin(), linears.end(),
                                  [&](const FormatSum& sum) { return sum.format != dense_name; });
  if (!sparse) {
    return fmt::format("weights  {:10.1f} MiB, {}\n", mib(weight_bytes), dense_name);
  }
  std::string text = fmt::format("weights  {:10.1f} MiB; {:.1f} if all were dense\n",
                                 mib(weight_bytes), mib(dense_bytes));
  for (const FormatSum& sum : linears) {
    text += fmt::format("{:<9}{:10.1f} MiB in linear layers", sum.format, mib(sum.bytes));
    if (sum.nonzeros) {
      text += fmt::format(", {:.1f} % zeros; {:.1f} if dense", percent_zeros(sum),
                          mib(sum.dense_bytes));
    }
    text += "\n";
  }
  return text;
}

std::string fit_table(const ModelConfig& config, const EngineOptions& options,
                      const MemoryFit& fit) {
  const auto kv_bytes = [&](int64_t tokens) { return mib(tokens * fit.kv_per_token); };
  std::string text = fmt::format("model    {}, {} layers, in {}\n", config.architecture,
                                 config.num_layers, name_of(fit.dtype));
  text += fmt::format("device   {}: {:.1f} MiB", to_string(options.device), mib(fit.device.total));
  text += options.device.is_cuda()
              ? fmt::format(", of which {:.1f} are free\n", mib(fit.device.free))
              : "\n";
  if (const int ranks = options.tensor_parallel.degree; ranks > 1) {
    text += fmt::format("ranks    {}; all of this is of the one with the least room\n", ranks);
  }
  text += weight_rows(fit.linear_weights, fit.weights);
  for (const FormatChoice& choice : fit.formats) {
    text += fmt::format("auto     {}\n", to_string(choice, FormatRules::built_in()));
  }
  text += fmt::format("step     {:10.1f} MiB for {} tokens of {} requests\n", mib(fit.step),
                      options.step_tokens, options.max_requests);
  if (fit.run_kv_tokens == 0) {
    if (fit.fits_with_small_records) {
      text += "This does not fit, but does with --records size.\n";
      return text;
    }
    text += "This does not fit: a smaller --kv-memory, --ctx-size or --batch-size takes less";
    text += options.device.is_cuda() ? ", --gpu-memory-utilization allows more.\n" : ".\n";
    return text;
  }
  text += fmt::format("KV cache {:10.1f} MiB for {} tokens, {} bytes each\n",
                      kv_bytes(fit.run_kv_tokens), fit.run_kv_tokens, fit.kv_per_token);
  if (fit.kv_tokens > fit.run_kv_tokens) {
    text += fmt::format("at most  {:10.1f} MiB for {} tokens, with --parallel or --kv-memory\n",
                        kv_bytes(fit.kv_tokens), fit.kv_tokens);
  }
  for (int64_t tokens : lengths_of(fit)) {
    text += fmt::format("requests {:10} of {} tokens at once{}\n", fit.requests_of(tokens), tokens,
                        fit.kv_tokens > fit.run_kv_tokens ? ", at most" : "");
  }
  return text;
}

std::string fit_json(const ModelConfig& config, const EngineOptions& options,
                     const MemoryFit& fit) {
  JsonWriter json;
  json.object()
      .member("architecture", config.architecture)
      .member("layers", config.num_layers)
      .member("dtype", name_of(fit.dtype))
      .member("device", to_string(options.device))
      .member("ranks", options.tensor_parallel.degree)
      .member("device_bytes", fit.device.total)
      .member("device_free_bytes", fit.device.free)
      .member("fits", fit.run_kv_tokens > 0)
      .member("fits_with_small_records", fit.fits_with_small_records)
      .member("weight_bytes", fit.weights);
  json.key("linear_weights").array();
  for (const FormatSum& sum : fit.linear_weights) {
    json.object()
        .member("format", sum.format)
        .member("bytes", sum.bytes)
        .member("dense_bytes", sum.dense_bytes)
        .member("elements", sum.elements)
        .key("nonzeros");
    sum.nonzeros ? json.value(*sum.nonzeros) : json.null();
    json.end();
  }
  json.end().key("format_choices").array();
  for (const FormatChoice& choice : fit.formats) {
    json.object()
        .member("layers", choice.kind.count())
        .member("out", choice.kind.layer.rows)
        .member("in", choice.kind.layer.columns)
        .member("format", choice.in.format)
        .member("layout", choice.in.layout)
        .member("by", name_of(choice.by))
        .end();
  }
  json.end()
      .member("step_bytes", fit.step)
      .member("step_tokens", options.step_tokens)
      .member("parallel", options.max_requests)
      .member("context", fit.context_size)
      .member("kv_bytes_per_token", fit.kv_per_token)
      .member("kv_tokens", fit.run_kv_tokens)
      .member("kv_bytes", fit.run_kv_tokens * fit.kv_per_token)
      .member("most_kv_tokens", fit.kv_tokens)
      .member("most_kv_bytes", fit.kv_tokens * fit.kv_per_token);
  json.key("requests_at_most").array();
  for (int64_t tokens : lengths_of(fit)) {
    json.object().member("tokens", tokens).member("requests", fit.requests_of(tokens)).end();
  }
  json.end().end();
  return std::move(json).text() + "\n";
}

}  // namespace sparsellm
