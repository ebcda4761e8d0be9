#include "engine/step_upload.h"

#include <algorithm>

#include "kernels/base/error.h"

namespace sparsellm {
namespace {

bool wants_logits(const Sequence& sequence, int64_t position) {
  if (position < sequence.reported || position >= sequence.prompt_length()) {
    return false;
  }
  const bool last_to_report = position == sequence.max_length - 1 && sequence.request().on_logits;
  return last_to_report || sequence.wants_prompt_logits();
}

}  // namespace

StepUpload::StepUpload(Device device, SchedulerLimits limits, int64_t pages_per_request)
    : device_(device), pages_per_request_(pages_per_request) {
  const auto list = [device](int64_t size) {
    return allocate_tensor(device, DType::i32, {size}, "the inputs of a step");
  };
  token_ids_ = list(limits.step_tokens);
  positions_ = list(limits.step_tokens);
  query_start_ = list(limits.max_requests + 1);
  kv_length_ = list(limits.max_requests);
  page_table_ = list(checked_mul(limits.max_requests, pages_per_request, "page table"));
  logit_rows_ = list(limits.step_tokens);
}

Tensor StepUpload::send(const std::vector<int32_t>& values, const OwnedTensor& to) const {
  const Tensor view = to.view.rows(0, static_cast<int64_t>(values.size()));
  copy_bytes(device_, view.raw(), Device{}, values.data(), view.bytes());
  return view;
}

StepUpload::Step StepUpload::upload(const Scheduler::Plan& plan, const Tensor& chosen) {
  std::vector<int32_t> token_ids;
  std::vector<int32_t> positions;
  std::vector<int32_t> query_start{0};
  std::vector<int32_t> kv_length;
  std::vector<int32_t> page_table;
  std::vector<int32_t> logit_rows;
  Step step;
  for (const Scheduler::Chunk& chunk : plan.chunks) {
    Sequence& sequence = *chunk.sequence;
    const int64_t end = chunk.first + chunk.count;
    for (int64_t position = chunk.first; position < end; ++position) {
      const bool chooses = chunk.choice.has_value() && position == end - 1;
      if (chooses || wants_logits(sequence, position)) {
        logit_rows.push_back(static_cast<int32_t>(token_ids.size()));
        step.logits.push_back({.sequence = &sequence,
                               .position = position,
                               .choice = chooses ? chunk.choice : std::nullopt});
      }
      if (position < sequence.known_length()) {
        token_ids.push_back(sequence.tokens[static_cast<size_t>(position)]);
      } else {
        // Elsewhere a kernel has to put it in place.
        require(!device_.is_cuda(), "tokens that are not known yet need the CPU device");
        token_ids.push_back(chosen.data<int32_t>()[chunk.token_from.value()]);
      }
      positions.push_back(static_cast<int32_t>(position));
    }
    query_start.push_back(static_cast<int32_t>(token_ids.size()));
    kv_length.push_back(static_cast<int32_t>(end));
    page_table.insert(page_table.end(), sequence.pages.begin(), sequence.pages.end());
    page_table.resize(kv_length.size() * static_cast<size_t>(pages_per_request_), -1);
  }

  const auto requests = static_cast<int64_t>(plan.chunks.size());
  send(page_table, page_table_);
  step.inputs.token_ids = send(token_ids, token_ids_);
  step.inputs.batch = {.query_start = send(query_start, query_start_),
                       .kv_length = send(kv_length, kv_length_),
                       .page_table = Tensor(page_table_.view.raw(), DType::i32,
                                            {requests, pages_per_request_}, device_),
                       .positions = send(positions, positions_)};
  step.logit_rows = send(logit_rows, logit_rows_);
  return step;
}

}  // namespace sparsellm
