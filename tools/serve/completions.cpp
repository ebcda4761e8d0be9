#include "tools/serve/completions.h"

#include <spdlog/fmt/fmt.h>

#include <ctime>
#include <new>
#include <random>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "tools/serve/json_text.h"

namespace sparsellm {
namespace {

constexpr std::chrono::seconds kCommentInterval{15};
constexpr char kRetryAfter[] = "1";

std::string fresh_id() {
  thread_local std::mt19937_64 random{std::random_device{}()};
  return fmt::format("cmpl-{:016x}{:08x}", random(), static_cast<uint32_t>(random()));
}

// What came of reading a body.
struct Parsed {
  CompletionRequest request;
  int status = 200;
  std::string error;
};

Parsed parse(const CompletionContext& context, std::string_view body) {
  Parsed parsed;
  try {
    parsed.request = make_completion(context, body);
    return parsed;
  } catch (const UnknownModel& error) {
    parsed.status = 404;
    parsed.error = error.what();
  } catch (const Error& error) {
    parsed.status = 400;
    parsed.error = error.what();
  } catch (const std::bad_alloc&) {
    parsed.status = 503;
    parsed.error = "out of memory";
  } catch (...) {  // a signal meanwhile
    parsed.status = 503;
    parsed.error = "the server is shutting down";
  }
  return parsed;
}

}  // namespace

void respond_json(HttpExchange& exchange, std::string body) {
  exchange.respond({.body = std::move(body)});
}

HttpResponse error_response(int status, std::string_view why) {
  HttpResponse response{.status = status, .body = error_body(status, why)};
  if (status == 503) {
    response.headers.push_back({.name = "Retry-After", .value = kRetryAfter});
  }
  return response;
}

struct Completions::Job {
  Ticket ticket;
  std::shared_ptr<HttpExchange> exchange;
  CompletionReply reply;
  bool streams;
  int64_t samples;
  Clock::time_point arrival;
  Clock::time_point written;                   // the latest chunk
  std::vector<Clock::time_point> latest = {};  // token, of each choice
  bool begun = false;                          // of a stream: its header is out
};

Completions::Completions(std::shared_ptr<const CompletionContext> context, CompletionLimits limits,
                         Parts parts)
    : context_(std::move(context)), limits_(limits), parts_(std::move(parts)) {}

Completions::~Completions() = default;

void Completions::answer(std::shared_ptr<HttpExchange> exchange) {
  if (samples_ >= limits_.samples || parsing_ >= limits_.samples) {
    ++parts_.metrics.refused;
    return exchange->respond(error_response(503, "too many requests wait"));
  }
  ++parsing_;
  const Clock::time_point arrival = Clock::now();
  auto body = std::make_shared<std::string>(std::move(exchange->body()));
  parts_.workers.post([this, context = context_, exchange = std::move(exchange), arrival,
                       body = std::move(body)]() mutable {
    auto parsed = std::make_shared<Parsed>(parse(*context, *body));
    body.reset();
    parts_.post([this, exchange = std::move(exchange), arrival, parsed = std::move(parsed)] {
      --parsing_;
      if (exchange->gone()) {
        ++parts_.metrics.cancelled;
      } else if (!parsed->error.empty()) {
        exchange->respond(error_response(parsed->status, parsed->error));
      } else {
        begin(exchange, std::move(parsed->request), arrival);
      }
    });
  });
}

void Completions::begin(std::shared_ptr<HttpExchange> exchange, CompletionRequest request,
                        Clock::time_point arrival) {
  const int64_t tokens = request.format.prompt_tokens;
  if (samples_ + request.samples > limits_.samples ||
      prompt_tokens_ + tokens > limits_.prompt_tokens) {
    ++parts_.metrics.refused;
    return exchange->respond(error_response(503, "too many requests wait"));
  }
  const Ticket ticket = next_ticket_++;
  request.format.id = fresh_id();
  request.format.created = static_cast<int64_t>(std::time(nullptr));
  const bool streams = request.format.stream;
  auto job = std::make_unique<Job>(Job{
      .ticket = ticket,
      .exchange = std::move(exchange),
      .reply =
          CompletionReply(context_->tokenizer, request.requests.size(), std::move(request.format)),
      .streams = streams,
      .samples = request.samples,
      .arrival = arrival,
      .written = arrival});
  job->latest.resize(job->reply.choices());
  job->exchange->on_gone = [this, ticket] { cancel(ticket); };
  samples_ += job->samples;
  prompt_tokens_ += tokens;
  jobs_.emplace(ticket, std::move(job));
  parts_.loop.submit(ticket, std::move(request.requests));
}

void Completions::take(const LoopEvents& events) {
  const Clock::time_point now = Clock::now();
  for (const LoopEvents::Event& event : events.events) {
    const auto found = jobs_.find(event.ticket);
    if (found == jobs_.end()) {
      continue;
    }
    Job& job = *found->second;
    switch (event.kind) {
      case LoopEvents::Kind::accepted:
        parts_.metrics.prompt_tokens += job.reply.prompt_tokens();
        if (job.streams) {
          job.begun = true;
          job.exchange->begin_stream({.content_type = "text/event-stream; charset=utf-8",
                                      .headers = {{.name = "Cache-Control", .value = "no-cache"},
                                                  {.name = "X-Accel-Buffering", .value = "no"}}});
        }
        break;
      case LoopEvents::Kind::refused:
        fail(job, 400, events.error_of(event));
        break;
      case LoopEvents::Kind::started:
        parts_.metrics.queue_time.add(std::chrono::duration<double>(now - job.arrival).count());
        break;
      case LoopEvents::Kind::token:
        take_token(job, events, event, now);
        break;
    }
  }
}

void Completions::take_token(Job& job, const LoopEvents& events, const LoopEvents::Event& event,
                             Clock::time_point now) {
  const auto seconds_since = [now](Clock::time_point then) {
    return std::chrono::duration<double>(now - then).count();
  };
  const size_t choice = job.reply.choice_of(event);
  if (event.token) {
    ++parts_.metrics.generation_tokens;
    Clock::time_point& latest = job.latest[choice];
    if (latest == Clock::time_point()) {
      parts_.metrics.time_to_first_token.add(seconds_since(job.arrival));
    } else {
      parts_.metrics.inter_token.add(seconds_since(latest));
    }
    latest = now;
  }
  if (event.finish) {
    parts_.metrics.count_finish(*event.finish);
  }
  const std::string chunk = job.reply.add(events, event);
  if (!job.reply.error().empty()) {
    ++parts_.metrics.failed;
    const std::string why(job.reply.error());
    parts_.loop.cancel(job.ticket);
    return fail(job, 500, why);
  }
  if (!chunk.empty()) {
    job.written = now;
    job.exchange->write(chunk);  // may end the job, if its client does not read
    if (jobs_.find(event.ticket) == jobs_.end()) {
      return;
    }
  }
  if (job.reply.finished()) {
    parts_.metrics.end_to_end.add(seconds_since(job.arrival));
    complete(job);
  }
}

void Completions::complete(Job& job) {
  const auto exchange = job.exchange;
  exchange->on_gone = {};
  if (job.streams) {
    exchange->write(job.reply.stream_end());
    exchange->end();
  } else {
    respond_json(*exchange, job.reply.body());
  }
  drop(job.ticket);
}

void Completions::fail(Job& job, int status, std::string_view why) {
  const auto exchange = job.exchange;
  exchange->on_gone = {};
  if (job.begun) {
    exchange->write(job.reply.stream_error(status, why));
    exchange->end();
  } else {
    exchange->respond(error_response(status, why));
  }
  drop(job.ticket);
}

void Completions::cancel(Ticket ticket) {
  ++parts_.metrics.cancelled;
  parts_.loop.cancel(ticket);
  drop(ticket);
}

void Completions::drop(Ticket ticket) {
  const auto found = jobs_.find(ticket);
  if (found != jobs_.end()) {
    samples_ -= found->second->samples;
    prompt_tokens_ -= found->second->reply.prompt_tokens();
    jobs_.erase(found);
  }
}

void Completions::tick() {
  const Clock::time_point now = Clock::now();
  std::vector<Ticket> late;
  std::vector<std::shared_ptr<HttpExchange>> silent;
  for (const auto& [ticket, job] : jobs_) {
    if (limits_.timeout && now - job->arrival > *limits_.timeout) {
      late.push_back(ticket);
    } else if (job->begun && now - job->written > kCommentInterval) {
      job->written = now;
      silent.push_back(job->exchange);
    }
  }
  for (const auto& exchange : silent) {
    exchange->write(": waiting\n\n");
  }
  for (const Ticket ticket : late) {
    if (const auto found = jobs_.find(ticket); found != jobs_.end()) {
      ++parts_.metrics.cancelled;
      parts_.loop.cancel(ticket);
      fail(*found->second, 503, "the request took longer than --request-timeout");
    }
  }
}

void Completions::end_all(int status, std::string_view why) {
  std::vector<Ticket> tickets;
  for (const auto& [ticket, job] : jobs_) {
    tickets.push_back(ticket);
  }
  for (const Ticket ticket : tickets) {
    if (const auto found = jobs_.find(ticket); found != jobs_.end()) {
      fail(*found->second, status, why);
    }
  }
}

}  // namespace sparsellm
