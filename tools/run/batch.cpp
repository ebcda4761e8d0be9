#include "tools/run/batch.h"

#include <chrono>
#include <new>
#include <span>
#include <unordered_map>
#include <utility>

#include "kernels/base/crc32c.h"
#include "kernels/base/error.h"
#include "kernels/base/mapped_file.h"
#include "models/storage/model_metadata.h"
#include "tokenizer/utf8.h"
#include "tools/cli/interrupt.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;

// Results are written in order: how many lines, and bytes, may wait for the oldest one.
constexpr size_t kMaxWaitingLines = 4096;
constexpr int64_t kMaxWaitingBytes = 64 << 20;

// Longer lines of results, which no usual prompts have, are only compared with their id.
constexpr int64_t kMaxResultBytes = 256 << 20;

std::string id_of(const LineReader::Line& line) {
  return line.too_long ? kNoId : read_prompt_id(line.text, line.number).value_or(kNoId);
}

PromptLine prompt_of(const LineReader::Line& line, const Prompt& defaults) {
  return line.too_long ? PromptLine{.id = kNoId,
                                    .prompt = {},
                                    .error = fmt::format("line {}: longer than {} bytes",
                                                         line.number, kMaxPromptBytes)}
                       : read_prompt_line(line.text, line.number, defaults);
}

fs::path mark_path(const PartialFile& file) {
  fs::path path = file.partial_path();
  path += ".json";
  return path;
}

// Whether a mark is of the lines of a file and no others.
bool is_all_of(const RunMark& mark, const fs::path& path) {
  constexpr int64_t kShownBytes = 1;
  LineReader lines(path, kShownBytes);
  for (LineReader::Line line; lines.next(line);) {
    throw_if_interrupted();
  }
  return lines.offset() == mark.bytes && lines.checksum() == mark.checksum;
}

constexpr char kBeginAnew[] = "--force without --resume begins anew";

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
    : options_(options),
      prompts_(options.prompts, kMaxPromptBytes),
      file_(options.output),
      mark_file_(mark_path(file_)) {
  for (const fs::path& path :
       {file_.path(), file_.partial_path(), mark_file_.path(), mark_file_.new_path()}) {
    require(!prompts_.is_file(path), "{} would be written, but it is the file of the prompts",
            path.string());
  }
  check_prompts();
  mark_.replaces = options_.force;
  if (options_.force && !options_.resume) {
    if (is_there(file_.path()) || file_.size() > 0) {
      // However this run ends, none of what is there is its own.
      mark_.run = prompt_entries();
      write_mark(RunMark::Partial::older);
    }
    return;
  }
  try {
    found_ = mark_file_.read();
  } catch (const Error& error) {
    fail("{}; {}", error.what(), kBeginAnew);
  }
  find_results();
}

// What is in the way of the run, and what it goes on with.
void Batch::find_results() {
  const bool has_output = is_there(file_.path());
  const bool has_partial = file_.size() > 0;
  const std::string output = file_.path().string();
  const std::string partial = file_.partial_path().string();
  if (!options_.resume) {
    require(!has_partial || !found_ || found_->partial != RunMark::Partial::older,
            "{} was to be replaced by a run that ended too early; --resume or --force does so",
            partial);
    require(!has_partial,
            "{} is there already, of an unfinished run; --resume goes on with it, --force begins "
            "anew",
            partial);
    require(!has_output, "{} is there already; --force replaces it", output);
    found_.reset();  // of a run that has left nothing else
    return;
  }
  if (found_ && found_->partial == RunMark::Partial::complete && has_output && !has_partial &&
      is_all_of(*found_, file_.path())) {
    found_.reset();  // its run ended between the last two steps
  }
  mark_.replaces = options_.force || (found_ && found_->replaces);
  require(!has_output || !has_partial || mark_.replaces,
          "{} and {} are both there; --force replaces the first of them in the end", output,
          partial);
  if (has_partial && !(found_ && found_->partial == RunMark::Partial::older)) {
    results_ = file_.partial_path();
  } else if (has_output && !found_) {
    results_ = file_.path();
  } else {
    require(!has_output || mark_.replaces, "{} is there already; --force replaces it", output);
  }
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
  prompt_bytes_ = prompts_.offset();
  prompt_checksum_ = prompts_.checksum();
  prompts_.rewind();
}

RunEntries Batch::prompt_entries() const {
  return {{kPromptsEntry, file_entry(prompt_bytes_, checksum_text(prompt_checksum_))}};
}

void Batch::start(RunEntries run, const Prompt& defaults, const RequireResult& require_result) {
  run.merge(prompt_entries());
  if (found_) {
    refuse_other_run(run);
  }
  if (has_results()) {
    skip_finished(defaults, require_result);
  }
  if (complete_) {
    mark_file_.remove();  // which is here if its run ended between the last two steps
    return;
  }
  mark_.run = std::move(run);
  mark_.bytes = kept_bytes_;
  mark_.checksum = checksum_;
  write_mark(file_.size() > 0 && !has_results() ? RunMark::Partial::older : RunMark::Partial::own);
}

