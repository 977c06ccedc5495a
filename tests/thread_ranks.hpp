// A RankGroup whose ranks are threads of this process.
#pragma once

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "impl/runtime/ranks.hpp"
#include "policy/base/check.hpp"

namespace kvtwin::test {

class ThreadRanks {
 public:
  explicit ThreadRanks(std::size_t size) : size_(size), gathered_(size) {
    for (std::size_t rank = 0; rank < size; ++rank) members_.push_back(std::make_unique<Member>(*this, rank));
  }
  RankGroup& of(std::size_t rank) { return *members_[rank]; }
  bool left() const {
    const std::lock_guard lock(mutex_);
    return left_;
  }

 private:
  struct Meeting {
    std::vector<std::int64_t> least, result;
    std::size_t entered = 0;
    std::uint64_t number = 0;  // number of completed meetings
  };

  class Member final : public RankGroup {
   public:
    Member(ThreadRanks& all, std::size_t rank) : all_(all), rank_(rank) {}
    std::size_t rank() const override { return rank_; }
    std::size_t size() const override { return all_.size_; }
    std::size_t size_here() const override { return all_.size_; }
    std::size_t rank_here() const override { return rank_; }
    bool minimum(RankChannel channel, std::span<std::int64_t> values) override { return all_.minimum(channel, values); }
    std::vector<std::string> gather(const std::string& bytes) override {
      std::vector<std::string> shared = share(bytes);
      return rank_ == 0 ? shared : std::vector<std::string>{};
    }
    // The second meeting keeps a fast rank's next message from replacing this one.
    std::vector<std::string> share(const std::string& bytes) override {
      {
        const std::lock_guard lock(all_.mutex_);
        all_.gathered_[rank_] = bytes;
      }
      if (!barrier()) return {};
      std::vector<std::string> shared;
      {
        const std::lock_guard lock(all_.mutex_);
        shared = all_.gathered_;
      }
      if (!barrier()) return {};
      return shared;
    }
    void leave(int) override {
      const std::lock_guard lock(all_.mutex_);
      all_.left_ = true;
      all_.changed_.notify_all();
    }

   private:
    ThreadRanks& all_;
    std::size_t rank_;
  };

  bool minimum(RankChannel channel, std::span<std::int64_t> values) {
    std::unique_lock lock(mutex_);
    Meeting& meeting = meetings_[static_cast<std::size_t>(channel)];
    if (left_) return false;
    if (meeting.entered == 0) meeting.least.assign(values.begin(), values.end());
    KV_CHECK(meeting.least.size() == values.size(), "ranks that meet have equally many values");
    for (std::size_t i = 0; i < values.size(); ++i) meeting.least[i] = std::min(meeting.least[i], values[i]);
    const std::uint64_t number = meeting.number;
    if (++meeting.entered == size_) {
      meeting.result = meeting.least;
      meeting.entered = 0;
      ++meeting.number;
      changed_.notify_all();
    } else {
      changed_.wait(lock, [&] { return meeting.number != number || left_; });
    }
    if (meeting.number == number) return false;
    std::ranges::copy(meeting.result, values.begin());
    return true;
  }

  const std::size_t size_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::array<Meeting, kRankChannels> meetings_;
  bool left_ = false;
  std::vector<std::string> gathered_;
  std::vector<std::unique_ptr<Member>> members_;
};

}  // namespace kvtwin::test
