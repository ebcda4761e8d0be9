#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/device_tables.h"
#include "engine/sampling_tables.h"
#include "engine/step_runner.h"
#include "kernels/adjust_logits.h"
#include "kernels/base/comm_cuda.h"
#include "kernels/base/cuda_context.h"
#include "kernels/base/cuda_graph.h"
#include "kernels/base/error.h"
#include "kernels/base/pinned_buffer.h"
#include "kernels/base/step_trace.h"
#include "kernels/base/token_buckets.h"
#include "kernels/log_probs.h"
#include "kernels/sample.h"
#include "kernels/take_chosen.h"

namespace sparsellm {
namespace {

// Steps of a bucket without a graph after a capture that failed, and at most, if the next ones fail
// too: a capture takes as long as some steps.
constexpr int64_t kFirstPause = 16;
constexpr int64_t kLongestPause = 4096;

// Decode rows run as one captured graph for each token bucket, from the embedding to the logits:
// lengths and page tables lie in device memory, so that a graph is never patched; where a capture
// fails they run without a graph, and it is tried again later. Sampling comes after the graph, so
// that only steps with rows that want more than a token have kernels for it. Prefill rows are a
// second pass in the same step. All of a step is enqueued on one stream without waiting, and its
// tokens come back in one copy, its log-probabilities in another; but logits that the host has to
// look at are waited for.
class CudaRunner : public StepRunner {
 public:
  CudaRunner(const Decoder& decoder, const RunnerOptions& options)
      : decoder_(decoder),
        log_(options.log),
        rows_(step_rows(options)),
        cuda_(options.device),
        comm_(communicator(options)),
        decode_tables_(options.device, rows_.decode, rows_.decode, options.pages_per_request),
        prefill_tables_(options.device, options.limits.step_tokens, options.limits.max_requests,
                        options.pages_per_request),
        sampling_tables_(options.device, sampling_limits(decoder, options)),
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
              .sums = options.sums,
              .comm = comm_.get()} {
    copy_bytes(options.device, banned_.view.raw(), Device{}, options.eos.data(),
               banned_.view.bytes());
    if (options.traces) {
      traces_.emplace();
    }
    for (Slot& slot : slots_) {
      slot.tokens =
          PinnedBuffer(options.limits.max_requests * int64_t{sizeof(int32_t)}, "a step's tokens");
      slot.done.emplace(cuda_);
    }
  }

  ~CudaRunner() override { wait_out(); }  // before memory goes that enqueued work uses

  int launch(const RankStep& step, const KvCache& kv) override {
    cuda_.make_current();
    const int slot = next_slot_;
    next_slot_ = (next_slot_ + 1) % DeviceTables::kSlots;
    launch_.emplace(Launch{.step = step, .kv = kv, .slot = slot});
    const SamplingTables::StepViews sampling = sampling_tables_.send(step, slot, cuda_);
    const int64_t decode_rows = step.decode.tables.rows();
    Rows decode{.part = &step.decode, .tables = {}, .sampling = sampling.decode};
    if (decode_rows > 0) {
      decode_tables_.send(step.decode.tables, step.decode.samples, slot, cuda_);
      decode.tables = decode_tables_.decode_views(decode_rows);
    }
    launch_->prefill = {.part = &step.prefill, .tables = {}, .sampling = sampling.prefill};
    if (step.prefill.tables.rows() > 0) {
      launch_->prefill.tables =
          prefill_tables_.send(step.prefill.tables, step.prefill.samples, slot, cuda_);
    }
    // Before this step's tokens take the place of those of the step before.
    take_unknown_ids(decode);
    take_unknown_ids(launch_->prefill);
    if (decode_rows > 0) {
      run_decode(decode, kv);
    }
    return slot;
  }

  std::optional<Tensor> next_logits() override {
    cuda_.make_current();
    std::optional<Tensor> logits = decode_logits();
    if (!logits) {
      logits = prefill_logits();
    }
    if (!logits) {
      end_launch();
    }
    return logits;
  }

  // The step has no part in what follows: its slot is free again when all it has enqueued is done,
  // and then the next one takes it, not that of a step that is still in flight.
  void give_up() noexcept override {
    exec_.trace = nullptr;
    if (launch_) {
      wait_out();  // finish() reports errors of the device
      next_slot_ = launch_->slot;
      launch_.reset();
    }
  }

