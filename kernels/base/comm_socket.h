#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "kernels/base/comm_transfer.h"
#include "kernels/base/file_descriptor.h"

namespace sparsellm {

// Where ranks meet: "HOST:PORT" ("[::1]:29500" for IPv6), or the path of a socket on one host: what
// has a '/' or no ':'. Throws Error for a text that is neither.
struct RendezvousAddress {
  std::string path;  // or
  std::string host;
  std::string port;
};
RendezvousAddress parse_rendezvous(std::string_view text);

// Where rank 0 waits for the others. A socket with a path is for this user alone; one that a
// process left behind when it was killed is replaced. The path is removed with the object.
class Listener {
 public:
  explicit Listener(const RendezvousAddress& address);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  int fd() const { return socket_.get(); }

  struct Connection {
    FileDescriptor socket;
    std::string from;  // "127.0.0.1:41022", for messages
  };
  // Nothing if nobody is waiting to be accepted.
  std::optional<Connection> accept();

 private:
  FileDescriptor socket_;
  std::string path_;
};

// Tries again until somebody listens, or the deadline is over: then an Error says why not. Gives
// up, with -1, as soon as there is something to read from the socket `unless`.
FileDescriptor connect_to(const RendezvousAddress& address, Deadline deadline, int unless = -1);

}  // namespace sparsellm
