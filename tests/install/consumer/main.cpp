#include "all_headers.hpp"

int main() {
  kvtwin::set_check_handler(nullptr);
  const kvtwin::KvShape shape{.layers = 2, .planes = 2, .heads = 4, .head_bytes = 8, .page_tokens = 16};
  return shape.page_bytes() == 2 * 2 * 4 * 8 * 16 ? 0 : 1;
}
