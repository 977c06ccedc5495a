// A header proves which page the payload is: space, key, form and length, each by itself.
#include "impl/storage/page_header.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "tests/stored_pages.hpp"

namespace kvtwin::test {
namespace {

const PageForm kForm{{2, 2, 4, 8, 4}, Layout::page_first};

// Forms of the same number of bytes, each with two numbers or the layout changed.
std::vector<PageForm> other_forms() {
  std::vector<PageForm> forms(6, kForm);
  forms[0].shape = {4, 1, 4, 8, 4};
  forms[1].shape = {4, 2, 2, 8, 4};
  forms[2].shape = {2, 2, 2, 16, 4};
  forms[3].shape = {2, 2, 4, 4, 8};
  forms[4].shape = {1, 2, 4, 8, 8};
  forms[5].layout = Layout::page_head;
  return forms;
}

TEST(PageHeader, OfAnotherFormIsNoPage) {
  const PageKey space = some_space(), key = numbered_key(1);
  const std::vector<std::byte> payload(kForm.bytes(), std::byte{7});
  const PageSeal secret("sixteen characters and more");
  for (const PageSeal* seal : {static_cast<const PageSeal*>(nullptr), &secret}) {
    const PageHeader header = make_page_header(kForm, space, key, payload, seal);
    EXPECT_TRUE(holds_page(kForm, space, key, header, payload, seal));
    for (const PageForm& other : other_forms()) {
      ASSERT_EQ(other.bytes(), kForm.bytes());
      EXPECT_FALSE(read_page_header(other, header));
      EXPECT_FALSE(holds_page(other, space, key, header, payload, seal));
    }
  }
}

TEST(PageHeader, OfAnotherPageIsNoPage) {
  const PageKey space = some_space(), key = numbered_key(1);
  const std::vector<std::byte> payload(kForm.bytes(), std::byte{7});
  const PageHeader header = make_page_header(kForm, space, key, payload);
  EXPECT_FALSE(holds_page(kForm, some_space(2), key, header, payload));
  EXPECT_FALSE(holds_page(kForm, space, numbered_key(2), header, payload));
  EXPECT_FALSE(holds_page(kForm, space, key, header, std::span(payload).first(payload.size() - 1)));
}

TEST(PageHeader, ANameDependsOnSpaceKeyAndForm) {
  const PageKey space = some_space(), key = numbered_key(1);
  const PageKey name = stored_page_key(kForm, space, key);
  EXPECT_EQ(stored_page_key(kForm, space, key), name);
  EXPECT_NE(stored_page_key(kForm, some_space(2), key), name);
  EXPECT_NE(stored_page_key(kForm, space, numbered_key(2)), name);
  for (const PageForm& other : other_forms()) EXPECT_NE(stored_page_key(other, space, key), name);
}

}  // namespace
}  // namespace kvtwin::test
