#include "tools/serve/api.h"

#include <algorithm>
#include <array>
#include <ctime>
#include <random>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "kernels/base/json_writer.h"
#include "tools/serve/json_text.h"
#include "tools/serve/page.h"
#include "tools/serve/tokenize.h"

namespace sparsellm {

// An endpoint of a path and a method.
struct Api::Endpoint {
  std::string_view path;
  std::string_view method;
  bool needs_key;
  bool needs_model;
  void (*handle)(Api& api, const std::shared_ptr<HttpExchange>& exchange);
};

std::span<const Api::Endpoint> Api::endpoints() {
  using Exchange = const std::shared_ptr<HttpExchange>&;
  static constexpr std::array kEndpoints{
      Endpoint{"/", "GET", false, false, [](Api& api, Exchange e) { api.page(*e); }},
      Endpoint{"/health", "GET", false, false, [](Api& api, Exchange e) { api.health(*e); }},
      Endpoint{"/version", "GET", false, false,
               [](Api& api, Exchange e) {
                 JsonWriter json;
                 json.object().member("version", api.options_.version).end();
                 api.respond(*e, {.body = std::move(json).text()});
               }},
      Endpoint{"/metrics", "GET", false, true, [](Api& api, Exchange e) { api.metrics(*e); }},
      Endpoint{"/v1/models", "GET", true, false, [](Api& api, Exchange e) { api.models(*e); }},
      Endpoint{"/layers", "GET", true, true,
               [](Api& api, Exchange e) { api.respond(*e, {.body = api.layers_}); }},
      Endpoint{"/v1/completions", "POST", true, true,
               [](Api& api, Exchange e) { api.completions_->answer(e); }},
      Endpoint{"/tokenize", "POST", true, true,
               [](Api& api, Exchange e) { api.answer_by_worker(e, tokenize); }},
      Endpoint{"/detokenize", "POST", true, true,
               [](Api& api, Exchange e) { api.answer_by_worker(e, detokenize); }},
  };
  return kEndpoints;
}

namespace {

constexpr std::string_view kJson = "application/json";

bool is_json(std::string_view content_type) {
  const std::string_view type = content_type.substr(0, content_type.find(';'));
  const size_t end = type.find_last_not_of(' ');
  return equal_without_case(type.substr(0, end + 1), kJson);
}

// Names of headers with commas between them.
bool is_header_list(std::string_view text) {
  constexpr size_t kMost = 1024;
  return !text.empty() && text.size() <= kMost && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == ',' || c == ' ';
  });
}

std::string fresh_nonce() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

}  // namespace

Api::Api(Options options)
    : access_(options.access),
      options_(std::move(options)),
      started_(static_cast<int64_t>(std::time(nullptr))) {}

void Api::start(std::shared_ptr<const CompletionContext> context, Completions& completions,
                ServeMetrics& metrics, WorkerPool& workers, Post post) {
  context_ = std::move(context);
  completions_ = &completions;
  metrics_ = &metrics;
  workers_ = &workers;
  post_ = std::move(post);
  if (state_ == ServeState::loading) {
    state_ = ServeState::ready;
  }
}

void Api::set_state(ServeState state) {
  if (state_ != ServeState::lost) {
    state_ = state;
    *lost_ = state == ServeState::lost;
  }
}

const Api::Endpoint* Api::find(std::string_view path, std::string_view method) {
  const auto all = endpoints();
  const auto found = std::find_if(all.begin(), all.end(), [&](const Endpoint& endpoint) {
    return endpoint.path == path && (method.empty() || endpoint.method == method);
  });
  return found == all.end() ? nullptr : &*found;
}

HttpResponse Api::error(int status, std::string_view why) const {
  HttpResponse response = error_response(status, why);
  const std::vector<HttpHeader> cors = headers();
  response.headers.insert(response.headers.end(), cors.begin(), cors.end());
  return response;
}

std::string_view Api::unavailable() const {
  switch (state_) {
    case ServeState::loading:
      return "the model is being loaded";
    case ServeState::ready:
      return {};
    case ServeState::draining:
      return "the server is shutting down";
    case ServeState::lost:
      return "the model's device is lost";
  }
  return {};
}

std::optional<HttpResponse> Api::check(const HttpHead& head) const {
  const std::string_view path = head.path();
  const Endpoint* const endpoint = find(path, {});
  if (const auto refused = access_.refuse(
          head, endpoint != nullptr && endpoint->needs_key && head.method != "OPTIONS")) {
    HttpResponse response = error(refused->status, refused->why);
    if (refused->status == 401) {
      response.headers.push_back({.name = "WWW-Authenticate", .value = "Bearer"});
    }
    return response;
  }
  if (endpoint == nullptr) {
    return error(404, path == "/v1/chat/completions"
                          ? std::string("chat completions are not there yet; /v1/completions are")
                          : fmt::format("there is no {}", quote(path)));
  }
  if (head.method == "OPTIONS" && access_.has_cors()) {
    return preflight(head);
  }
  const Endpoint* const chosen =
      find(path, head.method == "HEAD" ? std::string_view("GET") : head.method);
  if (chosen == nullptr) {
    HttpResponse response =
        error(405, fmt::format("{} takes {} alone", quote(path), endpoint->method));
    response.headers.push_back({.name = "Allow", .value = std::string(endpoint->method)});
    return response;
  }
  if (chosen->method == "POST") {
    if (head.header("Content-Length").empty() && head.header("Transfer-Encoding").empty()) {
      return error(411, "a POST has a Content-Length or is chunked");
    }
    if (!is_json(head.header("Content-Type"))) {
      return error(415, "Content-Type is not application/json");
    }
    if (!head.header("Content-Encoding").empty()) {
      return error(415, "Content-Encoding is not supported");
    }
  }
  if (chosen->needs_model && !unavailable().empty()) {
    return error(503, unavailable());
  }
  return {};
}

