#pragma once

#include <cstdint>
#include <span>

#include "engine/delivery.h"
#include "engine/step_tables.h"
#include "kernels/base/parallel.h"
#include "kernels/base/tensor.h"

namespace sparsellm {

// Does with logits what their requests ask for: shows them to on_logits, chooses the next tokens,
// computes log-probabilities. values [rows.size(), vocabulary] f32, in host memory; `choices` are
// those of the plan. `not_finite` is the error of logits that are NaN or infinite. A request whose
// on_logits throws ends here, and so does one that wants logits or log-probabilities of its prompt
// that are NaN or infinite; one whose token cannot be chosen gets a Choice with an error.
void choose(std::span<const LogitRow> rows, const Tensor& values, std::span<const int32_t> eos,
            ThreadPool& threads, std::span<Choice> choices,
            std::string_view not_finite = kLogitsNotFinite);

}  // namespace sparsellm
