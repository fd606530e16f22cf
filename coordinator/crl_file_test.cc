#include "coordinator/crl_file.h"

#include <filesystem>
#include <fstream>

#include "absl/time/clock.h"
#include "base/log_capture.h"
#include "base/status_matchers.h"
#include "base/test_folder.h"
#include "base/tls/test_certs.h"

namespace pactrain::coordinator {
namespace {

using base::StatusIs;
using ::testing::HasSubstr;

class CrlFileTest : public ::testing::Test {
 protected:
  void Write(const std::string& contents) { std::ofstream(path_) << contents; }
  // How many are taken back after as many looks as fit into five seconds.
  size_t Look(CrlFile& file) {
    size_t size = 0;
    for (int i = 0; i < 5; ++i) {
      now_ += WatchedFile::kLookEvery;
      size = file.Get(now_, absl::Now())->size();
    }
    return size;
  }

  const std::string folder_ = base::MakeTestFolder();
  const std::string path_ = folder_ + "/crl.pem";
  const base::TestCa ca_{folder_};
  const base::TlsFiles a_ = ca_.Issue("a", "spiffe://pactrain/agent/a");
  const base::TlsFiles b_ = ca_.Issue("b", "spiffe://pactrain/agent/b");
  base::LogCapture log_;
  absl::Duration now_;
};

TEST_F(CrlFileTest, IsReadAnewWithinFiveSeconds) {
  Write(ca_.Revoke({}));
  ASSERT_OK_AND_ASSIGN(const auto file, CrlFile::Open(path_, a_.ca));
  EXPECT_EQ(Look(*file), 0u);
  Write(ca_.Revoke({a_, b_}));
  EXPECT_EQ(Look(*file), 2u);
  EXPECT_THAT(log_.text(), HasSubstr("read anew: 2 certificates"));
}

TEST_F(CrlFileTest, sec_ABadFileLeavesWhatWasReadBefore) {
  Write("nothing");
  EXPECT_THAT(CrlFile::Open(path_, a_.ca),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("crl.pem: there is no list")));
  Write(ca_.Revoke({a_}));
  ASSERT_OK_AND_ASSIGN(const auto file, CrlFile::Open(path_, a_.ca));
  Write("nothing");
  EXPECT_EQ(Look(*file), 1u);
  EXPECT_THAT(log_.text(),
              HasSubstr("there is no list (PEM 'X509 CRL'); what was read "
                        "before stays in force"));
}

TEST_F(CrlFileTest, sec_AListMayComeBeforeTheCaThatSignedIt) {
  Write(ca_.Revoke({}));
  const std::string cas = folder_ + "/cas.pem";
  std::filesystem::copy_file(a_.ca, cas);
  ASSERT_OK_AND_ASSIGN(const auto file, CrlFile::Open(path_, cas));
  const std::string other_folder = folder_ + "/next";
  ASSERT_TRUE(std::filesystem::create_directory(other_folder));
  const base::TestCa other(other_folder, "the next CA");
  const base::TlsFiles c = other.Issue("c", "spiffe://pactrain/agent/c");
  Write(ca_.Revoke({a_}) + other.Revoke({c}));
  EXPECT_EQ(Look(*file), 0u);
  EXPECT_THAT(log_.text(), HasSubstr("which is no CA of tls-ca"));
  std::ofstream(cas, std::ios::app) << std::ifstream(c.ca).rdbuf();
  EXPECT_EQ(Look(*file), 2u);
}

TEST_F(CrlFileTest, AListThatIsOutOfDateIsWarnedOfAndCounts) {
  Write(ca_.Revoke({a_}, -60));
  ASSERT_OK_AND_ASSIGN(const auto file, CrlFile::Open(path_, a_.ca));
  EXPECT_EQ(Look(*file), 1u);
  EXPECT_THAT(log_.text(), HasSubstr("is out of date since "));
}

}  // namespace
}  // namespace pactrain::coordinator
