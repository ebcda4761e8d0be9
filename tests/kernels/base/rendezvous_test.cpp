#include "kernels/base/rendezvous.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "kernels/base/comm_messages.h"
#include "kernels/base/comm_socket.h"
#include "tests/kernels/base/comm_ranks.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;
using std::chrono::milliseconds;
namespace fs = std::filesystem;

// What each of them threw; in threads, and they may come in any order.
std::vector<std::string> meet_all(const std::vector<RendezvousOptions>& all,
                                  milliseconds between = milliseconds(0)) {
  std::vector<std::string> thrown(all.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < all.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        (void)meet(all[i]);
      } catch (const Error& error) {
        thrown[i] = error.what();
      }
    });
    std::this_thread::sleep_for(between);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return thrown;
}

class RendezvousTest : public ::testing::TestWithParam<Wires> {
 protected:
  std::string address() const { return address_; }
  std::vector<RendezvousOptions> ranks(int size, milliseconds timeout = milliseconds(20000)) const {
    std::vector<RendezvousOptions> all;
    all.reserve(static_cast<size_t>(size));
    for (int rank = 0; rank < size; ++rank) {
      all.push_back(rank_options(address_, rank, size, {.timeout = timeout}));
    }
    return all;
  }
  FileDescriptor connect() const {
    return connect_to(parse_rendezvous(address_), deadline_in(milliseconds(20000)));
  }

 private:
  TempDir folder_;
  std::string address_ =
      GetParam() == Wires::port ? free_port() : (folder_.path() / "meet").string();
};
INSTANTIATE_TEST_SUITE_P(At, RendezvousTest, ::testing::Values(Wires::path, Wires::port),
                         [](const auto& value) { return to_string(value.param); });

TEST_P(RendezvousTest, AllFindEachOtherInAnyOrder) {
  for (const bool reversed : {false, true}) {
    auto all = ranks(3);
    if (reversed) {
      std::swap(all[0], all[2]);
    }
    EXPECT_EQ(meet_all(all, milliseconds(20)), std::vector<std::string>(3));
  }
}

TEST_P(RendezvousTest, OtherModelsAreRefusedByNameOnAllSides) {
  auto all = ranks(3);
  all[2].model = "other";
  EXPECT_EQ(meet_all(all),
            std::vector<std::string>(
                3, "rank 2 (d2) has another model than rank 0: 'other', not 'tiny'"));
}

TEST_P(RendezvousTest, WhoComesWhenTheOthersAreRefusedIsToldWhy) {
  auto all = ranks(3);
  all[1].model = "other";
  EXPECT_EQ(meet_all(all, milliseconds(150)),
            std::vector<std::string>(
                3, "rank 1 (d1) has another model than rank 0: 'other', not 'tiny'"));
}

TEST_P(RendezvousTest, OtherSizesAreRefusedByNameOnAllSides) {
  auto all = ranks(2);
  all[1].size = 4;
  EXPECT_EQ(meet_all(all), std::vector<std::string>(2, "rank 1 (d1) is of 4 ranks, rank 0 of 2"));
}

TEST_P(RendezvousTest, ARankThatIsThereTwiceIsRefused) {
  auto all = ranks(3);
  all[2].rank = 1;
  EXPECT_EQ(meet_all(all), std::vector<std::string>(3, "two processes say that they are rank 1"));
}

TEST_P(RendezvousTest, OtherVersionsAreRefusedByNameOnBothSides) {
  std::vector<std::byte> hello = message(
      MessageKind::hello, hello_body({.rank = 1, .size = 2, .device = "d1", .model = "tiny"}));
  hello[8] = std::byte{9};
  std::string refusal;
  std::thread other([&] {
    const FileDescriptor socket = connect();
    EXPECT_TRUE(send_now(socket.get(), hello));
    IncomingMessage answer;
    pollfd descriptor{.fd = socket.get(), .events = POLLIN, .revents = 0};
    wait_for({&descriptor, 1}, deadline_in(milliseconds(20000)));
    EXPECT_EQ(answer.advance(socket.get(), [](const MessageHeader&) {}), Progress::done);
    refusal = parse_reason(answer.body());
  });
  const std::string thrown = meet_all({ranks(2)[0]})[0];
  other.join();
  EXPECT_NE(thrown.find("cannot be a rank: it has version 9 of the protocol, not 1"),
            std::string::npos)
      << thrown;
  EXPECT_EQ(refusal, thrown);
}

