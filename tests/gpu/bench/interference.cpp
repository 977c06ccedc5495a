// Writes interference.csv: how transfers and computation slow each other down. The computation is matrix products as in
// prefill (8192^3, limited by arithmetic) or in decode (16 rows, limited by memory). Varies the path of the transfer
// and the limit of outstanding bytes.
#include <algorithm>
#include <cstdio>
#include <deque>
#include <stdexcept>

#include "impl/device/cuda/blas.hpp"
#include "tests/gpu/bench/bench.hpp"

namespace kvtwin::test {
namespace {

constexpr std::uint64_t kSliceBytes = 1u << 20;  // size of one submission
constexpr std::uint64_t kSmallCopyBytes = 4096;  // like the small copies that an inference engine makes
constexpr double kSmallCopyGapSeconds = 200e-6;

// Matrix products, one directly after the other.
class Products {
 public:
  // Products of a rows x side matrix and a side x side matrix. They use `weights` matrices in turn, so that the cache
  // of the GPU does not have the weights that decode reads from memory.
  Products(Blas& blas, int rows, int side, int weights) : blas_(blas), rows_(rows), side_(side), weights_(weights) {
    const auto square = static_cast<std::uint64_t>(side) * static_cast<std::uint64_t>(side) * 2;
    const auto tall = static_cast<std::uint64_t>(rows) * static_cast<std::uint64_t>(side) * 2;
    a_ = filled(tall);
    c_ = filled(tall);
    b_ = filled(square * static_cast<std::uint64_t>(weights));
  }
  void queue(Stream& stream, std::size_t count) {
    const std::uint64_t square = b_.size() / static_cast<std::uint64_t>(weights_);
    for (std::size_t i = 0; i < count; ++i) {
      blas_.product(c_.data(), a_.data(), b_.data() + i % static_cast<std::size_t>(weights_) * square, rows_, side_,
                    side_, stream.get());
    }
  }

 private:
  // Fills the matrix with ordinary numbers, because products of zeros are faster.
  static Memory filled(std::uint64_t bytes) {
    Memory memory(Place::gpu, bytes);
    std::vector<std::uint16_t> values(std::min<std::uint64_t>(bytes / 2, 1 << 20));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto drawn = static_cast<std::uint32_t>(i * 2654435761u);
      values[i] = static_cast<std::uint16_t>(0x3E00u | (drawn >> 31 << 15) | (drawn >> 8 & 0x1FF));  // 0.125 to 0.5
    }
    for (std::uint64_t at = 0; at < bytes; at += values.size() * 2) {
      copy_to_gpu(memory.data() + at, values.data(), std::min<std::uint64_t>(bytes - at, values.size() * 2));
    }
    return memory;
  }

  Blas& blas_;
  int rows_, side_, weights_;
  Memory a_, b_, c_;
};

// Repeats the slices of a transfer, with at most `window` bytes outstanding.
class Traffic {
 public:
  Traffic(Bench& bench, Way way, const Pools& pools, bool to_device, std::uint64_t window)
      : alternate_(way == Way::staged), window_(window) {
    const std::uint64_t pages = std::max<std::uint64_t>(1, kSliceBytes / pools.shape.page_bytes());
    for (std::uint64_t at = 0; at < pools.pages; at += pages) {
      slices_.emplace_back(way, pools, to_device, at, std::min(pools.pages, at + pages), &bench.staging);
    }
    for (std::size_t i = 0; i < slices_.size(); ++i) events_.emplace_back(false);
  }
  bool possible() const { return slices_.front().possible(); }

  // Counts the slices that have arrived, and submits the next slice if it fits into the window.
  void poll() {
    while (!under_way_.empty() && events_[under_way_.front()].happened()) {
      if (moved_ == 0) first_ = now_seconds() - begun_;
      moved_ += slices_[under_way_.front()].bytes();
      outstanding_ -= slices_[under_way_.front()].bytes();
      under_way_.pop_front();
    }
    if (begun_ == 0) begun_ = now_seconds();
    if (under_way_.size() < slices_.size() &&
        (under_way_.empty() || outstanding_ + slices_[next_].bytes() <= window_)) {
      Stream& stream = streams_[alternate_ ? next_ % 2 : 0];
      slices_[next_].submit(stream);
      events_[next_].record(stream);
      outstanding_ += slices_[next_].bytes();
      under_way_.push_back(next_);
      next_ = (next_ + 1) % slices_.size();
    }
  }
  void drain() {
    for (Stream& stream : streams_) stream.wait();
  }
  std::uint64_t moved() const { return moved_; }
  double first_seconds() const { return first_; }  // from the submission to the arrival of the first slice

 private:
  bool alternate_;  // `staged`: two streams in turn, so that slices overlap
  std::uint64_t window_;
  std::vector<PageTransfer> slices_;
  std::vector<Event> events_;
  Stream streams_[2];
  std::deque<std::size_t> under_way_;
  std::size_t next_ = 0;
  std::uint64_t outstanding_ = 0, moved_ = 0;
  double begun_ = 0, first_ = 0;
};

// Makes a small copy to the device in regular intervals, and measures its time on the host.
class SmallCopies {
 public:
  SmallCopies() : from_(Place::pinned, kSmallCopyBytes), to_(Place::gpu, kSmallCopyBytes), event_(false) {}
  void poll() {
    if (under_way_) {
      if (!event_.happened()) return;
      seconds_.push_back(now_seconds() - begun_);
      under_way_ = false;
    } else if (now_seconds() - begun_ >= kSmallCopyGapSeconds) {
      begun_ = now_seconds();
      check(cudaMemcpyAsync(to_.data(), from_.data(), kSmallCopyBytes, cudaMemcpyHostToDevice, stream_.get()),
            "a small copy");
      event_.record(stream_);
      under_way_ = true;
    }
  }
  void drain() {
    stream_.wait();
    if (under_way_) seconds_.push_back(now_seconds() - begun_);
    under_way_ = false;
  }
  const std::vector<double>& seconds() const { return seconds_; }

