#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "kernels/base/file_descriptor.h"

namespace sparsellm {

struct RendezvousOptions {
  std::string address;  // "HOST:PORT", where rank 0 listens, or the path of a socket on one host
  int rank = 0;
  int size = 1;                // number of ranks
  std::string device = "cpu";  // for messages, "cuda:1"; printable, at most 128 bytes
  std::string model;           // must be that of all: a fingerprint; printable, at most 256 bytes
  std::chrono::milliseconds timeout{60000};  // until all have come, and later for each operation
};

// Two connections to another rank: operations go over one of them, aborts over the other.
struct RankConnection {
  int rank = 0;
  FileDescriptor data;
  FileDescriptor control;
};

struct RankConnections {
  std::vector<RankConnection> peers;  // of rank 0: all others, in order; of others: rank 0
  std::vector<std::string> devices;   // of all ranks
};

// The processes of all ranks find each other: rank 0 listens, the others connect, each with the
// rank, size and model that it has been given. Where these do not fit together, or a rank does not
// come or goes away, all that have come throw the same Error. What is no rank at all (another
// program that connects) is sent away, and named if a rank is missing in the end.
//
// Nothing is encrypted, and who knows the model can take part: for networks whose machines are
// trusted.
RankConnections meet(const RendezvousOptions& options);

}  // namespace sparsellm
