// Any bytes as the arguments of the C interface's stores: no call may crash or leak, a call with wrong lengths may
// touch neither memory nor `status`, and a page that is OK has the bytes that were put. Input: the configuration's
// numbers and texts, then calls.
#include <fuzzer/FuzzedDataProvider.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kvtwin/store.h"
#include "tests/folder.hpp"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

const char* const kKinds[] = {"shared_fs", "disk", "remote", "tape", "", nullptr};
const char* const kLayouts[] = {"layer_first", "page_first", "page_first_direct", "page_head", "wrong", nullptr};

// A number that is usually small.
std::uint32_t number(FuzzedDataProvider& input) {
  return input.ConsumeBool() ? input.ConsumeIntegralInRange<std::uint32_t>(0, 4)
                             : input.ConsumeIntegral<std::uint32_t>();
}

void call(FuzzedDataProvider& input, kvtwin_store* store) {
  const std::uint64_t page_bytes = kvtwin_store_page_bytes(store);
  const std::size_t count = input.ConsumeIntegralInRange<std::size_t>(0, 4);
  const std::size_t pieces = input.ConsumeIntegralInRange<std::size_t>(0, 3);
  std::vector<kvtwin_key> keys(count);
  for (kvtwin_key& key : keys) {
    std::memset(key.bytes, input.ConsumeIntegralInRange<int>(0, 3), sizeof key.bytes);
  }
  std::vector<std::uint8_t> bytes(count * page_bytes), status(count, 200);
  std::vector<void*> addresses;
  std::vector<std::size_t> lengths;
  for (std::size_t page = 0; page < count; ++page) {
    std::uint64_t at = 0;
    for (std::size_t i = 0; i < pieces; ++i) {
      const std::uint64_t length = i + 1 == pieces ? page_bytes - at : (page_bytes - at) / 2;
      addresses.push_back(bytes.data() + page * page_bytes + at);
      lengths.push_back(input.ConsumeIntegralInRange<int>(0, 15) == 0 ? input.ConsumeIntegral<std::uint64_t>()
                                                                      : length);
      at += length;
    }
  }
  bool right = pieces > 0 && pieces <= page_bytes;
  for (std::size_t page = 0; page < count && right; ++page) {
    std::uint64_t left = page_bytes;
    for (std::size_t i = page * pieces; i < (page + 1) * pieces && right; ++i) {
      right = lengths[i] <= left;
      left -= right ? lengths[i] : 0;
    }
    right = right && left == 0;
  }
  const auto filler = [&](std::size_t page) { return static_cast<int>(keys[page].bytes[0] + 1); };
  const auto filled = [&](std::size_t page) {
    for (std::uint64_t i = 0; i < page_bytes; ++i) {
      if (bytes[page * page_bytes + i] != filler(page)) return false;
    }
    return true;
  };
  std::size_t found = 99;
  switch (input.ConsumeIntegralInRange<int>(0, 4)) {
    case 0: {
      for (std::size_t page = 0; page < count; ++page) {
        std::memset(bytes.data() + page * page_bytes, filler(page), page_bytes);
      }
      const kvtwin_status result =
          kvtwin_store_put(store, keys.data(), count, addresses.data(), lengths.data(), pieces, status.data());
      require(result == (right || count == 0 ? KVTWIN_OK : KVTWIN_BAD_ARGUMENT));
      break;
    }
    case 1: {
      const kvtwin_status result =
          kvtwin_store_get(store, keys.data(), count, addresses.data(), lengths.data(), pieces, status.data());
      require(result == (right || count == 0 ? KVTWIN_OK : KVTWIN_BAD_ARGUMENT));
      for (std::size_t page = 0; page < count; ++page) {
        if (result != KVTWIN_OK) {
          require(status[page] == 200);
        } else if (status[page] == KVTWIN_OK) {
          require(filled(page));
        }
      }
      break;
    }
    case 2: require(kvtwin_store_look_up(store, keys.data(), count, &found) == KVTWIN_OK && found <= count); break;
    case 3: require(kvtwin_store_remove(store, keys.data(), count, status.data()) == KVTWIN_OK); break;
    default: {
      char text[64];
      require(kvtwin_store_stats(store, text, input.ConsumeIntegralInRange<std::size_t>(0, 64), &found) == KVTWIN_OK);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const kvtwin::test::Folder* const folder = new kvtwin::test::Folder;  // lives as long as the process
  FuzzedDataProvider input(data, size);
  const std::string location = *folder / input.PickValueInArray({"a", "b", "no/parent", ""});
  const std::string text = input.ConsumeRandomLengthString(20);
  kvtwin_store_config config{};
  config.struct_size = input.ConsumeBool() ? sizeof config : number(input);
  config.kind = input.PickValueInArray(kKinds);
  config.location = location.c_str();
  config.form = {input.ConsumeBool() ? static_cast<std::uint32_t>(sizeof config.form) : number(input),
                 number(input),
                 number(input),
                 number(input),
                 number(input),
                 number(input),
                 input.PickValueInArray(kLayouts)};
  config.identity = {input.ConsumeBool() ? static_cast<std::uint32_t>(sizeof config.identity) : number(input),
                     text.c_str(),
                     "fixed",
                     "bfloat16",
                     number(input),
                     number(input),
                     number(input),
                     nullptr};
  config.capacity_pages = number(input) % 64;  // a larger store makes larger files
  config.secret = input.ConsumeBool() ? text.c_str() : nullptr;
  const std::uint64_t bytes = std::uint64_t{config.form.layers} * config.form.planes * config.form.heads;
  if (bytes > 64 || config.form.head_bytes > 64 || config.form.page_tokens > 16) config.capacity_pages = 0;
  kvtwin_store* store = nullptr;
  char error[200] = "";
  const kvtwin_status opened = kvtwin_store_open(&config, &store, {error, sizeof error});
  require((opened == KVTWIN_OK) == (store != nullptr));
  require((opened == KVTWIN_OK) == (*error == '\0'));
  if (store == nullptr) return 0;
  while (input.remaining_bytes() > 0) call(input, store);
  kvtwin_store_close(store);
  return 0;
}
