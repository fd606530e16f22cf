// pt_attach() against a fake agent, and against none.
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <future>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "trainer/fake_agent.h"
#include "trainer/pactrain.h"

namespace pactrain::trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using wire::Code;

pt_attach_options Options(const std::string& address) {
  pt_attach_options options = {};
  options.agent = address.c_str();
  options.job = "job";
  options.launch = "launch-1";
  options.world_size = 4;
  options.elements = 100000;
  options.attach_timeout_ms = 20000;
  options.gse = 1;
  return options;
}

// The text of a failed attach with this code.
std::string AttachError(const std::string& address, int expected,
                        uint32_t timeout_ms = 20000) {
  pt_attach_options options = Options(address);
  options.attach_timeout_ms = timeout_ms;
  pt_session* session = nullptr;
  EXPECT_EQ(pt_attach(&options, &session, nullptr, nullptr), expected);
  EXPECT_EQ(session, nullptr);
  return pt_last_error();
}

// A process of another user that listens at `path` until this goes.
class OtherUsersAgent {
 public:
  explicit OtherUsersAgent(const std::string& path) {
    int ready[2];
    EXPECT_EQ(pipe(ready), 0);
    pid_ = fork();
    if (pid_ == 0) {
      sockaddr_un name = {};
      name.sun_family = AF_UNIX;
      path.copy(name.sun_path, sizeof(name.sun_path) - 1);
      const int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
      if (setuid(65534) != 0 ||
          bind(fd, reinterpret_cast<sockaddr*>(&name), sizeof(name)) != 0 ||
          listen(fd, 8) != 0 || write(ready[1], "x", 1) != 1) {
        _exit(1);
      }
      while (true) pause();
    }
    close(ready[1]);
    char byte;
    EXPECT_EQ(read(ready[0], &byte, 1), 1);
    close(ready[0]);
  }
  ~OtherUsersAgent() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

 private:
  pid_t pid_;
};

TEST(AttachTest, SecWhoServesTheSocketIsAsked) {
  if (geteuid() != 0) GTEST_SKIP() << "needs to be root to be somebody else";
  char directory[] = "/tmp/pactrain-test-XXXXXX";
  const std::string folder = mkdtemp(directory);
  const std::string path = folder + "/agent.sock";
  const int refused = PT_REFUSED;
  // Where all may write as in /tmp: anybody can be the first.
  ASSERT_EQ(chmod(folder.c_str(), 01777), 0);
  {
    const OtherUsersAgent theirs(path);
    EXPECT_THAT(AttachError("unix:" + path, refused),
                HasSubstr("cannot be trusted: user 65534 serves it, who is "
                          "neither root nor this user nor the owner"));
  }
  unlink(path.c_str());
  // A folder in such a place.
  const std::string deep = folder + "/pactrain";
  ASSERT_EQ(mkdir(deep.c_str(), 0755), 0);
  ASSERT_EQ(chown(deep.c_str(), 65534, 65534), 0);
  {
    const OtherUsersAgent theirs(deep + "/agent.sock");
    EXPECT_THAT(AttachError("unix:" + deep + "/agent.sock", refused),
                HasSubstr(deep + " is of user 65534, who could replace it"));
    // The same, given by root: it is talked to, and says nothing.
    ASSERT_EQ(chmod(folder.c_str(), 0755), 0);
    EXPECT_THAT(
        AttachError("unix:" + deep + "/agent.sock", PT_AGENT_UNRESPONSIVE,
                    /*timeout_ms=*/200),
        Not(HasSubstr("cannot be trusted")));
  }
  std::filesystem::remove_all(folder);
}

