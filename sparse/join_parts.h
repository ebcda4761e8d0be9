#pragma once

#include <memory>
#include <span>
#include <vector>

#include "sparse/format.h"

namespace sparsellm {

// Steps of WeightFormat::load() that formats share.

std::vector<const EncodedWeight*> weights_of(std::span<const WeightPart> parts);

// Of all parts, or of their slices.
int64_t joined_rows(std::span<const WeightPart> parts);

// Reads a part from a file into memory of its own and validates that; leaves others as they are.
// Of a part with a slice the weight becomes that slice, in memory of its own.
// Throws Error that begins with the part's name.
void read_and_validate(const WeightPart& part, ThreadPool& threads);

// Joins the parts to one valid encoding in host memory, after read_and_validate(), and leaves them
// empty. Throws Error that begins with the name of a part.
EncodedWeight join_on_host(std::span<const WeightPart> parts, ThreadPool& threads);

// On a CUDA device, a part or its slice into a dense matrix there, in the dtype of the part, which
// has its values on return. Throws Error that begins with the part's name.
void expand_part(const WeightFormat& format, const WeightPart& part, const Tensor& dense,
                 const LoadContext& ctx);

// On a CUDA device, for parts that format.load() takes one by one, but not as they are together:
// loads and expands one after the other into a dense matrix there, which is encoded. The weight has
// its values on return; what ctx.uploads held before is still held.
std::unique_ptr<WeightMatrix> join_on_device(const WeightFormat& format,
                                             std::span<const WeightPart> parts,
                                             const LoadContext& ctx);

}  // namespace sparsellm
