#include "coordinator/store/record_tables.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "protocol/proto_check.h"
#include "protocol/proto_convert.h"

namespace pactrain::coordinator {

using protocol::Decision;
using protocol::GroupId;
using protocol::ReadDigest;
using protocol::WriteDigest;

namespace {

// Drops all but the newest kMaxHistory rows of a group.
absl::Status Prune(Database& db, absl::string_view table, absl::string_view key,
                   const GroupId& g) {
  return db.Write(
      absl::StrCat("DELETE FROM ", table, " WHERE job = ?1 AND model = ?2 AND ",
                   key, " NOT IN (SELECT ", key, " FROM ", table,
                   " WHERE job = ?1 AND model = ?2 ORDER BY ", key,
                   " DESC LIMIT ", kMaxHistory, ")"),
      g.job, g.model);
}

struct Writer {
  Database& db;

  absl::Status DeleteFrom(absl::string_view table, const GroupId& g) {
    return db.Write(
        absl::StrCat("DELETE FROM ", table, " WHERE job=? AND model=?"), g.job,
        g.model);
  }

  absl::Status InsertDecision(const GroupId& g, uint64_t generation,
                              const Decision& d) {
    RETURN_IF_ERROR(db.Write(
        "INSERT OR REPLACE INTO decisions VALUES (?,?,?,?,?,?,?,?,?,'')", g.job,
        g.model, d.version, generation, static_cast<uint64_t>(d.mode),
        static_cast<uint64_t>(d.codec), Blob{WriteDigest(d.mask_digest)},
        Blob{WriteDigest(d.layout_digest)}, d.reason));
    return Prune(db, "decisions", "version", g);
  }

  absl::Status operator()(const GenerationFormed& r) {
    const protocol::Generation& g = r.generation;
    RETURN_IF_ERROR(
        db.Write("INSERT INTO groups VALUES (?1,?2,?3,0,'',0,?4,?5,0,0,x'') "
                 "ON CONFLICT "
                 "DO UPDATE SET generation=?3, ended=0, end_reason='', "
                 "prepared_version=0, last_version=?4, "
                 "reserved_step=max(reserved_step, ?5)",
                 g.group.job, g.group.model, g.number, g.decision.version,
                 g.base_step + kReserveSteps));
    RETURN_IF_ERROR(
        db.Write("INSERT OR REPLACE INTO generations VALUES (?,?,?,?,'')",
                 g.group.job, g.group.model, g.number,
                 Blob{protocol::ToProto(g).SerializeAsString()}));
    RETURN_IF_ERROR(Prune(db, "generations", "number", g.group));
    RETURN_IF_ERROR(WriteAway(g.group, r.away));
    RETURN_IF_ERROR(DeleteFrom("detached_ranks", g.group));
    if (!g.donor) {
      RETURN_IF_ERROR(DeleteFrom("detached_of_launch", g.group));
    }
    return InsertDecision(g.group, g.number, g.decision);
  }

  absl::Status WriteAway(const GroupId& g, const std::vector<Holder>& away) {
    RETURN_IF_ERROR(DeleteFrom("holders_away", g));
    for (size_t place = 0; place < away.size(); ++place) {
      const Holder& holder = away[place];
      RETURN_IF_ERROR(db.Write(
          "INSERT INTO holders_away VALUES (?,?,?,?,?,?,?,?,?)", g.job, g.model,
          place, holder.rank, Blob{WriteDigest(holder.attach_id)}, holder.agent,
          Blob{WriteDigest(holder.incarnation)}, holder.site, holder.proves));
    }
    return absl::OkStatus();
  }

  absl::Status operator()(const LineageEnded& r) {
    RETURN_IF_ERROR(db.Write(
        "INSERT INTO ended_lineages VALUES (NULL,?,?,?,?,?)", r.group.job,
        r.group.model, Blob{WriteDigest(r.lineage)}, r.how, r.at));
    return Prune(db, "ended_lineages", "number", r.group);
  }

