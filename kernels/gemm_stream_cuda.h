#pragma once

#include "kernels/base/exec.h"
#include "kernels/gemm_blas.cuh"

namespace sparsellm {

// Products of few tokens by a kernel that streams w through shared memory to the tensor cores
// (kernels/gemm_stream.cuh), on compute capability 9.0. Launches overlap: the next one loads its
// weights while the one before ends, so that the memory is always busy.

// Of what shared memory a thread block takes: all of a multiprocessor's, or half of it, with which
// the next launch begins beside it.
enum class StreamMemory : uint8_t { half, whole };

// Whether the kernel takes these operands, with whatever memory: no transposed weight, for one.
bool gemm_stream_takes(const CudaContext::State& cuda, const GemmOperands& operands);

// Throws Error for what it does not take. Sums are taken in f32, in an order that depends on the
// shapes and the device alone. With Launches::overlapping, w is read before what was enqueued
// before has ended. Thread blocks wait for those of a lower number, which began before them.
void gemm_stream_cuda(const GemmOperands& operands, StreamMemory memory, const ExecContext& ctx);

}  // namespace sparsellm
