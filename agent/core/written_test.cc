// What trainers are told of results before the commit.
#include <cstring>
#include <set>
#include <utility>

#include "agent/core/agent_state.h"
#include "agent/core/test_pair.h"

namespace pactrain::agent {
namespace {

constexpr uint64_t kTold = 256 * 1024;  // Options::told_elements

class WrittenTest : public Pair {
 protected:
  // What a trainer finds if it reads at once what it is told of.
  struct Read {
    wire::Written told;
    std::vector<uint8_t> bytes;
  };

  WrittenTest() : Pair(8 * 4 * kTold) {
    for (uint64_t i = 0; i < x_.bytes / 4; ++i) {
      for (int n = 0; n < 2; ++n) {
        const float value = static_cast<float>(i % 1000 * (n + 1));
        std::memcpy(nodes_[n]->slot + 4 * i, &value, 4);
      }
    }
  }

  // Bucket `bucket` of those of the step, which follow each other in the slot.
  wire::Submit BucketAt(size_t bucket) {
    wire::Submit submit = OneBucket(10, elements_[bucket]);
    submit.bucket = static_cast<uint32_t>(bucket);
    for (size_t b = 0; b < bucket; ++b) submit.offset += 4 * elements_[b];
    submit.last = bucket + 1 == elements_.size();
    return submit;
  }
  void SubmitOne(int node, const wire::Submit& submit) {
    Give(*nodes_[node], TrainerMessage{1, submit});
    ReadTold();
  }
  void SubmitAll(void (*change)(wire::Submit&) = [](wire::Submit&) {}) {
    for (size_t bucket = 0; bucket < elements_.size(); ++bucket) {
      for (int node = 0; node < 2; ++node) {
        wire::Submit submit = BucketAt(bucket);
        change(submit);
        SubmitOne(node, submit);
      }
    }
  }
  // Reads what is told meanwhile. At most `limit` events.
  void DeliverAndRead(size_t limit = ~size_t{0}) {
    for (; limit > 0 && !queue_.empty(); --limit) {
      auto [node, event] = queue_.front();
      queue_.pop_front();
      Give(*node, event);
      ReadTold();
    }
  }
  void DeliverUntilXIsTold() {
    while (read_[0].empty() && !queue_.empty()) DeliverAndRead(1);
  }
  void ReadTold() {
    for (int n = 0; n < 2; ++n) {
      for (; heard_[n] < nodes_[n]->told.size(); ++heard_[n]) {
        const auto* told =
            std::get_if<wire::Written>(&nodes_[n]->told[heard_[n]]);
        if (told != nullptr) read_[n].push_back({*told, Results(n, *told)});
      }
    }
  }
  uint64_t ElementsOf(const wire::Written& told) const {
    uint64_t elements = told.elements;
    for (uint32_t b = 0; b < told.bucket; ++b) elements += elements_[b];
    return elements;
  }
  std::vector<uint8_t> Results(int node, const wire::Written& told) const {
    const uint8_t* result = nodes_[node]->result;
    return {result, result + 4 * ElementsOf(told)};
  }
  std::vector<uint64_t> ToldOf(int node, uint32_t attempt) const {
    std::vector<uint64_t> elements;
    for (const Read& read : read_[node]) {
      EXPECT_EQ(read.told.step, 10u);
      if (read.told.attempt == attempt) {
        elements.push_back(ElementsOf(read.told));
      }
    }
    return elements;
  }
  // The step was committed in `attempt`, and what was told of that one before
  // is what it was committed with.
  void ExpectCommitted(uint32_t attempt) {
    for (int n = 0; n < 2; ++n) {
      const auto* committed = nodes_[n]->Last<wire::Committed>();
      ASSERT_NE(committed, nullptr);
      EXPECT_EQ(committed->attempt, attempt);
      for (const Read& read : read_[n]) {
        if (read.told.attempt != attempt) continue;
        EXPECT_TRUE(read.bytes == Results(n, read.told))
            << ElementsOf(read.told) << " elements at " << nodes_[n]->name;
      }
    }
  }
  void LoseConnection() {
    queue_.clear();
    Give(x_, PeerDisconnected{"y", false, "reset"});
    Give(y_, PeerDisconnected{"x", false, "reset"});
    Give(x_, PeerConnected{"y"});
    Give(y_, PeerConnected{"x"});
  }

