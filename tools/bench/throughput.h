#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "models/weights/shares.h"
#include "tools/cli/report.h"

namespace sparsellm {

// Seconds of a step by group: linear layers by format, attention, communication, ...
using StepBreakdown = std::vector<std::pair<std::string, double>>;

// Batches of requests that start together and have the same lengths, through Engine::submit and
// step: the protocol of Flash-LLM (Xia et al. 2024, section 6.3).
struct ThroughputOptions {
  std::vector<int64_t> batches{1, 8, 16, 32, 64};
  int64_t prompt = 64;   // random tokens
  int64_t output = 512;  // tokens generated for each prompt, greedily, EOS excluded
  // Ascending, less than `output`. Each has a row of its own, before that of `output`, of the same
  // runs: a request's first tokens do not depend on how many follow. It ends when all requests have
  // so many; those that were prefilled first have more by then.
  std::vector<int64_t> shorter_outputs = {};
  int64_t step_tokens = EngineOptions().step_tokens;  // that `load` gives an engine
  int64_t repeats = 3;          // measured runs of a batch, after a short one that is not
  uint64_t seed = 0;            // of the prompts
  int64_t adjusted_every = 0;   // the first of so many requests is adjusted; 0: none
  bool scores_prompts = false;  // all of them
  int ranks = 1;                // that share the model, each with a GPU unless they are on the CPU
  Device device;                // of rank 0 of the engines; on the CPU there is no GPU-second
  double read_bandwidth = 0.0;  // bytes per second of one GPU, or of the host; 0: not known
  std::string pattern = {};     // of the zeros in random weights, for the report
  // Of the engine's latest step. Empty: no table of groups.
  std::function<StepBreakdown(const Engine& engine)> breakdown;
  // Called after every step, with steps done and in all, both estimated; what it throws ends the
  // benchmark.
  std::function<void(int64_t done, int64_t total)> progress;
};

// Loads an engine for up to `max_requests` requests of prompt + output tokens.
using LoadEngine = std::function<Engine(int64_t max_requests)>;

// Adds the table "throughput", a row for each batch and output, in their order:
//   tokens/GPU-s  generated tokens / (seconds from the first submit to the last token * GPUs),
//                 prefill included; the spread over the repeats; on the CPU titled tokens/s, all
//                 ranks together
//   prefill       until every request has its first token; the spread over the repeats
//   decode step   of a full decode step, one that gives every request one token, after the prefill:
//                 the spread over these steps of all repeats; first and last: of a run's, the
//                 median of the repeats
//   read          by such a step: the weights without embedding tables that are only looked up; the
//                 keys and values in the middle of the continuation, when each request has
//                 prompt + output / 2 tokens
//   bandwidth     of the measured read bandwidth: what is read in the median step; with activation
//                 sparsity empty, as the weights that are read, which nobody counts
//   memory        weights, workspace and the pages of the KV cache that were in use at the same
//   time
// What is read and what is in memory is of rank 0 alone: of each GPU. And with `breakdown` the
// table "breakdown", a row for each batch, output and group: the spread over the full decode steps
// and the share of the median step; "rest of the step" is what the groups leave. With activation
// sparsity there is also the table "activation sparsity" (neuron_table.h).
//
// One engine for all: it is loaded for the largest batch, and after an Error of memory that ran out
// for the next smaller one. A batch that does not fit, also not with the KV cache that the engine
// has, gets a row with the Error in place of figures, and the next one goes on. Throws other
// Errors.
void bench_throughput(const ThroughputOptions& options, const LoadEngine& load,
                      ReportWriter& report);

// Of the column tokens_per_gpu_second, whose key is the same on every device: tokens/GPU-s, on the
// CPU tokens/s.
const char* throughput_unit(Device device);
// What its tokens per second are divided by.
double gpus_of(Device device, int ranks);

// Bytes of weights that a decode step reads, of all that a rank has.
int64_t weight_bytes_per_step(const ModelConfig& config, int64_t weight_bytes,
                              const Shard& shard = {});

}  // namespace sparsellm