 private:
  Memory from_, to_;
  Stream stream_;
  Event event_;
  bool under_way_ = false;
  double begun_ = 0;
  std::vector<double> seconds_;
};

struct Beside {
  double products = 0;        // seconds of all products together
  double rate = 0;            // bytes per second of the transfer
  double first = 0;           // seconds until the first slice arrived
  std::vector<double> small;  // seconds of each small copy
};

// `products` and `traffic` may be null: none.
Beside run(Stream& stream, Products* products, std::size_t count, double least, Traffic* traffic) {
  SmallCopies small;
  Event begin, end;
  const double from = now_seconds();
  begin.record(stream);
  if (products != nullptr) products->queue(stream, count);
  end.record(stream);
  do {
    if (traffic != nullptr) traffic->poll();
    small.poll();
  } while (!end.happened() || now_seconds() - from < least || (traffic != nullptr && traffic->moved() == 0));
  Beside result;
  const double seconds = now_seconds() - from;
  small.drain();
  if (traffic != nullptr) {
    result.rate = static_cast<double>(traffic->moved()) / seconds;
    result.first = traffic->first_seconds();
    traffic->drain();
  }
  result.products = seconds_between(begin, end);
  result.small = small.seconds();
  return result;
}

struct Work {
  const char* name;
  Products* products;
  std::size_t count;
  double alone;  // seconds without a transfer
};

void row(Table& table, const Work& work, const char* path, const char* direction, std::uint64_t chunk,
         std::uint64_t window, const Beside& b, double big_rate) {
  const Spread small = spread_of(b.small);
  table.row({work.name, path, direction, chunk, window, work.products == nullptr ? 1.0 : b.products / work.alone,
             b.rate * 1e-9, b.rate / big_rate, b.first * 1e6, small.median * 1e6, small.p90 * 1e6,
             *std::max_element(b.small.begin(), b.small.end()) * 1e6, std::uint64_t{small.count}});
}

void beside_paths(Bench& bench, Table& table, const Work& work, std::uint64_t chunk) {
  const std::uint64_t bytes = bench.options.tiny ? 64 * chunk : std::uint64_t{128} << 20;
  const Pools pools = bench.pools(chunk, bytes / chunk);
  const double least = bench.options.tiny ? 0 : bench.options.seconds / 2000;
  for (const bool to_device : {true, false}) {
    const double big = static_cast<double>(bytes) /
                       spread_of(repeated(
                                     bench.repeats(), [&] { return bench.big_copy(to_device, bytes); }, now_seconds))
                           .median;
    for (const Way way : kWays) {
      for (const std::uint64_t window :
           {std::uint64_t{2} << 20, std::uint64_t{8} << 20, std::uint64_t{32} << 20, bytes}) {
        if (bench.options.tiny && window != bytes) continue;
        Traffic traffic(bench, way, pools, to_device, window);
        if (!traffic.possible()) continue;
        const Beside beside = run(bench.stream, work.products, work.count, least, &traffic);
        row(table, work, name_of(way), direction_name(to_device), chunk, window, beside, big);
      }
    }
  }
}

Work work_of(Bench& bench, const char* name, Products& products) {
  const auto seconds_of = [&](std::size_t count) {
    return bench.watch(bench.stream, [&] { products.queue(bench.stream, count); }).seconds;
  };
  seconds_of(4);
  const double wanted = bench.options.tiny ? 0 : bench.options.seconds / 1000;
  const auto count = static_cast<std::size_t>(std::clamp(wanted / (seconds_of(8) / 8), 4.0, 1000.0));
  return {name, &products, count,
          spread_of(repeated(
                        {3, 5, 1}, [&] { return seconds_of(count); }, now_seconds))
              .median};
}

}  // namespace

void bench_interference(Bench& bench) {
  std::unique_ptr<Blas> blas;
  std::vector<std::string> remarks = {
      "slowdown: of the products; r: rate over that of one big copy alone; first_us: from the first submission until "
      "its "
      "bytes were there; small: a 4 KiB copy to the device meanwhile; window: bytes outstanding at most"};
  try {
    blas = Blas::load(bench.options.blas);
  } catch (const std::runtime_error& e) {
    std::fprintf(stderr, "gpu_bench: interference without products: %s\n", e.what());
    remarks.push_back("products: none, since cuBLAS could not be loaded");
  }
  Table table = bench.table("interference",
                            {"load", "path", "direction", "chunk_bytes", "window_bytes", "slowdown", "gbps", "r",
                             "first_us", "small_us", "small_us_p90", "small_us_max", "small_copies"},
                            remarks);
  std::vector<Products> products;
  std::vector<Work> works = {{"none", nullptr, 0, 0}};
  if (blas != nullptr) {
    const int side = bench.options.tiny ? 64 : 8192;
    products.reserve(2);
    products.emplace_back(*blas, side, side, 1);
    products.emplace_back(*blas, 16, side, 4);
    works.push_back(work_of(bench, "prefill", products[0]));
    works.push_back(work_of(bench, "decode", products[1]));
  }
  for (const Work& work : works) {
    const Beside alone = run(bench.stream, work.products, work.count, 0.001, nullptr);
    row(table, work, "none", "none", 0, 0, alone, 1);
    for (const std::uint64_t chunk : {4096, 32768}) beside_paths(bench, table, work, chunk);
  }
}

}  // namespace kvtwin::test
