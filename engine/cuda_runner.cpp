#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/choose.h"
#include "engine/device_tables.h"
#include "engine/step_runner.h"
#include "engine/step_tables.h"
#include "kernels/base/cuda_context.h"
#include "kernels/base/cuda_graph.h"
#include "kernels/base/error.h"
#include "kernels/base/pinned_buffer.h"
#include "kernels/base/step_trace.h"
#include "kernels/base/token_buckets.h"
#include "kernels/sample.h"
#include "kernels/take_chosen.h"

namespace sparsellm {
namespace {

// Steps of a bucket without a graph after a capture that failed, and at most, if the next ones fail
// too: a capture takes as long as some steps.
constexpr int64_t kFirstPause = 16;
constexpr int64_t kLongestPause = 4096;

// A row of the step's logits that the host looks at.
struct HostRow {
  LogitRow row;
  int64_t index = 0;  // in the tensor of logits
};

SampleRow sample_row(const LogitRow& row) {
  if (!row.choice || row.sequence->samples_on_host()) {
    return {};
  }
  const Request& request = row.sequence->request();
  return {.slot = static_cast<int32_t>(*row.choice),
          .temperature = request.sampling.temperature,
          .top_k = request.sampling.top_k,
          .top_p = request.sampling.top_p,
          .min_p = request.sampling.min_p,
          .use_banned = request.ignore_eos ? 1 : 0,
          .seed = row.sequence->seed,
          .index = row.position + 1};
}

// Decode rows run as one captured graph for each token bucket, from the embedding to the sampled
// tokens: lengths, page tables and sampling parameters lie in device memory, so that a graph is
// never patched; where a capture fails they run without a graph, and it is tried again later.
// Prefill rows are a second pass in the same step. All of a step is enqueued on one stream without
// waiting, and its tokens come back in one copy; but logits that the host has to look at are waited
// for.
class CudaRunner : public StepRunner {
 public:
  CudaRunner(const Decoder& decoder, const RunnerOptions& options)
      : decoder_(decoder),
        eos_(options.eos),
        log_(options.log),
        rows_(step_rows(options)),
        cuda_(options.device),
        decode_tables_(options.device, rows_.decode, rows_.decode, options.pages_per_request),
        prefill_tables_(options.device, options.limits.step_tokens, options.limits.max_requests,
                        options.pages_per_request),
        hidden_(allocate_tensor(
            options.device, DType::f32, {rows_.hidden, decoder.hidden_size()},
            "the hidden states of a step (a smaller number of tokens per step takes less)")),
        chosen_(allocate_tensor(options.device, DType::i32, {options.limits.max_requests},
                                "the tokens of a step")),
        banned_(allocate_tensor(options.device, DType::i32, {std::ssize(options.eos)},
                                "the ids of EOS")),
        workspace_(options.device, decoder.workspace_bytes(rows_.hidden, rows_.logits,
                                                           options.device, options.sums)),
        threads_(options.threads),
        exec_{.device = options.device,
              .workspace = workspace_,
              .threads = threads_,
              .cuda = &cuda_,
              .sums = options.sums} {
    copy_bytes(options.device, banned_.view.raw(), Device{}, eos_.data(), banned_.view.bytes());
    if (options.traces) {
      traces_.emplace();
    }
    for (Slot& slot : slots_) {
      slot.tokens =
          PinnedBuffer(options.limits.max_requests * int64_t{sizeof(int32_t)}, "a step's tokens");
      slot.done.emplace(cuda_);
    }
  }

  ~CudaRunner() override { cuda_.wait(); }  // before memory goes that enqueued work uses

  void launch(Step& step, const KvCache& kv) override {
    cuda_.make_current();
    step.slot = next_slot_;
    next_slot_ = (next_slot_ + 1) % DeviceTables::kSlots;
    try {
      enqueue(step, kv);
    } catch (...) {
      // The step has no part in what follows: its slot is free again when all it has enqueued is
      // done, and then the next one takes it, not that of a step that is still in flight.
      exec_.trace = nullptr;
      cuda_.wait();  // finish() reports errors of the device
      next_slot_ = step.slot;
      throw;
    }
  }

