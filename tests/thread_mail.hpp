// Mail between threads of this process, one for each process of a run.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "impl/runtime/mail.hpp"
#include "impl/runtime/worker.hpp"

namespace kvtwin::test {

class ThreadMail {
 public:
  explicit ThreadMail(std::size_t processes) {
    for (std::size_t process = 0; process < processes; ++process) {
      members_.push_back(std::make_unique<Member>(*this, process));
    }
  }
  Mail& of(std::size_t process) { return *members_[process]; }

 private:
  using Letter = std::pair<std::size_t, std::string>;  // from, bytes

  class Member final : public Mail {
   public:
    Member(ThreadMail& all, std::size_t process) : all_(all), process_(process) {}
    void start(Receiver receiver) override {
      receiver_ = std::move(receiver);
      worker_.start("mail thread", [this](Letter& letter) { receiver_(letter.first, letter.second); });
    }
    void send(std::size_t to, std::string_view bytes) override {
      all_.members_[to]->worker_.submit({process_, std::string(bytes)});
    }
    void stop() override { worker_.finish(); }

   private:
    ThreadMail& all_;
    std::size_t process_;
    Receiver receiver_;
    Worker<Letter> worker_;
  };

  std::vector<std::unique_ptr<Member>> members_;
};

}  // namespace kvtwin::test
