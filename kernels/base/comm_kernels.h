#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/base/comm_layout.h"
#include "kernels/base/comm_plan.h"
#include "kernels/base/comm_stream.h"
#include "kernels/base/exec.h"

namespace sparsellm {

// What kernels know of the ranks: those of one host whose GPUs reach each other's memory.
struct CommWorld {
  int rank = 0;
  int ranks = 0;
  std::array<std::byte*, CommLayout::kMaxRanks> memory{};  // of each rank, as this one reaches it
  const uint32_t* abort_word = nullptr;  // in page-locked memory; not 0: everything has ended
  CommLayout layout;
};

// What is sent if it is not added up.
struct CommExchange {
  CommStream part;                                        // of this rank, or nothing
  std::array<CommStream, CommLayout::kMaxRanks> whole{};  // where the parts of all ranks belong
  bool copies_own = false;                                // `part` lies elsewhere
};

// Loads them on the current device. The first launch of a kernel may wait for all that runs there,
// other ranks of a test included.
void load_comm_kernels();

// Both enqueue one call of a communicator: one kernel, launched early where the context does so.
// max_blocks: at most CommLayout::kMaxBlocks, and no more than the smallest GPU has
// multiprocessors. Sizes are at most bytes_of_call(), and the same on all ranks.

// y: of f32, f16 or bf16; of this way, but where there is less than a unit for each rank, in one
// shot.
void comm_all_reduce(CommWay way, DType dtype, const CommStream& y, const CommWorld& world,
                     int max_blocks, const ExecContext& ctx);

void comm_exchange(bool packets, const CommExchange& exchange, const CommWorld& world,
                   int max_blocks, const ExecContext& ctx);

}  // namespace sparsellm
