#include "kernels/base/rank_environment.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>

#include "kernels/base/error.h"

namespace sparsellm {
namespace {

struct Launcher {
  const char* rank;
  const char* size;
  const char* local_rank;
  bool has_local_rank;  // always
  const char* mark;     // without it the others mean nothing
};

constexpr std::array kLaunchers{
    Launcher{"RANK", "WORLD_SIZE", "LOCAL_RANK", true, nullptr},
    Launcher{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", true,
             nullptr},
    Launcher{"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", false, nullptr},
    Launcher{"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", true, "SLURM_STEP_ID"},
};

int number(const char* name, std::string_view text, int min, int max) {
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool digits = !text.empty() && text.front() != '-' && end == text.data() + text.size();
  require(error == std::errc() && digits && value >= min && value <= max,
          "the environment variable {} is '{}', not a number from {} to {}", name,
          text.substr(0, 40), min, max);
  return value;
}

class Reader {
 public:
  explicit Reader(const EnvironmentLookup& lookup) : lookup_(lookup) {}

  bool has(const char* name) const { return lookup_(name).has_value(); }

  std::string text(const char* name, const char* beside) const {
    std::optional<std::string> value = lookup_(name);
    require(value.has_value(), "the environment variable {} is set, but {} is not", beside, name);
    return *std::move(value);
  }

 private:
  const EnvironmentLookup& lookup_;
};

std::optional<RankEnvironment> read(const Launcher& launcher, const Reader& environment) {
  const std::array names{launcher.rank, launcher.size, launcher.local_rank};
  const auto set =
      std::find_if(names.begin(), launcher.has_local_rank ? names.end() : names.end() - 1,
                   [&](const char* name) { return environment.has(name); });
  const bool marked = launcher.mark == nullptr || environment.has(launcher.mark);
  if (set == (launcher.has_local_rank ? names.end() : names.end() - 1) || !marked) {
    return std::nullopt;
  }
  constexpr int kMaxSize = 1 << 20;
  RankEnvironment result;
  result.size = number(launcher.size, environment.text(launcher.size, *set), 1, kMaxSize);
  result.rank = number(launcher.rank, environment.text(launcher.rank, *set), 0, result.size - 1);
  if (launcher.has_local_rank || environment.has(launcher.local_rank)) {
    result.local_rank = number(launcher.local_rank, environment.text(launcher.local_rank, *set), 0,
                               result.size - 1);
  }
  return result;
}

std::string rendezvous(const Reader& environment) {
  const bool has_host = environment.has("MASTER_ADDR");
  if (!has_host && !environment.has("MASTER_PORT")) {
    return {};
  }
  const std::string host = environment.text("MASTER_ADDR", "MASTER_PORT");
  const std::string port = environment.text("MASTER_PORT", "MASTER_ADDR");
  require(!host.empty(), "the environment variable MASTER_ADDR is empty");
  const int value = number("MASTER_PORT", port, 1, 65535);
  const bool ipv6 = host.find(':') != std::string::npos;
  return fmt::format("{}:{}", ipv6 ? "[" + host + "]" : host, value);
}

}  // namespace

std::optional<RankEnvironment> rank_environment(const EnvironmentLookup& lookup) {
  const Reader environment(lookup);
  for (const Launcher& launcher : kLaunchers) {
    if (std::optional<RankEnvironment> found = read(launcher, environment)) {
      found->rendezvous = rendezvous(environment);
      return found;
    }
  }
  return std::nullopt;
}

}  // namespace sparsellm