TEST(AttachTest, TellsWhatIsPinnedFromWhichStepOn) {
  FakeAgent agent([](FakeAgent& a) {
    const wire::Hello hello = a.Accept();
    EXPECT_EQ(hello.pin_mode, PT_TERNARY);
    EXPECT_EQ(hello.pin_codec, PT_CODEC_LEVELS7);
    EXPECT_EQ(hello.pin_from, 20u);
    EXPECT_EQ(hello.declared_elements, 0u);
    a.SendAttached(FakeAgent::AttachedFor(hello));
    EXPECT_EQ(a.Receive<wire::Detach>().header.kind, wire::Kind::kDetach);
  });
  const std::string address = agent.address();
  pt_attach_options options = Options(address);
  options.pin_mode = PT_TERNARY;
  options.pin_codec = PT_CODEC_LEVELS7;
  options.pin_from = 20;
  pt_session* session = nullptr;
  ASSERT_EQ(pt_attach(&options, &session, nullptr, nullptr), PT_OK)
      << pt_last_error();
  pt_close(session);
}

TEST(AttachTest, AnOnsetOutOfRangeIsRefusedByName) {
  const std::string address = "unix:/nobody";
  pt_attach_options options = Options(address);
  pt_session* session = nullptr;
  options.kept_elements = 1;  // Of none.
  EXPECT_EQ(pt_attach(&options, &session, nullptr, nullptr),
            PT_INVALID_ARGUMENT);
  EXPECT_THAT(pt_last_error(), HasSubstr("kept_elements is 1, allowed 0 to 0"));
  options.kept_elements = 0;
  options.pin_from = 2'000'000'000;
  EXPECT_EQ(pt_attach(&options, &session, nullptr, nullptr),
            PT_INVALID_ARGUMENT);
  EXPECT_THAT(pt_last_error(), HasSubstr("pin_from is 2000000000"));
}

TEST(AttachTest, GivesWhatTheAgentSaid) {
  FakeAgent agent([](FakeAgent& a) {
    const wire::Hello hello = a.Accept();
    EXPECT_STREQ(hello.job, "job");
    EXPECT_STREQ(hello.launch, "launch-1");
    EXPECT_EQ(hello.slot_bytes, 4 * 100000 + 64 * 4096);
    a.SendWaiting("waiting for rank 3");
    a.SendWaiting("waiting for rank 3");
    a.SendAttached(FakeAgent::AttachedFor(hello));
    EXPECT_EQ(a.Receive<wire::Detach>().header.kind, wire::Kind::kDetach);
    EXPECT_TRUE(a.AtEnd());
  });
  std::vector<std::string> said;
  const std::string address = agent.address();
  const pt_attach_options options = Options(address);
  pt_session* session = nullptr;
  ASSERT_EQ(pt_attach(
                &options, &session,
                [](const char* text, void* arg) {
                  static_cast<std::vector<std::string>*>(arg)->push_back(text);
                },
                &said),
            PT_OK)
      << pt_last_error();
  EXPECT_THAT(said, ElementsAre("waiting for rank 3"));
  EXPECT_EQ(pt_generation(session), 3u);
  EXPECT_EQ(pt_lineage(session).hi, FakeAgent::kLineage.hi);
  EXPECT_EQ(pt_lineage_committed(session), 0u);
  EXPECT_EQ(pt_next_step(session), 7u);
  EXPECT_EQ(pt_world_size(session), 4u);
  EXPECT_STREQ(pt_site(session), "north");
  EXPECT_STREQ(pt_agent_name(session), "node-1");
  EXPECT_EQ(pt_step_deadline_ms(session), 60000u);
  pt_close(session);
}

