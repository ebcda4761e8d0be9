#include "kernels/base/rank_environment.h"

#include <gtest/gtest.h>

#include <map>

#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

using Variables = std::map<std::string, std::string>;

std::optional<RankEnvironment> read(const Variables& variables) {
  return rank_environment([&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

void expect_ranks(const Variables& variables, int rank, int size, std::optional<int> local_rank,
                  const std::string& rendezvous = "") {
  const auto found = read(variables);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->rank, rank);
  EXPECT_EQ(found->size, size);
  EXPECT_EQ(found->local_rank, local_rank);
  EXPECT_EQ(found->rendezvous, rendezvous);
}

::testing::AssertionResult refused(const Variables& variables, std::string_view why) {
  return throws_error([&] { (void)read(variables); }, why);
}

const Variables kTorchrun{{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}};
const Variables kOpenMpi{{"OMPI_COMM_WORLD_RANK", "0"},
                         {"OMPI_COMM_WORLD_SIZE", "2"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}};
const Variables kSrun{
    {"SLURM_PROCID", "5"}, {"SLURM_NTASKS", "8"}, {"SLURM_LOCALID", "1"}, {"SLURM_STEP_ID", "0"}};

Variables operator+(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) {
    variables[name] = value;
  }
  return variables;
}

TEST(RankEnvironment, OfEachLauncher) {
  EXPECT_FALSE(read({}).has_value());
  expect_ranks(kTorchrun, 3, 4, 1);
  expect_ranks(kTorchrun + Variables{{"MASTER_ADDR", "host7"}, {"MASTER_PORT", "29500"}}, 3, 4, 1,
               "host7:29500");
  expect_ranks(kTorchrun + Variables{{"MASTER_ADDR", "fe80::1"}, {"MASTER_PORT", "1"}}, 3, 4, 1,
               "[fe80::1]:1");
  expect_ranks(kOpenMpi, 0, 2, 0);
  expect_ranks({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}, 1, 2, std::nullopt);
  expect_ranks({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "0"}}, 1, 2, 0);
  expect_ranks(kSrun, 5, 8, 1);
  expect_ranks(kOpenMpi + Variables{{"OMPI_COMM_WORLD_SIZE", "1"}}, 0, 1, 0);
}

TEST(RankEnvironment, OfTheLauncherThatWasStartedLast) {
  expect_ranks(kSrun + kOpenMpi, 0, 2, 0);
  expect_ranks(kSrun + kTorchrun, 3, 4, 1);
  expect_ranks(kSrun + Variables{{"PMI_RANK", "0"}, {"PMI_SIZE", "3"}}, 0, 3, std::nullopt);
}

TEST(RankEnvironment, ABatchScriptOfSlurmIsAlone) {
  EXPECT_FALSE(read({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_LOCALID", "0"}}));
  EXPECT_FALSE(read({{"SLURM_NTASKS", "8"}}));
  EXPECT_FALSE(read({{"MASTER_PORT", "29500"}}));
  EXPECT_FALSE(read({{"MPI_LOCALRANKID", "0"}}));
}

TEST(RankEnvironment, NumbersThatAreNoneAreNamed) {
  for (const char* wrong :
       {"", " 1", "1 ", "+1", "-1", "-0", "0x1", "1.0", "one", "4", "99999999999999999999"}) {
    EXPECT_TRUE(refused(kTorchrun + Variables{{"RANK", wrong}},
                        fmt::format("the environment variable RANK is '{}', not a number from 0 "
                                    "to 3",
                                    wrong)));
  }
  EXPECT_TRUE(refused(kTorchrun + Variables{{"WORLD_SIZE", "0"}}, "WORLD_SIZE is '0'"));
  EXPECT_TRUE(refused(kTorchrun + Variables{{"LOCAL_RANK", "4"}}, "LOCAL_RANK is '4'"));
  EXPECT_TRUE(refused(kOpenMpi + Variables{{"OMPI_COMM_WORLD_SIZE", "two"}},
                      "OMPI_COMM_WORLD_SIZE is 'two'"));
  EXPECT_TRUE(refused(kSrun + Variables{{"SLURM_PROCID", "8"}}, "SLURM_PROCID is '8'"));
  const Variables master{{"MASTER_ADDR", "a"}, {"MASTER_PORT", "65536"}};
  EXPECT_TRUE(refused(kTorchrun + master, "MASTER_PORT is '65536', not a number from 1 to 65535"));
  const Variables nowhere{{"MASTER_ADDR", ""}, {"MASTER_PORT", "1"}};
  EXPECT_TRUE(refused(kTorchrun + nowhere, "MASTER_ADDR is empty"));
}

TEST(RankEnvironment, HalfOfAGroupIsRefused) {
  for (const Variables& whole : {kTorchrun, kOpenMpi, kSrun}) {
    for (const auto& [missing, value] : whole) {
      if (missing == "SLURM_STEP_ID") {
        continue;
      }
      Variables half = whole;
      half.erase(missing);
      EXPECT_TRUE(refused(half, " is set, but " + missing + " is not"));
    }
  }
  EXPECT_TRUE(refused({{"PMI_RANK", "0"}}, "PMI_RANK is set, but PMI_SIZE is not"));
  EXPECT_TRUE(refused(kTorchrun + Variables{{"MASTER_ADDR", "host"}},
                      "MASTER_ADDR is set, but MASTER_PORT is not"));
  EXPECT_TRUE(refused(kOpenMpi + Variables{{"MASTER_PORT", "1"}},
                      "MASTER_PORT is set, but MASTER_ADDR is not"));
}

}  // namespace
}  // namespace sparsellm
