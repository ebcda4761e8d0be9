#include "tools/serve/completions.h"

#include <spdlog/fmt/fmt.h>

#include <ctime>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "tools/serve/json_text.h"

namespace sparsellm {
namespace {

constexpr std::chrono::seconds kCommentInterval{15};
constexpr char kRetryAfter[] = "1";

std::string fresh_id(std::mt19937_64& random) {
  return fmt::format("cmpl-{:016x}{:08x}", random(), static_cast<uint32_t>(random()));
}

double seconds_between(std::chrono::steady_clock::time_point begin,
                       std::chrono::steady_clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

}  // namespace

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
  int64_t bytes;
  Clock::time_point arrival;
  Clock::time_point written;                   // the latest chunk
  std::vector<Clock::time_point> latest = {};  // token, of each choice
  bool begun = false;                          // of a stream: its header is out
  bool has_token = false;
};

Completions::Completions(std::shared_ptr<const CompletionContext> context, CompletionLimits limits,
                         Parts parts)
    : context_(std::move(context)), limits_(limits), parts_(std::move(parts)) {}

Completions::~Completions() = default;

// A body that a worker has.
struct Completions::Reading {
  std::shared_ptr<HttpExchange> exchange;
  Clock::time_point arrival;
  std::string body;
  CompletionRequest request = {};
  std::optional<Refusal> refusal = {};
};

void Completions::answer(const std::shared_ptr<HttpExchange>& exchange) {
  if (ended_) {
    return respond(*exchange, error_response(ended_->status, ended_->why));
  }
  if (samples_ >= limits_.samples || parsing_ >= limits_.samples) {
    return refuse(*exchange);
  }
  auto reading =
      std::make_shared<Reading>(Reading{.exchange = exchange, .arrival = Clock::now(), .body = {}});
  reading->body = std::move(exchange->body());
  auto work = [context = context_, ends = ends_, reading] {
    if (!*ends) {
      reading->refusal =
          refusal_of([&] { reading->request = make_completion(*context, reading->body); });
    }
    reading->body = {};
  };
  ++parsing_;
  if (!work_then(parts_.workers, parts_.post, std::move(work),
                 [this, reading] { end_reading(*reading); })) {
    --parsing_;
    refuse(*exchange);
  }
}

void Completions::end_reading(Reading& reading) {
  --parsing_;
  HttpExchange& exchange = *reading.exchange;
  const std::optional<Refusal>& refusal = ended_ ? ended_ : reading.refusal;
  if (exchange.gone()) {
    ++parts_.metrics.cancelled;
  } else if (refusal) {
    respond(exchange, error_response(refusal->status, refusal->why));
  } else if (const auto failed = refusal_of(
                 [&] { begin(reading.exchange, std::move(reading.request), reading.arrival); })) {
    respond(exchange, error_response(failed->status, failed->why));
  }
}

// What it throws has changed nothing.
void Completions::begin(const std::shared_ptr<HttpExchange>& exchange, CompletionRequest request,
                        Clock::time_point arrival) {
  const int64_t tokens = request.format.prompt_tokens;
  require(request.samples <= limits_.samples, "{} continuations; use at most {}", request.samples,
          limits_.samples);
  require(tokens <= limits_.prompt_tokens, "the prompts have {} tokens; use at most {} in all",
          tokens, limits_.prompt_tokens);
  require(request.bytes <= limits_.bytes, "the answer could take {} bytes of memory; at most {}",
          request.bytes, limits_.bytes);
  if (samples_ + request.samples > limits_.samples ||
      prompt_tokens_ + tokens > limits_.prompt_tokens || bytes_ + request.bytes > limits_.bytes) {
    return refuse(*exchange);
  }
  const Ticket ticket = next_ticket_++;
  request.format.id = fresh_id(random_);
  request.format.created = static_cast<int64_t>(std::time(nullptr));
  const bool streams = request.format.stream;
  auto job = std::make_unique<Job>(Job{
      .ticket = ticket,
      .exchange = exchange,
      .reply =
          CompletionReply(context_->tokenizer, request.requests.size(), std::move(request.format)),
      .streams = streams,
      .samples = request.samples,
      .bytes = request.bytes,
      .arrival = arrival,
      .written = arrival});
  job->latest.resize(job->reply.choices());
  jobs_.emplace(ticket, std::move(job));
  samples_ += request.samples;
  prompt_tokens_ += tokens;
  bytes_ += request.bytes;
  try {
    exchange->on_gone = [this, ticket] { cancel(ticket); };
    parts_.loop.submit(ticket, std::move(request.requests));
  } catch (...) {
    exchange->on_gone = {};
    drop(ticket);
    throw;
  }
}

void Completions::refuse(HttpExchange& exchange) {
  ++parts_.metrics.refused;
  respond(exchange, error_response(503, "too many requests wait"));
}

void Completions::respond(HttpExchange& exchange, HttpResponse response) const {
  response.headers.insert(response.headers.end(), parts_.headers.begin(), parts_.headers.end());
  exchange.respond(std::move(response));
}

void Completions::take(const LoopEvents& events) {
  const Clock::time_point now = Clock::now();
  // A step of many streams takes a millisecond or more to write: first tokens, for which a client
  // waits longest, go out before the others. Events of one ticket stay in their order.
  std::vector<EventRun> others;
  const std::span<const LoopEvents::Event> all(events.events);
  for (size_t first = 0, end = 0; first < all.size(); first = end) {
    while (end < all.size() && all[end].ticket == all[first].ticket) {
      ++end;
    }
    const EventRun run = all.subspan(first, end - first);
    const auto found = jobs_.find(run.front().ticket);
    if (found != jobs_.end() && !found->second->has_token) {
      take_run(*found->second, events, run, now);
    } else if (found != jobs_.end()) {
      others.push_back(run);
    }
  }
  for (const EventRun run : others) {
    if (const auto found = jobs_.find(run.front().ticket); found != jobs_.end()) {
      take_run(*found->second, events, run, now);
    }
  }
}

// Takes events of one ticket, and writes what they bring at once. May end the job.
void Completions::take_run(Job& job, const LoopEvents& events, EventRun run,
                           Clock::time_point now) {
  const Ticket ticket = job.ticket;
  const auto failed = refusal_of([&] {
    std::string chunks;
    std::optional<Refusal> failure;
    for (const LoopEvents::Event& event : run) {
      failure = take_event(job, events, event, now, chunks);
      if (failure) {
        break;
      }
    }
    if (!chunks.empty()) {
      const auto exchange = job.exchange;
      job.written = now;
      exchange->write(chunks);
      if (exchange->gone()) {  // cut off, as a client that does not read; so is the job
        return;
      }
    }
    if (failure) {
      fail(job, failure->status, failure->why);
    } else if (job.reply.finished()) {
      parts_.metrics.end_to_end.add(seconds_between(job.arrival, now));
      complete(job);
    }
  });
  if (failed) {
    end_with(ticket, *failed);
  }
}

// For want of memory, most likely.
void Completions::end_with(Ticket ticket, const Refusal& refusal) {
  if (const auto found = jobs_.find(ticket); found != jobs_.end()) {
    ++parts_.metrics.failed;
    parts_.loop.cancel(ticket);
    fail(*found->second, refusal.status, refusal.why);
  }
}

// Appends what a stream's client is told. Why the job ends, if it fails.
std::optional<Refusal> Completions::take_event(Job& job, const LoopEvents& events,
                                               const LoopEvents::Event& event,
                                               Clock::time_point now, std::string& chunks) {
  switch (event.kind) {
    case LoopEvents::Kind::accepted:
      parts_.metrics.prompt_tokens += job.reply.prompt_tokens();
      if (job.streams) {
        begin_stream(job);
      }
      break;
    case LoopEvents::Kind::refused:
      return Refusal{.status = 400, .why = std::string(events.error_of(event))};
    case LoopEvents::Kind::failed:
      ++parts_.metrics.failed;
      return Refusal{.status = events.lost ? 503 : 500, .why = std::string(events.error_of(event))};
    case LoopEvents::Kind::started:
      parts_.metrics.queue_time.add(seconds_between(job.arrival, now));
      break;
    case LoopEvents::Kind::token: {
      count_token(job, event, now);
      const size_t before = chunks.size();
      job.reply.add(events, event, chunks);
      if (!job.reply.error().empty()) {
        chunks.resize(before);
        ++parts_.metrics.failed;
        parts_.loop.cancel(job.ticket);
        return Refusal{.status = events.lost ? 503 : 500, .why = std::string(job.reply.error())};
      }
      break;
    }
  }
  return {};
}

void Completions::begin_stream(Job& job) {
  HttpResponse head{.content_type = "text/event-stream; charset=utf-8",
                    .headers = {{.name = "Cache-Control", .value = "no-cache"},
                                {.name = "X-Accel-Buffering", .value = "no"}}};
  head.headers.insert(head.headers.end(), parts_.headers.begin(), parts_.headers.end());
  job.begun = true;
  job.exchange->begin_stream(std::move(head));
}

void Completions::count_token(Job& job, const LoopEvents::Event& event, Clock::time_point now) {
  if (event.token) {
    job.has_token = true;
    ++parts_.metrics.generation_tokens;
    Clock::time_point& latest = job.latest[job.reply.choice_of(event)];
    if (latest == Clock::time_point()) {
      parts_.metrics.time_to_first_token.add(seconds_between(job.arrival, now));
    } else {
      parts_.metrics.inter_token.add(seconds_between(latest, now));
    }
    latest = now;
  }
  if (event.finish) {
    parts_.metrics.count_finish(*event.finish);
  }
}

void Completions::complete(Job& job) {
  const auto exchange = job.exchange;
  exchange->on_gone = {};
  if (job.streams) {
    exchange->write(job.reply.stream_end());
    exchange->end();
  } else {
    respond(*exchange, {.body = job.reply.body()});
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
    respond(*exchange, error_response(status, why));
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
    bytes_ -= found->second->bytes;
    jobs_.erase(found);
  }
}

void Completions::tick(Clock::time_point now) {
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
  ended_ = Refusal{.status = status, .why = std::string(why)};
  *ends_ = true;
  std::vector<Ticket> tickets;
  for (const auto& [ticket, job] : jobs_) {
    tickets.push_back(ticket);
  }
  for (const Ticket ticket : tickets) {
    if (const auto found = jobs_.find(ticket); found != jobs_.end()) {
      ++parts_.metrics.failed;
      fail(*found->second, status, why);
    }
  }
}

}  // namespace sparsellm
