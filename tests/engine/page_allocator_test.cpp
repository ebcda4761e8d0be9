#include "engine/page_allocator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "kernels/base/error.h"

namespace sparsellm {
namespace {

std::vector<int32_t> take(PageAllocator& pages, int64_t count) {
  std::vector<int32_t> taken;
  pages.take(count, taken);
  return taken;
}

TEST(PageAllocator, HandsOutEveryPageOnce) {
  PageAllocator pages(10);
  std::vector<int32_t> a = take(pages, 4);
  std::vector<int32_t> b = take(pages, 6);
  std::set<int32_t> all(a.begin(), a.end());
  all.insert(b.begin(), b.end());
  EXPECT_EQ(all.size(), 10u);
  EXPECT_EQ(*all.begin(), 0);
  EXPECT_EQ(*all.rbegin(), 9);
  EXPECT_EQ(pages.free_pages(), 0);
  EXPECT_THROW(take(pages, 1), Error);

  pages.give_back(a);
  EXPECT_EQ(pages.free_pages(), 4);
  EXPECT_EQ(take(pages, 0).size(), 0u);
  std::vector<int32_t> again = take(pages, 4);
  pages.give_back(again);
  pages.give_back(b);
  EXPECT_EQ(pages.free_pages(), pages.total_pages());
}

TEST(PageAllocator, RefusesImpossibleCounts) {
  EXPECT_THROW(PageAllocator(0), Error);
  EXPECT_THROW(PageAllocator(int64_t{1} << 40), Error);
  PageAllocator pages(2);
  EXPECT_THROW(take(pages, -1), Error);
}

TEST(PageAllocator, ASharedPageIsFreeAfterItsLastHolder) {
  PageAllocator pages(3);
  std::vector<int32_t> a = take(pages, 2);
  std::vector<int32_t> b(a.begin(), a.begin() + 1);
  pages.share(b);
  EXPECT_EQ(pages.free_pages(), 1);
  pages.give_back(a);
  EXPECT_EQ(pages.free_pages(), 2);
  std::vector<int32_t> c = take(pages, 2);
  EXPECT_EQ(std::count(c.begin(), c.end(), b.front()), 0);
  pages.give_back(b);
  pages.give_back(c);
  EXPECT_EQ(pages.free_pages(), 3);

  std::vector<int32_t> free_page{0};
  EXPECT_THROW(pages.share(free_page), Error);
  EXPECT_THROW(pages.give_back(free_page), Error);
}

}  // namespace
}  // namespace sparsellm
