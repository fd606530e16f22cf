#include <string>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "protocol/control.h"
#include "protocol/frame.h"
#include "protocol/limits.h"
#include "protocol/types.h"

namespace pactrain::protocol {
namespace {

using ::pactrain::base::StatusIs;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Member MakeMember(std::string agent, std::string site,
                  std::vector<uint32_t> ranks) {
  Member member;
  member.agent = std::move(agent);
  member.incarnation = {1, 2};
  member.site = std::move(site);
  member.data_address = "127.0.0.1:7000";
  for (uint32_t rank : ranks) member.attach_ids.push_back({3, rank});
  member.ranks = std::move(ranks);
  return member;
}

Generation ThreeSites() {
  Generation g;
  g.group = {"job", 0};
  g.lineage.id = {5, 5};
  g.term = 1;
  g.number = 1;
  g.world_size = 4;
  g.launch = "launch";
  g.sites = {"a", "b", "c"};
  g.members = {MakeMember("x", "a", {2}), MakeMember("y", "b", {0, 3}),
               MakeMember("z", "c", {1})};
  g.plan.trees = {{{1, 1, 1}}};
  return g;
}

TEST(Generation, AWholeOneIsAccepted) {
  EXPECT_OK(CheckGeneration(ThreeSites()));
  EXPECT_EQ(ThreeSites().SiteOf(2), 2);
  EXPECT_EQ(ThreeSites().MembersOfSite(1), std::vector<int>{1});
}

TEST(Generation, DigestCoversEverythingButTheReason) {
  const Digest base = ThreeSites().ComputeDigest();
  std::vector<Generation> others(14, ThreeSites());
  others[0].group.model = 1;
  others[1].term = 2;
  others[2].number = 2;
  others[3].launch = "other";
  others[4].base_step = 5;
  others[5].sites[0] = "aa";
  others[6].members[0].incarnation = {9, 9};
  others[7].members[1].attach_ids[0] = {9, 9};
  others[8].plan.trees[0].parent = {0, 0, 0};
  others[9].decision.codec = Codec::kBf16;
  others[10].decision.layout_digest = {1, 1};
  others[11].lineage.id = {9, 9};
  others[12].lineage.committed = 9;
  others[13].plan.even_chunks = !others[13].plan.even_chunks;
  for (const Generation& other : others) EXPECT_NE(other.ComputeDigest(), base);
  Generation same = ThreeSites();
  same.decision.reason = "in other words";
  EXPECT_EQ(same.ComputeDigest(), base);
}

TEST(Generation, EachDefectIsNamed) {
  struct Case {
    void (*spoil)(Generation&);
    const char* text;
  };
  const Case cases[] = {
      {[](Generation& g) { g.group.job = "Job"; }, "job"},
      {[](Generation& g) { g.group.model = kMaxModels; }, "model"},
      {[](Generation& g) { g.number = 0; }, "number"},
      {[](Generation& g) { g.world_size = 0; }, "world_size"},
      {[](Generation& g) { g.world_size = kMaxRanks + 1; }, "world_size"},
      {[](Generation& g) { g.world_size = 5; }, "4 ranks"},
      {[](Generation& g) { g.launch = std::string(64, 'x'); }, "launch"},
      {[](Generation& g) { g.sites.clear(); }, "sites"},
      {[](Generation& g) { std::swap(g.sites[0], g.sites[1]); }, "ascending"},
      {[](Generation& g) { g.sites.push_back("d"); }, "no member"},
      {[](Generation& g) { g.members.clear(); }, "members"},
      {[](Generation& g) { g.members[0].site = "q"; }, "not one of"},
      {[](Generation& g) { g.members[0].incarnation = {}; }, "incarnation"},
      {[](Generation& g) { g.members[0].data_address = ""; }, "data_address"},
      {[](Generation& g) { g.members[0].ranks = {}; }, "ranks"},
      {[](Generation& g) { g.members[0].ranks = {0}; }, "rank 0 is repeated"},
      {[](Generation& g) { g.members[0].ranks = {9}; }, "rank 9"},
      {[](Generation& g) {
         std::swap(g.members[1].ranks[0], g.members[1].ranks[1]);
       },
       "ascending"},
      {[](Generation& g) { std::swap(g.members[0], g.members[1]); }, "ordered"},
      {[](Generation& g) { g.plan.swap = true; }, "if and only if"},
      {[](Generation& g) {
         g.plan = {true, {}};
       },
       "two sites"},
      {[](Generation& g) {
         g.plan.trees[0].parent = {0, 0};
       },
       "2 sites"},
      {[](Generation& g) {
         g.plan.trees[0].parent = {0, 0, 3};
       },
       "parent 3"},
      {[](Generation& g) {
         g.plan.trees[0].parent = {0, 1, 1};
       },
       "2 roots"},
      {[](Generation& g) {
         g.plan.trees[0].parent = {0, 2, 1};
       },
       "cycle"},
      {[](Generation& g) { g.plan.trees.resize(33, g.plan.trees[0]); },
       "33 trees"},
      {[](Generation& g) { g.lineage.id = {}; }, "lineage: it has no id"},
      {[](Generation& g) { g.needs_state = {1}; }, "without a donor"},
      {[](Generation& g) { g.donor = g.world_size; }, "donor: rank"},
      {[](Generation& g) {
         g.donor = 1;
         g.needs_state = {1};
       },
       "needs the state itself"},
      {[](Generation& g) {
         g.donor = 0;
         g.needs_state = {2, 1};
       },
       "rank 1 is not ascending"},
  };
  for (const Case& c : cases) {
    Generation g = ThreeSites();
    c.spoil(g);
    EXPECT_THAT(CheckGeneration(g), StatusIs(kInvalid, HasSubstr(c.text)))
        << c.text;
  }
}

TEST(Name, OnlySmallLettersDigitsAndInnerPunctuation) {
  for (const char* good : {"a", "0", "job-1", "a.b_c", "x9"}) {
    EXPECT_OK(CheckName("job", good));
  }
  EXPECT_OK(CheckName("job", std::string(63, 'a')));
  for (const char* bad : {"", "-a", "a-", "A", "a b", "a/b", ".", "\xc3\xa4"}) {
    EXPECT_THAT(CheckName("job", bad), StatusIs(kInvalid, HasSubstr("job")));
  }
  EXPECT_FALSE(CheckName("job", std::string(64, 'a')).ok());
}

TEST(Moved, sec_limits_WordsOfWhatMoved) {
  EXPECT_OK(CheckMoved("moved", ""));
  EXPECT_OK(CheckMoved("moved", std::string(kMaxMoved, '~')));
  EXPECT_THAT(
      CheckMoved("moved", std::string(kMaxMoved + 1, 'm')),
      StatusIs(kInvalid, HasSubstr("moved has 201 bytes; at most 200")));
  for (const char* bad : {"\n", "\x1b[2J", "\x7f", "\xc3\xa4"}) {
    EXPECT_THAT(CheckMoved("moved", bad),
                StatusIs(kInvalid, HasSubstr("not all printable")));
  }
}

FrameHeader DataHeader() {
  FrameHeader h;
  h.context = {0x0102030405060708, 0x090a0b0c0d0e0f10};
  h.step = 1ull << 40;
  h.attempt = 2;
  h.model = 3;
  h.bucket = 4;
  h.chunk = 5;
  h.frame = 31;
  h.leg = Leg::kUp;
  h.codec = Codec::kBf16;
  h.source = 7;
  h.bytes = 4096;
  h.elements = 2048;
  h.payload_crc = 0xdeadbeef;
  return h;
}

TEST(Header, RoundTrips) {
  uint8_t bytes[kHeaderBytes];
  EncodeHeader(DataHeader(), bytes);
  EXPECT_EQ(bytes[0], 'P');
  ASSERT_OK_AND_ASSIGN(FrameHeader back, DecodeHeader(bytes));
  EXPECT_EQ(back, DataHeader());
}

TEST(Codecs, EachHasANameAndTravelsInHeadersAndContexts) {
  const char* const kNames[] = {"fp32",     "bf16",      "3 levels", "5 levels",
                                "7 levels", "15 levels", "31 levels"};
  for (int number = 1; number <= static_cast<int>(kLastCodec); ++number) {
    const auto codec = static_cast<Codec>(number);
    EXPECT_EQ(CodecName(codec), kNames[number - 1]);
    FrameHeader header = DataHeader();
    header.codec = codec;
    uint8_t bytes[kHeaderBytes];
    EncodeHeader(header, bytes);
    ASSERT_OK_AND_ASSIGN(FrameHeader header_back, DecodeHeader(bytes));
    EXPECT_EQ(header_back, header);
    BucketContext context;
    context.codec = codec;
    const PeerControl notice =
        GroupControl{{"job", 0}, ContextNotice{0, context}};
    const std::string text = EncodeControl(notice);
    ASSERT_OK_AND_ASSIGN(
        PeerControl back,
        DecodeControl(absl::MakeConstSpan(
            reinterpret_cast<const uint8_t*>(text.data()), text.size())));
    EXPECT_EQ(back, notice);
  }
}

TEST(Header, EveryFlippedBitIsDataLoss) {
  uint8_t bytes[kHeaderBytes];
  EncodeHeader(DataHeader(), bytes);
  for (size_t bit = 0; bit < kHeaderBytes * 8; ++bit) {
    bytes[bit / 8] ^= 1 << (bit % 8);
    EXPECT_THAT(DecodeHeader(bytes),
                StatusIs(absl::StatusCode::kDataLoss, testing::_));
    bytes[bit / 8] ^= 1 << (bit % 8);
  }
}

// Each field at its limit and one above.
TEST(Header, sec_limits_FieldsOfAFrame) {
  const auto expect_limit = [](void (*set)(FrameHeader&, int above),
                               const char* field) {
    for (const int above : {0, 1}) {
      FrameHeader h = DataHeader();
      set(h, above);
      uint8_t bytes[kHeaderBytes];
      EncodeHeader(h, bytes);
      EXPECT_THAT(DecodeHeader(bytes),
                  StatusIs(above ? kInvalid : absl::StatusCode::kOk,
                           HasSubstr(above ? field : "")));
    }
  };
  static constexpr auto kNext = [](auto last, int above) {
    return static_cast<decltype(last)>(static_cast<int>(last) + above);
  };
  expect_limit([](FrameHeader& h, int n) { h.leg = kNext(Leg::kSwap, n); },
               "leg");
  expect_limit([](FrameHeader& h, int n) { h.leg = kNext(Leg::kControl, n); },
               "leg");
  expect_limit([](FrameHeader& h, int n) { h.codec = kNext(kLastCodec, n); },
               "codec");
  expect_limit(
      [](FrameHeader& h, int n) {
        h.leg = Leg::kControl;
        h.after = n;
      },
      "after");
  expect_limit([](FrameHeader& h, int n) { h.bytes = kMaxFramePayload + n; },
               "bytes");
  expect_limit([](FrameHeader& h, int n) { h.elements = kChunkElements + n; },
               "elements");
  expect_limit(
      [](FrameHeader& h, int n) {
        h.leg = Leg::kControl;
        h.bytes = kMaxControlMessage + n;
      },
      "bytes");
}

std::vector<PeerControl> OneOfEach() {
  const Digest g{1, 2};
  const CommitVote vote{g, 1, 77, 2, {3, 4}, {5, 6}, 9};
  const Abort abort{
      g, 1, 77, 2, Cause::kLayout, "site a has 5, site b 6", true, vote, true};
  const Certificate certificate{g, 1, 77, 2, {3, 4}, 9};
  BucketContext context;
  context.generation = g;
  context.bucket = 3;
  context.elements = 1000;
  context.bucket_layout = {7, 7};
  context.mode = Mode::kCompacted;
  context.mask_digest = {8, 8};
  context.op = Op::kXor;
  context.dtype = "float32";
  const GroupId group{"job", 1};
  return {PeerHello{"agent-a", {1, 1}, "cluster", "agent-b", 7, {2, 3}, 4},
          Ping{42, true},
          KeyProof{g, {1, 2, 3}},
          LaneProof{{4, 5, 6}},
          GroupControl{group, vote},
          GroupControl{group, abort},
          GroupControl{group, certificate},
          GroupControl{group, ContextNotice{1, context}},
          GroupControl{group, Ready{g, 1, true}},
          GroupControl{group, Late{g, 1, 77, 2, "rank 3 is late"}}};
}

absl::Span<const uint8_t> Bytes(const std::string& s) {
  return absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(s.data()),
                             s.size());
}

TEST(Control, EachKindRoundTrips) {
  for (const PeerControl& control : OneOfEach()) {
    const std::string bytes = EncodeControl(control);
    ASSERT_OK_AND_ASSIGN(PeerControl back, DecodeControl(Bytes(bytes)));
    EXPECT_EQ(back, control);
  }
}

TEST(Control, CutAtAnyByteOrLongerIsRefused) {
  for (const PeerControl& control : OneOfEach()) {
    const std::string bytes = EncodeControl(control);
    for (size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_THAT(DecodeControl(Bytes(bytes).first(size)),
                  StatusIs(kInvalid, HasSubstr("cut short")));
    }
    const std::string longer = bytes + '\0';
    EXPECT_THAT(DecodeControl(Bytes(longer)),
                StatusIs(kInvalid, HasSubstr("left over")));
  }
}

TEST(Control, UnknownKindsAndValuesAreRefused) {
  std::string bytes = EncodeControl(OneOfEach()[4]);
  for (uint8_t kind : {0, 11, 255}) {
    bytes[0] = static_cast<char>(kind);
    EXPECT_THAT(DecodeControl(Bytes(bytes)),
                StatusIs(kInvalid, HasSubstr("kind")));
  }
  bytes = EncodeControl(OneOfEach()[1]);
  bytes.back() = 2;
  EXPECT_THAT(DecodeControl(Bytes(bytes)),
              StatusIs(kInvalid, HasSubstr("echo")));
}

TEST(Control, sec_limits_ControlPayload) {
  // Whole, and then too long for what it is.
  EXPECT_THAT(DecodeControl(Bytes(std::string(kMaxControlMessage, '\1'))),
              StatusIs(kInvalid, HasSubstr("agent has 257 bytes")));
  EXPECT_THAT(DecodeControl(Bytes(std::string(kMaxControlMessage + 1, '\1'))),
              StatusIs(kInvalid, HasSubstr("at most 1048576")));
}

TEST(Control, ALongReasonIsCutNotRefused) {
  GroupControl control{{"job", 0}, Abort{}};
  std::get<Abort>(control.body).detail = std::string(10000, 'x');
  const std::string bytes = EncodeControl(control);
  ASSERT_OK_AND_ASSIGN(PeerControl back, DecodeControl(Bytes(bytes)));
  EXPECT_EQ(std::get<Abort>(std::get<GroupControl>(back).body).detail.size(),
            kMaxTextLength);
}

TEST(Context, EveryFieldIsInTheDigest) {
  const BucketContext base;
  std::vector<BucketContext> others(12);
  others[0].generation = {1, 1};
  others[1].model = 1;
  others[2].bucket = 1;
  others[3].elements = 1;
  others[4].bucket_layout = {1, 1};
  others[5].decision_version = 1;
  others[6].mode = Mode::kCompacted;
  others[7].dense = true;
  others[8].codec = Codec::kBf16;
  others[9].mask_digest = {1, 1};
  others[10].op = Op::kXor;
  others[11].dtype = "bfloat16";
  for (const BucketContext& other : others) {
    EXPECT_NE(other.ComputeDigest(), base.ComputeDigest());
  }
}

AuditHead HeadOf(uint64_t term, uint64_t number) {
  AuditHead head = {term, number, std::string(kAuditHashBytes, 'h')};
  head.proof.bytes.fill(7);
  return head;
}

TEST(AuditHeads, TheNewestOfEachTermIsKept) {
  std::vector<AuditHead> heads;
  for (const AuditHead& head :
       {AuditHead(), HeadOf(1, 5), HeadOf(1, 9), HeadOf(1, 7), HeadOf(2, 3)}) {
    KeepHead(head, heads);
  }
  EXPECT_EQ(heads, (std::vector<AuditHead>{HeadOf(1, 9), HeadOf(2, 3)}));
}

TEST(AuditHeads, OfTooManyTheOldestGoesThatShowsNoCut) {
  std::vector<AuditHead> heads = {HeadOf(1, 1000)};
  for (uint64_t term = 2; heads.size() < kMaxAuditHeads; ++term) {
    KeepHead(HeadOf(term, term), heads);
  }
  KeepHead(HeadOf(99, 99), heads);
  EXPECT_EQ(heads.size(), kMaxAuditHeads);
  EXPECT_EQ(heads[0], HeadOf(1, 1000));
  EXPECT_EQ(heads[1], HeadOf(3, 3));
  EXPECT_EQ(heads.back(), HeadOf(99, 99));
}

TEST(AuditHeads, AFileHoldsThemAndNothingElse) {
  const KeptHeads kept = {
      "a", std::string(32, 'c'), {HeadOf(1, 5), HeadOf(2, 7)}};
  const std::string text = WriteHeads(kept);
  ASSERT_OK_AND_ASSIGN(const KeptHeads back, ReadHeads(text));
  EXPECT_EQ(back.agent, "a");
  EXPECT_EQ(back.cluster, kept.cluster);
  EXPECT_EQ(back.heads, kept.heads);
  std::string many = text;
  for (size_t i = 0; i < kMaxAuditHeads; ++i) {
    many += text.substr(text.find("2 7 "));
  }
  for (const std::string& bad :
       {std::string(), text.substr(1), text.substr(0, text.size() - 1),
        text + "3 0 x y\n", many}) {
    EXPECT_THAT(ReadHeads(bad).status(), StatusIs(kInvalid, HasSubstr("")));
  }
}

}  // namespace
}  // namespace pactrain::protocol