  absl::Status operator()(const GenerationEnded& r) {
    RETURN_IF_ERROR(
        db.Write("UPDATE groups SET ended=1, end_reason=?3, "
                 "prepared_version=0, reserved_step=?4 "
                 "WHERE job=?1 AND model=?2",
                 r.group.job, r.group.model, r.reason, r.next_step));
    return db.Write(
        "UPDATE generations SET end_reason=?4 "
        "WHERE job=?1 AND model=?2 AND number=?3",
        r.group.job, r.group.model, r.generation, r.reason);
  }

  absl::Status operator()(const DecisionMade& r) {
    RETURN_IF_ERROR(InsertDecision(r.group, r.generation, r.decision));
    return db.Write(
        "UPDATE groups SET prepared_version=?3, last_version=?3 "
        "WHERE job=?1 AND model=?2",
        r.group.job, r.group.model, r.decision.version);
  }

  absl::Status operator()(const DecisionRevoked& r) {
    RETURN_IF_ERROR(
        db.Write("UPDATE groups SET prepared_version=0 WHERE job=? AND model=?",
                 r.group.job, r.group.model));
    return db.Write(
        "UPDATE decisions SET revoke_reason=?4 "
        "WHERE job=?1 AND model=?2 AND version=?3",
        r.group.job, r.group.model, r.version, r.reason);
  }

  absl::Status operator()(const MaskSetStable& r) {
    RETURN_IF_ERROR(db.Write(
        "INSERT INTO mask_sets VALUES (NULL,?,?,?,?,?,?,?)", r.group.job,
        r.group.model, r.generation, Blob{WriteDigest(r.mask_digest)},
        Blob{WriteDigest(r.layout_digest)}, r.kept_elements, r.elements));
    return Prune(db, "mask_sets", "id", r.group);
  }

  absl::Status operator()(const StepsReserved& r) {
    return db.Write(
        "UPDATE groups SET reserved_step=?3 WHERE job=?1 AND model=?2",
        r.group.job, r.group.model, r.step);
  }

  absl::Status operator()(const TrainersDetached& r) {
    RETURN_IF_ERROR(DeleteFrom("detached_ranks", r.group));
    RETURN_IF_ERROR(DeleteFrom("detached_of_launch", r.group));
    for (const uint32_t rank : r.ranks) {
      RETURN_IF_ERROR(db.Write("INSERT INTO detached_ranks VALUES (?,?,?)",
                               r.group.job, r.group.model, rank));
    }
    for (const auto& [launch, ranks] : r.of_launch) {
      for (const uint32_t rank : ranks) {
        RETURN_IF_ERROR(
            db.Write("INSERT INTO detached_of_launch VALUES (?,?,?,?)",
                     r.group.job, r.group.model, launch, rank));
      }
    }
    return absl::OkStatus();
  }

  absl::Status operator()(const PinSet& r) {
    const Pin pin = r.pin.value_or(Pin{});
    return db.Write(
        "UPDATE groups SET pin_mode=?3, pin_codec=?4 "
        "WHERE job=?1 AND model=?2",
        r.group.job, r.group.model, r.pin ? static_cast<uint64_t>(pin.mode) : 0,
        r.pin ? static_cast<uint64_t>(pin.codec) : 0);
  }

  absl::Status operator()(const IdentityDenied& r) {
    return db.Write("INSERT OR REPLACE INTO denied VALUES (?,?,?)", r.who, r.by,
                    r.at);
  }

  absl::Status operator()(const IdentityReadmitted& r) {
    return db.Write("DELETE FROM denied WHERE who=?", r.who);
  }

  absl::Status operator()(const AgentDrained& r) {
    return db.Write("INSERT OR REPLACE INTO drained VALUES (?,?,?,?)", r.agent,
                    Blob{WriteDigest(r.incarnation)}, r.by, r.force);
  }

  absl::Status operator()(const AgentUndrained& r) {
    return db.Write("DELETE FROM drained WHERE agent=?", r.agent);
  }

