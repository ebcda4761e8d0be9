#include <algorithm>

#include "engine/choose.h"
#include "engine/step_runner.h"
#include "engine/step_tables.h"
#include "kernels/take_chosen.h"

namespace sparsellm {
namespace {

// A view of a list in host memory.
Tensor view_of(std::vector<int32_t>& values) {
  return Tensor(values.data(), DType::i32, {std::ssize(values)}, Device{});
}

constexpr std::string_view kOfF16 =
    "the model's logits contain NaN or infinity; a key or value may be beyond f16, in which the KV "
    "cache holds it: --kv-dtype f32 has no such limit";

// Decode rows and prefill rows are one pass; a step is computed when launch() returns.
class CpuRunner : public StepRunner {
 public:
  CpuRunner(const Decoder& decoder, const RunnerOptions& options)
      : decoder_(decoder),
        eos_(options.eos),
        hidden_(allocate_tensor({}, DType::f32, {options.limits.step_tokens, decoder.hidden_size()},
                                "the hidden states of a step")),
        workspace_(
            {}, decoder.workspace_bytes(options.limits.step_tokens, kLogitRows, {}, options.sums)),
        threads_(options.threads),
        exec_{.device = {},
              .workspace = workspace_,
              .threads = threads_,
              .isa = options.cpu_isa,
              .neurons = options.neurons},
        chosen_(static_cast<size_t>(options.limits.max_requests)) {}

  void launch(Step& step, const KvCache& kv) override {
    StepTables tables = step_tables(step.plan.chunks);
    const StepInputs inputs{
        .token_ids = view_of(tables.token_ids),
        .batch = {.query_start = view_of(tables.query_start),
                  .kv_length = view_of(tables.kv_length),
                  .page_table = Tensor(tables.page_table.data(), DType::i32,
                                       {tables.requests(), tables.page_stride}, Device{}),
                  .positions = view_of(tables.positions),
                  .generated = tables.generated}};
    take_chosen(view_of(chosen_), inputs.token_ids, exec_);
    const Tensor hidden = hidden_.view.rows(0, tables.rows());
    decoder_.forward(inputs, kv, hidden, exec_);

    step.choices.resize(static_cast<size_t>(step.plan.choices));
    const std::span<const LogitRow> rows = tables.logits;
    const Tensor row_indices = view_of(tables.logit_rows);
    for (int64_t first = 0; first < std::ssize(rows); first += kLogitRows) {
      const int64_t count = std::min(kLogitRows, std::ssize(rows) - first);
      auto scratch = workspace_.scope();
      const Tensor values = scratch.tensor(DType::f32, {count, decoder_.vocab_size()});
      decoder_.logits(hidden, row_indices.rows(first, count), values, exec_);
      choose(rows.subspan(static_cast<size_t>(first), static_cast<size_t>(count)), values, eos_,
             threads_, step.choices,
             kv.layer(0).k.dtype() == DType::f16 ? kOfF16 : kLogitsNotFinite);
    }
    std::transform(step.choices.begin(), step.choices.end(), chosen_.begin(),
                   [](const Choice& choice) { return choice.token; });
  }

  void finish(Step&) override {}
  void warm_up(const KvCache&) override {}

  ExecContext& exec() override { return exec_; }
  int64_t memory_bytes() const override { return hidden_.buffer.bytes() + workspace_.bytes(); }
  std::vector<std::pair<std::string, double>> decode_seconds() const override { return {}; }
  int64_t waits() const override { return 0; }

 private:
  const Decoder& decoder_;
  std::vector<int32_t> eos_;
  OwnedTensor hidden_;  // [step_tokens, hidden_size]
  Workspace workspace_;
  ThreadPool threads_;
  ExecContext exec_;
  std::vector<int32_t> chosen_;  // by the latest step
};

}  // namespace

std::unique_ptr<StepRunner> make_cpu_runner(const Decoder& decoder, const RunnerOptions& options) {
  return std::make_unique<CpuRunner>(decoder, options);
}

}  // namespace sparsellm