  std::span<const int32_t> finish(int number) override {
    cuda_.make_current();
    const Slot& slot = slots_[static_cast<size_t>(number)];
    wait_for([&] { slot.done->synchronize(); });
    finished_slot_ = number;
    return {reinterpret_cast<const int32_t*>(slot.tokens.data()),
            static_cast<size_t>(slot.choices)};
  }

  std::span<const LogProbs> log_probs() const override {
    return sampling_tables_.log_probs(finished_slot_);
  }

  void warm_up(const KvCache& kv) override {
    cuda_.make_current();
    for (int64_t bucket : token_buckets_up_to(rows_.decode)) {
      RankStep::Part padding;
      pad_decode_rows(padding.tables, bucket);
      padding.samples.resize(static_cast<size_t>(bucket));
      decode_tables_.send(padding.tables, padding.samples, next_slot_, cuda_);
      run_decode({.part = &padding, .tables = decode_tables_.decode_views(bucket), .sampling = {}},
                 kv);
      synchronize();
    }
    latest_trace_ = nullptr;  // of padding
  }

  bool samples() const override { return true; }
  ExecContext& exec() override {
    cuda_.make_current();
    return exec_;
  }
  int64_t memory_bytes() const override {
    return decode_tables_.bytes() + prefill_tables_.bytes() + sampling_tables_.bytes() +
           hidden_.buffer.bytes() + chosen_.buffer.bytes() + banned_.buffer.bytes() +
           workspace_.bytes() + CudaContext::kWorkspaceBytes +
           (comm_ != nullptr ? comm_bytes(comm_->size()) : 0);
  }
  int64_t waits() const override { return waits_; }
  std::vector<std::pair<std::string, double>> decode_seconds() const override {
    return latest_trace_ != nullptr ? latest_trace_->seconds()
                                    : std::vector<std::pair<std::string, double>>();
  }

 private:
  struct Slot {
    PinnedBuffer tokens;  // i32 [max_requests]: what the step chose
    int64_t choices = 0;
    std::optional<CudaEvent> done;
  };
  // A part of a step, and its tables on the device.
  struct Rows {
    const RankStep::Part* part = nullptr;
    DeviceTables::Views tables = {};
    SamplingTables::Views sampling = {};
  };
  // A step that is being launched, and how far it has come.
  struct Launch {
    const RankStep& step;
    const KvCache& kv;
    int slot = 0;
    Rows prefill = {};
    int64_t decode_host_rows = 0;  // that the host has seen
    bool prefill_begun = false;
    int64_t prefill_logits = 0;     // rows that are computed
    int64_t prefill_host_rows = 0;  // of them, that the host has seen
  };

  struct Bucket {
    std::optional<CudaGraph> graph = {};
    bool without = false;  // for want of memory for a graph, or with NCCL's kernels in it
    int64_t pause = 0;     // steps until the next try to capture one
    int64_t next_pause = kFirstPause;
  };

  std::unique_ptr<CudaCommunicator> communicator(const RunnerOptions& options) const {
    if (options.comm == nullptr) {
      return nullptr;
    }
    auto comm = make_cuda_communicator(*options.comm, cuda_,
                                       {.timeout = options.comm_timeout, .hosts_meet = true});
    require(options.sums == Sums::fastest || comm->why_no_own_kernels().empty(),
            "sums of several ranks are deterministic only where their GPUs reach each other's "
            "memory: {}",
            comm->why_no_own_kernels());
    if (options.leaves_out_sums) {
      comm->leave_out_sums();
    }
    return comm;
  }

  // Where there are several ranks, the result is complete only if none of them has failed.
  template <class Wait>
  void wait_for(Wait&& wait) {
    ++waits_;
    const DeviceWait waits(comm_.get());
    wait();
    if (comm_ != nullptr) {
      comm_->check();
    }
  }
  void synchronize() {
    wait_for([&] { cuda_.synchronize(); });
    --waits_;  // not one of a step
  }
  void wait_out() noexcept {
    const DeviceWait waits(comm_.get());
    cuda_.wait();
  }

  void take_unknown_ids(const Rows& rows) {
    if (rows.part->tables.has_unknown_ids) {
      take_chosen(chosen_.view, rows.tables.inputs.token_ids, exec_);
    }
  }