  absl::Status operator()(const GroupForgotten& r) {
    for (const char* table :
         {"groups", "generations", "decisions", "mask_sets", "detached_ranks",
          "detached_of_launch", "ended_lineages", "holders_away"}) {
      RETURN_IF_ERROR(DeleteFrom(table, r.group));
    }
    return absl::OkStatus();
  }
};

absl::Status Damaged(const GroupId& group, absl::string_view what) {
  return absl::DataLossError(
      absl::StrCat("journal: job ", group.ToString(), ": ", what));
}

absl::StatusOr<Decision> ReadDecision(const Statement& row) {
  Decision d;
  d.version = row.Integer(0);
  d.mode = static_cast<protocol::Mode>(row.Integer(1));
  d.codec = static_cast<protocol::Codec>(row.Integer(2));
  ASSIGN_OR_RETURN(d.mask_digest,
                   ReadDigest("mask_digest", row.Text(3), false));
  ASSIGN_OR_RETURN(d.layout_digest,
                   ReadDigest("layout_digest", row.Text(4), false));
  d.reason = row.Text(5);
  return d;
}

absl::Status ReadGroup(Database& db, const GroupId& id, uint64_t generation,
                       uint64_t prepared_version, const std::string& lineage,
                       Recovered::Group& group) {
  bool found = false;
  RETURN_IF_ERROR(db.Prepare("SELECT record FROM generations WHERE job=? AND "
                             "model=? AND number=?",
                             id.job, id.model, generation)
                      .Run([&](const Statement& row) -> absl::Status {
                        v1::Generation proto;
                        if (!proto.ParseFromString(row.Text(0))) {
                          return Damaged(
                              id, "a generation record cannot be parsed");
                        }
                        if (!proto.has_lineage()) {
                          proto.mutable_lineage()->set_id(lineage);
                        }
                        auto read = protocol::FromProto(proto);
                        if (!read.ok())
                          return Damaged(id, read.status().message());
                        group.generation = *std::move(read);
                        found = true;
                        return absl::OkStatus();
                      }));
  if (!found)
    return Damaged(id, absl::StrCat("generation ", generation, " is missing"));
  return db
      .Prepare(
          "SELECT version, mode, codec, mask_digest, layout_digest, reason "
          "FROM "
          "decisions WHERE job=? AND model=? ORDER BY version DESC",
          id.job, id.model)
      .Run([&](const Statement& row) -> absl::Status {
        auto decision = ReadDecision(row);
        if (!decision.ok()) return Damaged(id, decision.status().message());
        if (decision->version == prepared_version) group.prepared = *decision;
        group.history.push_back(*std::move(decision));
        return absl::OkStatus();
      });
}

absl::Status ReadDetached(Database& db, const GroupId& id,
                          Recovered::Group& group) {
  RETURN_IF_ERROR(
      db.Prepare("SELECT rank FROM detached_ranks WHERE job=? AND model=?",
                 id.job, id.model)
          .Run([&](const Statement& row) {
            group.detached_ranks.insert(static_cast<uint32_t>(row.Integer(0)));
            return absl::OkStatus();
          }));
  return db
      .Prepare(
          "SELECT launch, rank FROM detached_of_launch "
          "WHERE job=? AND model=?",
          id.job, id.model)
      .Run([&](const Statement& row) {
        group.detached_of[row.Text(0)].insert(
            static_cast<uint32_t>(row.Integer(1)));
        return absl::OkStatus();
      });
}

absl::Status ReadLineages(Database& db, const GroupId& id,
                          Recovered::Group& group) {
  RETURN_IF_ERROR(db.Prepare("SELECT lineage, how, at FROM ended_lineages "
                             "WHERE job=? AND model=? ORDER BY number DESC",
                             id.job, id.model)
                      .Run([&](const Statement& row) -> absl::Status {
                        const auto lineage =
                            ReadDigest("lineage", row.Text(0), true);
                        if (!lineage.ok())
                          return Damaged(id, lineage.status().message());
                        group.ended_lineages.push_back(
                            {id, *lineage, row.Text(1), row.Text(2)});
                        return absl::OkStatus();
                      }));
  return db
      .Prepare(
          "SELECT rank, attach_id, agent, incarnation, site, proves "
          "FROM holders_away WHERE job=? AND model=? ORDER BY place",
          id.job, id.model)
      .Run([&](const Statement& row) -> absl::Status {
        const auto attach_id = ReadDigest("attach_id", row.Text(1), true);
        if (!attach_id.ok()) return Damaged(id, attach_id.status().message());
        const auto incarnation = ReadDigest("incarnation", row.Text(3), true);
        if (!incarnation.ok()) {
          return Damaged(id, incarnation.status().message());
        }
        group.away.push_back({static_cast<uint32_t>(row.Integer(0)), *attach_id,
                              row.Text(2), *incarnation, row.Text(4),
                              row.Integer(5) != 0});
        return absl::OkStatus();
      });
}

absl::Status ReadDrained(Database& db, Recovered& recovered) {
  return db.Prepare("SELECT agent, incarnation, by, force FROM drained")
      .Run([&](const Statement& row) -> absl::Status {
        const auto incarnation = ReadDigest("incarnation", row.Text(1), true);
        if (!incarnation.ok()) {
          return absl::DataLossError(
              absl::StrCat("journal: drained agent ", row.Text(0), ": ",
                           absl::string_view(incarnation.status().message())));
        }
        recovered.drained[row.Text(0)] = {row.Text(0), *incarnation,
                                          row.Text(2), row.Integer(3) != 0};
        return absl::OkStatus();
      });
}

// Nothing for mode 0.
absl::StatusOr<std::optional<Pin>> ReadPin(const GroupId& id, uint64_t mode,
                                           uint64_t codec) {
  if (mode == 0) return std::nullopt;
  const Pin pin = {static_cast<protocol::Mode>(mode),
                   static_cast<protocol::Codec>(codec)};
  if (mode > static_cast<uint64_t>(protocol::Mode::kTernary) || codec == 0 ||
      codec > static_cast<uint64_t>(protocol::kLastCodec) ||
      !CheckPin(pin).ok()) {
    return Damaged(id, absl::StrCat("pin of mode ", mode, ", codec ", codec));
  }
  return pin;
}

}  // namespace

absl::Status WriteRecord(Database& database, const JournalRecord& record) {
  return std::visit(Writer{database}, record);
}

absl::StatusOr<Recovered> ReadRecords(Database& db) {
  Recovered recovered;
  RETURN_IF_ERROR(db.Prepare("SELECT job, model, generation, ended, "
                             "end_reason, prepared_version, "
                             "last_version, reserved_step, pin_mode, "
                             "pin_codec, lineage FROM groups")
                      .Run([&](const Statement& row) -> absl::Status {
                        const GroupId id{row.Text(0),
                                         static_cast<uint16_t>(row.Integer(1))};
                        Recovered::Group& group = recovered.groups[id];
                        group.ended = row.Integer(3) != 0;
                        group.end_reason = row.Text(4);
                        group.last_version = row.Integer(6);
                        group.reserved_step = row.Integer(7);
                        ASSIGN_OR_RETURN(group.pin, ReadPin(id, row.Integer(8),
                                                            row.Integer(9)));
                        RETURN_IF_ERROR(ReadDetached(db, id, group));
                        RETURN_IF_ERROR(ReadLineages(db, id, group));
                        return ReadGroup(db, id, row.Integer(2), row.Integer(5),
                                         row.Text(10), group);
                      }));
  RETURN_IF_ERROR(db.Prepare("SELECT who, by, at FROM denied")
                      .Run([&](const Statement& row) {
                        recovered.denied[row.Text(0)] = {
                            row.Text(0), row.Text(1), row.Text(2)};
                        return absl::OkStatus();
                      }));
  RETURN_IF_ERROR(ReadDrained(db, recovered));
  return recovered;
}

}  // namespace pactrain::coordinator
