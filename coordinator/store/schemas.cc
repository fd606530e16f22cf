// The tables of each schema version; what was released is never changed.
#include "coordinator/store/record_tables.h"

namespace pactrain::coordinator {
namespace {

// `generation` and the steps are the newest; `prepared_version` is 0 for none.
constexpr char kSchema1[] = R"sql(
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE groups (
  job TEXT NOT NULL, model INTEGER NOT NULL,
  generation INTEGER NOT NULL, ended INTEGER NOT NULL, end_reason TEXT NOT NULL,
  prepared_version INTEGER NOT NULL, last_version INTEGER NOT NULL,
  reserved_step INTEGER NOT NULL,
  PRIMARY KEY (job, model)) WITHOUT ROWID;
CREATE TABLE generations (
  job TEXT NOT NULL, model INTEGER NOT NULL, number INTEGER NOT NULL,
  record BLOB NOT NULL,  -- pactrain.v1.Generation
  end_reason TEXT NOT NULL,
  PRIMARY KEY (job, model, number));
CREATE TABLE decisions (
  job TEXT NOT NULL, model INTEGER NOT NULL, version INTEGER NOT NULL,
  generation INTEGER NOT NULL, mode INTEGER NOT NULL, codec INTEGER NOT NULL,
  mask_digest BLOB NOT NULL, layout_digest BLOB NOT NULL, reason TEXT NOT NULL,
  revoke_reason TEXT NOT NULL,
  PRIMARY KEY (job, model, version)) WITHOUT ROWID;
CREATE TABLE mask_sets (
  id INTEGER PRIMARY KEY,
  job TEXT NOT NULL, model INTEGER NOT NULL, generation INTEGER NOT NULL,
  mask_digest BLOB NOT NULL, layout_digest BLOB NOT NULL,
  kept_elements INTEGER NOT NULL, elements INTEGER NOT NULL);
CREATE INDEX mask_sets_group ON mask_sets (job, model, id);
)sql";

// What an operator pinned; mode 0 for nothing.
constexpr char kSchema2[] = R"sql(
ALTER TABLE groups ADD COLUMN pin_mode INTEGER NOT NULL DEFAULT 0;
ALTER TABLE groups ADD COLUMN pin_codec INTEGER NOT NULL DEFAULT 0;
)sql";

// The audit log (audit_table.h). What was cut, and the newest line, are in
// audit_ends: number 0 and an empty hash before the first.
constexpr char kSchema3[] = R"sql(
CREATE TABLE audit (
  number INTEGER PRIMARY KEY, at TEXT NOT NULL, kind TEXT NOT NULL,
  who TEXT NOT NULL, serial TEXT NOT NULL, job TEXT NOT NULL,
  what TEXT NOT NULL, why TEXT NOT NULL, hash BLOB NOT NULL);
CREATE TABLE audit_ends (
  name TEXT PRIMARY KEY, number INTEGER NOT NULL, hash BLOB NOT NULL)
  WITHOUT ROWID;
INSERT INTO audit_ends VALUES ('cut', 0, x''), ('newest', 0, x'');
)sql";

// Who has detached: ranks of the newest generation, and those that trainers of
// a launch asked for.
constexpr char kSchema4[] = R"sql(
CREATE TABLE detached_ranks (
  job TEXT NOT NULL, model INTEGER NOT NULL, rank INTEGER NOT NULL,
  PRIMARY KEY (job, model, rank)) WITHOUT ROWID;
CREATE TABLE detached_of_launch (
  job TEXT NOT NULL, model INTEGER NOT NULL, launch TEXT NOT NULL,
  rank INTEGER NOT NULL,
  PRIMARY KEY (job, model, launch, rank)) WITHOUT ROWID;
)sql";

// Lineages that are over, and who may hold a state of the newest one without
// being of the newest generation. Generations that were written before have no
// lineage in their record: they get one that is over, since nobody can claim
// it.
constexpr char kSchema5[] = R"sql(
ALTER TABLE groups ADD COLUMN lineage BLOB NOT NULL DEFAULT x'';
CREATE TABLE ended_lineages (
  number INTEGER PRIMARY KEY,
  job TEXT NOT NULL, model INTEGER NOT NULL, lineage BLOB NOT NULL,
  how TEXT NOT NULL, at TEXT NOT NULL);
CREATE INDEX ended_lineages_group ON ended_lineages (job, model, number);
CREATE TABLE holders_away (
  job TEXT NOT NULL, model INTEGER NOT NULL, place INTEGER NOT NULL,
  rank INTEGER NOT NULL, attach_id BLOB NOT NULL, agent TEXT NOT NULL,
  incarnation BLOB NOT NULL, site TEXT NOT NULL,
  PRIMARY KEY (job, model, place)) WITHOUT ROWID;
UPDATE groups SET lineage = randomblob(16);
INSERT INTO ended_lineages
  SELECT NULL, job, model, lineage, 'an older PacTrain kept none', 'its end'
  FROM groups;
)sql";

// Openings that wrote batches of records (coordinator/core/history.h).
constexpr char kSchema6[] = R"sql(
CREATE TABLE writers (
  number INTEGER PRIMARY KEY, id BLOB NOT NULL UNIQUE,
  batches INTEGER NOT NULL);
)sql";

// Who may do nothing, by an operator's word.
constexpr char kSchema7[] = R"sql(
CREATE TABLE denied (who TEXT PRIMARY KEY, by TEXT NOT NULL, at TEXT NOT NULL)
  WITHOUT ROWID;
)sql";

// Processes of agents that take no trainers, by an operator's word.
constexpr char kSchema8[] = R"sql(
CREATE TABLE drained (
  agent TEXT PRIMARY KEY, incarnation BLOB NOT NULL, by TEXT NOT NULL,
  force INTEGER NOT NULL) WITHOUT ROWID;
)sql";

// Whether those who may hold a state were told the secrets of their seats.
constexpr char kSchema9[] = R"sql(
ALTER TABLE holders_away ADD COLUMN proves INTEGER NOT NULL DEFAULT 0;
)sql";

}  // namespace

const char* const kMigrations[kSchemaVersion] = {kSchema1, kSchema2, kSchema3,
                                                 kSchema4, kSchema5, kSchema6,
                                                 kSchema7, kSchema8, kSchema9};

}  // namespace pactrain::coordinator
