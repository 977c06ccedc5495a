#include "impl/storage/failing_nodes.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <utility>

#include "policy/base/check.hpp"

namespace kvtwin {
namespace {

class FailingNodes final : public StorageBackend {
 public:
  FailingNodes(std::unique_ptr<StorageBackend> medium, std::uint32_t nodes, std::vector<NodeDown> downs)
      : medium_(std::move(medium)), nodes_(nodes), downs_(std::move(downs)) {
    KV_CHECK(nodes_ > 0, "a pool has a node");
  }

  void start(std::function<TimeNs()> now) override {
    now_ = now;
    medium_->start(std::move(now));
  }

  LookedUp look_up(const PageKey& space, std::span<const PageKey> keys) override {
    std::size_t count = 0;
    Cause cause = Cause::none;
    while (count < keys.size() && (cause = state_of(space, keys[count])) == Cause::none) ++count;
    LookedUp found{0, Cause::none};
    if (count > 0) found = medium_->look_up(space, keys.first(count));
    if (found.pages != count || cause == Cause::none) return found;
    if (cause == Cause::missing && medium_->look_up(space, keys.subspan(count, 1)).pages == 1) {
      const std::lock_guard lock(mutex_);
      ++lost_;
    }
    return {found.pages, cause};
  }
  Cause find(const PageKey& space, std::span<const PageKey> keys, std::vector<bool>& there) override {
    Cause unknown = medium_->find(space, keys, there);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const Cause cause = state_of(space, keys[i]);
      if (cause == Cause::none) continue;
      if (cause == Cause::missing && there[i]) {
        const std::lock_guard lock(mutex_);
        ++lost_;
      }
      there[i] = false;
      if (cause == Cause::unreachable && unknown == Cause::none) unknown = cause;
    }
    return unknown;
  }
  void read(PageWork& work) override;
  void write(PageWork& work) override;
  void finish() override { medium_->finish(); }
  std::vector<std::pair<std::string, std::uint64_t>> counters() const override {
    auto list = medium_->counters();
    list.insert(list.end(), {{"planned_lost", lost_}, {"planned_unreachable", unreachable_}});
    return list;
  }
  const PageSeal* seal() const override { return medium_->seal(); }
  std::string description() const override { return medium_->description(); }

  // Returns `unreachable`, `missing` or `none`: whether the page's node is down, or has lost the page.
  Cause state_of(const PageKey& space, const PageKey& key) {
    const PageKey name = storage_page_key(space, key);
    const std::uint32_t node = pool_node_of(name.words[0], name.words[1], nodes_);
    const TimeNs now = now_();
    TimeNs lost_until = -1;  // pages that were stored before this time are lost
    for (const NodeDown& down : downs_) {
      if (down.node != node) continue;
      if (down.span.has(now)) {
        const std::lock_guard lock(mutex_);
        ++unreachable_;
        return Cause::unreachable;
      }
      if (down.span.begin <= now) lost_until = std::max(lost_until, down.span.begin);
    }
    if (lost_until < 0) return Cause::none;
    const std::lock_guard lock(mutex_);
    const auto stored = stored_.find({name.words[0], name.words[1]});
    if (stored != stored_.end() && stored->second >= lost_until) return Cause::none;
    return Cause::missing;
  }
  // Whether a set or a remove reaches the page's node.
  Cause reach(const PageTask& task) {
    const Cause cause = state_of(task.space, task.key);
    return cause == Cause::missing ? Cause::none : cause;
  }
  void stored(const PageTask& task) {
    const PageKey name = storage_page_key(task.space, task.key);
    const std::lock_guard lock(mutex_);
    stored_[{name.words[0], name.words[1]}] = now_();
  }

 private:
  const std::unique_ptr<StorageBackend> medium_;
  const std::uint32_t nodes_;
  const std::vector<NodeDown> downs_;
  std::function<TimeNs()> now_;
  std::mutex mutex_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, TimeNs> stored_;  // time of the last set, by name
  std::uint64_t lost_ = 0;         // look-ups that ended at a page that the medium has and the node has lost
  std::uint64_t unreachable_ = 0;  // pages
};

// Ends the pages that planned failures concern, and passes the others on.
class ReachableWork final : public PageWork {
 public:
  ReachableWork(PageWork& all, FailingNodes& nodes) : PageWork(all.form(), all.seal()), all_(all), nodes_(nodes) {}

  bool next(PageTask& task) override {
    while (all_.next(task)) {
      const Cause cause = task.verb == StorageVerb::get ? nodes_.state_of(task.space, task.key) : nodes_.reach(task);
      if (cause == Cause::none) return true;
      all_.end(task, cause);
    }
    return false;
  }
  void end(const PageTask& task, Cause cause) override {
    if (task.verb == StorageVerb::set && cause == Cause::none) nodes_.stored(task);
    all_.end(task, cause);
  }
  bool pieces(const PageTask& task, Pieces& pieces) override { return all_.pieces(task, pieces); }
  void take_bare(const PageTask& task, std::span<std::byte> payload) override { all_.take_bare(task, payload); }
  Cause give_bare(const PageTask& task, std::span<const std::byte> payload) override {
    return all_.give_bare(task, payload);
  }
  void landed(const PageTask& task) override { all_.landed(task); }

 private:
  PageWork& all_;
  FailingNodes& nodes_;
};

void FailingNodes::read(PageWork& work) {
  ReachableWork reachable(work, *this);
  medium_->read(reachable);
}

void FailingNodes::write(PageWork& work) {
  ReachableWork reachable(work, *this);
  medium_->write(reachable);
}

}  // namespace

std::unique_ptr<StorageBackend> make_failing_nodes(std::unique_ptr<StorageBackend> medium, std::uint32_t nodes,
                                                   std::vector<NodeDown> downs) {
  return std::make_unique<FailingNodes>(std::move(medium), nodes, std::move(downs));
}

}  // namespace kvtwin
