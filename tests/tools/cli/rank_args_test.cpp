#include "tools/cli/rank_args.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/error.h"
#include "tests/testing/throws_error.h"
#include "tools/cli/args.h"
#include "tools/cli/session_message.h"

namespace sparsellm {
namespace {

using testing::throws_error;

// Of a machine with four GPUs.
Device choose(std::string_view name) {
  if (name == "cpu") {
    return {};
  }
  if (name == "auto" || name == "cuda") {
    return {.kind = Device::Kind::cuda, .index = 0};
  }
  const int index = name.size() == 6 ? name.back() - '0' : -1;
  require(name.starts_with("cuda:") && index >= 0 && index < 4, "there is no {}", name);
  return {.kind = Device::Kind::cuda, .index = index};
}

std::string devices(const std::string& text, int ranks) {
  std::string all;
  for (const Device device : rank_devices(text, ranks, choose)) {
    all += (all.empty() ? "" : " ") + to_string(device);
  }
  return all;
}

TEST(RankArgs, DevicesOfThreads) {
  EXPECT_EQ(devices("cpu", 3), "cpu cpu cpu");
  EXPECT_EQ(devices("auto", 1), "cuda:0");
  EXPECT_EQ(devices("auto", 2), "cuda:0 cuda:1");
  EXPECT_EQ(devices("cuda:2", 2), "cuda:2 cuda:3");
  EXPECT_EQ(devices("cuda:3,cuda:1", 2), "cuda:3 cuda:1");
  EXPECT_EQ(devices("cuda:1,cuda", 2), "cuda:1 cuda:0");
  const auto refused = [](const char* text, int ranks, const char* why) {
    return throws_error([&] { devices(text, ranks); }, why);
  };
  EXPECT_TRUE(refused("cuda:3", 2, "rank 0 is on cuda:3, rank 1 on cuda:4: there is no cuda:4"));
  EXPECT_TRUE(refused("cuda:1,cuda:1", 2, "--device \"cuda:1,cuda:1\": cuda:1 twice"));
  EXPECT_TRUE(refused("cuda,cuda:0", 2, "cuda:0 twice"));
  EXPECT_TRUE(refused("cuda:0,cuda:1", 3, "2 GPUs, but --tensor-parallel is 3"));
  EXPECT_TRUE(refused("cuda:0,cuda:1", 1, "2 GPUs, but --tensor-parallel is 1"));
  EXPECT_TRUE(refused("cuda:0,cuda:9", 2, "there is no cuda:9"));
  for (const char* text : {"cpu,cpu", "cuda:0,cpu", "auto,cuda:1", "cuda:0,", ",", ",cuda:0"}) {
    EXPECT_TRUE(refused(text, 2, "a list is of GPUs, such as cuda:2,cuda:3")) << text;
  }
}

TEST(RankArgs, DeviceOfAProcess) {
  const auto device = [](const char* text, int local_rank) {
    return to_string(rank_device(text, local_rank, choose));
  };
  EXPECT_EQ(device("cpu", 5), "cpu");
  EXPECT_EQ(device("auto", 0), "cuda:0");
  EXPECT_EQ(device("cuda:1", 2), "cuda:3");
  EXPECT_EQ(device("cuda:3,cuda:1", 1), "cuda:1");
  EXPECT_TRUE(throws_error([&] { device("cuda:2", 2); }, "rank 2 on cuda:4: there is no cuda:4"));
  EXPECT_TRUE(throws_error([&] { device("cuda:2,cuda:3", 2); },
                           "2 GPUs, but this is process 3 of its host"));
}

TEST(RankArgs, BecomeOptions) {
  ModelArgs args;
  args.device = "cpu";
  CLI::App app("test");
  add_rank_args(app, args.ranks);
  std::vector<std::string> words{"--tensor-parallel", "3", "--comm-timeout", "1.5"};
  std::reverse(words.begin(), words.end());
  app.parse(words);
  const EngineOptions options = engine_options(args, {});
  EXPECT_EQ(options.tensor_parallel.degree, 3);
  EXPECT_EQ(options.tensor_parallel.timeout.count(), 1500);
  EXPECT_EQ(options.tensor_parallel.devices, std::vector<Device>(3));
  EXPECT_FALSE(options.tensor_parallel.meet);
  EXPECT_EQ(devices_text(args), "cpu, 3 ranks");
  for (const std::vector<std::string>& wrong : {std::vector<std::string>{"0", "--tensor-parallel"},
                                                {"1025", "--tensor-parallel"},
                                                {"0", "--comm-timeout"},
                                                {"nan", "--comm-timeout"},
                                                {"", "--rendezvous"}}) {
    CLI::App another("test");
    RankArgs unused;
    add_rank_args(another, unused);
    EXPECT_THROW(another.parse(std::vector(wrong)), CLI::ValidationError) << wrong[0];
  }
}

TEST(SessionMessage, IsReadAsItWasWritten) {
  for (const SessionMessage& message :
       {SessionMessage{.engine = 2, .model = 1, .options = R"({"degree": 2})", .status = 0},
        SessionMessage{.engine = 0, .model = 0, .options = {}, .status = 130}}) {
    EXPECT_EQ(parse_session_message(session_message_bytes(message), 2), message);
  }
}

TEST(SessionMessage, AnythingElseIsRefused) {
  const auto refused = [](std::string_view text, const char* why) {
    return throws_error(
        [&] { parse_session_message(std::as_bytes(std::span(text)), /*models=*/2); }, why);
  };
  EXPECT_TRUE(refused("", "what rank 0 says"));
  EXPECT_TRUE(refused("[]", "what rank 0 says"));
  EXPECT_TRUE(refused("{}", "engine is missing"));
  EXPECT_TRUE(refused(R"({"end": 256})", "end"));
  EXPECT_TRUE(refused(R"({"end": 0, "engine": 1})", "engine"));
  EXPECT_TRUE(refused(R"({"engine": 0, "model": 0, "options": ""})", "engine"));
  EXPECT_TRUE(refused(R"({"engine": 1, "model": 2, "options": ""})", "model"));
  EXPECT_TRUE(refused(R"({"engine": 1, "model": 0})", "options is missing"));
}

}  // namespace
}  // namespace sparsellm
