#include "tools/bench/commands/measure_server.h"

#include <sys/resource.h>

#include <functional>
#include <utility>

#include "tools/bench/commands/progress.h"
#include "tools/bench/commands/report.h"
#include "tools/bench/environment.h"
#include "tools/bench/http_client.h"
#include "tools/bench/server_bench.h"
#include "tools/cli/api_keys.h"
#include "tools/cli/interrupt.h"

namespace sparsellm {
namespace {

// Of this program: the device is the server's.
Environment client_environment(const std::vector<std::string>& command_line) {
  Environment environment = describe_environment({.kind = Device::Kind::cpu}, command_line);
  std::erase_if(environment, [](const Property& property) {
    return property.key == "device" || property.key == "cpu_isa";
  });
  return environment;
}

// Each stream needs a socket; what a shell allows is often 1024.
void allow_many_sockets() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
}

int64_t vocabulary_of(const ThroughputArgs& args) {
  if (args.server.vocabulary) {
    return *args.server.vocabulary;
  }
  const bool has_config = !args.model.config.empty() || !args.model.model.model.empty();
  return has_config ? read_bench_config(args.model).vocab_size : ServerBenchOptions().vocabulary;
}

}  // namespace

void measure_server(const ThroughputArgs& args, const std::vector<std::string>& command_line) {
  ServerBenchOptions options{.model = args.server.served_model_name,
                             .vocabulary = vocabulary_of(args),
                             .rate = args.arrival_rate,
                             .concurrency = args.server.concurrency.value_or(1),
                             .requests = args.requests,
                             .prompt = args.prompt,
                             .seed = args.model.seed};
  options.output = args.output.tokens.value_or(options.output);
  const std::string key = args.server.api_key_file.empty()
                              ? std::string()
                              : read_api_keys(args.server.api_key_file).front();
  catch_interrupts();
  allow_many_sockets();
  HttpClient client(*args.server.url, key);
  BenchProgress progress("serving", "requests", !args.model.model.quiet);
  options.progress = std::ref(progress);
  if (options.model.empty()) {
    options.model = listed_model(client, options);
  }
  Environment environment = client_environment(command_line);
  environment.push_back({.key = "url", .value = args.server.url->shown});
  environment.push_back({.key = "model", .value = options.model});
  with_report(args.output, std::move(environment),
              [&](ReportWriter& report) { bench_server(client, options, report); });
}

}  // namespace sparsellm
