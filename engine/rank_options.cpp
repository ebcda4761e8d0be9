#include "engine/rank_options.h"

#include <array>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/base/json_reader.h"
#include "kernels/base/json_writer.h"

namespace sparsellm {
namespace {

constexpr char kSource[] = "what rank 0 says of the engine";
constexpr int kDepth = 3;
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr float kMaxFloat = std::numeric_limits<float>::max();

template <class Value, size_t size>
Value one_of(const JsonValue& value, const std::array<Value, size>& values) {
  for (const Value& known : values) {
    if (value.string() == name_of(known)) {
      return known;
    }
  }
  value.refuse("expected another word");
}

constexpr std::array kDTypes{DType::f32, DType::f16, DType::bf16};
constexpr std::array kModes{ActivationSparsity::Mode::off, ActivationSparsity::Mode::exact,
                            ActivationSparsity::Mode::predict};
constexpr std::array kVotes{Votes::sign, Votes::weighted};

// A name, or null.
template <class Value>
void add_name(std::string_view key, const std::optional<Value>& value, JsonWriter& json) {
  json.key(key);
  value ? json.value(name_of(*value)) : json.null();
}

template <class Value, size_t size>
std::optional<Value> read_name(const JsonValue& value, const std::array<Value, size>& values) {
  return value.present() ? std::optional(one_of(value, values)) : std::nullopt;
}

void add_request(const ActivationSparsityRequest& request, JsonWriter& json) {
  json.object();
  add_name("mode", request.mode, json);
  add_name("votes", request.votes, json);
  if (request.alpha) {
    json.member("alpha", static_cast<double>(request.alpha->value));
    json.member("alpha_layers", request.alpha->layers.value_or(0));
  }
  json.key("alphas").array();
  for (const std::optional<float>& alpha : request.alphas) {
    alpha ? json.value(static_cast<double>(*alpha)) : json.null();
  }
  json.end().key("thresholds").array();
  for (const float threshold : request.thresholds) {
    json.value(static_cast<double>(threshold));
  }
  json.end().end();
}

ActivationSparsityRequest read_request(const JsonValue& value) {
  value.allow_only({"mode", "votes", "alpha", "alpha_layers", "alphas", "thresholds"});
  ActivationSparsityRequest request{.mode = read_name(value["mode"], kModes),
                                    .votes = read_name(value["votes"], kVotes)};
  if (const JsonValue alpha = value["alpha"]; alpha.present()) {
    const int64_t layers = value["alpha_layers"].integer(0, kMax);
    request.alpha = {.value = alpha.number(0.0f, kMaxFloat),
                     .layers = layers > 0 ? std::optional(layers) : std::nullopt};
  }
  const JsonValue alphas = value["alphas"];
  for (int64_t i = 0; i < alphas.size(); ++i) {
    const JsonValue alpha = alphas.element(i);
    request.alphas.push_back(alpha.present() ? std::optional(alpha.number(0.0f, kMaxFloat))
                                             : std::nullopt);
  }
  const JsonValue thresholds = value["thresholds"];
  for (int64_t i = 0; i < thresholds.size(); ++i) {
    request.thresholds.push_back(thresholds.element(i).number(-kMaxFloat, kMaxFloat));
  }
  return request;
}

}  // namespace

std::string rank_options_text(const EngineOptions& options, const LayerFormats& formats) {
  JsonWriter json(/*indent=*/-1, InvalidUtf8::refused);
  json.object()
      .member("cuda", options.device.is_cuda())
      .member("degree", options.tensor_parallel.degree)
      .member("timeout_ms", options.tensor_parallel.timeout.count())
      .member("leaves_out_sums", options.tensor_parallel.leaves_out_sums)
      .member("context_size", options.context_size)
      .member("max_requests", options.max_requests)
      .member("step_tokens", options.step_tokens)
      .member("kv_tokens", options.kv_tokens)
      .member("kv_bytes", options.kv_bytes)
      .member("gpu_memory_utilization", options.gpu_memory_utilization)
      .member("gpu_memory", options.gpu_memory)
      .member("deterministic", options.deterministic)
      .member("steps_ahead", options.steps_ahead)
      .member("traces", options.traces)
      .member("warm_up", options.warm_up)
      .member("threads", options.threads);
  add_name("kv_dtype", options.kv_dtype, json);
  add_name("dtype", options.dtype, json);
  json.member("weight_format", options.weight_format)
      .member("records", options.records)
      .key("activation_sparsity");
  add_request(options.activation_sparsity, json);
  json.member("verify", options.verify)
      .member("tuned", options.tuning == Tuning::measured)
      .key("formats")
      .object();
  for (const auto& [weight, in] : formats) {
    json.member(weight, in.format);
  }
  json.end().key("layouts").object();
  for (const auto& [weight, in] : formats) {
    if (!in.layout.empty()) {
      json.member(weight, in.layout);
    }
  }
  json.end().end();
  return std::move(json).text();
}

RankOptions read_rank_options(std::string_view text, const EngineOptions& own) {
  const JsonDocument document = parse_json(text, kSource, kDepth);
  const JsonValue json(document, kSource);
  json.allow_only({"cuda",          "degree",          "timeout_ms",
                   "context_size",  "max_requests",    "step_tokens",
                   "kv_tokens",     "kv_bytes",        "gpu_memory_utilization",
                   "gpu_memory",    "deterministic",   "steps_ahead",
                   "traces",        "warm_up",         "threads",
                   "kv_dtype",      "leaves_out_sums", "dtype",
                   "weight_format", "records",         "activation_sparsity",
                   "verify",        "tuned",           "formats",
                   "layouts"});
  RankOptions read{.options = own, .formats = {}};
  EngineOptions& options = read.options;
  const bool cuda = json["cuda"].boolean();
  require(cuda == own.device.is_cuda(), "rank 0 runs on {}, this one on {}",
          cuda ? "a GPU" : "the CPU", to_string(own.device));
  options.tensor_parallel.degree =
      static_cast<int>(json["degree"].integer(1, TensorParallel::kMaxDegree));
  options.tensor_parallel.timeout =
      std::chrono::milliseconds(json["timeout_ms"].integer(1, std::numeric_limits<int32_t>::max()));
  options.tensor_parallel.leaves_out_sums = json["leaves_out_sums"].boolean();
  options.context_size = json["context_size"].integer(0, kMax);
  options.max_requests = json["max_requests"].integer(0, kMax);
  options.step_tokens = json["step_tokens"].integer(0, kMax);
  options.kv_tokens = json["kv_tokens"].integer(0, kMax);
  options.kv_bytes = json["kv_bytes"].integer(0, kMax);
  options.gpu_memory_utilization =
      static_cast<double>(json["gpu_memory_utilization"].number(0.0f, 1.0f));
  options.gpu_memory = json["gpu_memory"].integer(0, kMax);
  options.deterministic = json["deterministic"].boolean();
  options.steps_ahead = static_cast<int>(json["steps_ahead"].integer(-1, 1));
  options.traces = json["traces"].boolean();
  options.warm_up = json["warm_up"].boolean();
  options.threads = static_cast<int>(json["threads"].integer(0, std::numeric_limits<int>::max()));
  options.kv_dtype = read_name(json["kv_dtype"], kDTypes);
  options.dtype = read_name(json["dtype"], kDTypes);
  options.weight_format = json["weight_format"].string();
  options.records = json["records"].string();
  options.activation_sparsity = read_request(json["activation_sparsity"]);
  options.verify = own.verify && json["verify"].boolean();
  options.tuning = json["tuned"].boolean() ? Tuning::measured : Tuning::off;
  for (const auto& [weight, format] : json["formats"].string_map()) {
    read.formats.emplace(weight, LayerFormat{.format = format});
  }
  for (const auto& [weight, layout] : json["layouts"].string_map()) {
    const auto layer = read.formats.find(weight);
    require(layer != read.formats.end(), "{}: a layout of {}, which has no format", kSource,
            quote(weight));
    layer->second.layout = layout;
  }
  return read;
}

}  // namespace sparsellm
