#include "tools/batch.h"

#include <chrono>
#include <new>
#include <unordered_map>
#include <utility>

#include "kernels/base/error.h"
#include "tokenizer/utf8.h"
#include "tools/interrupt.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;

// Results are written in order: how many lines, and bytes, may wait for the oldest one.
constexpr size_t kMaxWaitingLines = 4096;
constexpr int64_t kMaxWaitingBytes = 64 << 20;

// Enough of a line of results to hold its id: in JSON a byte takes up to six.
constexpr int64_t kPrefixBytes = 64 + 6 * kMaxIdBytes;

constexpr char kOutOfMemory[] = "out of memory";

std::string id_of(const LineReader::Line& line) {
  return line.too_long ? kNoId : read_prompt_id(line.text, line.number).value_or(kNoId);
}

}  // namespace

struct Batch::Job {
  int64_t line = 0;
  std::string id;
  Prompt prompt;  // of the text and its ids only what the result needs
  Results results;
  int64_t request = 0;
  std::string result = {};  // as it is written; empty until finished
  bool failed = false;
};

Batch::Batch(const BatchOptions& options)
    : options_(options), prompts_(options.prompts, kMaxPromptBytes), file_(options.output) {
  for (const fs::path& path : {file_.path(), file_.partial_path()}) {
    require(!prompts_.is_file(path), "{} would be written, but it is the file of the prompts",
            path.string());
  }
  check_prompts();
  const bool has_output = fs::exists(file_.path());
  const bool has_partial = file_.size() > 0;
  if (options.resume) {
    require(!has_output || !has_partial || options.force,
            "{} and {} are both there; --force replaces the first of them in the end",
            file_.path().string(), file_.partial_path().string());
    skip_finished(has_output && !has_partial ? file_.path() : file_.partial_path());
    return;
  }
  require(
      !has_partial || options.force,
      "{} is there already, of an unfinished run; --resume goes on with it, --force begins anew",
      file_.partial_path().string());
  require(!has_output || options.force, "{} is there already; --force replaces it",
          file_.path().string());
}

Batch::~Batch() = default;

bool Batch::next_prompt(LineReader::Line& line) {
  while (prompts_.next(line)) {
    throw_if_interrupted();
    if (line.number == 1 && line.text.starts_with(kByteOrderMark)) {
      line.text.remove_prefix(kByteOrderMark.size());
    }
    if (!is_blank(line.text) || line.too_long) {
      return true;
    }
  }
  return false;
}

void Batch::check_prompts() {
  std::unordered_map<std::string, int64_t> line_of_id;
  LineReader::Line line;
  while (next_prompt(line)) {
    ++progress_.lines;
    // A line whose id cannot be read is an error in the results, and stops nothing.
    std::string id = id_of(line);
    if (id != kNoId) {
      const auto [first, is_new] = line_of_id.emplace(std::move(id), line.number);
      require(is_new, "{}: lines {} and {} have the same id {}", options_.prompts.string(),
              first->second, line.number, first->first);
    }
  }
  require(progress_.lines > 0, "{} holds no prompts", options_.prompts.string());
  prompts_.rewind();
}

void Batch::skip_finished(const fs::path& results) {
  const bool is_output = results == file_.path();
  const std::string way_out =
      is_output ? "--force without --resume replaces it" : "--force without --resume begins anew";
  LineReader lines(results, kPrefixBytes);
  LineReader::Line result;
  while (lines.next(result) && result.has_end) {
    LineReader::Line prompt;
    require(next_prompt(prompt), "{} has more lines than {} has prompts; {}", results.string(),
            options_.prompts.string(), way_out);
    const std::string id = id_of(prompt);
    require(result.text.starts_with(result_prefix(id)),
            "line {} of {} is not the result of line {} of {}, which has the id {}; {}",
            result.number, results.string(), prompt.number, options_.prompts.string(), id, way_out);
    require(result.last == '}', "line {} of {} is damaged; {}", result.number, results.string(),
            way_out);
    progress_.failed += result.text.starts_with(error_prefix(id)) ? 1 : 0;
    ++progress_.before;
    kept_bytes_ = lines.offset();
  }
  progress_.done = progress_.before;
  if (!is_output) {
    return;
  }
  require(progress_.done == progress_.lines, "{} has {} lines, but {} has {} prompts; {}",
          results.string(), progress_.done, options_.prompts.string(), progress_.lines, way_out);
  complete_ = true;
}

