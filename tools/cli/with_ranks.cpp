#include "tools/cli/with_ranks.h"

#include <signal.h>
#include <spdlog/fmt/ranges.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <optional>
#include <span>
#include <utility>

#include "engine/rank_process.h"
#include "kernels/base/crc32c.h"
#include "kernels/base/mapped_file.h"
#include "models/storage/model_directory.h"
#include "models/storage/model_metadata.h"
#include "models/storage/safetensors.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/rank_session.h"
#include "tools/cli/tool_main.h"

namespace sparsellm {
namespace {

constexpr int64_t kMaxConfigBytes = int64_t{64} << 20;

std::optional<std::string> variable(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
}

std::string host_name() {
  std::array<char, 64> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "another host";
}

// "cuda:1", and where not all ranks are on one host, "host7 cuda:1".
std::string device_text(const ModelArgs& args) {
  const RankEnvironment& launched = *args.ranks.launched;
  const std::string device = to_string(device_of(args));
  return launched.local_rank.value_or(launched.rank) == launched.rank ? device
                                                                      : host_name() + " " + device;
}

std::string address_of(const RankArgs& ranks) {
  if (!ranks.rendezvous.empty()) {
    return ranks.rendezvous;
  }
  const std::string& address = ranks.launched->rendezvous;
  require(!address.empty(),
          "{} processes were started, and nothing says where they meet: give --rendezvous "
          "HOST:PORT, or set MASTER_ADDR and MASTER_PORT",
          ranks.launched->size);
  require(
      variable("TORCHELASTIC_USE_AGENT_STORE") != "True",
      "torchrun itself listens at {} (MASTER_ADDR and MASTER_PORT): give --rendezvous HOST:PORT "
      "with another port",
      address);
  return address;
}

void lead(const std::string& tool, RankArgs& ranks, const RendezvousOptions& options,
          const std::function<void()>& body) {
  RankSession session(tool, options);
  ranks.session = &session;
  try {
    body();
  } catch (const Interrupted&) {
    const int by = interrupted() ? interrupting_signal() : SIGINT;
    if (by != SIGINT) {
      session.fail(by == SIGTERM ? "ended by SIGTERM" : "ended by SIGHUP");
      throw;
    }
    try {
      session.end(128 + SIGINT);
    } catch (const Error&) {  // one that has failed meanwhile ends by itself
    }
    throw;
  } catch (const std::exception& error) {
    session.fail(error.what());
    throw;
  }
  session.end(EXIT_SUCCESS);
}

}  // namespace

void with_ranks(const std::string& tool, ModelArgs& args,
                const std::function<std::vector<RankModel>()>& models,
                const std::function<void()>& body) {
  RankArgs& ranks = args.ranks;
  const std::optional<RankEnvironment> launched = rank_environment(variable);
  if (!launched || launched->size == 1) {
    if (!launched && !ranks.rendezvous.empty()) {
      throw UsageError(
          "--rendezvous is for processes that mpirun, torchrun or srun have started; here is one");
    }
    return body();
  }
  if (ranks.degree && *ranks.degree != launched->size) {
    throw UsageError(fmt::format("--tensor-parallel {}, but {} processes were started",
                                 *ranks.degree, launched->size));
  }
  ranks.degree = launched->size;
  ranks.launched = launched;
  const std::vector<RankModel> all = models();
  std::vector<std::string> fingerprints;
  for (const RankModel& model : all) {
    fingerprints.push_back(model.fingerprint);
  }
  const RendezvousOptions options{.address = address_of(ranks),
                                  .rank = launched->rank,
                                  .size = launched->size,
                                  .device = device_text(args),
                                  .model = fmt::format("{}", fmt::join(fingerprints, " and ")),
                                  .timeout = ranks.timeout_ms()};
  if (launched->rank == 0) {
    lead(tool, ranks, options, body);
  } else {
    serve_rank(tool, options, all);
  }
}

std::string config_fingerprint(const ModelConfig& config, const InputFile& file) {
  return fmt::format("{}, {} layers, config {}", config.architecture, config.num_layers,
                     text_checksum(read_text_file(file, kMaxConfigBytes)));
}

std::string text_checksum(std::string_view text) {
  return checksum_text(crc32c(std::as_bytes(std::span(text))));
}

RankModel checkpoint_rank_model(const ModelArgs& args) {
  const OpenDirectory directory = open_model_directory(args.model);
  const Checkpoint checkpoint(directory);
  uint32_t checksum = 0;
  for (const SafetensorsFile& file : checkpoint.files()) {
    const std::array<uint64_t, 2> facts{static_cast<uint64_t>(file.file().size()),
                                        header_checksum(file.tensors(), file.metadata())};
    checksum = crc32c(std::as_bytes(std::span(facts)), checksum);
  }
  return {.fingerprint = fmt::format(
              "{}, weights {}",
              config_fingerprint(read_model_config(directory), directory / "config.json"),
              checksum_text(checksum)),
          .run = [args](std::string_view rank_options, Communicator& comm) {
            run_rank(open_model_directory(args.model), own_rank_options(args), rank_options, comm);
          }};
}

EngineOptions own_rank_options(const ModelArgs& args) {
  EngineOptions own = engine_options(args, EngineOptions());
  own.verify = args.ranks.launched->local_rank == 0;
  return own;
}

}  // namespace sparsellm
