#include "tests/kernels/base/comm_ranks.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <exception>
#include <thread>
#include <utility>

#include "kernels/base/comm_tcp.h"
#include "kernels/base/comm_threads.h"
#include "kernels/base/error.h"
#include "tests/testing/cpu_context.h"

namespace sparsellm::testing {
namespace {

std::string device_name(int rank) { return "d" + std::to_string(rank); }

std::string thrown_by(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

}  // namespace

std::string to_string(Wires wires) {
  return wires == Wires::threads ? "threads" : wires == Wires::path ? "path" : "port";
}

void expect_all(const std::vector<std::string>& thrown, const std::string& text) {
  for (size_t rank = 0; rank < thrown.size(); ++rank) {
    EXPECT_EQ(thrown[rank], text) << "rank " << rank;
  }
}

std::string free_port() {
  const FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof(address);
  require(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), bytes) == 0 &&
              ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &bytes) == 0,
          "no port is free");
  return "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
}

RendezvousOptions rank_options(const std::string& address, int rank, int size, RankTimes times) {
  return {.address = address,
          .rank = rank,
          .size = size,
          .device = device_name(rank),
          .model = "tiny",
          .timeout = times.timeout};
}

std::vector<std::string> run_ranks(Wires wires, int ranks, const RankBody& body, RankTimes times) {
  const TempDir folder;
  const std::string address =
      wires == Wires::port ? free_port() : (folder.path() / "meet").string();
  std::vector<std::unique_ptr<Communicator>> made;
  if (wires == Wires::threads) {
    std::vector<std::string> devices;
    devices.reserve(static_cast<size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) {
      devices.push_back(device_name(rank));
    }
    made = make_thread_communicators(ranks, {.devices = devices, .timeout = times.timeout});
  }
  std::vector<std::string> thrown(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (size_t i = 0; i < thrown.size(); ++i) {
    threads.emplace_back([&, i] {
      thrown[i] = thrown_by([&] {
        const int rank = static_cast<int>(i);
        const std::unique_ptr<Communicator> comm =
            wires == Wires::threads
                ? std::move(made[i])
                : make_tcp_communicator(rank_options(address, rank, ranks, times));
        CpuContext context;
        context.exec.comm = comm.get();
        body(*comm, context.exec);
      });
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return thrown;
}

RankProcess::RankProcess(const Body& body) {
  std::array<int, 2> ends{};
  require(::pipe(ends.data()) == 0, "no pipe");
  output_ = FileDescriptor(ends[0]);
  pid_ = ::fork();
  if (pid_ == 0) {
    const std::string thrown = thrown_by([&] { body([&] { (void)!::write(ends[1], "\1", 1); }); });
    (void)!::write(ends[1], thrown.data(), thrown.size());
    ::_exit(0);
  }
  ::close(ends[1]);
  require(pid_ > 0, "no process");
}

RankProcess::RankProcess(RankProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, 0)),
      output_(std::move(other.output_)),
      said_(std::move(other.said_)) {}

RankProcess::~RankProcess() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
}

std::string RankProcess::read_some() {
  std::array<char, 256> piece{};
  const ssize_t bytes = ::read(output_.get(), piece.data(), piece.size());
  return {piece.data(), static_cast<size_t>(std::max<ssize_t>(bytes, 0))};
}

void RankProcess::wait_until_ready() {
  std::string said = read_some();
  require(!said.empty() && said.front() == '\1', "the process has ended: {}", said);
  said_ = said.substr(1);
}

std::string RankProcess::thrown() {
  std::string text = std::exchange(said_, {});
  for (std::string more = read_some(); !more.empty(); more = read_some()) {
    text += more;
  }
  ::waitpid(std::exchange(pid_, 0), nullptr, 0);
  text.erase(std::remove(text.begin(), text.end(), '\1'), text.end());
  return text;
}

}  // namespace sparsellm::testing
