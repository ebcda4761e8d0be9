#include "tokenizer/regex.h"

#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <exception>
#include <new>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/json_reader.h"
#include "tokenizer/oniguruma.h"

namespace sparsellm {
namespace {

static_assert(PCRE2_MAJOR > 10 || PCRE2_MINOR >= 40, "\\p{White_Space} needs PCRE2 10.40");

constexpr size_t kMaxPatternBytes = 20'000;
constexpr uint32_t kMaxNesting = 50;
constexpr uint32_t kMatchHeapKib = 64 * 1024;

// Nearly all matches of ordinary text are found within these limits, which are so low that what
// happens within them needs no count: PCRE2 says only that a limit was met, starts anew with each
// place where a match may begin, and does not count the characters that a repetition runs over.
constexpr size_t kQuickBytes = 512;
constexpr uint32_t kQuickSteps = 64;

template <auto free_function>
struct Free {
  template <class T>
  void operator()(T* object) const {
    free_function(object);
  }
};
using CompileContext = std::unique_ptr<pcre2_compile_context, Free<pcre2_compile_context_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Free<pcre2_match_context_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Free<pcre2_match_data_free>>;

std::string pcre2_message(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

// What PCRE2 has made; nullptr for want of memory, which is no fault of an expression or a text: an
// Error would blame one.
template <class T>
T* require_memory(T* made) {
  if (made == nullptr) {
    throw std::bad_alloc();
  }
  return made;
}

MatchContext make_context(uint32_t steps) {
  MatchContext context(require_memory(pcre2_match_context_create(nullptr)));
  pcre2_set_match_limit(context.get(), steps);
  pcre2_set_heap_limit(context.get(), kMatchHeapKib);
  return context;
}

PCRE2_SPTR code_units(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

// Counts what a match does. PCRE2 calls back before each item of the expression.
struct StepCounter {
  MatchLimit& limit;
  size_t position = 0;  // where the item before began
  bool exceeded = false;
  std::exception_ptr poll_error = {};  // no exception may pass through the library

  static int count(pcre2_callout_block* block, void* self) noexcept {
    return static_cast<StepCounter*>(self)->count_item(block->current_position);
  }

 private:
  int count_item(size_t next) noexcept {
    const size_t run = next > position ? next - position : position - next;
    position = next;
    try {
      exceeded = !limit.take(1 + run);
    } catch (...) {
      poll_error = std::current_exception();
    }
    return exceeded || poll_error ? PCRE2_ERROR_CALLOUT : 0;
  }
};

// The first bytes of a well-formed text, whole characters.
std::string_view first_bytes(std::string_view text, size_t count) {
  if (count >= text.size()) {
    return text;
  }
  while ((static_cast<uint8_t>(text[count]) & 0xc0) == 0x80) {
    --count;
  }
  return text.substr(0, count);
}

}  // namespace

void Regex::CodeDeleter::operator()(void* code) const {
  pcre2_code_free(static_cast<pcre2_code*>(code));
}

void Regex::ContextDeleter::operator()(void* context) const {
  pcre2_match_context_free(static_cast<pcre2_match_context*>(context));
}

Regex::Regex(std::string_view pattern) : pattern_(quote(pattern)) {
  require(pattern.size() <= kMaxPatternBytes,
          "the regular expression {} has {} bytes; at most {} are supported", pattern_,
          pattern.size(), kMaxPatternBytes);
  const std::string translated = pcre2_from_oniguruma(pattern);

  const CompileContext context(require_memory(pcre2_compile_context_create(nullptr)));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);  // what "." does not match
  pcre2_set_parens_nest_limit(context.get(), kMaxNesting);
  const auto compile = [&](uint32_t options, uint32_t jit_options) {
    int error = 0;
    PCRE2_SIZE error_offset = 0;
    auto* code =
        pcre2_compile(code_units(translated), translated.size(), PCRE2_UTF | PCRE2_UCP | options,
                      &error, &error_offset, context.get());
    if (error == PCRE2_ERROR_HEAP_FAILED) {
      throw std::bad_alloc();
    }
    require(code != nullptr, "the regular expression {} does not compile: {}", pattern_,
            pcre2_message(error));
    Code result(code);
    uint32_t matches_empty = 0;
    pcre2_pattern_info(code, PCRE2_INFO_MATCHEMPTY, &matches_empty);
    require(matches_empty == 0,
            "the regular expression {} can match the empty string, which is not supported",
            pattern_);
    // Without compiled code, where the library or the system has none, matching is only slower.
    pcre2_jit_compile(code, jit_options);
    return result;
  };
  quick_ = compile(0, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
  counting_ = compile(PCRE2_AUTO_CALLOUT, PCRE2_JIT_COMPLETE);
  quick_context_.reset(make_context(kQuickSteps).release());
}

// Finds the matches in a text.
class Regex::Search {
 public:
  Search(const Regex& regex, std::string_view text, MatchLimit& limit)
      : regex_(regex),
        text_(text),
        limit_(limit),
        data_(require_memory(pcre2_match_data_create(1, nullptr))) {}

  struct Match {
    size_t begin;
    size_t end;  // both at the end of the text: there is none
  };

  // The first match that begins at `from` or after it.
  Match next(size_t from) {
    auto* const context = static_cast<pcre2_match_context*>(regex_.quick_context_.get());
    while (from < text_.size()) {
      const std::string_view rest = text_.substr(from);
      const std::string_view window = first_bytes(rest, kQuickBytes);
      // If the expression looks at what is after the window, that is a partial match.
      const bool is_cut = window.size() < rest.size();
      const int result = run(regex_.quick_, window, is_cut ? PCRE2_PARTIAL_HARD : 0, context);
      if (result > 0) {
        limit_.pass(end());
        return {from + begin(), from + end()};
      }
      const bool has_passed =
          result == PCRE2_ERROR_NOMATCH || (result == PCRE2_ERROR_PARTIAL && begin() > 0);
      if (!has_passed) {
        return next_counting(from);
      }
      const size_t passed = result == PCRE2_ERROR_NOMATCH ? window.size() : begin();
      limit_.pass(passed);
      from += passed;
    }
    return {text_.size(), text_.size()};
  }

 private:
  Match next_counting(size_t from) {
    const std::string_view rest = text_.substr(from);
    const MatchContext context = make_context(UINT32_MAX);
    StepCounter counter{.limit = limit_};
    pcre2_set_callout(context.get(), StepCounter::count, &counter);
    int result = run(regex_.counting_, rest, 0, context.get());
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) {
      // Without compiled code the stack is on the heap.
      result = run(regex_.counting_, rest, PCRE2_NO_JIT, context.get());
    }
    if (counter.poll_error) {
      std::rethrow_exception(counter.poll_error);
    }
    if (result == PCRE2_ERROR_NOMATCH) {
      return {text_.size(), text_.size()};
    }
    if (result == PCRE2_ERROR_NOMEMORY) {
      throw std::bad_alloc();
    }
    if (result < 0) {
      fail("the regular expression {} failed on a text of {} bytes: {}", regex_.pattern_,
           limit_.text_bytes(),
           counter.exceeded ? fmt::format("limit exceeded of {} steps", limit_.steps())
                            : pcre2_message(result));
    }
    return {from + begin(), from + end()};
  }

  int run(const Code& code, std::string_view subject, uint32_t options,
          pcre2_match_context* context) {
    return pcre2_match(static_cast<const pcre2_code*>(code.get()), code_units(subject),
                       subject.size(), 0, PCRE2_NO_UTF_CHECK | options, data_.get(), context);
  }
  size_t begin() const { return pcre2_get_ovector_pointer(data_.get())[0]; }
  size_t end() const { return pcre2_get_ovector_pointer(data_.get())[1]; }

  const Regex& regex_;
  std::string_view text_;
  MatchLimit& limit_;
  MatchData data_;
};

void Regex::split(std::string_view text, MatchLimit& limit, const Visit& visit) const {
  if (text.empty()) {
    return;
  }
  Search search(*this, text, limit);
  for (size_t done = 0; done < text.size();) {
    const Search::Match match = search.next(done);
    require(match.begin >= done && match.end > done, "the regular expression {} matched backwards",
            pattern_);
    if (match.begin > done) {
      visit(text.substr(done, match.begin - done), false);
    }
    if (match.end > match.begin) {
      visit(text.substr(match.begin, match.end - match.begin), true);
    }
    done = match.end;
  }
}

void Regex::split(std::string_view text, std::vector<std::string_view>& pieces) const {
  MatchLimit limit(text.size());
  split(text, limit, [&](std::string_view piece, bool) { pieces.push_back(piece); });
}

}  // namespace sparsellm