// Answers the first connection with these bytes.
void answer_with(const std::string& address, std::span<const std::byte> bytes) {
  Listener listener(parse_rendezvous(address));
  pollfd descriptor{.fd = listener.fd(), .events = POLLIN, .revents = 0};
  wait_for({&descriptor, 1}, deadline_in(milliseconds(20000)));
  const auto connection = listener.accept();
  ASSERT_TRUE(connection.has_value());
  EXPECT_TRUE(send_now(connection->socket.get(), bytes));
  std::this_thread::sleep_for(milliseconds(50));
}

TEST_P(RendezvousTest, WhatIsNoRank0IsToldByItsAnswer) {
  std::vector<std::byte> other_version = message(MessageKind::welcome, {});
  other_version[8] = std::byte{2};
  const std::string_view http = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
  const std::vector<std::pair<std::vector<std::byte>, std::string>> answers{
      {other_version, "cannot be rank 0: it has version 2 of the protocol, not 1"},
      {message(MessageKind::goodbye), "its answer is neither a welcome nor a refusal"},
      {message(MessageKind::welcome, welcome_body(std::vector<std::string>(3))),
       "rank 0 welcomes 3 ranks, not 2"},
      {{}, "closed the connection"},
      {{std::as_bytes(std::span(http)).begin(), std::as_bytes(std::span(http)).end()},
       "cannot be rank 0: this is no message of a rank"}};
  for (const auto& [bytes, why] : answers) {
    std::thread other([&, answer = std::span(bytes)] { answer_with(address(), answer); });
    EXPECT_TRUE(throws_error([&] { (void)meet(ranks(2)[1]); }, why));
    other.join();
  }
}

TEST_P(RendezvousTest, StrangersAreSentAwayAndDoNotDisturb) {
  std::vector<FileDescriptor> strangers;
  std::thread others([&] {
    for (int i = 0; i < 80; ++i) {
      strangers.push_back(connect());
      const std::string_view text = i % 3 == 0   ? "GET / HTTP/1.1\r\n\r\n"
                                    : i % 3 == 1 ? "Sparse"
                                                 : "";
      (void)send_now(strangers.back().get(), std::as_bytes(std::span(text)));
      if (i % 5 == 0) {
        strangers.pop_back();
      }
    }
  });
  auto all = ranks(2);
  std::string thrown;
  std::thread rank0([&] { thrown = meet_all({all[0]})[0]; });
  others.join();
  EXPECT_EQ(meet_all({all[1]})[0], "");
  rank0.join();
  EXPECT_EQ(thrown, "");
}

TEST_P(RendezvousTest, WhoDoesNotComeIsNamedToAllThatHave) {
  auto all = ranks(3, milliseconds(500));
  all.erase(all.begin() + 1);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(meet_all(all),
            std::vector<std::string>(
                2, fmt::format("rank 1 has not come to {} within 0.5 s", address())));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, milliseconds(3000));
}

TEST_P(RendezvousTest, AStrangerIsNamedWhereARankIsMissing) {
  std::thread other([&] {
    const FileDescriptor socket = connect();
    (void)send_now(socket.get(), std::as_bytes(std::span(std::string_view("GET / HTTP/1.1"))));
    std::this_thread::sleep_for(milliseconds(100));
  });
  const std::string thrown = meet_all({ranks(2, milliseconds(500))[0]})[0];
  other.join();
  EXPECT_NE(thrown.find("rank 1 has not come to"), std::string::npos) << thrown;
  EXPECT_NE(thrown.find("is no rank of SparseLLM"), std::string::npos) << thrown;
}

TEST_P(RendezvousTest, WithoutRank0TheOthersGiveUpInTime) {
  EXPECT_TRUE(throws_error([&] { (void)meet(ranks(2, milliseconds(150))[1]); },
                           "rank 0 does not listen at " + address()));
}