  void finish(Step& step) override {
    cuda_.make_current();
    const Slot& slot = slots_[static_cast<size_t>(step.slot)];
    ++waits_;
    slot.done->synchronize();
    const auto* tokens = reinterpret_cast<const int32_t*>(slot.tokens.data());
    for (const Scheduler::Chunk& chunk : step.plan.chunks) {
      if (!chunk.choice || chunk.sequence->samples_on_host()) {
        continue;
      }
      Choice& choice = step.choices[static_cast<size_t>(*chunk.choice)];
      choice.token = tokens[*chunk.choice];
      if (choice.token == kNoToken) {
        choice.error = "the model's logits contain NaN or infinity, or every token is banned";
      }
    }
  }

  void warm_up(const KvCache& kv) override {
    cuda_.make_current();
    for (int64_t bucket : token_buckets_up_to(rows_.decode)) {
      StepTables padding;
      padding.query_start.push_back(0);
      pad_decode_rows(padding, bucket);
      const std::vector<SampleRow> samples(static_cast<size_t>(bucket));
      decode_tables_.send(padding, samples, next_slot_, cuda_);
      if (traces_) {
        exec_.trace = &latest_trace(bucket);
      }
      run_bucket(bucket, kv);
      exec_.trace = nullptr;
      cuda_.synchronize();
    }
    latest_trace_ = nullptr;  // of padding
  }

  ExecContext& exec() override {
    cuda_.make_current();
    return exec_;
  }
  int64_t memory_bytes() const override {
    return decode_tables_.bytes() + prefill_tables_.bytes() + hidden_.buffer.bytes() +
           chosen_.buffer.bytes() + banned_.buffer.bytes() + workspace_.bytes() +
           CudaContext::kWorkspaceBytes;
  }
  int64_t waits() const override { return waits_; }
  std::vector<std::pair<std::string, double>> decode_seconds() const override {
    return latest_trace_ != nullptr ? latest_trace_->seconds()
                                    : std::vector<std::pair<std::string, double>>();
  }

 private:
  struct Slot {
    PinnedBuffer tokens;  // i32 [max_requests]: what the step chose
    std::optional<CudaEvent> done;
  };
  // The decode rows or the prefill rows of a step.
  struct Part {
    StepTables tables;
    DeviceTables::Views views;
  };

  struct Bucket {
    std::optional<CudaGraph> graph;
    bool without = false;  // for want of memory for a graph
    int64_t pause = 0;     // steps until the next try to capture one
    int64_t next_pause = kFirstPause;
  };

  void enqueue(Step& step, const KvCache& kv) {
    step.choices.resize(static_cast<size_t>(step.plan.choices));
    const std::span<const Scheduler::Chunk> chunks = step.plan.chunks;
    const auto first_prefill = std::find_if(chunks.begin(), chunks.end(),
                                            [](const Scheduler::Chunk& c) { return !c.decode; });
    const auto decode_count = static_cast<size_t>(first_prefill - chunks.begin());
    const Part decode = send_decode(chunks.first(decode_count), step.slot);
    const Part prefill = send_prefill(chunks.subspan(decode_count), step.slot);

    // Before this step's tokens take the place of those of the step before.
    take_unknown_ids(decode);
    take_unknown_ids(prefill);
    run_decode(decode, kv, step);
    run_prefill(prefill, kv, step);
    const int64_t token_bytes = step.plan.choices * int64_t{sizeof(int32_t)};
    Slot& slot = slots_[static_cast<size_t>(step.slot)];
    if (token_bytes > 0) {
      cuda_.copy_async(slot.tokens.data(), chosen_.view.raw(), token_bytes);
    }
    slot.done->record();
  }

