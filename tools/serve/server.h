#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "models/config.h"
#include "models/format_sum.h"
#include "tools/serve/access.h"
#include "tools/serve/completions.h"
#include "tools/serve/http_server.h"
#include "tools/serve/layer_table.h"

namespace sparsellm {

struct ServerOptions {
  HttpServerOptions http;
  AccessOptions access;
  CompletionLimits limits;
  std::string model;    // its name
  std::string version;  // of the program
  std::chrono::seconds drain{30};
};

// A model that is ready; all of it outlives the server's run.
struct ServedModel {
  ServedEngine& engine;
  const Tokenizer& tokenizer;
  int64_t context_size;
  GenerationDefaults defaults;
  std::vector<FormatSum> weights;
  LayerTable layers = {};
};

// What fields have that a request does not give: the model's defaults, else OpenAI's.
Prompt completion_defaults(const GenerationDefaults& defaults);

// HTTP on one thread, the engine on the one that calls serve(), bodies on some others.
class Server {
 public:
  // Listens; /health answers 503 from now on. `interrupted` is asked whether the server should come
  // to its end. Throws what HttpServer does.
  Server(ServerOptions options, std::function<bool()> interrupted,
         std::function<void(std::string_view)> log);
  ~Server();

  std::string address() const;
  uint16_t port() const;
  bool on_loopback() const;

  // Until `interrupted`, and then until what was begun is done or ServerOptions::drain is over, or
  // until the device is lost. False for a lost device.
  bool serve(const ServedModel& model);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sparsellm
