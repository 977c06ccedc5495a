// A store library for kvtwin: one file for each value, in the folder that the URL names:
//   library:build/files_store.so?/nvme/values
// kvtwin checks what comes back, so the store need not. See kvtwin/store_library.h for the rules.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include <kvtwin/store_library.h>

namespace {

struct Store {
  std::string folder;
  size_t value_bytes;
};

std::string path_of(const Store& store, const kvtwin_key& name) {
  std::string path = store.folder + "/";
  char digits[3];
  for (const uint8_t byte : name.bytes) {
    std::snprintf(digits, sizeof digits, "%02x", byte);
    path += digits;
  }
  return path;
}

uint8_t failure() {
  if (errno == ENOENT) return KVTWIN_ANSWER_MISSING;
  return errno == ENOSPC || errno == EDQUOT ? KVTWIN_ANSWER_FULL : KVTWIN_ANSWER_FAILED;
}

uint8_t find(const Store& store, const kvtwin_key& name) {
  struct stat facts;
  if (stat(path_of(store, name).c_str(), &facts) != 0) return failure();
  return static_cast<size_t>(facts.st_size) == store.value_bytes ? KVTWIN_ANSWER_DONE : KVTWIN_ANSWER_OTHER;
}

uint8_t read_file(const Store& store, const kvtwin_key& name, void* memory) {
  const uint8_t found = find(store, name);
  if (found != KVTWIN_ANSWER_DONE) return found;
  std::FILE* file = std::fopen(path_of(store, name).c_str(), "rb");
  if (file == nullptr) return failure();
  const size_t got = std::fread(memory, 1, store.value_bytes, file);
  std::fclose(file);
  return got == store.value_bytes ? KVTWIN_ANSWER_DONE : KVTWIN_ANSWER_FAILED;
}

// Under another name first: a reader sees the whole value, or none.
uint8_t write_file(const Store& store, const kvtwin_key& name, const void* memory) {
  const std::string path = path_of(store, name);
  const std::string unfinished = path + "." + std::to_string(getpid());
  std::FILE* file = std::fopen(unfinished.c_str(), "wb");
  if (file == nullptr) return failure();
  bool done = std::fwrite(memory, 1, store.value_bytes, file) == store.value_bytes;
  done = std::fclose(file) == 0 && done;
  done = done && std::rename(unfinished.c_str(), path.c_str()) == 0;
  const uint8_t answer = done ? static_cast<uint8_t>(KVTWIN_ANSWER_DONE) : failure();
  if (!done) unlink(unfinished.c_str());
  return answer;
}

const Store& of(void* store) { return *static_cast<const Store*>(store); }

void* open_store(const kvtwin_store_terms* terms, kvtwin_error error) {
  struct stat facts;
  const bool is_there = mkdir(terms->text, 0700) == 0 || errno == EEXIST;
  if (!is_there || stat(terms->text, &facts) != 0 || !S_ISDIR(facts.st_mode)) {
    std::snprintf(error.text, error.size, "%s is no folder; name one behind the '?' of the URL", terms->text);
    return nullptr;
  }
  return new Store{terms->text, static_cast<size_t>(terms->value_bytes)};
}

void close_store(void* store) { delete static_cast<Store*>(store); }

void look_up(void* store, const kvtwin_key* names, size_t count, uint8_t* answers) {
  for (size_t i = 0; i < count; ++i) answers[i] = find(of(store), names[i]);
}

void get(void* store, const kvtwin_key* names, size_t count, void* const* memory, uint8_t* answers) {
  for (size_t i = 0; i < count; ++i) answers[i] = read_file(of(store), names[i], memory[i]);
}

void put(void* store, const kvtwin_key* names, size_t count, const void* const* memory, uint8_t* answers) {
  for (size_t i = 0; i < count; ++i) answers[i] = write_file(of(store), names[i], memory[i]);
}

void remove_values(void* store, const kvtwin_key* names, size_t count, uint8_t* answers) {
  for (size_t i = 0; i < count; ++i) {
    answers[i] =
        unlink(path_of(of(store), names[i]).c_str()) == 0 ? static_cast<uint8_t>(KVTWIN_ANSWER_DONE) : failure();
  }
}

}  // namespace

extern "C" const kvtwin_store_functions kvtwin_store_library = {sizeof(kvtwin_store_functions),
                                                                KVTWIN_STORE_LIBRARY_VERSION,
                                                                open_store,
                                                                close_store,
                                                                look_up,
                                                                get,
                                                                put,
                                                                remove_values};
