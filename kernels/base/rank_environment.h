#pragma once

#include <functional>
#include <optional>
#include <string>

namespace sparsellm {

// What a launcher of several processes has told this one through its environment.
struct RankEnvironment {
  int rank = 0;
  int size = 1;
  std::optional<int> local_rank;  // among the processes on this host
  std::string rendezvous;         // "MASTER_ADDR:MASTER_PORT"; empty: they are not set
};

// The value of an environment variable; nothing if it is not set.
using EnvironmentLookup = std::function<std::optional<std::string>(const char* name)>;

// Reads the variables of the first launcher that has set its own:
//   torchrun  RANK, WORLD_SIZE, LOCAL_RANK
//   mpirun    OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE, OMPI_COMM_WORLD_LOCAL_RANK (Open MPI)
//   PMI       PMI_RANK, PMI_SIZE (MPICH, Intel MPI), and MPI_LOCALRANKID if it is there
//   srun      SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, where SLURM_STEP_ID says that srun has
//             started the process: a batch script has the others, too, and is alone
// They start each other, so what was started last comes first. Nothing if there is none. Throws
// Error naming the variable that is not a number in range, or that is missing beside the others,
// also if of MASTER_ADDR and MASTER_PORT one is set and the other is not.
std::optional<RankEnvironment> rank_environment(const EnvironmentLookup& lookup);

}  // namespace sparsellm