TEST(AttachTest, WhoAttachesAgainIsKnownToBeTheSame) {
  FakeAgent agent([](FakeAgent& a) {
    const wire::Hello first = a.Accept();
    wire::Attached seat = FakeAgent::AttachedFor(first);
    std::fill(std::begin(seat.seat), std::end(seat.seat), uint8_t{7});
    a.SendAttached(seat);
    a.Hangup();
    const wire::Hello again = a.Accept();
    EXPECT_EQ(std::count(std::begin(first.seat), std::end(first.seat), 0), 32);
    EXPECT_EQ(std::count(std::begin(again.seat), std::end(again.seat), 7), 32);
    EXPECT_EQ(again.last_attach_id.lo, first.attach_id.lo);
    EXPECT_EQ(first.last_generation, 0u);
    EXPECT_EQ(again.last_generation, FakeAgent::AttachedFor(first).generation);
    EXPECT_EQ(again.attach_id.hi, first.attach_id.hi);
    EXPECT_NE(again.attach_id.lo, first.attach_id.lo);
    EXPECT_EQ(again.lineage.hi, FakeAgent::kLineage.hi);
    EXPECT_EQ(again.committed, 9u);
    a.SendAttached(FakeAgent::AttachedFor(again));
    a.Hangup();
  });
  const std::string address = agent.address();
  pt_attach_options options = Options(address);
  pt_session *first = nullptr, *again = nullptr;
  ASSERT_EQ(pt_attach(&options, &first, nullptr, nullptr), PT_OK);
  options.previous = first;
  options.lineage = pt_lineage(first);
  options.committed = 9;
  ASSERT_EQ(pt_attach(&options, &again, nullptr, nullptr), PT_OK);
  pt_close(first);
  pt_close(again);
}

TEST(AttachTest, AProcessReplacesTheJobOfAModelOnce) {
  FakeAgent agent([](FakeAgent& a) {
    EXPECT_EQ(a.Accept().replace, 1);
    a.SendFailed(~0ull, Code::kRefused, true, "not now.");
    for (const int replace : {1, 0, 0, 1}) {
      const wire::Hello hello = a.Accept();
      EXPECT_EQ(hello.replace, replace);
      a.SendAttached(FakeAgent::AttachedFor(hello));
      a.Hangup();
    }
  });
  const std::string address = agent.address();
  pt_attach_options options = Options(address);
  options.job = "replaced";
  options.replace = 1;
  pt_session* session = nullptr;
  EXPECT_EQ(pt_attach(&options, &session, nullptr, nullptr), PT_REFUSED);
  for (const uint32_t model : {0, 0, 0, 1}) {
    options.model = model;
    EXPECT_EQ(pt_attach(&options, &session, nullptr, nullptr), PT_OK);
    pt_close(session);
  }
}

TEST(AttachTest, OneWhoseLineageIsOverIsReplaced) {
  FakeAgent agent([](FakeAgent& a) {
    a.Accept();
    a.SendFailed(~0ull, Code::kReplaced, true, "launch 'b' replaced it.");
  });
  EXPECT_THAT(AttachError(agent.address(), PT_REPLACED),
              HasSubstr("was refused: launch 'b' replaced it."));
}

TEST(AttachTest, TimeoutNamesWhatWasWaitedFor) {
  std::promise<void> done;
  FakeAgent agent([&](FakeAgent& a) {
    a.Accept();
    a.SendWaiting("waiting for ranks 2, 3 of 4");
    done.get_future().wait();
  });
  EXPECT_THAT(AttachError(agent.address(), PT_COORDINATOR_UNAVAILABLE, 200),
              HasSubstr("waiting for ranks 2, 3 of 4"));
  done.set_value();
}

TEST(AttachTest, RefusalSaysWhy) {
  FakeAgent agent([](FakeAgent& a) {
    a.Accept();
    a.SendFailed(~0ull, Code::kRefused, true, "rank 1 has another model.");
  });
  EXPECT_EQ(AttachError(agent.address(), PT_REFUSED),
            "attach to job \"job\" was refused: rank 1 has another model.");
}

TEST(AttachTest, AgentThatDiesMeanwhileIsUnresponsive) {
  FakeAgent agent([](FakeAgent& a) {
    a.Accept();
    a.Die();
  });
  EXPECT_THAT(AttachError(agent.address(), PT_AGENT_UNRESPONSIVE),
              HasSubstr("closed the connection"));
  EXPECT_NE(access(agent.path().c_str(), F_OK), 0) << "its socket is there";
}

