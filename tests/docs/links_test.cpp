// Links between the pages of the project lead somewhere, those to headings too.

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/docs/markdown.h"
#include "tests/testing/paths.h"

namespace sparsellm {
namespace {

namespace fs = std::filesystem;
using testing::Link;
using testing::Page;

bool is_outside(const std::string& target) {
  return target.starts_with("https://") || target.starts_with("http://") ||
         target.starts_with("mailto:");
}

// Why a link of `page` leads nowhere; empty if it does lead somewhere. `pages` has all by path.
std::string why_broken(const Page& page, const std::string& target,
                       const std::map<fs::path, Page>& pages) {
  if (is_outside(target)) {
    return {};
  }
  const size_t hash = target.find('#');
  const std::string file = target.substr(0, hash);
  const fs::path path =
      file.empty() ? page.path : (page.path.parent_path() / file).lexically_normal();
  const auto found = pages.find(path);
  if (found == pages.end() && !fs::exists(path)) {
    return "there is no " + path.string();
  }
  if (hash == std::string::npos) {
    return {};
  }
  const std::string anchor = target.substr(hash + 1);
  return found != pages.end() && found->second.anchors.contains(anchor)
             ? std::string()
             : path.string() + " has no heading for #" + anchor;
}

TEST(DocsLinks, LeadSomewhere) {
  std::map<fs::path, Page> pages;
  for (const fs::path& path : testing::all_pages()) {
    pages.emplace(path, testing::read_page(path));
  }
  size_t links = 0;
  for (const auto& [path, page] : pages) {
    for (const Link& link : page.links) {
      ++links;
      const std::string why = why_broken(page, link.target, pages);
      EXPECT_TRUE(why.empty()) << path.string() << ":" << link.line << ": " << why;
    }
  }
  EXPECT_GT(links, 40u);
}

TEST(DocsLinks, BrokenOnesAreFound) {
  const fs::path root = testing::source_dir();
  const Page page = testing::parse_page(
      root / "A.md",
      "# One `two`, three: 4\n## Same\n## Same\n[a](B.md#x) `[no](link)` [b](#same-1)\n"
      "```\n[in](code)\n# no heading\n```\n");
  EXPECT_EQ(page.anchors, (std::set<std::string>{"one-two-three-4", "same", "same-1"}));
  ASSERT_EQ(page.links.size(), 2u);
  EXPECT_EQ(page.links[0].target, "B.md#x");
  EXPECT_EQ(page.links[0].line, 4);
  const std::map<fs::path, Page> pages{{page.path, page}};
  for (const char* good : {"#same-1", "A.md#one-two-three-4", "LICENSE", "https://a.b/c#d"}) {
    EXPECT_EQ(why_broken(page, good, pages), "") << good;
  }
  for (const char* broken : {"#same-2", "B.md#x", "A.md#One", "LICENSE#a", "docs/LICENSE"}) {
    EXPECT_NE(why_broken(page, broken, pages), "") << broken;
  }
}

}  // namespace
}  // namespace sparsellm