  void run_decode(const Rows& rows, const KvCache& kv) {
    const int64_t bucket = rows.part->tables.rows();
    if (traces_) {
      exec_.trace = &latest_trace(bucket);
    }
    run_bucket(bucket, kv);
    exec_.trace = nullptr;
    auto scratch = workspace_.scope();
    choose(rows, 0, logits_in(scratch, bucket));
    if (traces_) {
      latest_trace_->stop();
    }
  }

  // Those of a list that ascends by rows of logits which are of the rows [first, first + count):
  // where they begin, and how many they are.
  template <class Row>
  static std::pair<int64_t, int64_t> among(const std::vector<Row>& list, int64_t first,
                                           int64_t count) {
    const auto place = [&](int64_t row) {
      return std::ranges::lower_bound(list, row, {}, [](const Row& r) { return int64_t{r.row}; }) -
             list.begin();
    };
    return {place(first), place(first + count) - place(first)};
  }

  // Samples the tokens of some rows of logits, of which the first in `logits` is row `first`, and
  // computes the requested log-probabilities; rows that the host samples are left to it. Rows whose
  // log-probabilities are requested have their unadjusted logits again after it.
  void choose(const Rows& rows, int64_t first, const Tensor& logits) {
    const int64_t count = logits.size(0);
    const auto [adjusted_begin, adjusted] = among(rows.part->adjusted_rows, first, count);
    const auto [log_probs_begin, told] = among(rows.part->log_prob_rows, first, count);
    const SamplingTables::Views& tables = rows.sampling;
    if (adjusted > 0) {
      adjust_logits(tables.adjusted_rows.rows(adjusted_begin, adjusted),
                    rows.tables.inputs.token_ids, tables.adjustments, first, logits, exec_);
    }
    sample(logits, rows.tables.sample_rows.rows(first, count), banned_.view, chosen_.view, exec_);
    if (told == 0) {
      return;
    }
    if (adjusted > 0) {
      restore_logits(tables.adjusted_rows.rows(adjusted_begin, adjusted), tables.adjustments, first,
                     logits, exec_);
    }
    sparsellm::log_probs(tables.log_prob_rows.rows(log_probs_begin, told), chosen_.view, first,
                         logits, tables.log_probs.rows(log_probs_begin, told), exec_);
  }

  // The next logits of decode rows that the host looks at.
  std::optional<Tensor> decode_logits() {
    const std::span<const int32_t> rows = launch_->step.decode.host_rows;
    const int64_t seen = launch_->decode_host_rows;
    if (seen == std::ssize(rows)) {
      return std::nullopt;
    }
    const int64_t count = std::min(kLogitRows, std::ssize(rows) - seen);
    launch_->decode_host_rows += count;
    auto scratch = workspace_.scope();
    return to_host(rows.subspan(static_cast<size_t>(seen), static_cast<size_t>(count)),
                   logits_in(scratch, launch_->step.decode.tables.rows()), 0);
  }

  // Goes on with the prefill rows, up to the next logits that the host looks at.
  std::optional<Tensor> prefill_logits() {
    const RankStep::Part& part = launch_->step.prefill;
    if (part.tables.rows() == 0) {
      return std::nullopt;
    }
    const Tensor hidden = hidden_.view.rows(0, part.tables.rows());
    if (!launch_->prefill_begun) {
      decoder_.forward(launch_->prefill.tables.inputs, launch_->kv, hidden, exec_);
      launch_->prefill_begun = true;
    }
    while (launch_->prefill_logits < std::ssize(part.samples)) {
      const int64_t first = launch_->prefill_logits;
      const int64_t count = std::min(kLogitRows, std::ssize(part.samples) - first);
      auto scratch = workspace_.scope();
      const Tensor logits = logits_in(scratch, count);
      decoder_.logits(hidden, launch_->prefill.tables.logit_rows.rows(first, count), logits, exec_);
      choose(launch_->prefill, first, logits);
      launch_->prefill_logits += count;
      const auto rows =
          std::span(part.host_rows).subspan(static_cast<size_t>(launch_->prefill_host_rows));
      const auto end = std::lower_bound(rows.begin(), rows.end(), first + count);
      if (const auto wanted = rows.first(static_cast<size_t>(end - rows.begin()));
          !wanted.empty()) {
        launch_->prefill_host_rows += std::ssize(wanted);
        return to_host(wanted, logits, first);
      }
    }
    return std::nullopt;
  }