void Batch::refuse_other_run(const RunEntries& run) const {
  // A run that died before it had a result may not have seen all of the model.
  const std::string other = difference(
      found_->run, run, has_results() ? MissingEntries::differ : MissingEntries::ignored);
  require(other.empty(), "{} is of another run: {}; {}", file_.partial_path().string(), other,
          kBeginAnew);
}

void Batch::skip_finished(const Prompt& defaults, const RequireResult& require_result) {
  const bool is_output = results_ == file_.path();
  const std::string path = results_.string();
  const std::string way_out =
      is_output ? "--force without --resume replaces it" : std::string(kBeginAnew);
  LineReader lines(results_, kMaxResultBytes);
  LineReader::Line result;
  while (lines.next(result) && result.has_end) {
    LineReader::Line line;
    require(next_prompt(line), "{} has more lines than {} has prompts; {}", path,
            options_.prompts.string(), way_out);
    const PromptLine prompt = prompt_of(line, defaults);
    require(result.text.starts_with(result_prefix(prompt.id)),
            "line {} of {} is not the result of line {} of {}, which has the id {}; {}",
            result.number, path, line.number, options_.prompts.string(), prompt.id, way_out);
    bool good = result.last == '}';  // and no \r, which the text would not have
    std::string reason;
    if (good && !result.too_long && require_result) {
      try {
        require_result(result.text, prompt, line.number);
      } catch (const Error& error) {
        good = false;
        reason = fmt::format("{} ({})", found_ ? "" : " or of other flags or another model",
                             error.what());
      }
    }
    require(good, "line {} of {} is damaged{}; {}", result.number, path, reason, way_out);
    const int64_t begin = std::exchange(kept_bytes_, lines.offset());
    checksum_ = lines.checksum();
    require(!found_ || begin >= found_->bytes || kept_bytes_ < found_->bytes ||
                (kept_bytes_ == found_->bytes && checksum_ == found_->checksum),
            "the first {} lines of {} are damaged: they have not the checksum that their run left; "
            "{}",
            result.number, path, way_out);
    progress_.failed += result.text.starts_with(error_prefix(prompt.id)) ? 1 : 0;
    ++progress_.before;
  }
  progress_.done = progress_.before;
  if (!is_output) {
    return;
  }
  require(progress_.done == progress_.lines, "{} has {} lines, but {} has {} prompts; {}", path,
          progress_.done, options_.prompts.string(), progress_.lines, way_out);
  complete_ = true;
}

void Batch::run(Engine& engine, const Prompt& defaults, int64_t parallel,
                const std::function<void(const BatchProgress&)>& report) {
  const auto start = std::chrono::steady_clock::now();
  begin_partial();
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
    require(progress_.done == progress_.lines && !prompts_.has_changed(),
            "{} has changed while it was read", options_.prompts.string());
    publish();
  } catch (...) {
    cancel_all(engine);
    mark_lines();
    throw;
  }
}

void Batch::begin_partial() {
  file_.truncate(kept_bytes_);
  if (mark_.partial == RunMark::Partial::older) {
    file_.sync();  // or after a crash older lines could pass for this run's
    write_mark(RunMark::Partial::own);
  }
}

void Batch::publish() {
  file_.sync();
  mark_.bytes = file_.size();
  mark_.checksum = checksum_;
  write_mark(RunMark::Partial::complete);
  file_.publish(mark_.replaces ? Existing::replace : Existing::keep);
  drop_mark();
}

void Batch::write_mark(RunMark::Partial partial) {
  mark_.partial = partial;
  mark_file_.write(mark_);
}

// What was written before the run ends too early is known to be whole. Where this fails as well,
// the mark stays as it is, and the lines are compared with their prompts alone.
void Batch::mark_lines() noexcept {
  try {
    file_.sync();
    mark_.bytes = file_.size();
    mark_.checksum = checksum_;
    mark_file_.write(mark_);
  } catch (...) {
  }
}

// The output has its name, and the name of the partial file is free: another process may have taken
// it, and the mark is that one's then. A mark that stays does no harm.
void Batch::drop_mark() noexcept {
  try {
    const PartialFile lock(file_.path());
    if (mark_file_.read() == mark_) {
      mark_file_.remove();
    }
  } catch (...) {
  }
}

bool Batch::has_room(int64_t parallel) const {
  return open_samples_ < 2 * parallel && jobs_.size() < kMaxWaitingLines &&
         waiting_bytes_ < kMaxWaitingBytes;
}

void Batch::submit(Engine& engine, const LineReader::Line& line, const Prompt& defaults) {
  PromptLine read = prompt_of(line, defaults);
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
    Request request =
        make_request(engine.tokenizer(), job.prompt, options_.parse_special, engine.context_size());
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
    for (const std::string_view part : {std::string_view(job.result), std::string_view("\n")}) {
      checksum_ = crc32c(std::as_bytes(std::span(part)), checksum_);
    }
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
}

}  // namespace sparsellm
