// A library with NIXL's C interface, whose agents are all in this process and read and write each other's registered
// memory. Tests load it as users load NIXL's own library, and change its behaviour through kvtwin_nixl_stand_in.
#pragma once

#include <cstddef>
#include <cstring>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace kvtwin::test {

struct NixlStandIn {
  enum class Mode {
    go,
    hold,   // transfers stay in progress, without a moved byte
    fail,   // transfers fail, also those that are in progress
    refuse  // transfers are not begun
  };
  struct Range {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
  };
  struct Agent {
    std::string name;
    std::map<std::byte*, std::size_t> memory;  // registered
  };
  struct Request {
    Agent* agent = nullptr;
    std::string peer;
    bool is_write = false;
    std::vector<Range> own, theirs;
    int state = 0;
    bool was_posted = false;
  };

  std::mutex mutex;                      // guards all members
  std::map<std::string, Mode> modes;     // of transfers with this agent
  std::map<std::string, Agent*> agents;  // that exist
  std::list<Request> failed;             // requests that have failed, whose bytes may still land
  std::list<Request*> in_progress;
  int misuses = 0;                            // wrong use of the interface
  bool starts = true;                         // a back end can be made
  std::function<void()> before_move = [] {};  // called before a page's bytes move

  void set_mode(const std::string& peer, Mode mode) {
    const std::lock_guard lock(mutex);
    modes[peer] = mode;
  }
  // Moves the bytes of failed transfers after all: an agent that exists may do so at any time.
  void land_late() {
    const std::lock_guard lock(mutex);
    for (const Request& request : failed) move(request);
    failed.clear();
  }
  // Requires: the mutex is held.
  void move(const Request& request) {
    for (std::size_t i = 0; i < request.own.size(); ++i) {
      before_move();
      std::byte* const own = request.own[i].data;
      std::byte* const theirs = request.theirs[i].data;
      std::memcpy(request.is_write ? theirs : own, request.is_write ? own : theirs, request.own[i].bytes);
    }
  }
  // Forgets everything. Requires: no agent exists.
  void reset() {
    const std::lock_guard lock(mutex);
    modes.clear();
    failed.clear();
    misuses = 0;
    starts = true;
    before_move = [] {};
  }
};

}  // namespace kvtwin::test