  void end_launch() {
    Slot& slot = slots_[static_cast<size_t>(launch_->slot)];
    slot.choices = launch_->step.choices;
    if (slot.choices > 0) {
      cuda_.copy_async(slot.tokens.data(), chosen_.view.raw(),
                       slot.choices * int64_t{sizeof(int32_t)});
    }
    sampling_tables_.fetch_log_probs(launch_->slot, cuda_);
    slot.done->record();
    launch_.reset();
  }

  // Of a step's part, f32 [rows, vocabulary]. They lie at the begin of the workspace, which
  // Decoder::forward() has left: also where the graph of a decode pass has put them.
  Tensor logits_in(Workspace::Scope& scratch, int64_t rows) const {
    return scratch.tensor(DType::f32, {rows, decoder_.vocab_size()});
  }

  // Graphs with its kernels may hang where several GPUs belong to one process.
  bool has_nccl_alone() const { return comm_ != nullptr && !comm_->has(CommWay::one_shot_packets); }

  // With the tables that were sent.
  void run_bucket(int64_t rows, const KvCache& kv) {
    Bucket& bucket = buckets_.try_emplace(rows, Bucket{.without = has_nccl_alone()}).first->second;
    if (bucket.graph) {
      if (comm_ != nullptr) {
        comm_->launch_together([&] { bucket.graph->launch(); });
      } else {
        bucket.graph->launch();
      }
      return;
    }
    // Run as it is the first time: what libraries set up at their first use cannot be captured.
    decode(rows, kv);
    if (!bucket.without && --bucket.pause < 0) {
      capture(rows, bucket, kv);
    }
  }

  // Either all ranks use a graph or none does, since captured sums may take other kernels. Before
  // they capture, all ranks wait for their devices: making a graph may wait for the device too, and
  // would wait forever for a kernel that waits for another rank.
  void capture_together(int64_t rows, Bucket& bucket, const KvCache& kv) {
    std::string problem;
    synchronize();
    comm_->agree({});
    try {
      bucket.graph.emplace(cuda_, [&] { decode(rows, kv); });
    } catch (const CaptureFailed& error) {
      problem = error.what();
    } catch (const OutOfMemory& error) {
      problem = error.what();
    }
    try {
      comm_->agree(problem);
    } catch (const Error& error) {
      comm_->check();
      bucket.graph.reset();
      throw CaptureFailed(error.what());
    }
  }

  void capture(int64_t rows, Bucket& bucket, const KvCache& kv) {
    try {
      if (comm_ != nullptr) {
        capture_together(rows, bucket, kv);
      } else {
        bucket.graph.emplace(cuda_, [&] { decode(rows, kv); });
      }
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
  }

  // At most kLogitRows rows of a step's logits, of which the first in `logits` is row `first`.
  Tensor to_host(std::span<const int32_t> rows, const Tensor& logits, int64_t first) {
    const int64_t vocabulary = decoder_.vocab_size();
    if (host_logits_.bytes() == 0) {
      host_logits_ = PinnedBuffer(kLogitRows * vocabulary * int64_t{sizeof(float)},
                                  "logits that the host samples from");
    }
    const Tensor values(host_logits_.data(), DType::f32, {std::ssize(rows), vocabulary}, Device{});
    for (int64_t i = 0; i < std::ssize(rows); ++i) {
      const Tensor from = logits.rows(rows[static_cast<size_t>(i)] - first, 1);
      cuda_.copy_async(values.row<float>(i), from.raw(), from.bytes());
    }
    wait_for([&] { cuda_.synchronize(); });
    return values;
  }

  const Decoder& decoder_;
  spdlog::logger* log_;
  StepRows rows_;
  CudaContext cuda_;
  std::unique_ptr<CudaCommunicator> comm_;  // none: there is one rank
  DeviceTables decode_tables_;
  DeviceTables prefill_tables_;
  SamplingTables sampling_tables_;
  OwnedTensor hidden_;  // f32 [step_tokens, hidden_size]
  OwnedTensor chosen_;  // i32 [max_requests], by the latest step
  OwnedTensor banned_;  // i32 [EOS ids]
  Workspace workspace_;
  ThreadPool threads_;
  ExecContext exec_;
  PinnedBuffer host_logits_;  // f32 [kLogitRows, vocabulary], from the first use on
  std::array<Slot, DeviceTables::kSlots> slots_;
  int next_slot_ = 0;
  int finished_slot_ = 0;  // of the step that finish() has waited for last
  std::optional<Launch> launch_;
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
