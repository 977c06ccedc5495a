// A store library in memory that does its worst. The text of the URL names what it does: words, separated by commas.
// "hang_get" and the like block until hostile_release().
#include <pthread.h>

#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "kvtwin/store_library.h"

namespace {

std::mutex mutex;
std::condition_variable changed;
bool released = false;
int open_stores = 0;

struct Store {
  std::string words;
  std::string pool;
  size_t value_bytes = 0;

  bool does(const std::string& word) const { return ("," + words + ",").find("," + word + ",") != std::string::npos; }
};
std::map<std::string, std::vector<unsigned char>> values;  // of all stores

std::string name_of(const kvtwin_key& key) { return {reinterpret_cast<const char*>(key.bytes), sizeof key.bytes}; }

void misbehave(const Store& store, const std::string& call) {
  if (store.does("throw_" + call)) throw std::runtime_error("no");
  if (store.does("throw_number_" + call)) throw 7;
  if (store.does("end_thread_" + call)) pthread_exit(nullptr);
  if (store.does("hang_" + call)) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [] { return released; });
  }
}

Store& of(void* store) { return *static_cast<Store*>(store); }

void* open_store(const kvtwin_store_terms* terms, kvtwin_error error) {
  Store store{terms->text, terms->pool, static_cast<size_t>(terms->value_bytes)};
  misbehave(store, "open");
  if (store.does("refuse_open")) {
    std::memset(error.text, 'x', error.size);  // without an end
    return nullptr;
  }
  const std::lock_guard lock(mutex);
  ++open_stores;
  return new Store(store);
}

void close_store(void* store) {
  misbehave(of(store), "close");
  delete static_cast<Store*>(store);
  const std::lock_guard lock(mutex);
  --open_stores;
}

void look_up(void* store, const kvtwin_key* names, size_t count, uint8_t* answers) {
  misbehave(of(store), "look_up");
  const std::lock_guard lock(mutex);
  for (size_t i = 0; i < count; ++i) {
    const bool lies = of(store).does("claim_all");
    answers[i] = lies || values.count(name_of(names[i])) != 0 ? KVTWIN_ANSWER_DONE : KVTWIN_ANSWER_MISSING;
    if (of(store).does("answer_77")) answers[i] = 77;
    const auto found = values.find(name_of(names[i]));
    if (found != values.end() && found->second.size() != of(store).value_bytes) answers[i] = KVTWIN_ANSWER_OTHER;
  }
}

void get(void* store, const kvtwin_key* names, size_t count, void* const* memory, uint8_t* answers) {
  misbehave(of(store), "get");
  const std::lock_guard lock(mutex);
  const Store& one = of(store);
  for (size_t i = 0; i < count; ++i) {
    if (one.does("answer_77")) {
      answers[i] = 77;
      continue;
    }
    const auto found = values.find(one.does("swap") && count > 1 ? name_of(names[(i + 1) % count]) : name_of(names[i]));
    answers[i] = found == values.end() && !one.does("claim_all") ? KVTWIN_ANSWER_MISSING : KVTWIN_ANSWER_DONE;
    if (one.does("other")) answers[i] = KVTWIN_ANSWER_OTHER;
    if (found == values.end()) continue;
    size_t bytes = found->second.size();
    if (one.does("short")) bytes /= 2;
    std::memcpy(memory[i], found->second.data(), bytes);
    if (one.does("flip")) static_cast<unsigned char*>(memory[i])[bytes / 2] ^= 4;
    if (one.does("garbage")) std::memset(memory[i], 0x5a, bytes);
    if (one.does("empty")) std::memset(memory[i], 0, bytes);
  }
}

void put(void* store, const kvtwin_key* names, size_t count, const void* const* memory, uint8_t* answers) {
  misbehave(of(store), "put");
  const std::lock_guard lock(mutex);
  for (size_t i = 0; i < count; ++i) {
    answers[i] = KVTWIN_ANSWER_FULL;
    if (of(store).does("full")) continue;
    const auto* bytes = static_cast<const unsigned char*>(memory[i]);
    const size_t kept = of(store).value_bytes / (of(store).does("keep_half") ? 2 : 1);
    if (!of(store).does("drop")) values[name_of(names[i])].assign(bytes, bytes + kept);
    answers[i] = of(store).does("answer_77") ? 77 : KVTWIN_ANSWER_DONE;
  }
}

void remove_values(void* store, const kvtwin_key* names, size_t count, uint8_t* answers) {
  misbehave(of(store), "remove");
  const std::lock_guard lock(mutex);
  for (size_t i = 0; i < count; ++i) {
    values.erase(name_of(names[i]));
    answers[i] = KVTWIN_ANSWER_DONE;
  }
}

}  // namespace

extern "C" {

const kvtwin_store_functions kvtwin_store_library = {sizeof(kvtwin_store_functions),
                                                     KVTWIN_STORE_LIBRARY_VERSION,
                                                     open_store,
                                                     close_store,
                                                     look_up,
                                                     get,
                                                     put,
                                                     remove_values};

// Empties the stores, lets calls block again, and forgets stores that were not closed.
__attribute__((visibility("default"))) void hostile_reset() {
  const std::lock_guard lock(mutex);
  values.clear();
  released = false;
  open_stores = 0;
}
__attribute__((visibility("default"))) void hostile_release() {
  const std::lock_guard lock(mutex);
  released = true;
  changed.notify_all();
}
__attribute__((visibility("default"))) int hostile_open_stores() {
  const std::lock_guard lock(mutex);
  return open_stores;
}
}
