#include <algorithm>
#include <cstring>

#include "engine/step_runner.h"
#include "kernels/base/comm.h"
#include "kernels/base/error.h"

namespace sparsellm {
namespace {

// A view of a list in host memory, which ops only read.
Tensor view_of(const std::vector<int32_t>& values) {
  return Tensor(const_cast<int32_t*>(values.data()), DType::i32, {std::ssize(values)}, Device{});
}

// Decode rows and prefill rows are one pass, and the host chooses: when next_logits() has returned
// nothing, the step is done.
class CpuRunner : public StepRunner {
 public:
  CpuRunner(const Decoder& decoder, const RunnerOptions& options)
      : decoder_(decoder),
        hidden_(allocate_tensor({}, DType::f32, {options.limits.step_tokens, decoder.hidden_size()},
                                "the hidden states of a step")),
        workspace_(
            {}, decoder.workspace_bytes(options.limits.step_tokens, kLogitRows, {}, options.sums)),
        threads_(options.threads),
        exec_{.device = {},
              .workspace = workspace_,
              .threads = threads_,
              .isa = options.cpu_isa,
              .neurons = options.neurons,
              .comm = options.comm} {
    if (options.comm != nullptr && options.leaves_out_sums) {
      options.comm->leave_out_sums();
    }
  }

  int launch(const RankStep& step, const KvCache& kv) override {
    require(step.decode.tables.rows() == 0, "the CPU computes all rows of a step in one pass");
    const StepTables& tables = step.prefill.tables;
    const StepInputs inputs{
        .token_ids = view_of(tables.token_ids),
        .batch = {.query_start = view_of(tables.query_start),
                  .kv_length = view_of(tables.kv_length),
                  .page_table = Tensor(const_cast<int32_t*>(tables.page_table.data()), DType::i32,
                                       {tables.requests(), tables.page_stride}, Device{}),
                  .positions = view_of(tables.positions),
                  .generated = tables.generated}};
    decoder_.forward(inputs, kv, hidden_.view.rows(0, tables.rows()), exec_);
    rows_ = &step.prefill;
    next_row_ = 0;
    next_host_row_ = 0;
    number_ = 1 - number_;  // two steps may be in flight
    return number_;
  }

  std::optional<Tensor> next_logits() override {
    while (rows_ != nullptr && next_row_ < std::ssize(rows_->tables.logit_rows)) {
      const int64_t first = next_row_;
      const int64_t count = std::min(kLogitRows, std::ssize(rows_->tables.logit_rows) - first);
      next_row_ += count;
      // They are read after the scope ends: until then nothing else uses the workspace.
      auto scratch = workspace_.scope();
      const Tensor values = scratch.tensor(DType::f32, {count, decoder_.vocab_size()});
      decoder_.logits(hidden_.view.rows(0, rows_->tables.rows()),
                      view_of(rows_->tables.logit_rows).rows(first, count), values, exec_);
      if (const int64_t wanted = move_host_rows(first, values); wanted > 0) {
        return values.rows(0, wanted);
      }
    }
    rows_ = nullptr;
    return std::nullopt;
  }

  void give_up() noexcept override { rows_ = nullptr; }
  std::span<const int32_t> finish(int) override { return {}; }
  std::span<const LogProbs> log_probs() const override { return {}; }
  void warm_up(const KvCache&) override {}

  bool samples() const override { return false; }
  ExecContext& exec() override { return exec_; }
  int64_t memory_bytes() const override { return hidden_.buffer.bytes() + workspace_.bytes(); }
  std::vector<std::pair<std::string, double>> decode_seconds() const override { return {}; }
  int64_t waits() const override { return 0; }

 private:
  // Of logits from row `first` on, those that the host looks at become the first. How many they
  // are.
  int64_t move_host_rows(int64_t first, const Tensor& values) {
    int64_t count = 0;
    for (; next_host_row_ < std::ssize(rows_->host_rows); ++next_host_row_) {
      const int64_t row = rows_->host_rows[static_cast<size_t>(next_host_row_)] - first;
      if (row >= values.size(0)) {
        break;
      }
      if (row != count) {
        std::memcpy(values.row<float>(count), values.row<float>(row),
                    static_cast<size_t>(values.size(1)) * sizeof(float));
      }
      ++count;
    }
    return count;
  }

  const Decoder& decoder_;
  OwnedTensor hidden_;  // [step_tokens, hidden_size]
  Workspace workspace_;
  ThreadPool threads_;
  ExecContext exec_;
  const RankStep::Part* rows_ = nullptr;  // of the step that is being launched
  int number_ = 0;                        // of the latest step
  int64_t next_row_ = 0;                  // of its logits
  int64_t next_host_row_ = 0;             // place in its host_rows
};

}  // namespace

std::unique_ptr<StepRunner> make_cpu_runner(const Decoder& decoder, const RunnerOptions& options) {
  return std::make_unique<CpuRunner>(decoder, options);
}

}  // namespace sparsellm
