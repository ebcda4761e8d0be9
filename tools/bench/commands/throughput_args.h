#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/bench/args.h"
#include "tools/bench/arrivals.h"
#include "tools/bench/engine.h"
#include "tools/bench/requests.h"
#include "tools/bench/server_url.h"
#include "tools/bench/throughput.h"
#include "tools/cli/cli_fwd.h"

namespace sparsellm {

// Of a server that is measured instead of an engine.
struct ServerBenchArgs {
  std::optional<ServerUrl> url;
  std::string api_key_file;
  std::string served_model_name;  // empty: the first that the server lists
  std::optional<int64_t> vocabulary;
  std::optional<int64_t> concurrency;  // absent: requests come by a rate
};

// What the options of `throughput` are parsed into.
struct ThroughputArgs {
  BenchModelArgs model;
  OutputArgs output;
  std::vector<int64_t> batches = ThroughputOptions().batches;
  LengthRange prompt{64, 64};
  std::optional<int64_t> step_tokens;
  int64_t repeats = ThroughputOptions().repeats;
  bool breakdown = false;
  int64_t adjusted_every = ThroughputOptions().adjusted_every;
  bool scores_prompts = false;
  bool warm_up = true;
  bool no_sums = false;  // over ranks
  std::optional<double> arrival_rate;
  int64_t requests = ArrivalOptions().requests;
  ServerBenchArgs server;
  std::optional<bool> layers;
  std::optional<double> predicted;  // with `zeros`, of predict
  std::optional<double> zeros;      // of exact, too
};

void add_throughput_options(CLI::App& command, ThroughputArgs& args);

// Throws UsageError for options of `command` that have no meaning with the others.
void check_throughput_options(const CLI::App& command, const ThroughputArgs& args);

}  // namespace sparsellm
