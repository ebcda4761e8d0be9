#include "tools/cli/rank_args.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>

#include "engine/engine_options.h"
#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "tools/cli/args.h"
#include "tools/cli/tool_main.h"

namespace sparsellm {
namespace {

constexpr double kMinSeconds = 1e-3;
constexpr double kMaxSeconds = 1e6;

// CLI::Range lets NaN through.
CLI::Validator is_seconds() {
  return CLI::Validator(
      [](const std::string& text) {
        const char* const end = text.data() + text.size();
        double seconds = 0.0;
        const auto [rest, error] = std::from_chars(text.data(), end, seconds);
        const bool good =
            error == std::errc() && rest == end && seconds >= kMinSeconds && seconds <= kMaxSeconds;
        return good ? std::string()
                    : fmt::format("{} is not a number from {} to {}", quote(text), kMinSeconds,
                                  kMaxSeconds);
      },
      "");
}

// "cuda:0" where the text says "cuda".
std::vector<std::string> split_names(const std::string& text) {
  std::vector<std::string> names;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    names.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  std::replace(names.begin(), names.end(), std::string("cuda"), std::string("cuda:0"));
  return names;
}

// What can be said of several names without looking at the machine.
void check_list(const std::string& text, const std::vector<std::string>& names) {
  const auto refuse = [&](std::string_view reason) {
    throw UsageError(fmt::format("--device {}: {}", quote(text), reason));
  };
  for (auto name = names.begin(); name != names.end(); ++name) {
    if (!name->starts_with("cuda:")) {
      refuse("a list is of GPUs, such as cuda:2,cuda:3");
    }
    if (std::find(names.begin(), name, *name) != name) {
      refuse(fmt::format("{} twice", *name));
    }
  }
}

// The GPU after the first of all ranks.
Device next_gpu(Device first, int rank, const ChooseDevice& choose) {
  const Device next{.kind = Device::Kind::cuda, .index = first.index + rank};
  try {
    return choose(to_string(next));
  } catch (const Error& error) {
    fail("rank 0 is on {}, rank {} on {}: {}", to_string(first), rank, to_string(next),
         error.what());
  }
}

}  // namespace

void add_degree_arg(CLI::App& app, const std::string& flag, std::optional<int>& degree,
                    const std::string& description) {
  app.add_option(flag, degree, description)
      ->check(CLI::Range(1, TensorParallel::kMaxDegree))
      ->type_name("N");
}

void add_rank_args(CLI::App& app, RankArgs& args) {
  add_degree_arg(app, "--tensor-parallel", args.degree,
                 "Ranks that share the model, each with a GPU, or on the CPU with its share of the "
                 "threads [1, or the processes that mpirun, torchrun or srun have started]");
  app.add_option("--rendezvous", args.rendezvous,
                 "Where ranks that are processes meet: HOST:PORT, at which rank 0 listens, or the "
                 "path of a socket on one host [MASTER_ADDR:MASTER_PORT of the environment]")
      ->check(not_empty())
      ->type_name("HOST:PORT|FILE");
  app.add_option("--comm-timeout", args.timeout,
                 "Seconds that ranks wait for one that is to come, or to compute the same")
      ->check(is_seconds())
      ->type_name("SECONDS")
      ->capture_default_str();
}

std::vector<Device> rank_devices(const std::string& text, int ranks, const ChooseDevice& choose) {
  const std::vector<std::string> names = split_names(text);
  if (names.size() > 1) {
    check_list(text, names);
    if (std::ssize(names) != ranks) {
      throw UsageError(fmt::format("--device {}: {} GPUs, but --tensor-parallel is {}", quote(text),
                                   names.size(), ranks));
    }
    std::vector<Device> devices;
    std::transform(names.begin(), names.end(), std::back_inserter(devices), choose);
    return devices;
  }
  std::vector<Device> devices{choose(text)};
  for (int rank = 1; rank < ranks; ++rank) {
    const Device first = devices.front();
    devices.push_back(first.is_cuda() ? next_gpu(first, rank, choose) : first);
  }
  return devices;
}

Device rank_device(const std::string& text, int local_rank, const ChooseDevice& choose) {
  const std::vector<std::string> names = split_names(text);
  if (names.size() == 1) {
    const Device first = choose(text);
    return first.is_cuda() && local_rank > 0 ? next_gpu(first, local_rank, choose) : first;
  }
  check_list(text, names);
  if (local_rank >= std::ssize(names)) {
    throw UsageError(fmt::format("--device {}: {} GPUs, but this is process {} of its host",
                                 quote(text), names.size(), local_rank + 1));
  }
  return choose(names[static_cast<size_t>(local_rank)]);
}

}  // namespace sparsellm
