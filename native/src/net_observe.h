// Everything that rtnetlink tells about the current network namespace, within bounds.
#pragma once

#include "net_ops.h"
#include "net_record.h"
#include "net_socket.h"

namespace privsep {

constexpr size_t kMaxLinks = 1024;
constexpr size_t kMaxAddresses = 64;  // of one link
constexpr size_t kMaxRoutes = 4096;   // of all tables but `local`

struct Inventory {
  std::vector<LinkRecord> links;
  std::vector<RouteRecord> routes;

  // Null when there is none of that name.
  LinkRecord* find(const std::string& name);
};

// E2BIG beyond a bound; EAGAIN when the namespace changed during each of three readings.
Result<Inventory> read_inventory(NetlinkSocket& route);
Result<NetworkState> describe(const Inventory& inventory);

}  // namespace privsep
