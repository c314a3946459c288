// Resolves a host name by a deadline, which getaddrinfo does not support.
#pragma once

#include <boost/asio/ip/address.hpp>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace vlcache {

struct NameLookup {
  std::vector<boost::asio::ip::address> addresses;
  std::string problem;  // why there are no addresses
};

// Asks the system's resolver, without a time limit.
NameLookup look_up_now(const std::string& host);

// The same with a timeout, after which `ask` runs on by itself; likewise once `cancelled`, asked about 20 times a
// second, says so. Any thread. At most kMaxLookups lookups run at once.
NameLookup look_up(const std::string& host, std::chrono::milliseconds timeout,
                   const std::function<NameLookup(const std::string&)>& ask = look_up_now,
                   const std::function<bool()>& cancelled = nullptr);

inline constexpr int kMaxLookups = 32;

}  // namespace vlcache