  std::vector<uint64_t> elements_;  // By bucket; multiples of 16.
  size_t heard_[2] = {0, 0};
  std::vector<Read> read_[2];
};

using Elements = std::vector<uint64_t>;

TEST_F(WrittenTest, TrainersReadAMiBAtATimeWhatIsCommittedLater) {
  elements_ = {3 * kTold + 1600};
  Begin();
  SubmitAll();
  DeliverAndRead();
  ExpectCommitted(1);
  for (int n = 0; n < 2; ++n) {
    EXPECT_EQ(ToldOf(n, 1), (Elements{kTold, 2 * kTold, 3 * kTold}));
  }
}

TEST_F(WrittenTest, TheSameHoldsOfABroadcast) {
  elements_ = {2 * kTold + 1600};
  Begin();
  SubmitAll([](wire::Submit& submit) { submit.op = 2; });
  DeliverAndRead();
  ExpectCommitted(1);
  for (int n = 0; n < 2; ++n) {
    EXPECT_EQ(ToldOf(n, 1), (Elements{kTold, 2 * kTold}));
  }
}

TEST_F(WrittenTest, AMiBIsOneOverAllBuckets) {
  const uint64_t part = kTold * 5 / 8;
  elements_ = {part, part, part};
  Begin();
  SubmitAll();
  DeliverAndRead();
  ExpectCommitted(1);
  for (int n = 0; n < 2; ++n) {
    EXPECT_EQ(ToldOf(n, 1), (Elements{kTold}));
    ASSERT_FALSE(read_[n].empty());
    EXPECT_EQ(read_[n][0].told.bucket, 1u);
    EXPECT_EQ(read_[n][0].told.elements, kTold - part);
  }
}

TEST_F(WrittenTest, LessThanAMiBIsNotTold) {
  elements_ = {kTold - 16};
  Begin();
  SubmitAll();
  DeliverAndRead();
  ExpectCommitted(1);
  for (int n = 0; n < 2; ++n) EXPECT_EQ(ToldOf(n, 1), Elements{});
}

TEST_F(WrittenTest, WhatCameBeforeWhatIsInFrontOfItIsToldInOrder) {
  elements_ = {3 * kTold};
  Begin();
  SubmitAll();
  for (Node* node : nodes_) {
    std::vector<Event*> frames;
    for (auto& [to, event] : queue_) {
      if (to == node && std::holds_alternative<PeerData>(event)) {
        frames.push_back(&event);
      }
    }
    ASSERT_GT(frames.size(), 2u);
    for (size_t i = 0; i < frames.size() / 2; ++i) {
      std::swap(*frames[i], *frames[frames.size() - 1 - i]);
    }
  }
  DeliverAndRead();
  ExpectCommitted(1);
  for (int n = 0; n < 2; ++n) EXPECT_FALSE(ToldOf(n, 1).empty());
}

TEST_F(WrittenTest, TheNextAttemptBeginsAnew) {
  elements_ = {3 * kTold};
  Begin();
  SubmitAll();
  DeliverUntilXIsTold();
  LoseConnection();
  DeliverAndRead();
  ExpectCommitted(2);
  for (int n = 0; n < 2; ++n) {
    EXPECT_EQ(ToldOf(n, 2), (Elements{kTold, 2 * kTold, 3 * kTold}));
  }
  EXPECT_EQ(ToldOf(0, 1), (Elements{kTold}));
}

TEST_F(WrittenTest, WhatDiffersIsToldAgainInTheAttemptThatIsExact) {
  elements_ = {2 * kTold};
  Begin();
  SubmitAll();
  // One frame is damaged where no checksum sees it.
  for (auto& [node, event] : queue_) {
    auto* frame = std::get_if<PeerData>(&event);
    if (frame == nullptr) continue;
    const auto wrong = std::make_shared<std::vector<uint8_t>>(
        frame->payload.bytes.begin(), frame->payload.bytes.end());
    wrong->at(7) ^= 1;
    frame->payload = {wrong, absl::MakeConstSpan(*wrong)};
    break;
  }
  DeliverAndRead();
  ExpectCommitted(2);
  for (int n = 0; n < 2; ++n) {
    EXPECT_EQ(ToldOf(n, 1), (Elements{kTold, 2 * kTold}));
    EXPECT_EQ(ToldOf(n, 2), (Elements{kTold, 2 * kTold}));
  }
}

TEST_F(WrittenTest, NothingIsToldAfterAnAbortUntilAllIsSubmittedAgain) {
  elements_ = {3 * kTold, 1600};
  Begin();
  for (int n = 0; n < 2; ++n) SubmitOne(n, BucketAt(0));
  DeliverUntilXIsTold();
  wire::Submit bad = BucketAt(1);
  bad.violation = 1;
  SubmitOne(0, bad);
  DeliverAndRead();  // The frames of y, who knows nothing of that.
  EXPECT_EQ(ToldOf(0, 1), (Elements{kTold}));
  EXPECT_NE(x_.Last<wire::Resubmit>(), nullptr);
  EXPECT_EQ(ToldOf(0, 2), Elements{});
  SubmitAll([](wire::Submit& submit) {
    submit.attempt = 2;
    submit.dense = 1;
  });
  DeliverAndRead();
  ExpectCommitted(2);
  for (int n = 0; n < 2; ++n) {
    EXPECT_EQ(ToldOf(n, 2), (Elements{kTold, 2 * kTold, 3 * kTold}));
  }
}

// Two launches on one node: the second has a result region of its own.
TEST_F(WrittenTest, OnlyThoseAreToldWhoseRegionIsBeingWritten) {
  generation_.world_size = 3;
  generation_.sites = {"a"};
  generation_.plan.swap = false;
  generation_.plan.trees = {{{0}}};
  generation_.members.pop_back();
  generation_.members[0].ranks = {0, 1, 2};
  generation_.members[0].attach_ids = {{1, 1}, {2, 1}, {3, 1}};
  const uint8_t* slots[3] = {x_.slot, y_.slot, x_.slot};
  uint8_t* results[3] = {x_.result, x_.result, y_.result};
  for (uint32_t rank = 0; rank < 3; ++rank) {
    wire::Hello hello = MakeHello(rank, 3);
    hello.slot_bytes = x_.bytes;
    if (rank == 2) SetText("run-2", hello.launch);
    Give(x_, TrainerHello{rank + 1,
                          hello,
                          {absl::MakeConstSpan(slots[rank], x_.bytes),
                           absl::MakeSpan(results[rank], x_.bytes)}});
  }
  Give(x_, protocol::CoordinatorMessage(
               protocol::StartGeneration{generation_, KeyOf(3)}));
  std::set<TrainerId> told, committed;
  for (TrainerId trainer = 1; trainer <= 3; ++trainer) {
    const TrainerMessage submit{trainer, OneBucket(10, kTold)};
    for (const Effect& effect : x_.state->Handle(submit, now_)) {
      const auto* send = std::get_if<SendTrainer>(&effect);
      if (send == nullptr) continue;
      if (std::holds_alternative<wire::Written>(send->message)) {
        told.insert(send->trainer);
      } else if (std::holds_alternative<wire::Committed>(send->message)) {
        committed.insert(send->trainer);
      }
    }
  }
  EXPECT_EQ(told, (std::set<TrainerId>{1, 2}));
  EXPECT_EQ(committed, (std::set<TrainerId>{1, 2, 3}));
}

}  // namespace
}  // namespace pactrain::agent
