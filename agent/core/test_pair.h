// Two agents of one trainer each, wired together without a network, for tests.
#ifndef PACTRAIN_AGENT_CORE_TEST_PAIR_H_
#define PACTRAIN_AGENT_CORE_TEST_PAIR_H_

#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "agent/core/agent_state.h"
#include "agent/core/wire_convert.h"
#include "gtest/gtest.h"

namespace pactrain::agent {

inline constexpr uint64_t kBytes = 4096;

inline wire::Hello MakeHello(uint32_t rank, uint32_t world = 2) {
  auto hello = MakeMessage<wire::Hello>(wire::Kind::kHello);
  hello.version = wire::kVersion;
  hello.rank = rank;
  hello.world_size = world;
  hello.attach_id = {rank + 1, 1};
  hello.model_digest = {5, 5};
  hello.elements = 100;
  hello.slot_bytes = kBytes;
  SetText("job", hello.job);
  SetText("run-1", hello.launch);
  return hello;
}

inline Options OptionsOf(const std::string& name, const std::string& site) {
  Options options;
  options.agent = name;
  options.site = site;
  options.incarnation = {7, 7};
  return options;
}

inline base::Secret KeyOf(uint8_t byte) {
  base::Secret key;
  key.bytes.fill(byte);
  return key;
}

// Zeroed; starts where slots and results do.
class Memory {
 public:
  explicit Memory(uint64_t bytes) : lines_(bytes / sizeof(Line)) {}
  uint8_t* data() { return lines_.data()->bytes; }

 private:
  struct alignas(wire::kSlotAlign) Line {
    uint8_t bytes[wire::kSlotAlign] = {};
  };
  std::vector<Line> lines_;
};

// An agent with its one trainer, and what the trainer was told.
struct Node {
  Node(const std::string& name, const std::string& site,
       uint64_t bytes = kBytes)
      : name(name),
        state(*AgentState::Create(OptionsOf(name, site))),
        bytes(bytes),
        slot_memory(bytes),
        result_memory(bytes) {}

  std::string name;
  std::unique_ptr<AgentState> state;
  uint64_t bytes;  // Of slot and result each.
  Memory slot_memory;
  Memory result_memory;
  uint8_t* slot = slot_memory.data();
  uint8_t* result = result_memory.data();
  std::vector<decltype(SendTrainer::message)> told;
  std::vector<protocol::AgentMessage> to_coordinator;
  std::vector<std::string> closed_peers;
  std::vector<SetPeers::Peer> peers;
  bool closed = false;

  template <typename T>
  const T* Last() const {
    for (auto it = told.rbegin(); it != told.rend(); ++it) {
      if (const T* message = std::get_if<T>(&*it)) return message;
    }
    return nullptr;
  }
  // What the coordinator was told of trainers last.
  protocol::LocalTrainers Local() const {
    for (auto it = to_coordinator.rbegin(); it != to_coordinator.rend(); ++it) {
      const auto* local = std::get_if<protocol::LocalTrainers>(&*it);
      if (local != nullptr) return *local;
    }
    return {};
  }
};

class Pair : public testing::Test {
 protected:
  explicit Pair(uint64_t bytes = kBytes)
      : x_("x", "a", bytes), y_("y", "b", bytes) {
    generation_.group = {"job", 0};
    generation_.number = 3;
    generation_.world_size = 2;
    generation_.base_step = 10;
    generation_.lineage = {{5, 5}, 0};
    generation_.launch = "run-1";
    generation_.sites = {"a", "b"};
    generation_.plan.swap = true;
    generation_.decision.version = 1;
    for (int i = 0; i < 2; ++i) {
      Node& node = *nodes_[i];
      protocol::Member member;
      member.agent = node.name;
      member.incarnation = {7, 7};
      member.site = i == 0 ? "a" : "b";
      member.data_address = "127.0.0.1:1";
      member.ranks = {static_cast<uint32_t>(i)};
      member.attach_ids = {{static_cast<uint64_t>(i) + 1, 1}};
      generation_.members.push_back(member);
    }
  }

