// Columns and figures as people read them.
#ifndef PACTRAIN_COORDINATOR_ADMIN_TABLE_H_
#define PACTRAIN_COORDINATOR_ADMIN_TABLE_H_

#include <cstdint>
#include <string>
#include <vector>

namespace pactrain::coordinator {

using Row = std::vector<std::string>;

// Columns two blanks apart; the last one is not padded.
std::string Table(const std::vector<Row>& rows);

// Of bytes per second: "9.5 Mbit/s".
std::string RateText(double rate);

}  // namespace pactrain::coordinator

#endif  // PACTRAIN_COORDINATOR_ADMIN_TABLE_H_