// Allows what is asked for: OpenAI's packages send headers of their own, such as X-Stainless-Lang.
HttpResponse Api::preflight(const HttpHead& head) const {
  const std::string_view wanted = head.header("Access-Control-Request-Headers");
  HttpResponse response{.status = 204, .content_type = "", .body = "", .headers = headers()};
  response.headers.push_back({.name = "Access-Control-Allow-Methods", .value = "GET, POST"});
  response.headers.push_back(
      {.name = "Access-Control-Allow-Headers",
       .value = is_header_list(wanted) ? std::string(wanted) : "Authorization, Content-Type"});
  response.headers.push_back({.name = "Access-Control-Max-Age", .value = "600"});
  return response;
}

void Api::handle(const std::shared_ptr<HttpExchange>& exchange) {
  const HttpHead& head = exchange->head();
  const Endpoint* const endpoint =
      find(head.path(), head.method == "HEAD" ? std::string_view("GET") : head.method);
  if (endpoint->needs_model && !unavailable().empty()) {  // since check()
    return respond(*exchange, error_response(503, unavailable()));
  }
  const auto failed = refusal_of([&] { endpoint->handle(*this, exchange); });
  if (failed && !exchange->answered()) {  // for want of memory, most likely
    respond(*exchange, error_response(failed->status, failed->why));
  }
}

void Api::respond(HttpExchange& exchange, HttpResponse response) const {
  const std::vector<HttpHeader> cors = headers();
  response.headers.insert(response.headers.end(), cors.begin(), cors.end());
  exchange.respond(std::move(response));
}

void Api::health(HttpExchange& exchange) const {
  const std::string_view why = unavailable();
  respond(exchange,
          why.empty() ? HttpResponse{.content_type = "", .body = ""} : error_response(503, why));
}

void Api::models(HttpExchange& exchange) const {
  JsonWriter json;
  json.object().member("object", "list").key("data").array().object();
  json.member("id", options_.model).member("object", "model").member("created", started_);
  json.member("owned_by", "sparsellm").key("max_model_len");
  if (context_ != nullptr) {
    json.value(context_->context_size);
  } else {
    json.null();
  }
  json.end().end().end();
  respond(exchange, {.body = std::move(json).text()});
}

void Api::metrics(HttpExchange& exchange) const {
  respond(exchange, {.content_type = "text/plain; version=0.0.4; charset=utf-8",
                     .body = metrics_->text(options_.now())});
}

void Api::page(HttpExchange& exchange) const {
  const std::string nonce = fresh_nonce();
  std::string body(kPage);
  constexpr std::string_view kPlace = "@NONCE@";
  for (size_t at = body.find(kPlace); at != std::string::npos; at = body.find(kPlace, at)) {
    body.replace(at, kPlace.size(), nonce);
  }
  exchange.respond(
      {.content_type = "text/html; charset=utf-8",
       .body = std::move(body),
       .headers = {{.name = "Content-Security-Policy",
                    .value = fmt::format(
                        "default-src 'none'; script-src 'nonce-{0}'; style-src 'nonce-{0}'; "
                        "connect-src 'self'; base-uri 'none'; form-action 'none'; "
                        "frame-ancestors 'none'",
                        nonce)},
                   {.name = "X-Content-Type-Options", .value = "nosniff"},
                   {.name = "Referrer-Policy", .value = "no-referrer"},
                   {.name = "Cache-Control", .value = "no-store"}}});
}

void Api::answer_by_worker(const std::shared_ptr<HttpExchange>& exchange, Make make) {
  struct Task {
    std::shared_ptr<HttpExchange> exchange;
    std::string body;
    std::string answer = {};
    std::optional<Refusal> refusal = {};
  };
  auto task = std::make_shared<Task>(Task{.exchange = exchange, .body = {}});
  task->body = std::move(exchange->body());
  auto work = [make, context = context_, lost = lost_, task] {
    if (!*lost) {
      task->refusal = refusal_of([&] { task->answer = make(*context, task->body); });
    }
    task->body = {};
  };
  auto done = [this, task] {
    --tasks_;
    if (*lost_) {
      respond(*task->exchange, error_response(503, unavailable()));
    } else if (task->refusal) {
      respond(*task->exchange, error_response(task->refusal->status, task->refusal->why));
    } else {
      respond(*task->exchange, {.body = std::move(task->answer)});
    }
  };
  ++tasks_;
  if (!work_then(*workers_, post_, std::move(work), std::move(done))) {
    --tasks_;
    ++metrics_->refused;
    respond(*exchange, error_response(503, "too many requests wait"));
  }
}

}  // namespace sparsellm