  // Both trainers are attached and both agents connected.
  void Begin(bool connected = true) {
    for (Node* node : nodes_) {
      Give(*node, CoordinatorConnected{});
      wire::Hello hello = MakeHello(node == nodes_[0] ? 0 : 1);
      hello.slot_bytes = node->bytes;
      Give(*node, TrainerHello{1,
                               hello,
                               {absl::MakeConstSpan(node->slot, node->bytes),
                                absl::MakeSpan(node->result, node->bytes)}});
      Give(*node, protocol::CoordinatorMessage(protocol::StartGeneration{
                      generation_, KeyOf(3), seats_}));
    }
    if (!connected) return;
    Give(*nodes_[0], PeerConnected{"y"});
    Give(*nodes_[1], PeerConnected{"x"});
    Deliver();
  }

  void Give(Node& node, const Event& event) {
    Node& other = &node == nodes_[0] ? *nodes_[1] : *nodes_[0];
    for (Effect& effect : node.state->Handle(event, now_)) {
      if (auto* control = std::get_if<SendPeerControl>(&effect)) {
        queue_.push_back({&other, PeerControl{node.name, control->control}});
      } else if (auto* data = std::get_if<SendPeerData>(&effect)) {
        queue_.push_back(
            {&other, PeerData{node.name, data->header, data->payload}});
      } else if (auto* send = std::get_if<SendTrainer>(&effect)) {
        node.told.push_back(send->message);
      } else if (auto* word = std::get_if<SendCoordinator>(&effect)) {
        node.to_coordinator.push_back(word->message);
      } else if (auto* peers = std::get_if<SetPeers>(&effect)) {
        node.peers = peers->peers;
      } else if (auto* peer = std::get_if<ClosePeer>(&effect)) {
        node.closed_peers.push_back(peer->reason);
      } else if (std::get_if<CloseTrainer>(&effect) != nullptr) {
        node.closed = true;
      }
    }
  }
  void Deliver() {
    while (!queue_.empty()) {
      auto [node, event] = queue_.front();
      queue_.pop_front();
      Give(*node, event);
    }
  }
  // Time passes in ticks; what is said meanwhile is delivered.
  void Pass(absl::Duration time) {
    const absl::Duration end = now_ + time;
    while (now_ < end) {
      now_ += absl::Milliseconds(100);
      for (Node* node : nodes_) Give(*node, Tick{});
      Deliver();
    }
  }

  wire::Submit OneBucket(uint64_t step, uint64_t elements) {
    auto submit = MakeMessage<wire::Submit>(wire::Kind::kSubmit);
    submit.step = step;
    submit.attempt = 1;
    submit.elements = submit.filled = elements;
    submit.bucket_layout = {elements, 1};
    submit.decision_version = 1;
    submit.mode = 1;
    submit.op = 1;
    submit.dtype = 1;
    submit.last = 1;
    return submit;
  }
  void Submit(int node, const wire::Submit& submit, float last_value = 0) {
    for (uint64_t i = 0; i < submit.elements; ++i) {
      const bool last = i + 1 == submit.elements && last_value != 0;
      const float value =
          last ? last_value : static_cast<float>(i * (node + 1));
      std::memcpy(nodes_[node]->slot + 4 * i, &value, 4);
    }
    Give(*nodes_[node], TrainerMessage{1, submit});
  }

  Node x_;
  Node y_;
  Node* nodes_[2] = {&x_, &y_};
  std::vector<base::Secret> seats_;  // That each of them is told.
  protocol::Generation generation_;
  absl::Duration now_ = absl::Seconds(100);
  std::deque<std::pair<Node*, Event>> queue_;
};

}  // namespace pactrain::agent

#endif  // PACTRAIN_AGENT_CORE_TEST_PAIR_H_