  Part send_decode(std::span<const Scheduler::Chunk> chunks, int slot) {
    if (chunks.empty()) {
      return {};
    }
    Part part{.tables = step_tables(chunks), .views = {}};
    const int64_t bucket = token_bucket(part.tables.rows());
    // Every row has its place among the logits; those of no use are passed over.
    std::vector<SampleRow> samples(static_cast<size_t>(bucket));
    for (size_t i = 0; i < part.tables.logits.size(); ++i) {
      samples[static_cast<size_t>(part.tables.logit_rows[i])] = sample_row(part.tables.logits[i]);
    }
    pad_decode_rows(part.tables, bucket);
    decode_tables_.send(part.tables, samples, slot, cuda_);
    part.views = decode_tables_.decode_views(bucket);
    return part;
  }

  Part send_prefill(std::span<const Scheduler::Chunk> chunks, int slot) {
    if (chunks.empty()) {
      return {};
    }
    Part part{.tables = step_tables(chunks), .views = {}};
    std::vector<SampleRow> samples;
    std::transform(part.tables.logits.begin(), part.tables.logits.end(),
                   std::back_inserter(samples), sample_row);
    part.views = prefill_tables_.send(part.tables, samples, slot, cuda_);
    return part;
  }

  void take_unknown_ids(const Part& part) {
    if (part.tables.has_unknown_ids) {
      take_chosen(chosen_.view, part.views.inputs.token_ids, exec_);
    }
  }

  void run_decode(const Part& part, const KvCache& kv, Step& step) {
    const int64_t bucket = part.tables.rows();
    if (bucket == 0) {
      return;
    }
    if (traces_) {
      exec_.trace = &latest_trace(bucket);
    }
    run_bucket(bucket, kv);
    exec_.trace = nullptr;
    std::vector<HostRow> rows;
    for (size_t i = 0; i < part.tables.logits.size(); ++i) {
      if (part.tables.logits[i].sequence->samples_on_host()) {
        rows.push_back({.row = part.tables.logits[i], .index = part.tables.logit_rows[i]});
      }
    }
    if (!rows.empty()) {
      auto scratch = workspace_.scope();
      choose_on_host(rows, logits_in(scratch, bucket), step);
    }
  }

  // Of a step's part, f32 [rows, vocabulary]. They lie at the begin of the workspace, which
  // Decoder::forward() has left: also where the graph of a decode pass has put them.
  Tensor logits_in(Workspace::Scope& scratch, int64_t rows) const {
    return scratch.tensor(DType::f32, {rows, decoder_.vocab_size()});
  }

  // With the tables that were sent.
  void run_bucket(int64_t rows, const KvCache& kv) {
    Bucket& bucket = buckets_[rows];
    if (bucket.graph) {
      bucket.graph->launch();
      return;
    }
    // Run as it is the first time: what libraries set up at their first use cannot be captured.
    decode(rows, kv);
    if (!bucket.without && --bucket.pause < 0) {
      capture(rows, bucket, kv);
    }
  }

  void capture(int64_t rows, Bucket& bucket, const KvCache& kv) {
    try {
      bucket.graph.emplace(cuda_, [&] { decode(rows, kv); });
    } catch (const CaptureFailed& error) {
      bucket.pause = bucket.next_pause;
      bucket.next_pause = std::min(2 * bucket.next_pause, kLongestPause);
      if (log_ != nullptr) {
        log_->info(
            "the CUDA graph of {} decode rows could not be captured, and is tried again in {} "
            "steps; until then they are launched one kernel at a time: {}",
            rows, bucket.pause, error.what());
      }
    } catch (const OutOfMemory& error) {
      bucket.without = true;
      if (log_ != nullptr) {
        log_->warn(
            "no memory for the CUDA graph of {} decode rows, which are launched one kernel at a "
            "time instead (a smaller KV cache leaves more): {}",
            rows, error.what());
      }
    }
  }

  // The decode pass of a bucket has its own marks, which its graph sets.
  StepTrace& latest_trace(int64_t bucket) {
    latest_trace_ = &traces_->try_emplace(bucket, cuda_).first->second;
    return *latest_trace_;
  }

