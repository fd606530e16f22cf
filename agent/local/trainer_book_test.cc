#include "agent/local/trainer_book.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <sstream>

#include "agent/local/processes.h"
#include "asio/posix/stream_descriptor.hpp"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "base/test_folder.h"

namespace pactrain::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A process that lives until it is killed.
class Process {
 public:
  Process() : pid_(fork()) {
    while (pid_ == 0) pause();
  }
  ~Process() { Kill(); }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

class TrainerBookTest : public ::testing::Test {
 protected:
  // The agent's next process, and what it hears at once.
  void Start(const std::string& agent = "a") {
    gone_.clear();
    book_.reset();
    book_ = std::make_unique<TrainerBook>(
        io_, path_, agent,
        [this](const BookedTrainer& trainer) { gone_.push_back(trainer); });
    book_->Open();
  }
  static BookedTrainer Rank(uint32_t rank, pid_t process, uint64_t again = 1) {
    return {{"job", 2}, rank, {rank + 5, again}, process, 0, ""};
  }
  std::string Text() const {
    std::ifstream file(path_);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }

  const std::string path_ = base::MakeTestFolder() + "/agent.sock.trainers";
  asio::io_context io_;
  std::vector<BookedTrainer> gone_;
  std::unique_ptr<TrainerBook> book_;
};

TEST_F(TrainerBookTest, WhoDiedWithTheAgentIsKnownAndWhoLivesIsNot) {
  Process dies, lives;
  Start();
  book_->Attached(1, Rank(0, dies.pid()));
  book_->Attached(2, Rank(1, lives.pid()));
  dies.Kill();
  Start();
  ASSERT_EQ(gone_.size(), 1u);
  EXPECT_EQ(gone_[0].group, (protocol::GroupId{"job", 2}));
  EXPECT_EQ(gone_[0].rank, 0u);
  EXPECT_EQ(gone_[0].attach_id, Rank(0, 0).attach_id);
  EXPECT_THAT(gone_[0].left, HasSubstr("ended while its agent was away"));
  // Later it dies, too.
  lives.Kill();
  const absl::Duration end = base::MonotonicNow() + absl::Minutes(2);
  while (gone_.size() < 2 && base::MonotonicNow() < end) {
    io_.run_one_for(std::chrono::milliseconds(10));
  }
  ASSERT_EQ(gone_.size(), 2u);
  EXPECT_EQ(gone_[1].rank, 1u);
  EXPECT_THAT(gone_[1].left, HasSubstr("ended (process "));
  // The one after that knows both.
  Start();
  EXPECT_EQ(gone_.size(), 2u);
}

TEST_F(TrainerBookTest, WhoLeftBeforeIsToldAgainWithItsReason) {
  Process process;
  Start();
  book_->Attached(1, Rank(0, process.pid()));
  book_->Left(1, "detached");
  Start();
  ASSERT_EQ(gone_.size(), 1u);
  EXPECT_EQ(gone_[0].left, "detached");
}

TEST_F(TrainerBookTest, WhoAttachesAgainHasOneEntryAndIsNoLongerWatched) {
  Process process;
  Start();
  book_->Attached(1, Rank(0, process.pid(), 1));
  Start();
  book_->Attached(2, Rank(0, process.pid(), 2));
  book_->Left(1, "of the process before");
  process.Kill();
  io_.poll();
  EXPECT_THAT(gone_, IsEmpty());
  Start();
  ASSERT_EQ(gone_.size(), 1u);
  EXPECT_EQ(gone_[0].attach_id, Rank(0, 0, 2).attach_id);
}

// asio may hand a new descriptor the event of one that was closed in the same
// turn: here that of the second pipe comes to the process.
TEST_F(TrainerBookTest, WhoLivesIsNotTakenForDeadByAnEventOfAnother) {
  Process lives;
  Start();
  book_->Attached(1, Rank(0, lives.pid()));
  using Pipe = asio::posix::stream_descriptor;
  const auto readable = [&] {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    close(ends[1]);
    return Pipe(io_, ends[0]);
  };
  Pipe first = readable(), second = readable();
  first.async_wait(Pipe::wait_read, [&](const asio::error_code&) {
    second.close();
    Start();
  });
  second.async_wait(Pipe::wait_read, [](const asio::error_code&) {});
  for (int turn = 0; turn < 10; ++turn) {
    io_.run_one_for(std::chrono::milliseconds(1));
  }
  EXPECT_THAT(gone_, IsEmpty());
  lives.Kill();
  const absl::Duration end = base::MonotonicNow() + absl::Minutes(2);
  while (gone_.empty() && base::MonotonicNow() < end) {
    io_.run_one_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(gone_.size(), 1u);
}

TEST_F(TrainerBookTest, AnotherProcessOfTheNumberIsNotThatOne) {
  const std::optional<uint64_t> start = StartOf(getpid());
  ASSERT_TRUE(start);
  EXPECT_FALSE(FindFormer(getpid(), *start).dead);
  EXPECT_TRUE(FindFormer(getpid(), *start).process.valid());
  EXPECT_TRUE(FindFormer(getpid(), *start - 1).dead);
  Process gone;
  const pid_t pid = gone.pid();
  gone.Kill();
  EXPECT_TRUE(FindFormer(pid, 0).dead);
}

// Then numbers and times mean something else, and nothing is known.
TEST_F(TrainerBookTest, ABookOfAnotherAgentBootOrShapeSaysNothing) {
  const std::vector<BookedTrainer> trainers = {
      {{"job", 0}, 1, {2, 3}, 17, 99, "was killed by\nsignal 9"},
      {{"job", 0}, 2, {3, 3}, 18, 99, ""}};
  const std::string text = WriteBook("a", "boot/ns", trainers);
  const auto read = ReadBook(text, "a", "boot/ns");
  ASSERT_TRUE(read);
  EXPECT_EQ((*read)[0].left, "was killed by signal 9");
  EXPECT_EQ((*read)[1], trainers[1]);
  EXPECT_FALSE(ReadBook(text, "b", "boot/ns"));
  EXPECT_FALSE(ReadBook(text, "a", "boot2/ns"));
  EXPECT_FALSE(ReadBook(WriteBook("a", "", trainers), "a", ""));
  for (size_t bytes = 0; bytes < text.size(); ++bytes) {
    const auto part = ReadBook(text.substr(0, bytes), "a", "boot/ns");
    EXPECT_LT(part.value_or(std::vector<BookedTrainer>()).size(), 2u);
  }
  EXPECT_FALSE(ReadBook(text + "job 0 x\n", "a", "boot/ns"));
}

TEST_F(TrainerBookTest, AFileThatOthersMayWriteIsNotRead) {
  {
    Process process;
    Start();
    book_->Attached(1, Rank(0, process.pid()));
  }
  chmod(path_.c_str(), 0622);
  Start();
  EXPECT_THAT(gone_, IsEmpty());
}

TEST_F(TrainerBookTest, OfThoseThatAreGoneTheOldestAreForgotten) {
  Process process;
  Start();
  for (uint32_t rank = 0; rank < kMaxBookedGone + 3; ++rank) {
    book_->Attached(rank, Rank(rank, process.pid()));
    if (rank > 0) book_->Left(rank, "detached");
  }
  Start();
  EXPECT_EQ(gone_.size(), kMaxBookedGone);
  EXPECT_EQ(gone_.front().rank, 3u);
  process.Kill();
  Start();  // Rank 0 lived; told once, it is the oldest.
  EXPECT_EQ(gone_.size(), kMaxBookedGone + 1);
  Start();
  EXPECT_EQ(gone_.size(), kMaxBookedGone);
}

TEST_F(TrainerBookTest, AStartTimeIsReadBehindAnyName) {
  const std::string rest =
      " S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 21\n";
  EXPECT_EQ(ParseStart("17 (python3)" + rest), 4711u);
  EXPECT_EQ(ParseStart("17 (a) S 9 (b c)" + rest), 4711u);
  EXPECT_FALSE(ParseStart("17 (python3) S 1 2 3"));
  EXPECT_FALSE(ParseStart(""));
}

}  // namespace
}  // namespace pactrain::agent