TEST(AttachTest, AgentThatHangsUpButLivesKeepsItsSocket) {
  FakeAgent agent([](FakeAgent& a) {
    a.Accept();
    a.Hangup();
  });
  EXPECT_THAT(AttachError(agent.address(), PT_AGENT_UNRESPONSIVE),
              HasSubstr("closed the connection"));
  EXPECT_EQ(access(agent.path().c_str(), F_OK), 0);
}

TEST(AttachTest, MissingAgentIsNamedWithItsPathAndWhatToDo) {
  const std::string error =
      AttachError("unix:/nonexistent/agent.sock", PT_AGENT_UNRESPONSIVE);
  EXPECT_THAT(error, HasSubstr("/nonexistent/agent.sock"));
  EXPECT_THAT(error, HasSubstr("Start pactrain-agent"));
}

TEST(AttachTest, StaleSocketIsToldFromAMissingOne) {
  char directory[] = "/tmp/pactrain-test-XXXXXX";
  const std::string path = std::string(mkdtemp(directory)) + "/agent.sock";
  {
    const base::Fd left(socket(AF_UNIX, SOCK_SEQPACKET, 0));
    sockaddr_un name = {};
    name.sun_family = AF_UNIX;
    std::memcpy(name.sun_path, path.data(), path.size());
    ASSERT_EQ(
        bind(left.get(), reinterpret_cast<sockaddr*>(&name), sizeof(name)), 0);
  }
  EXPECT_THAT(AttachError("unix:" + path, PT_AGENT_UNRESPONSIVE),
              HasSubstr("nobody listens"));
  unlink(path.c_str());
  rmdir(directory);
}

TEST(AttachTest, BadAddressesAndOptionsAreNamed) {
  EXPECT_THAT(AttachError("agent.sock", PT_INVALID_ARGUMENT),
              HasSubstr("absolute path"));
  EXPECT_THAT(
      AttachError("unix:/" + std::string(200, 'x'), PT_INVALID_ARGUMENT),
      HasSubstr("201 characters"));
  EXPECT_THAT(AttachError("", PT_INVALID_ARGUMENT),
              HasSubstr("agent is empty"));
  EXPECT_THAT(AttachError("unix:/x", PT_INVALID_ARGUMENT, 0),
              HasSubstr("attach_timeout"));
  pt_session* session = nullptr;
  EXPECT_EQ(pt_attach(nullptr, &session, nullptr, nullptr),
            PT_INVALID_ARGUMENT);
}

// What the trainer says to an Attached that comes with these memories: their
// bytes (0: as announced) and whether they are sealed.
std::string ErrorWith(std::vector<std::pair<uint64_t, bool>> memories) {
  FakeAgent agent([&](FakeAgent& a) {
    const wire::Attached attached = FakeAgent::AttachedFor(a.Accept());
    std::vector<base::Fd> owned;
    std::vector<int> fds;
    for (const auto& [bytes, sealed] : memories) {
      owned.push_back(FakeAgent::MakeMemory(
          bytes == 0 ? attached.slot_bytes : bytes, sealed));
      fds.push_back(owned.back().get());
    }
    a.SendWithFds(attached, fds);
    EXPECT_TRUE(a.AtEnd());
  });
  return AttachError(agent.address(), PT_INTERNAL);
}

TEST(AttachTest, MemoryThatCouldVanishIsRefused) {
  EXPECT_THAT(ErrorWith({}), HasSubstr("0 file descriptors"));
  EXPECT_THAT(ErrorWith({{0, true}}), HasSubstr("1 file descriptors"));
  EXPECT_THAT(ErrorWith({{0, false}, {0, true}}), HasSubstr("sealed"));
  EXPECT_THAT(ErrorWith({{0, true}, {0, false}}), HasSubstr("sealed"));
  EXPECT_THAT(ErrorWith({{4096, true}, {0, true}}),
              HasSubstr("the memfd has 4096 bytes"));
}

}  // namespace
}  // namespace pactrain::trainer
