#include "kernels/base/error.h"
#include "tokenizer/regex.h"

// Stands in for regex.cpp in a build without PCRE2.
namespace sparsellm {

Regex::Regex(std::string_view) {
  fail("this tokenizer splits text by regular expressions, but this build has no PCRE2");
}

void Regex::split(std::string_view, MatchLimit&, const Visit&) const {}

void Regex::split(std::string_view, std::vector<std::string_view>&) const {}

void Regex::ContextDeleter::operator()(void*) const {}

void Regex::CodeDeleter::operator()(void*) const {}

}  // namespace sparsellm