TEST_P(RendezvousTest, WhoGoesAwayBeforeAllHaveComeIsNamed) {
  std::thread other([&] {
    const FileDescriptor socket = connect();
    EXPECT_TRUE(
        send_now(socket.get(), message(MessageKind::hello, hello_body({.rank = 1,
                                                                       .size = 3,
                                                                       .channel = Channel::data,
                                                                       .device = "d1",
                                                                       .model = "tiny"}))));
    std::this_thread::sleep_for(milliseconds(50));
  });
  const auto all = ranks(3);
  EXPECT_EQ(
      meet_all({all[0], all[2]}),
      std::vector<std::string>(2, "rank 1 (d1): connection closed before all ranks had come"));
  other.join();
}

TEST_P(RendezvousTest, AnotherListenerIsNotDisturbed) {
  const Listener listener(parse_rendezvous(address()));
  EXPECT_TRUE(throws_error([&] { (void)meet(ranks(2)[0]); }, address()));
}

TEST(RendezvousPath, IsForThisUserAloneAndRemovedAfterwards) {
  const TempDir folder;
  const fs::path path = folder.path() / "meet";
  {
    const Listener listener(parse_rendezvous(path.string()));
    EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  }
  EXPECT_FALSE(fs::exists(path));
}

TEST(RendezvousPath, ASocketThatWasLeftBehindIsReplacedAndAFileIsNot) {
  const TempDir folder;
  const std::string path = (folder.path() / "meet").string();
  {
    const FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un left{};
    left.sun_family = AF_UNIX;
    std::copy(path.begin(), path.end(), left.sun_path);
    ASSERT_EQ(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&left), sizeof(left)), 0);
  }
  ASSERT_TRUE(fs::is_socket(path));
  { const Listener listener(parse_rendezvous(path)); }

  const std::string file = folder.write("file", "text").string();
  EXPECT_TRUE(throws_error([&] { const Listener listener(parse_rendezvous(file)); },
                           file + " exists and is no socket"));
  EXPECT_TRUE(fs::exists(file));
  const std::string nowhere = (folder.path() / "none" / "meet").string();
  EXPECT_TRUE(throws_error([&] { const Listener listener(parse_rendezvous(nowhere)); },
                           "cannot listen at " + nowhere + ": No such file"));
}

TEST(RendezvousAddress, IsHostAndPortOrAPath) {
  EXPECT_EQ(parse_rendezvous("host7:29500").host, "host7");
  EXPECT_EQ(parse_rendezvous("host7:29500").port, "29500");
  EXPECT_EQ(parse_rendezvous("[::1]:1").host, "::1");
  EXPECT_EQ(parse_rendezvous("[::1]:1").port, "1");
  EXPECT_EQ(parse_rendezvous("/tmp/a:1").path, "/tmp/a:1");
  EXPECT_EQ(parse_rendezvous("meet").path, "meet");
  for (const char* wrong :
       {"", "/tmp/", ":1", "host:", "host:0", "host:65536", "host:1x", "host:-1", "host: 1"}) {
    EXPECT_TRUE(throws_error([&] { (void)parse_rendezvous(wrong); }, "HOST:PORT")) << wrong;
  }
  EXPECT_TRUE(throws_error([] { (void)parse_rendezvous("::1:29500"); }, "is written [::1]:PORT"));
  EXPECT_TRUE(throws_error([] { (void)parse_rendezvous("/" + std::string(200, 'x')); },
                           "the path of a socket has at most 107 bytes, this has 201"));
}

TEST(RendezvousOptionsTest, AreChecked) {
  RendezvousOptions options = rank_options("/nowhere/meet", 2, 2);
  EXPECT_TRUE(throws_error([&] { (void)meet(options); }, "rank 2 of 2"));
  options.rank = 0;
  options.model = "\n";
  EXPECT_TRUE(throws_error([&] { (void)meet(options); }, "the fingerprint of a model"));
}

}  // namespace
}  // namespace sparsellm
