#include "tools/args.h"

#include "tools/interrupt.h"
#include "tools/progress_bar.h"

namespace sparsellm {

void add_model_args(CLI::App& app, ModelArgs& args) {
  app.add_option("-m,--model", args.model, "Model directory in Hugging Face format")->required();
  app.add_option("--device", args.device, "auto, cpu, cuda or cuda:N")->capture_default_str();
  app.add_option("-t,--threads", args.threads, "Threads of the CPU device; 0: all cores")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_flag("--quiet", args.quiet, "Nothing on stderr but errors");
}

Engine load_engine(const ModelArgs& args, EngineOptions options) {
  catch_interrupts();
  options.device = parse_device(args.device);
  options.threads = args.threads;
  ProgressBar bar("loading", !args.quiet);
  options.progress = [&bar](int64_t done, int64_t total) {
    throw_if_interrupted();
    bar.update(done, total, fmt::format("of {:.1f} MiB", static_cast<double>(total) / (1 << 20)));
  };
  return Engine::load(args.model, options);
}

}  // namespace sparsellm
