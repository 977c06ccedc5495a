#include "tests/gpu_sim/cta.hpp"

#include <bit>
#include <cstdio>

namespace kvtwin::gpu_sim {
namespace {

constexpr std::byte kPoison{0xA5};
constexpr std::byte kUnloaded{0xEE};                  // where a bulk load has not arrived
constexpr std::uint64_t kMaxBlocks = 1ull << 26;      // of a CTA: more are an endless loop
constexpr std::int64_t kMaxExpected = (1 << 20) - 1;  // bytes that an mbarrier can expect
constexpr std::uint32_t kBulkAlignment = 16;

std::string hex(std::uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

std::string bytes_at(std::uint32_t bytes, std::uint64_t at) { return std::to_string(bytes) + " bytes at " + hex(at); }

}  // namespace

// ---- the launch ---------------------------------------------------------------------------------------------

void Launch::report(const std::string& what, std::uint32_t line, const std::string& where) {
  const std::string kind = what.substr(0, what.find(':'));
  if (!reported_.insert({kind, line}).second) return;
  const std::string text = name + " (" + kernel->file + (line == 0 ? "" : ":" + std::to_string(line)) + "): " + what +
                           (where.empty() ? "" : ", " + where);
  twin::Runtime& runtime = twin::Runtime::get();
  twin::Runtime::Locked locked(runtime);
  runtime.violation(locked, text);
}

std::byte* Launch::reachable(std::uint64_t at, std::uint32_t bytes) {
  auto* place = reinterpret_cast<std::byte*>(at);
  for (std::uint32_t i = 0; i < std::size(known_begin_); ++i) {
    if (at >= known_begin_[i] && at < known_end_[i] && bytes <= known_end_[i] - at) return place;
  }
  const twin::Reach::Range range = reach_->range(place, bytes);
  if (range.end == 0) return nullptr;
  known_ = (known_ + 1) % 4;
  known_begin_[known_] = range.begin;
  known_end_[known_] = range.end;
  return place;
}

bool Launch::run(const twin::Reach& reach) {
  reach_ = &reach;
  std::vector<std::uint32_t> order(ctas);
  for (std::uint32_t i = 0; i < ctas; ++i) order[i] = i;
  for (std::uint32_t i = ctas; i > 1 && !counting; --i) std::swap(order[i - 1], order[rng.below(i)]);
  try {
    for (const std::uint32_t number : order) Cta(*this, number).run();
  } catch (const Fault&) {
    return false;
  }
  return true;
}

// ---- the choice of what runs --------------------------------------------------------------------------------

Cta::Cta(Launch& launch, std::uint32_t number) : launch_(launch), number_(number), threads_(launch.threads) {
  const Kernel& kernel = *launch.kernel;
  const std::uint32_t alignment = std::max(kernel.dynamic_alignment, 16u);
  const std::uint32_t dynamic = (kernel.shared_bytes + alignment - 1) / alignment * alignment;
  shared_.assign(dynamic + launch.dynamic_bytes, kPoison);
  const std::size_t stride = (kernel.register_bytes + 15) / 16 * 16;
  launch.registers.resize(stride * launch.threads, kPoison);
  warps_.resize((launch.threads + kLanes - 1) / kLanes);
  for (std::uint32_t i = 0; i < warps_.size(); ++i) {
    Warp& warp = warps_[i];
    warp.cta_ = this;
    warp.registers_ = launch.registers.data() + stride * kLanes * i;
    warp.register_stride_ = stride;
    warp.parameters_ = reinterpret_cast<std::uintptr_t>(launch.parameters.data());
    warp.parameter_end_ = warp.parameters_ + launch.parameters.size();
    warp.first_thread_ = kLanes * i;
    warp.block_threads_ = launch.threads;
    warp.cta_number_ = number;
    warp.grid_ctas_ = launch.ctas;
    warp.dynamic_ = dynamic;
    const std::uint32_t lanes = std::min(kLanes, launch.threads - kLanes * i);
    warp.live_ = warp.ready_ = lanes == kLanes ? ~0u : (1u << lanes) - 1;
  }
  live_ = launch.threads;
  if (launch.counting) return;
  constexpr std::uint32_t kDiverging[] = {0, 0, 10, 60}, kCopies[] = {0, 2, 30};
  diverging_percent_ = kDiverging[launch.rng.below(std::size(kDiverging))];
  copy_percent_ = kCopies[launch.rng.below(std::size(kCopies))];
  lane_order_ = static_cast<std::uint32_t>(launch.rng.below(3));
}

Warp* Cta::drawn_warp() {
  const auto count = static_cast<std::uint32_t>(warps_.size());
  const auto from = launch_.counting ? 0 : static_cast<std::uint32_t>(launch_.rng.below(count));
  for (std::uint32_t i = 0; i < count; ++i) {
    Warp& warp = warps_[(from + i) % count];
    if (warp.ready_ != 0) return &warp;
  }
  return nullptr;
}

void Cta::run() {
  std::uint64_t blocks = 0;
  while (live_ > 0) {
    if (launch_.counting) {
      while (step_copy()) {
      }
    } else if (launch_.rng.below(100) < copy_percent_) {
      step_copy();
    }
    Warp* warp = drawn_warp();
    if (warp == nullptr) {
      if (step_copy()) continue;
      report_deadlock();
    }
    std::uint64_t burst = launch_.counting ? kMaxBlocks : 1 + launch_.rng.below(under_way_.empty() ? 64 : 8);
    for (; burst > 0 && warp->ready_ != 0; --burst, ++blocks) {
      run_block(*warp);
      if (blocks > kMaxBlocks) {
        launch_.report("endless loop: the kernel does not end", 0, where(warp->first_thread_));
        throw Fault();
      }
    }
  }
  for (const auto& copy : under_way_) {
    if (copy->load)
      launch_.report("bulk load: the CTA ends before the copy", copy->line, "CTA " + std::to_string(number_));
  }
  while (step_copy()) {
  }
}

void Cta::run_block(Warp& warp) {
  const bool diverging = diverging_percent_ > 0 && launch_.rng.below(100) < diverging_percent_;
  if (diverging || !still_together(warp)) choose_lanes(warp, diverging);
  launch_.kernel->run(warp);
  if (launch_.counting) count_block(warp);
}

// Returns true if the lanes that ran last are all lanes that can run, and go to the same block.
bool Cta::still_together(Warp& warp) const {
  if (warp.lanes_ == 0 || warp.chosen_ != warp.ready_) return false;
  const std::uint32_t block = warp.next_[warp.order_[0]];
  for (const std::uint32_t lane : warp.lanes()) {
    if (warp.next_[lane] != block) return false;
  }
  warp.block_ = block;
  return true;
}

void Cta::choose_lanes(Warp& warp, bool diverging) {
  std::uint32_t left = warp.ready_, block = ~0u;
  if (diverging) {
    // The lanes that are at the same block as a random lane, or some of them.
    std::uint32_t lane = static_cast<std::uint32_t>(launch_.rng.below(kLanes));
    while ((left >> lane & 1) == 0) lane = (lane + 1) % kLanes;
    block = warp.next_[lane];
    if (launch_.rng.below(2) == 0) left &= static_cast<std::uint32_t>(launch_.rng.next()) | 1u << lane;
  } else {
    // Blocks are in the order of the PTX. So lanes that are behind run first, and the lanes meet again behind a branch.
    for (std::uint32_t lanes = left; lanes != 0; lanes &= lanes - 1) {
      block = std::min(block, warp.next_[std::countr_zero(lanes)]);
    }
  }
  warp.block_ = block;
  warp.lanes_ = 0;
  warp.chosen_ = 0;
  for (; left != 0; left &= left - 1) {
    const auto lane = static_cast<std::uint32_t>(std::countr_zero(left));
    if (warp.next_[lane] != block) continue;
    warp.order_[warp.lanes_++] = lane;
    warp.chosen_ |= 1u << lane;
  }
  if (lane_order_ == 1) {
    std::reverse(warp.order_, warp.order_ + warp.lanes_);
  } else if (lane_order_ == 2) {
    std::rotate(warp.order_, warp.order_ + launch_.rng.below(warp.lanes_), warp.order_ + warp.lanes_);
  }
}

void Cta::report_deadlock() {
  constexpr const char* kWaits[] = {"", "bar.sync", "an operation of the warp", "an mbarrier", "bulk copies"};
  std::string text = "deadlock:";
  std::uint32_t line = 0;
  int named = 0;
  for (std::uint32_t i = 0; i < threads_.size() && named < 3; ++i) {
    if (threads_[i].wait == Wait::none || (line == threads_[i].line && named > 0)) continue;
    if (named++ == 0) line = threads_[i].line;
    text += " thread " + std::to_string(i) + " waits for " + kWaits[static_cast<int>(threads_[i].wait)] + " in line " +
            std::to_string(threads_[i].line) + ";";
  }
  text.back() = ' ';
  launch_.report(text + "and nothing else can run", line, "CTA " + std::to_string(number_));
  throw Fault();
}

// ---- waits --------------------------------------------------------------------------------------------------

std::string Cta::where(std::uint32_t thread) const {
  return "thread " + std::to_string(thread) + " of CTA " + std::to_string(number_);
}

Past Cta::past_of(std::uint32_t thread) const {
  Past past = *threads_[thread].past;
  Past::raise(past.threads, thread, threads_[thread].clock);
  return past;
}

// Each of the threads has the past of all. `threads` is in ascending order.
void Cta::join_all(const std::vector<std::uint32_t>& threads) {
  auto all = std::make_shared<Past>(*threads_[threads.front()].past);
  const Past* joined = threads_[threads.front()].past.get();
  for (const std::uint32_t i : threads) {
    if (threads_[i].past.get() != joined) all->join(*threads_[i].past);
    joined = threads_[i].past.get();
  }
  Past::raise(all->threads, threads.back(), 0);
  for (const std::uint32_t i : threads) {
    all->threads[i] = threads_[i].clock;
    threads_[i].past = all;
    publish(i);
  }
}

void Cta::block(Warp& warp, std::uint32_t lane, Wait wait, std::uint32_t next, std::uint32_t line) {
  Thread& thread = threads_[warp.thread(lane)];
  thread.wait = wait;
  thread.next = next;
  thread.line = line;
  warp.ready_ &= ~(1u << lane);
}

void Cta::resume(std::uint32_t number) {
  Thread& thread = threads_[number];
  Warp& warp = warps_[number / kLanes];
  warp.next_[number % kLanes] = thread.next;
  warp.ready_ |= 1u << number % kLanes;
  thread.wait = Wait::none;
}

void Cta::leave(std::uint32_t number) {
  Thread& thread = threads_[number];
  for (std::uint32_t i = 0; i < thread.groups.size(); ++i) {
    const bool open = i + 1 == thread.groups.size();
    if (thread.groups[i].unwritten == 0 && thread.groups[i].unread == 0 && open) continue;
    if (!open && Past::at(thread.past->groups, number) > i) continue;
    launch_.report(open ? "bulk store: the thread ends without a commit of its copies"
                        : "bulk store: the thread ends without a wait for the reads of its copies",
                   thread.line, where(number));
    break;
  }
  --live_;
  end_cta_barrier_if_all_there();
}

void Cta::end_cta_barrier_if_all_there() {
  if (at_barrier_ == 0 || at_barrier_ < live_) return;
  std::vector<std::uint32_t> waiting;
  for (std::uint32_t i = 0; i < threads_.size(); ++i) {
    if (threads_[i].wait == Wait::cta) waiting.push_back(i);
  }
  join_all(waiting);
  for (const std::uint32_t i : waiting) resume(i);
  at_barrier_ = 0;
}

void Warp::leave(std::uint32_t lane) {
  for (const Meeting& meeting : meeting_) {
    if (meeting.arrived == 0 || (meeting.members >> lane & 1) == 0) continue;
    const std::uint32_t waiting = thread(static_cast<std::uint32_t>(std::countr_zero(meeting.arrived)));
    cta_->launch_.report("warp operation: a lane of the mask ends before it", cta_->threads_[waiting].line,
                         cta_->where(thread(lane)));
    throw Fault();
  }
  ready_ &= ~(1u << lane);
  live_ &= ~(1u << lane);
  cta_->leave(thread(lane));
}

void Warp::trap(std::uint32_t lane, std::uint32_t line) {
  cta_->launch_.report("trap: the kernel stops itself", line, cta_->where(thread(lane)));
  throw Fault();
}

void Warp::wait_for_cta(std::uint32_t lane, std::uint32_t next, std::uint32_t line) {
  cta_->block(*this, lane, Cta::Wait::cta, next, line);
  ++cta_->at_barrier_;
  cta_->end_cta_barrier_if_all_there();
}

bool Warp::meet(std::uint32_t lane, std::uint32_t members, std::uint32_t line) {
  const auto fail = [&](const char* what) {
    cta_->launch_.report(std::string("warp operation: ") + what, line, cta_->where(thread(lane)));
    throw Fault();
  };
  if ((members >> lane & 1) == 0) fail("the lane is not in its own mask");
  if ((members & ~live_) != 0) fail("the mask has lanes that have ended");
  Meeting& meeting = meeting_[std::countr_zero(members)];
  if (meeting.arrived == 0) {
    meeting = {members, 0, block_};
  } else if (meeting.members != members || meeting.block != block_) {
    fail("lanes of the mask are at different operations");
  }
  meeting.arrived |= 1u << lane;
  if (meeting.arrived != members) return false;
  meeting.arrived = 0;
  return true;
}

void Warp::wait_for_warp(std::uint32_t lane, std::uint32_t members, std::uint32_t next, std::uint32_t line) {
  cta_->block(*this, lane, Cta::Wait::warp, next, line);
  if (!meet(lane, members, line)) return;
  std::vector<std::uint32_t> together;
  for (std::uint32_t left = members; left != 0; left &= left - 1) {
    together.push_back(thread(static_cast<std::uint32_t>(std::countr_zero(left))));
  }
  cta_->join_all(together);
  for (const std::uint32_t member : together) cta_->resume(member);
}

// The operands of shfl.sync are those of the PTX ISA: c has the last lane of a segment, and the mask of the segments.
void Warp::shuffle(std::uint32_t lane, Shuffle how, std::uint32_t value, std::uint32_t b, std::uint32_t c,
                   std::uint32_t members, std::uint32_t next, std::uint32_t line) {
  cta_->block(*this, lane, Cta::Wait::warp, next, line);
  operand_[lane] = {value, b, c};
  if (!meet(lane, members, line)) return;
  for (std::uint32_t left = members; left != 0; left &= left - 1) {
    const auto to = static_cast<std::uint32_t>(std::countr_zero(left));
    const std::uint32_t segment = operand_[to].c >> 8 & 31, offset = operand_[to].b & 31;
    const std::uint32_t last = (to & segment) | (operand_[to].c & 31 & ~segment);
    std::uint32_t from = to;
    bool inside = false;
    switch (how) {
      case Shuffle::idx: from = (to & segment) | (offset & ~segment & 31), inside = from <= last; break;
      case Shuffle::down: from = to + offset, inside = from <= last; break;
      case Shuffle::bfly: from = to ^ offset, inside = from <= last; break;
      case Shuffle::up: inside = to >= last + offset, from = to - offset; break;
    }
    if (!inside) from = to;
    if ((members >> from & 1) == 0) {
      cta_->launch_.report("warp operation: reads a lane that is not in the mask", line, cta_->where(thread(to)));
      from = to;
    }
    result_[to] = operand_[from].value;
    inside_ = (inside_ & ~(1u << to)) | static_cast<std::uint32_t>(inside) << to;
    cta_->resume(thread(to));
  }
}

void Warp::reduce(std::uint32_t lane, Reduce how, std::uint32_t value, std::uint32_t members, std::uint32_t next,
                  std::uint32_t line) {
  cta_->block(*this, lane, Cta::Wait::warp, next, line);
  operand_[lane] = {value, 0, 0};
  if (!meet(lane, members, line)) return;
  std::uint32_t all = operand_[std::countr_zero(members)].value;
  for (std::uint32_t left = members & (members - 1); left != 0; left &= left - 1) {
    const std::uint32_t one = operand_[std::countr_zero(left)].value;
    switch (how) {
      case Reduce::min: all = std::min(all, one); break;
      case Reduce::max: all = std::max(all, one); break;
      case Reduce::add: all += one; break;
      case Reduce::bits: all ^= one; break;
    }
  }
  for (std::uint32_t left = members; left != 0; left &= left - 1) {
    const auto to = static_cast<std::uint32_t>(std::countr_zero(left));
    result_[to] = all;
    cta_->resume(thread(to));
  }
}

// ---- accesses -----------------------------------------------------------------------------------------------

bool Cta::is_before(std::uint32_t other, std::uint32_t clock, std::uint32_t thread) {
  return other == thread || Past::at(threads_[thread].past->threads, other) >= clock;
}

bool Cta::is_before(const Access& access, std::uint32_t thread) {
  const std::uint32_t other = access.thread - 1;
  return other / launch_.threads == number_ && is_before(other % launch_.threads, access.clock, thread);
}

void Cta::check(Shadow& shadow, const char* memory, std::uint32_t thread, std::uint64_t at, std::uint32_t bytes,
                bool write, bool strong, std::uint32_t line) {
  const Access now{number_ * launch_.threads + thread + 1, threads_[thread].clock,
                   static_cast<std::uint16_t>(std::min(line, 65535u)), strong};
  const auto conflicts = [&](const Access& earlier) {
    return earlier.thread != 0 && earlier.thread != now.thread && !(earlier.strong && strong) &&
           !is_before(earlier, thread);
  };
  const auto race = [&](const Access& earlier, const char* kind) {
    const std::uint32_t other = earlier.thread - 1;
    launch_.report(std::string(memory) + " race: " + kind + " of " + bytes_at(bytes, at) +
                       " is not ordered after line " + std::to_string(earlier.line) + " of thread " +
                       std::to_string(other % launch_.threads) + " of CTA " + std::to_string(other / launch_.threads),
                   line, where(thread));
  };
  shadow.for_cells(at, bytes, [&](Cell& cell) {
    if (conflicts(cell.write)) race(cell.write, write ? "write" : "read");
    if (conflicts(cell.atomic)) race(cell.atomic, write ? "write" : "read");
    if (write) {
      for (const Access& read : cell.read) {
        if (conflicts(read)) race(read, "write");
      }
      if (strong) {
        cell.atomic = now;
      } else {
        cell = {now, {}, {}};
      }
      return;
    }
    for (Access& read : cell.read) {
      if (read.thread != 0 && read.thread != now.thread && !is_before(read, thread)) continue;
      read = now;
      return;
    }
    cell.read[1] = now;
  });
}

std::byte* Cta::reachable(std::uint32_t thread, std::uint64_t at, std::uint32_t bytes, std::uint32_t line) {
  std::byte* place = launch_.reachable(at, bytes);
  if (place != nullptr) return place;
  launch_.report("out of bounds: the GPU does not reach " + bytes_at(bytes, at), line, where(thread));
  throw Fault();
}

void Warp::no_parameter(std::uint32_t lane, std::uint64_t at, std::uint32_t bytes, std::uint32_t line) {
  cta_->launch_.report("out of bounds: no parameter has " + bytes_at(bytes, at), line, cta_->where(thread(lane)));
  throw Fault();
}

std::byte* Warp::global(std::uint32_t lane, std::uint64_t at, std::uint32_t bytes, bool write, bool strong,
                        std::uint32_t line) {
  Launch& launch = cta_->launch_;
  if (at % bytes != 0) {
    launch.report("misaligned: an access of " + bytes_at(bytes, at), line, cta_->where(thread(lane)));
    throw Fault();
  }
  std::byte* place = cta_->reachable(thread(lane), at, bytes, line);
  cta_->check(launch.shadow, "global memory", thread(lane), at, bytes, write, strong, line);
  if (launch.counting) cta_->count(line, at, bytes, write);
  return place;
}

std::byte* Warp::shared_bytes(std::uint32_t lane, std::uint32_t at, std::uint32_t bytes, bool write, bool strong,
                              std::uint32_t line) {
  Launch& launch = cta_->launch_;
  if (at % bytes != 0) {
    launch.report("misaligned: an access of " + bytes_at(bytes, at), line, cta_->where(thread(lane)));
    throw Fault();
  }
  if (!cta_->holds_shared(at, bytes)) {
    launch.report("out of bounds: shared memory does not have " + bytes_at(bytes, at), line, cta_->where(thread(lane)));
    throw Fault();
  }
  const auto barrier = cta_->barriers_.lower_bound(at < 7 ? 0 : at - 7);
  if (barrier != cta_->barriers_.end() && barrier->first < at + bytes) {
    launch.report("mbarrier: an ordinary access of " + bytes_at(bytes, at), line, cta_->where(thread(lane)));
  }
  cta_->check_regions(thread(lane), at, bytes, write, line, "an access");
  cta_->check(cta_->shadow_, "shared memory", thread(lane), at, bytes, write, strong, line);
  return cta_->in_shared(at);
}

std::byte* Warp::generic(std::uint32_t lane, std::uint64_t at, std::uint32_t bytes, bool write, bool strong,
                         std::uint32_t line) {
  if (at >= kSharedWindow && at < kSharedWindow + (1u << 24)) {
    return shared_bytes(lane, static_cast<std::uint32_t>(at - kSharedWindow), bytes, write, strong, line);
  }
  return global(lane, at, bytes, write, strong, line);
}

// ---- counts -------------------------------------------------------------------------------------------------

void Cta::count(std::uint32_t line, std::uint64_t at, std::uint32_t bytes, bool write) {
  counted_.push_back({line, write, at / 32, (at + bytes - 1) / 32});
}

// The lanes of a block run one after another, so the accesses of an instruction are gathered by its line.
void Cta::count_block(const Warp& warp) {
  launch_.counts.instructions += launch_.kernel->instructions[warp.block_];
  std::sort(counted_.begin(), counted_.end(), [](const Counted& a, const Counted& b) {
    return a.line != b.line ? a.line < b.line : a.first_sector < b.first_sector;
  });
  std::uint32_t line = 0;
  std::uint64_t next = 0;
  for (const Counted& one : counted_) {
    if (one.line != line) line = one.line, next = 0;
    const std::uint64_t first = std::max(one.first_sector, next);
    if (one.last_sector < first) continue;
    (one.write ? launch_.counts.store_sectors : launch_.counts.load_sectors) += one.last_sector + 1 - first;
    next = one.last_sector + 1;
  }
  counted_.clear();
}

// ---- mbarriers ----------------------------------------------------------------------------------------------

Cta::Barrier& Cta::barrier_at(std::uint32_t at, std::uint32_t thread, std::uint32_t line, bool by_copies) {
  const auto found = barriers_.find(at);
  if (found == barriers_.end()) {
    launch_.report("mbarrier: none at " + hex(at), line, where(thread));
    throw Fault();
  }
  Barrier& barrier = found->second;
  if (!is_before(barrier.init_thread, barrier.init_clock, thread)) {
    launch_.report("mbarrier: its use at " + hex(at) + " is not ordered after its init", line, where(thread));
  }
  if (by_copies && threads_[barrier.init_thread].fence_clock < barrier.init_clock &&
      Past::at(threads_[thread].fenced.threads, barrier.init_thread) < barrier.init_clock) {
    launch_.report("mbarrier: bulk copies use it at " + hex(at) + " without a fence after its init", line,
                   where(thread));
  }
  return barrier;
}

void Cta::end_phase_if_complete(std::uint32_t at, Barrier& barrier) {
  if (barrier.pending > 0 || barrier.bytes != 0) return;
  for (const Expect& expect : barrier.expects) {
    if (Past::at(barrier.arrived.threads, expect.thread) >= expect.clock) continue;
    launch_.report(
        "mbarrier: bytes are expected at " + hex(at) + " and nothing orders this before the end of the phase",
        expect.line, where(expect.thread));
  }
  barrier.expects.clear();
  barrier.ended.join(barrier.arrived);
  barrier.arrived = {};
  barrier.pending = barrier.arrivals;
  Past::raise(barrier.ended.phases, barrier_number(at), ++barrier.phase);
  for (std::uint32_t i = 0; i < threads_.size(); ++i) {
    const Thread& thread = threads_[i];
    if (thread.wait != Wait::barrier || thread.barrier != at || !has_ended(barrier, thread.parity)) continue;
    see_barrier(at, i);
    warps_[i / kLanes].set_result(i % kLanes, 1);
    resume(i);
  }
}

void Cta::see_barrier(std::uint32_t at, std::uint32_t thread) {
  auto past = std::make_shared<Past>(*threads_[thread].past);
  past->join(barriers_.at(at).ended);
  threads_[thread].past = past;
}

void Warp::barrier_init(std::uint32_t lane, std::uint32_t at, std::uint32_t arrivals, std::uint32_t line) {
  const std::uint32_t me = thread(lane);
  if (at % 8 != 0 || !cta_->holds_shared(at, 8) || arrivals == 0 || cta_->barriers_.count(at) > 0) {
    cta_->launch_.report("mbarrier: init at " + hex(at) + " is misplaced, of no arrivals, or the second one", line,
                         cta_->where(me));
    throw Fault();
  }
  Cta::Barrier barrier;
  barrier.arrivals = barrier.pending = arrivals;
  barrier.init_thread = me;
  barrier.init_clock = cta_->threads_[me].clock;
  cta_->barriers_[at] = barrier;
  cta_->barrier_numbers_.emplace(at, static_cast<std::uint32_t>(cta_->barrier_numbers_.size()));
}

void Warp::barrier_arrive(std::uint32_t lane, std::uint32_t at, std::uint32_t line) {
  const std::uint32_t me = thread(lane);
  Cta::Barrier& barrier = cta_->barrier_at(at, me, line, false);
  if (barrier.pending == 0) {
    cta_->launch_.report("mbarrier: one arrival too many at " + hex(at), line, cta_->where(me));
    throw Fault();
  }
  barrier.arrived.join(cta_->past_of(me));
  cta_->publish(me);
  --barrier.pending;
  cta_->end_phase_if_complete(at, barrier);
}

void Warp::barrier_expect(std::uint32_t lane, std::uint32_t at, std::uint32_t bytes, std::uint32_t line) {
  const std::uint32_t me = thread(lane);
  Cta::Barrier& barrier = cta_->barrier_at(at, me, line, false);
  barrier.bytes += bytes;
  if (barrier.bytes > kMaxExpected) {
    cta_->launch_.report("mbarrier: expects more than 2^20 - 1 bytes at " + hex(at), line, cta_->where(me));
  }
  barrier.expects.push_back({me, cta_->threads_[me].clock, line});
  cta_->end_phase_if_complete(at, barrier);
}

void Warp::barrier_wait(std::uint32_t lane, std::uint32_t at, std::uint32_t parity, std::uint32_t next,
                        std::uint32_t line) {
  const std::uint32_t me = thread(lane);
  Launch& launch = cta_->launch_;
  const Cta::Barrier& barrier = cta_->barrier_at(at, me, line, false);
  if (parity > 1) launch.report("mbarrier: a parity of " + std::to_string(parity), line, cta_->where(me));
  // try_wait may return false at any time.
  const bool early = !launch.counting && launch.rng.below(8) == 0;
  if (!early && !cta_->has_ended(barrier, parity)) {
    cta_->threads_[me].barrier = at;
    cta_->threads_[me].parity = parity;
    return cta_->block(*this, lane, Cta::Wait::barrier, next, line);
  }
  if (!early) cta_->see_barrier(at, me);
  result_[lane] = early ? 0 : 1;
  next_[lane] = next;
}

// ---- bulk copies --------------------------------------------------------------------------------------------

bool Cta::is_ordered(const Copy& copy, std::uint32_t thread) {
  const Past& past = *threads_[thread].past;
  if (!copy.load) return Past::at(past.groups, copy.thread) > copy.group;
  return copy.done && Past::at(past.phases, barrier_number(copy.barrier)) > copy.phase;
}

void Cta::check_regions(std::uint32_t thread, std::uint32_t at, std::uint32_t bytes, bool write, std::uint32_t line,
                        const char* by) {
  auto region = regions_.upper_bound(at);
  if (region != regions_.begin()) --region;
  for (; region != regions_.end() && region->first < at + bytes; ++region) {
    if (region->second.end <= at) continue;
    const auto conflict = [&](const Copy& copy) {
      launch_.report("shared memory race: " + std::string(by) + " of " + bytes_at(bytes, at) +
                         " is not ordered after the bulk " + (copy.load ? "load" : "store") + " of line " +
                         std::to_string(copy.line),
                     line, where(thread));
    };
    if (region->second.load != nullptr && !is_ordered(*region->second.load, thread)) conflict(*region->second.load);
    for (const auto& store : region->second.stores) {
      if (write && !is_ordered(*store, thread)) conflict(*store);
    }
  }
}

void Cta::split_region(std::uint32_t at) {
  auto region = regions_.upper_bound(at);
  if (region == regions_.begin()) return;
  --region;
  if (region->first == at || region->second.end <= at) return;
  Region rest = region->second;
  region->second.end = at;
  regions_.emplace(at, std::move(rest));
}

void Cta::add_to_regions(const std::shared_ptr<Copy>& copy) {
  const std::uint32_t begin = copy->shared, end = begin + copy->bytes;
  split_region(begin);
  split_region(end);
  const auto first = regions_.lower_bound(begin), last = regions_.lower_bound(end);
  if (copy->load) {
    regions_.erase(first, last);
    regions_[begin] = {end, copy, {}};
    return;
  }
  std::uint32_t covered = begin;
  for (auto region = first; region != last; ++region) {
    if (region->first > covered) regions_[covered] = {region->first, nullptr, {copy}};
    std::erase_if(region->second.stores, [&](const auto& store) { return is_ordered(*store, copy->thread); });
    region->second.stores.push_back(copy);
    covered = region->second.end;
  }
  if (covered < end) regions_[covered] = {end, nullptr, {copy}};
}

// Accesses of threads to the shared memory of a copy: they must come before it, and a fence between the proxies too.
void Cta::check_async_access(std::uint32_t thread, std::uint32_t at, std::uint32_t bytes, bool write,
                             std::uint32_t line) {
  const auto unordered = [&](const Access& earlier) {
    if (earlier.thread == 0) return false;
    const std::uint32_t other = (earlier.thread - 1) % launch_.threads;
    return !is_before(other, earlier.clock, thread) ||
           (threads_[other].fence_clock < earlier.clock &&
            Past::at(threads_[thread].fenced.threads, other) < earlier.clock);
  };
  shadow_.for_known_cells(at, bytes, [&](const Cell& cell) {
    for (const Access* earlier : {&cell.write, &cell.atomic, &cell.read[0], &cell.read[1]}) {
      if ((earlier == &cell.read[0] || earlier == &cell.read[1]) && !write) continue;
      if (!unordered(*earlier)) continue;
      launch_.report("shared memory race: a bulk copy of " + bytes_at(bytes, at) +
                         " is not ordered, with a fence, after line " + std::to_string(earlier->line),
                     line, where(thread));
    }
  });
}

void Cta::start(const std::shared_ptr<Copy>& copy) {
  const std::uint32_t thread = copy->thread, line = copy->line;
  if (copy->shared % kBulkAlignment != 0 || copy->global % kBulkAlignment != 0 || copy->bytes % kBulkAlignment != 0 ||
      copy->bytes == 0) {
    launch_.report(
        "misaligned: a bulk copy of " + bytes_at(copy->bytes, copy->global) + " and shared " + hex(copy->shared), line,
        where(thread));
    throw Fault();
  }
  if (!holds_shared(copy->shared, copy->bytes)) {
    launch_.report("out of bounds: shared memory does not have " + bytes_at(copy->bytes, copy->shared), line,
                   where(thread));
    throw Fault();
  }
  reachable(thread, copy->global, copy->bytes, line);
  check(launch_.shadow, "global memory", thread, copy->global, copy->bytes, !copy->load, false, line);
  check_regions(thread, copy->shared, copy->bytes, copy->load, line, copy->load ? "a bulk load" : "a bulk store");
  check_async_access(thread, copy->shared, copy->bytes, copy->load, line);
  if (launch_.counting) {
    const std::uint64_t sectors = (copy->global + copy->bytes + 31) / 32 - copy->global / 32;
    (copy->load ? launch_.counts.load_sectors : launch_.counts.store_sectors) += sectors;
  }
  add_to_regions(copy);
  under_way_.push_back(copy);
}

// A copy first reads all its bytes, and writes them at a later step.
bool Cta::step_copy() {
  if (under_way_.empty()) return false;
  const std::size_t at = launch_.counting ? 0 : launch_.rng.below(under_way_.size());
  const std::shared_ptr<Copy> copy = under_way_[at];
  auto* global = reinterpret_cast<std::byte*>(copy->global);
  Thread& thread = threads_[copy->thread];
  if (!copy->read) {
    const std::byte* from = copy->load ? global : in_shared(copy->shared);
    copy->held.assign(from, from + copy->bytes);
    copy->read = true;
    if (!copy->load) --thread.groups[copy->group].unread;
  } else {
    std::memcpy(copy->load ? in_shared(copy->shared) : global, copy->held.data(), copy->bytes);
    copy->held = {};
    copy->done = true;
    under_way_[at] = under_way_.back();
    under_way_.pop_back();
    if (copy->load) {
      Barrier& barrier = barriers_.at(copy->barrier);
      copy->phase = barrier.phase;
      barrier.bytes -= copy->bytes;
      end_phase_if_complete(copy->barrier, barrier);
    } else {
      --thread.groups[copy->group].unwritten;
    }
  }
  if (!copy->load && thread.wait == Wait::group && is_over(thread, thread.most, thread.reads_only)) {
    see_groups(copy->thread, thread.most);
    resume(copy->thread);
  }
  return true;
}

bool Cta::is_over(const Thread& thread, std::uint32_t most, bool reads_only) const {
  for (std::size_t i = 0; i + 1 + most < thread.groups.size(); ++i) {
    if ((reads_only ? thread.groups[i].unread : thread.groups[i].unwritten) > 0) return false;
  }
  return true;
}

void Cta::see_groups(std::uint32_t thread, std::uint32_t most) {
  const auto groups = static_cast<std::uint32_t>(threads_[thread].groups.size());
  if (groups <= most + 1) return;
  auto past = std::make_shared<Past>(*threads_[thread].past);
  Past::raise(past->groups, thread, groups - 1 - most);
  threads_[thread].past = past;
}

void Warp::bulk_load(std::uint32_t lane, std::uint32_t to, std::uint64_t from, std::uint32_t bytes,
                     std::uint32_t barrier, std::uint32_t line) {
  cta_->barrier_at(barrier, thread(lane), line, true);
  auto copy = std::make_shared<Cta::Copy>();
  copy->load = true;
  copy->shared = to;
  copy->global = from;
  copy->bytes = bytes;
  copy->barrier = barrier;
  copy->thread = thread(lane);
  copy->line = line;
  cta_->start(copy);
  std::fill_n(cta_->in_shared(to), bytes, kUnloaded);
}

void Warp::bulk_store(std::uint32_t lane, std::uint64_t to, std::uint32_t from, std::uint32_t bytes,
                      std::uint32_t line) {
  Cta::Thread& thread = cta_->threads_[this->thread(lane)];
  if (thread.groups.empty()) thread.groups.emplace_back();
  auto copy = std::make_shared<Cta::Copy>();
  copy->shared = from;
  copy->global = to;
  copy->bytes = bytes;
  copy->thread = this->thread(lane);
  copy->line = line;
  copy->group = static_cast<std::uint32_t>(thread.groups.size() - 1);
  cta_->start(copy);
  ++thread.groups.back().unread;
  ++thread.groups.back().unwritten;
}

void Warp::bulk_commit(std::uint32_t lane) {
  Cta::Thread& me = cta_->threads_[thread(lane)];
  if (me.groups.empty()) me.groups.emplace_back();
  me.groups.emplace_back();
}

void Warp::bulk_wait(std::uint32_t lane, std::uint32_t most, bool reads_only, std::uint32_t next, std::uint32_t line) {
  Cta::Thread& me = cta_->threads_[thread(lane)];
  if (!cta_->is_over(me, most, reads_only)) {
    me.most = most;
    me.reads_only = reads_only;
    return cta_->block(*this, lane, Cta::Wait::group, next, line);
  }
  cta_->see_groups(thread(lane), most);
  next_[lane] = next;
}

void Warp::fence_proxy(std::uint32_t lane) {
  Cta::Thread& me = cta_->threads_[thread(lane)];
  me.fenced = cta_->past_of(thread(lane));
  me.fence_clock = me.clock;
  cta_->publish(thread(lane));
}

}  // namespace kvtwin::gpu_sim