void Batch::run(Engine& engine, const Prompt& defaults, int64_t parallel,
                const std::function<void(const BatchProgress&)>& report) {
  const auto start = std::chrono::steady_clock::now();
  file_.truncate(kept_bytes_);
  try {
    bool has_more = true;
    while (has_more || !jobs_.empty()) {
      while (has_more && has_room(parallel)) {
        LineReader::Line line;
        has_more = next_prompt(line);
        if (has_more) {
          submit(engine, line, defaults);
        }
      }
      if (open_samples_ > 0) {
        require(engine.step(), "the engine has lost a request");
      }
      write_finished(engine.tokenizer());
      progress_.seconds =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      report(progress_);
      throw_if_interrupted();
    }
  } catch (...) {
    cancel_all(engine);
    throw;
  }
  require(progress_.done == progress_.lines && !prompts_.has_changed(),
          "{} has changed while it was read", options_.prompts.string());
  file_.publish(options_.force ? Existing::replace : Existing::keep);
}

bool Batch::has_room(int64_t parallel) const {
  return open_samples_ < 2 * parallel && jobs_.size() < kMaxWaitingLines &&
         waiting_bytes_ < kMaxWaitingBytes;
}

void Batch::submit(Engine& engine, const LineReader::Line& line, const Prompt& defaults) {
  PromptLine read = line.too_long ? PromptLine{.id = kNoId,
                                               .prompt = {},
                                               .error = fmt::format("line {}: longer than {} bytes",
                                                                    line.number, kMaxPromptBytes)}
                                  : read_prompt_line(line.text, line.number, defaults);
  const int32_t samples = read.prompt.request.samples;
  jobs_.push_back(std::make_unique<Job>(Job{.line = line.number,
                                            .id = std::move(read.id),
                                            .prompt = std::move(read.prompt),
                                            .results = Results(samples)}));
  Job& job = *jobs_.back();
  if (!read.error.empty()) {
    set_error(job, read.error);
    return;
  }
  try {
    Request request = make_request(engine.tokenizer(), job.prompt, options_.parse_special);
    check_log_probs(request, engine.context_size());
    if (!job.prompt.echo) {
      job.prompt.text.reset();
      job.prompt.request.prompt = {};
    }
    finished_.reserve(jobs_.size());
    job.request = engine.submit(std::move(request), [this, &job](const TokenEvent& event) {
      job.results.add(event);  // all that may throw: then the event is not the last one
      progress_.tokens += event.token ? 1 : 0;
      if (event.finish) {
        --open_samples_;
      }
      if (job.results.finished()) {
        finished_.push_back(&job);
      }
    });
    open_samples_ += samples;
  } catch (const DeviceLost&) {
    throw;  // no fault of the line, which another run can continue
  } catch (const Error& error) {
    set_line_error(job, error.what());
  } catch (const std::bad_alloc&) {
    set_line_error(job, kOutOfMemory);
  }
}

void Batch::set_error(Job& job, std::string_view error) {
  set_result(job, error_json(job.id, error));
  job.failed = true;
}

void Batch::set_line_error(Job& job, std::string_view error) {
  set_error(job, fmt::format("line {}: {}", job.line, error));
}

void Batch::set_result(Job& job, std::string result) {
  job.result = std::move(result);
  job.results = Results(0);
  job.prompt = {};  // it may be large, and the result may have to wait
  waiting_bytes_ += std::ssize(job.result);
}

void Batch::write_finished(const Tokenizer& tokenizer) {
  for (Job* job : finished_) {
    if (!job->results.error().empty()) {
      set_line_error(*job, job->results.error());
      continue;
    }
    try {
      set_result(*job, result_json(job->id, tokenizer, job->prompt, job->results));
    } catch (const std::bad_alloc&) {
      set_line_error(*job, kOutOfMemory);
    }
  }
  finished_.clear();  // which keeps its memory
  while (!jobs_.empty() && !jobs_.front()->result.empty()) {
    const Job& job = *jobs_.front();
    file_.append(job.result);
    waiting_bytes_ -= std::ssize(job.result);
    ++progress_.done;
    progress_.failed += job.failed ? 1 : 0;
    jobs_.pop_front();
  }
}

void Batch::cancel_all(Engine& engine) {
  for (const auto& job : jobs_) {
    engine.cancel(job->request);  // its callback refers to the job
  }
  jobs_.clear();
  finished_.clear();
}

}  // namespace sparsellm
