// An engine for tests of peers, in a process of its own: peer_engine NAME LIBRARY TRANSPORTS PAGES PAGE_BYTES
// TIMEOUT_MS. Executes commands of its standard input, one a line, and answers each with a line. The first line that it
// writes is its description.
#include <sys/prctl.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/peer_rig.hpp"
#include "tests/remote/peer_texts.hpp"

namespace kvtwin::test {
namespace {

std::vector<SlotId> shuffled(SlotId count, Splitmix& random) {
  std::vector<SlotId> slots(count);
  for (SlotId i = 0; i < count; ++i) slots[i] = i;
  for (std::size_t i = slots.size(); i > 1; --i) std::swap(slots[i - 1], slots[random.below(i)]);
  return slots;
}

// The results of reads: pages by cause; wrong = pages that were delivered with other bytes.
struct Reads {
  std::uint64_t right = 0, missing = 0, unreachable = 0, wrong = 0;
};
std::string text_of(const Reads& reads) {
  return std::to_string(reads.right) + " right, " + std::to_string(reads.missing) + " missing, " +
         std::to_string(reads.unreachable) + " unreachable, " + std::to_string(reads.wrong) + " wrong";
}
// Reads pages base + slot of all slots in any order, into any slots that are not in use.
Reads read(PeerEngine& engine, PeerId from, Splitmix& random, SlotId count, std::uint64_t base) {
  const std::vector<SlotId> own = shuffled(count, random), theirs = shuffled(count, random);
  std::vector<PeerPage> pages;
  for (SlotId i = 0; i < count; ++i) {
    if (!engine.peers().in_use(own[i])) pages.push_back(numbered_page(base + theirs[i], own[i], theirs[i]));
  }
  std::vector<Cause> causes(pages.size());
  engine.peers().read(from, pages, causes);
  Reads reads;
  for (std::size_t i = 0; i < pages.size(); ++i) {
    if (causes[i] == Cause::none) {
      ++(engine.has(pages[i].own, base + pages[i].theirs) ? reads.right : reads.wrong);
    } else {
      ++(causes[i] == Cause::missing ? reads.missing : reads.unreachable);
    }
  }
  return reads;
}

// Returns the answer to a command.
std::string execute(PeerEngine& engine, const std::string& line) {
  std::istringstream in(line);
  std::string command, text;
  in >> command;
  const auto number = [&in] {
    std::uint64_t value = 0;
    if (!(in >> value)) throw std::runtime_error("a number is missing");
    return value;
  };
  const auto slot = [&number] { return static_cast<SlotId>(number()); };
  if (command == "add") {
    in >> text;
    return std::to_string(engine.add(bytes_of_hex(text)));
  }
  if (command == "store") {  // first slot, slots, number of the page in slot 0
    const SlotId first = slot(), count = slot();
    const std::uint64_t base = number();
    for (SlotId i = first; i < first + count; ++i) engine.store(i, base + i);
    return "stored";
  }
  if (command == "grant") {  // peer, first slot, slots
    const PeerId to = number();
    const SlotId first = slot(), count = slot();
    for (SlotId i = first; i < first + count; ++i) engine.peers().grant(i, to);
    return "granted";
  }
  if (command == "accept") {  // first slot, slots, number of the page in slot 0
    const SlotId first = slot(), count = slot();
    const std::uint64_t base = number();
    SlotId right = 0;
    for (SlotId i = first; i < first + count; ++i) {
      const bool accepted = engine.peers().accept(i, some_space(), numbered_key(base + i));
      if (accepted && !engine.has(i, base + i)) return "an accepted slot has other bytes";
      right += accepted ? 1 : 0;
    }
    return std::to_string(right);
  }
  // Peer, seed, slots, number of the page in slot 0: each slot into the peer's same slot. write_until_lost writes a
  // line after each of the first two rounds.
  if (command == "write" || command == "write_until_lost") {
    const PeerId to = number();
    Splitmix random(number());
    const SlotId count = slot();
    const std::uint64_t base = number();
    for (int round = 0;; ++round) {
      std::vector<PeerPage> pages;
      for (const SlotId i : shuffled(count, random)) pages.push_back(numbered_page(base + i, i, i));
      std::vector<Cause> causes(pages.size());
      engine.peers().write(to, pages, causes);
      const auto written = static_cast<std::size_t>(std::ranges::count(causes, Cause::none));
      if (command == "write" || written < pages.size()) return std::to_string(written);
      if (round < 2) std::cout << "writing" << std::endl;
    }
  }
  if (command == "read") {  // peer, seed, slots, number of the page in slot 0
    const PeerId from = number();
    Splitmix random(number());
    const SlotId count = slot();
    return text_of(read(engine, from, random, count, number()));
  }
  if (command == "read_until_lost") {  // the same; writes a line after each of the first two rounds
    const PeerId from = number();
    Splitmix random(number());
    const SlotId count = slot();
    const std::uint64_t base = number();
    for (int round = 0;; ++round) {
      const Reads reads = read(engine, from, random, count, base);
      if (reads.wrong > 0 || reads.unreachable > 0) return text_of(reads);
      if (round < 2) std::cout << "reading" << std::endl;
    }
  }
  // Peer, seed, slots, number of the page in slot 0, pages per call: microseconds; each page is checked, but not
  // compared.
  if (command == "time_reads" || command == "time_writes") {
    const PeerId peer = number();
    Splitmix random(number());
    const SlotId count = slot();
    const std::uint64_t base = number(), at_once = number();
    std::vector<PeerPage> pages;
    for (const SlotId i : shuffled(count, random)) {
      pages.push_back(numbered_page(base + i, command == "time_reads" ? count - 1 - i : i, i));
    }
    std::vector<Cause> causes(pages.size());
    const auto begin = std::chrono::steady_clock::now();
    for (std::size_t first = 0; first < pages.size(); first += at_once) {
      const auto some = std::span<const PeerPage>(pages).subspan(first).first(std::min(at_once, pages.size() - first));
      const auto their_causes = std::span(causes).subspan(first).first(some.size());
      if (command == "time_reads") {
        engine.peers().read(peer, some, their_causes);
        continue;
      }
      for (const PeerPage& page : some) engine.peers().publish(page.own, page.space, page.key);
      engine.peers().write(peer, some, their_causes);
    }
    const auto wall = std::chrono::steady_clock::now() - begin;
    if (std::ranges::count(causes, Cause::none) != static_cast<std::ptrdiff_t>(count)) return "error: a page failed";
    return std::to_string(std::chrono::duration_cast<std::chrono::microseconds>(wall).count());
  }
  if (command == "time_list") {  // peer: microseconds
    const auto begin = std::chrono::steady_clock::now();
    engine.peers().list(number());
    const auto wall = std::chrono::steady_clock::now() - begin;
    return std::to_string(std::chrono::duration_cast<std::chrono::microseconds>(wall).count());
  }
  if (command == "in_use") {  // slots of the pool
    const SlotId count = slot();
    SlotId used = 0;
    for (SlotId i = 0; i < count; ++i) used += engine.peers().in_use(i) ? 1 : 0;
    return std::to_string(used);
  }
  if (command == "settle") {  // slots: returns when none of them is in use
    const SlotId count = slot();
    for (SlotId i = 0; i < count; ++i) {
      while (engine.peers().in_use(i)) std::this_thread::yield();
    }
    return "settled";
  }
  if (command == "end_grants") return std::to_string(engine.peers().end_grants(number()).size());
  if (command == "cpu") {  // microseconds of this process
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const auto us = [](const timeval& t) { return std::uint64_t(t.tv_sec) * 1'000'000 + std::uint64_t(t.tv_usec); };
    return std::to_string(us(usage.ru_utime) + us(usage.ru_stime));
  }
  throw std::runtime_error("no such command: " + line);
}

// Stores pages over and over, until `stop`: page `base + slot`, then page `base + slot + step`, and so on.
void churn(PeerEngine& engine, SlotId slots, std::uint64_t step, const std::atomic<bool>& stop) {
  for (std::uint64_t round = 0; !stop; ++round) {
    for (SlotId slot = 0; slot < slots && !stop; ++slot) engine.store(slot, slot + (round % 4) * step);
  }
}

int run(char** arguments) {
  PeerConfig config;
  config.name = arguments[1];
  config.library = arguments[2];
  config.transports = arguments[3];
  const Pages pages = std::strtoull(arguments[4], nullptr, 10);
  config.timeout = std::strtoll(arguments[6], nullptr, 10) * 1'000'000;
  config.bytes_in_flight = std::strtoull(arguments[7], nullptr, 10);
  PeerEngine engine(config, peer_form(std::strtoull(arguments[5], nullptr, 10)), pages);
  std::cout << hex_of(engine.peers().description()) << std::endl;
  std::thread churner;
  std::atomic<bool> stop = false;
  for (std::string line; std::getline(std::cin, line);) {
    std::string answer;
    if (line.starts_with("churn ")) {  // slots, step
      std::istringstream in(line.substr(6));
      SlotId slots = 0;
      std::uint64_t step = 0;
      in >> slots >> step;
      stop = false;
      churner = std::thread([&engine, slots, step, &stop] { churn(engine, slots, step, stop); });
      answer = "churning";
    } else if (line == "rest") {
      stop = true;
      churner.join();
      answer = "resting";
    } else {
      answer = execute(engine, line);
    }
    std::cout << answer << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace kvtwin::test

int main(int count, char** arguments) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  try {
    if (count == 8) return kvtwin::test::run(arguments);
    std::cout << "seven arguments are needed" << std::endl;
  } catch (const std::exception& error) {
    std::cout << "error: " << error.what() << std::endl;
  }
  return 1;
}