  void decode(int64_t bucket, const KvCache& kv) {
    const DeviceTables::Views views = decode_tables_.decode_views(bucket);
    const Tensor hidden = hidden_.view.rows(0, bucket);
    StepTrace* const trace = exec_.trace;
    if (trace != nullptr) {
      trace->start("other");
    }
    decoder_.forward(views.inputs, kv, hidden, exec_);
    auto scratch = workspace_.scope();
    const Tensor logits = logits_in(scratch, bucket);
    decoder_.logits(hidden, {}, logits, exec_);
    sample(logits, views.sample_rows, banned_.view, chosen_.view, exec_);
    if (trace != nullptr) {
      trace->mark("");
    }
  }

  void run_prefill(const Part& part, const KvCache& kv, Step& step) {
    if (part.tables.rows() == 0) {
      return;
    }
    const Tensor hidden = hidden_.view.rows(0, part.tables.rows());
    decoder_.forward(part.views.inputs, kv, hidden, exec_);
    const std::span<const LogitRow> rows = part.tables.logits;
    for (int64_t first = 0; first < std::ssize(rows); first += kLogitRows) {
      const int64_t count = std::min(kLogitRows, std::ssize(rows) - first);
      auto scratch = workspace_.scope();
      const Tensor logits = logits_in(scratch, count);
      decoder_.logits(hidden, part.views.logit_rows.rows(first, count), logits, exec_);
      sample(logits, part.views.sample_rows.rows(first, count), banned_.view, chosen_.view, exec_);
      std::vector<HostRow> host_rows;
      for (int64_t i = 0; i < count; ++i) {
        const LogitRow& row = rows[static_cast<size_t>(first + i)];
        if (row.sequence->samples_on_host()) {
          host_rows.push_back({.row = row, .index = i});
        }
      }
      choose_on_host(host_rows, logits, step);
    }
  }

  void choose_on_host(std::span<const HostRow> rows, const Tensor& logits, Step& step) {
    const int64_t vocabulary = decoder_.vocab_size();
    if (!rows.empty() && host_logits_.bytes() == 0) {
      host_logits_ = PinnedBuffer(kLogitRows * vocabulary * int64_t{sizeof(float)},
                                  "logits that the host samples from");
    }
    for (size_t first = 0; first < rows.size(); first += kLogitRows) {
      const auto some = rows.subspan(first, std::min<size_t>(kLogitRows, rows.size() - first));
      const Tensor values(host_logits_.data(), DType::f32, {std::ssize(some), vocabulary},
                          Device{});
      std::vector<LogitRow> logit_rows;
      for (const HostRow& row : some) {
        const Tensor from = logits.rows(row.index, 1);
        cuda_.copy_async(values.row<float>(std::ssize(logit_rows)), from.raw(), from.bytes());
        logit_rows.push_back(row.row);
      }
      ++waits_;
      cuda_.synchronize();
      choose(logit_rows, values, eos_, threads_, step.choices);
    }
  }

  const Decoder& decoder_;
  std::vector<int32_t> eos_;
  spdlog::logger* log_;
  StepRows rows_;
  CudaContext cuda_;
  DeviceTables decode_tables_;
  DeviceTables prefill_tables_;
  OwnedTensor hidden_;  // f32 [step_tokens, hidden_size]
  OwnedTensor chosen_;  // i32 [max_requests], by the latest step
  OwnedTensor banned_;  // i32 [EOS ids]
  Workspace workspace_;
  ThreadPool threads_;
  ExecContext exec_;
  PinnedBuffer host_logits_;  // f32 [kLogitRows, vocabulary], from the first use on
  std::array<Slot, DeviceTables::kSlots> slots_;
  int next_slot_ = 0;
  std::map<int64_t, Bucket> buckets_;                   // by their rows
  std::optional<std::map<int64_t, StepTrace>> traces_;  // by token bucket, if asked for
  StepTrace* latest_trace_ = nullptr;                   // of the latest decode pass
  int64_t waits_ = 0;
};

}  // namespace

std::unique_ptr<StepRunner> make_cuda_runner(const Decoder& decoder, const RunnerOptions& options) {
  return std::make_unique<CudaRunner>(decoder, options);
}

}  // namespace sparsellm
